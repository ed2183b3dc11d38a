// Rows of bfloat16 in shared memory, multiples of 128 bytes apart: sixteen-byte pieces are exchanged inside each eight
// by the row, so that one piece of eight rows lies in all banks.
#pragma once

#include <cstdint>

#include "ops/cuda/ptx/bf16.cuh"

namespace verbatim::ops::cuda {

// Bytes from one row of `columns` elements to the next.
__host__ __device__ constexpr int swizzled_row_bytes(int64_t columns) {
  return static_cast<int>((columns + 63) / 64 * 128);
}

__device__ inline uint8_t* swizzled(uint8_t* base, int row, int piece, int row_bytes) {
  return base + row * row_bytes + ((piece ^ (row & 7)) << 4);
}

// Rounds `columns` (a multiple of 8) float32 of each of `rows` rows, from(row), to pieces of sixteen bytes, to(row,
// piece); rows from `valid` on are 0. kWarps warps take whole rows.
template <int kWarps, class To, class From>
__device__ inline void round_rows(const To& to, int rows, int valid, int columns, const From& from) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll 2
  for (int row = warp; row < rows; row += kWarps) {
    const float* x = row < valid ? from(row) : nullptr;
#pragma unroll 2
    for (int piece = lane; piece < columns / 8; piece += 32) {
      uint4 packed = {};
      if (x != nullptr) {
        const float4 a = reinterpret_cast<const float4*>(x)[2 * piece];
        const float4 b = reinterpret_cast<const float4*>(x)[2 * piece + 1];
        packed.x = ptx::pack_bf16(a.x, a.y);
        packed.y = ptx::pack_bf16(a.z, a.w);
        packed.z = ptx::pack_bf16(b.x, b.y);
        packed.w = ptx::pack_bf16(b.z, b.w);
      }
      *reinterpret_cast<uint4*>(to(row, piece)) = packed;
    }
  }
}

}  // namespace verbatim::ops::cuda
