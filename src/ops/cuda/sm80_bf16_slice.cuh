// One slice of a product on the matrix units for few columns: all bytes of the slice are asked for at once (BF16
// straight to shared memory, NVFP4 to registers, where it is decoded), so that many blocks keep the memory busy. 128
// threads; (64 + kN) * 528 bytes of shared memory. The same chain as in sm80_bf16_tile.cuh, so the same bits.
#pragma once

#include <cuda_bf16.h>

#include "ops/cuda/ptx/async_copy.cuh"
#include "ops/cuda/sm80_bf16_tile.cuh"

namespace verbatim::ops::cuda {

inline constexpr int kSlicePitch = static_cast<int>(kSliceColumns) + 8;

template <int kN>
struct SliceShared {
  uint16_t weights[kTileOutputs][kSlicePitch];
  uint16_t x[kN][kSlicePitch];
};

// True if slices of the matrix can be read sixteen bytes at a time: else bf16_tile takes them.
__device__ inline bool slices_are_aligned(const Weights& w, int parts) {
  const int64_t length = w.columns / parts;
  if (w.row_bytes % 16 != 0 || reinterpret_cast<uintptr_t>(w.data) % 16 != 0) return false;
  if (w.form == WeightForm::kBf16) return length % kTileStep == 0;
  return w.form == WeightForm::kNvfp4 && length % 128 == 0 && w.first_column_in_block == 0 &&
         w.block_scale_stride % 8 == 0 && reinterpret_cast<uintptr_t>(w.block_scale) % 8 == 0;
}

// Eight codes (one word, ascending from the low nibble) times a scale, as four pairs: a code's three low bits at the
// top of the mantissa are the value times 2^-126, which 2^120 and then scale * 2^6 bring back; nothing is rounded.
__device__ inline void decode_nvfp4(uint32_t codes, __nv_bfloat162 scale, uint32_t* pairs) {
  const __nv_bfloat162 lift = __float2bfloat162_rn(0x1p120f);
  const uint32_t odd = codes >> 4;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    // The even code's byte in the lower half, the odd one's in the upper; what else stands there is masked out.
    const uint32_t two = __byte_perm(codes, odd, j | (j + 4) << 8);
    const uint32_t bits = ((two << 6) & 0x01c001c0u) | ((two << 12) & 0x80008000u);
    const __nv_bfloat162 value = __hmul2(__hmul2(*reinterpret_cast<const __nv_bfloat162*>(&bits), lift), scale);
    pairs[j] = *reinterpret_cast<const uint32_t*>(&value);
  }
}

template <WeightForm kForm, int kN>
__device__ void bf16_slice(const Weights& w, const TileColumns& c, int64_t first_output, int64_t first_column,
                           int parts, int part, int64_t slices, int64_t slice, SliceShared<kN>& shared) {
  static_assert(kForm == WeightForm::kBf16 || kForm == WeightForm::kNvfp4);
  constexpr int kTiles = kN / 8, kSteps = static_cast<int>(kSliceColumns) / kTileStep;
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int64_t length = w.columns / parts, from = part * length;
  const int64_t begin = from + slice * kSliceColumns, left = from + length - begin;
  const int width = static_cast<int>(left < kSliceColumns ? (left > 0 ? left : 0) : kSliceColumns);
  const int64_t columns = c.count * c.terms;

  // Rows of x: kN * 8 pieces of 16 bytes a step. A row that is not there is left as it is: no other sees it.
  const auto copy_x = [&](int step) {
    for (int i = thread; i < kN * 8; i += kTileThreads) {
      const int64_t column = first_column + i / 8;
      if (column >= columns) continue;
      const int64_t term = column / c.count, place = c.first + column % c.count;
      const uint16_t* x = c.x + (term * c.x_term_rows + (c.source == nullptr ? place : c.source[place])) * c.x_stride;
      const int k = step * kTileStep + i % 8 * 8;
      ptx::copy_16_bytes(&shared.x[i / 8][k], x + begin + k);
    }
  };
  if constexpr (kForm == WeightForm::kBf16) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (step * kTileStep < width) {
#pragma unroll
        for (int i = 0; i < kTileOutputs * 8 / kTileThreads; ++i) {
          const int row = i * (kTileThreads / 8) + thread / 8, k = step * kTileStep + thread % 8 * 8;
          if (first_output + row < w.rows)
            ptx::copy_16_bytes(&shared.weights[row][k], w.data + (first_output + row) * w.row_bytes + 2 * (begin + k));
        }
        copy_x(step);
      }
      ptx::close_copy_group();
    }
  } else {
    // A thread takes 128 columns of a row.
    const int row = thread / 2, k = thread % 2 * 128;
    uint4 codes[4];
    uint2 scales = make_uint2(0, 0);
    const bool mine = first_output + row < w.rows && k < width;
    if (mine) {
      const auto* data = reinterpret_cast<const uint4*>(w.data + (first_output + row) * w.row_bytes + (begin + k) / 2);
#pragma unroll
      for (int i = 0; i < 4; ++i) codes[i] = __ldcs(data + i);
      scales = __ldcs(reinterpret_cast<const uint2*>(w.block_scale + (first_output + row) * w.block_scale_stride +
                                                     (begin + k) / 16));
    }
    for (int step = 0; step * kTileStep < width; ++step) copy_x(step);
    ptx::close_copy_group();
    if (mine) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const uint32_t byte = (i < 4 ? scales.x : scales.y) >> (8 * (i % 4)) & 0xff;
        const __nv_bfloat162 scale = __float2bfloat162_rn(e4m3_value(byte) * 64.0f);
        const uint4& four = codes[i / 2];
        uint32_t pairs[8];
        decode_nvfp4(i % 2 == 0 ? four.x : four.z, scale, pairs);
        decode_nvfp4(i % 2 == 0 ? four.y : four.w, scale, pairs + 4);
        auto* to = reinterpret_cast<uint4*>(&shared.weights[row][k + 16 * i]);
        to[0] = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
        to[1] = make_uint4(pairs[4], pairs[5], pairs[6], pairs[7]);
      }
    }
  }

  float sums[kTiles][4];
  for (int i = 0; i < kTiles; ++i)
    for (int j = 0; j < 4; ++j) sums[i][j] = width > 0 ? 0.0f : -0.0f;  // a slice that is not there adds nothing
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    if constexpr (kForm == WeightForm::kBf16) {
      if (step == 0) ptx::wait_for_copies<3>();
      if (step == 1) ptx::wait_for_copies<2>();
      if (step == 2) ptx::wait_for_copies<1>();
      if (step == 3) ptx::wait_for_copies<0>();
      __syncthreads();
    } else if (step == 0) {
      ptx::wait_for_copies<0>();
      __syncthreads();
    }
    if (step * kTileStep >= width) continue;
#pragma unroll
    for (int k = step * kTileStep; k < (step + 1) * kTileStep; k += 16) {
      uint32_t a[4];
      ptx::ldmatrix_x4(a, &shared.weights[warp * 16 + lane % 16][k + lane / 16 * 8]);
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        uint32_t b[2];
        ptx::ldmatrix_x2(b, &shared.x[i * 8 + lane % 8][k + lane / 8 % 2 * 8]);
        ptx::mma_m16n8k16_bf16(sums[i], a, b);
      }
    }
  }
  store_tile<kTiles>(w, c, first_output, first_column, part * slices + slice, sums);
}

// Slice `slice` of a part, by whichever of the two fits.
template <int kN>
__device__ void bf16_any_slice(const Weights& w, const TileColumns& c, int64_t first_output, int64_t first_column,
                               int parts, int part, int64_t slices, int64_t slice, std::byte* shared) {
  const bool aligned = slices_are_aligned(w, parts);
  with_form(w.form, [&]<WeightForm kForm>() {
    if constexpr (kForm == WeightForm::kBf16 || kForm == WeightForm::kNvfp4) {
      if (aligned) {
        bf16_slice<kForm, kN>(w, c, first_output, first_column, parts, part, slices, slice,
                              *reinterpret_cast<SliceShared<kN>*>(shared));
        return;
      }
    }
    if constexpr (kForm != WeightForm::kF32)
      bf16_tile<kForm, kN>(w, c, first_output, first_column, parts, part, slices, slice,
                           *reinterpret_cast<TileShared<kN>*>(shared));
  });
}

}  // namespace verbatim::ops::cuda
