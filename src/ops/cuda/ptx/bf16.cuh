// Raw instructions that move bfloat16 between registers and shared memory, from sm_80 on.
#pragma once

#include <cstdint>

namespace verbatim::ops::cuda::ptx {

// Both rounded to nearest, ties to even; `low` in the low half.
__device__ inline uint32_t pack_bf16(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

// Four 8 x 8 tiles of 16-bit elements, each transposed; lane l gives the address of row l % 8 of tile l / 8.
__device__ inline void ldmatrix_x4_transposed(uint32_t (&r)[4], const void* row) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}

}  // namespace verbatim::ops::cuda::ptx
