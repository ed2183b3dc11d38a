// Raw instructions of the matrix units, from sm_80 on.
#pragma once

#include <cstdint>

namespace verbatim::ops::cuda::ptx {

// Four 8 x 8 tiles of 16-bit elements from shared memory; lane l gives the address of row l % 8 of tile l / 8.
__device__ inline void ldmatrix_x4(uint32_t (&r)[4], const void* row) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}

// Two tiles; lanes 0 to 15 give addresses.
__device__ inline void ldmatrix_x2(uint32_t (&r)[2], const void* row) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "r"(address));
}

// c += a b: a [16, 16] and b [16, 8] bfloat16, c [16, 8] float32.
__device__ inline void mma_m16n8k16_bf16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ inline void mma_m16n8k16_bf16(float (&c)[4], const uint32_t (&a)[4], uint2 b) {
  const uint32_t both[2] = {b.x, b.y};
  mma_m16n8k16_bf16(c, a, both);
}

}  // namespace verbatim::ops::cuda::ptx
