// One slice of a product on the matrix units for few columns: all bytes of the slice are asked for at once (BF16
// straight to shared memory, NVFP4 to registers, where it is decoded), so that many blocks keep the memory busy. 128
// threads; (64 + kN) * 528 bytes of shared memory. The same chain as in sm80_bf16_tile.cuh, so the same bits.
#pragma once

#include <cuda_bf16.h>

#include "ops/cuda/ptx/async_copy.cuh"
#include "ops/cuda/shapes.h"
#include "ops/cuda/sm80_bf16_tile.cuh"

namespace verbatim::ops::cuda {

inline constexpr int kSlicePitch = static_cast<int>(kSliceColumns) + 8;

template <int kN>
struct SliceShared {
  uint16_t weights[kTileOutputs][kSlicePitch];
  uint16_t x[kN][kSlicePitch];
};
static_assert(sizeof(SliceShared<32>) == bf16_slice_shared_bytes(32));
static_assert(sizeof(TileShared<64>) == bf16_tile_shared_bytes(64));

// True if slices of the matrix can be read sixteen bytes at a time: else bf16_tile takes them.
__device__ inline bool slices_are_aligned(const Weights& w, int parts) {
  const int64_t length = w.columns / parts;
  if (w.packed) return false;
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

// Slices first .. last - 1 of a part, one after the other; each one's sums go to its own place of raw.
template <WeightForm kForm, int kN>
__device__ void bf16_slices(const Weights& w, const TileColumns& c, int64_t first_output, int first_column, int parts,
                            int part, int slices, int first, int last, SliceShared<kN>& shared) {
  static_assert(kForm == WeightForm::kBf16 || kForm == WeightForm::kNvfp4);
  constexpr int kTiles = kN / 8, kStages = static_cast<int>(kSliceColumns) / kTileStep;
  constexpr int kPieces = (kN * 8 + kTileThreads - 1) / kTileThreads;  // of 16 bytes of x, a thread and step
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const auto length = static_cast<int>(w.columns / parts), begin = first * static_cast<int>(kSliceColumns);
  const int end = last * static_cast<int>(kSliceColumns) < length ? last * static_cast<int>(kSliceColumns) : length;
  const int64_t from = static_cast<int64_t>(part) * length + begin;
  const int steps = end > begin ? (end - begin) / kTileStep : 0;
  const auto count = static_cast<uint32_t>(c.count), columns = count * static_cast<uint32_t>(c.terms);

  // A row of x that is not there is left as it is: no other column sees it.
  const uint16_t* x[kPieces];
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    const auto column = static_cast<uint32_t>(first_column + (i * kTileThreads + thread) / 8);
    x[i] = nullptr;
    if (i * kTileThreads + thread < kN * 8 && column < columns) {
      const uint32_t term = column / count;
      const int64_t place = c.first + (column - term * count);
      x[i] = c.x + (term * c.x_term_rows + (c.source == nullptr ? place : c.source[place])) * c.x_stride + from +
             thread % 8 * 8;
    }
  }
  const auto copy_x = [&](int step) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i)
      if (x[i] != nullptr)
        ptx::copy_16_bytes(&shared.x[(i * kTileThreads + thread) / 8][step % kStages * kTileStep + thread % 8 * 8],
                           x[i] + step * kTileStep);
  };

  // Where this thread's sums go, of the first slice.
  float* raw[kTiles * 2];
#pragma unroll
  for (int i = 0; i < kTiles * 2; ++i) {
    const auto column = static_cast<uint32_t>(first_column + i / 2 * 8 + lane % 4 * 2 + i % 2);
    raw[i] = nullptr;
    if (column < columns) {
      const uint32_t term = column / count;
      const int64_t place = c.first + (column - term * count);
      raw[i] =
          c.raw +
          (((static_cast<int64_t>(part) * slices + first) * c.terms + term) * c.raw_term_rows + place) * c.raw_stride +
          first_output + warp * 16 + lane / 4;
    }
  }
  const int64_t slice_stride = c.terms * c.raw_term_rows * c.raw_stride;
  const bool stored[2] = {first_output + warp * 16 + lane / 4 < w.rows,
                          first_output + warp * 16 + lane / 4 + 8 < w.rows};
  float sums[kTiles][4];
  const auto store = [&] {
#pragma unroll
    for (int i = 0; i < kTiles * 2; ++i) {
      if (raw[i] == nullptr) continue;
#pragma unroll
      for (int half = 0; half < 2; ++half)
        if (stored[half]) raw[i][half * 8] = sums[i / 2][half * 2 + i % 2];
      raw[i] += slice_stride;
    }
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
      for (int j = 0; j < 4; ++j) sums[i][j] = 0.0f;
  };
#pragma unroll
  for (int i = 0; i < kTiles; ++i)
    for (int j = 0; j < 4; ++j) sums[i][j] = 0.0f;
  const auto multiply = [&](int stage) {
#pragma unroll
    for (int k = 0; k < kTileStep; k += 16) {
      uint32_t a[4];
      ptx::ldmatrix_x4(a, &shared.weights[warp * 16 + lane % 16][stage * kTileStep + k + lane / 16 * 8]);
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        uint32_t b[2];
        ptx::ldmatrix_x2(b, &shared.x[i * 8 + lane % 8][stage * kTileStep + k + lane / 8 % 2 * 8]);
        ptx::mma_m16n8k16_bf16(sums[i], a, b);
      }
    }
  };

  if constexpr (kForm == WeightForm::kBf16) {
    // A ring of four steps: while one is multiplied, the others are on their way.
    constexpr int kRows = kTileThreads / 8;
    const uint8_t* data = w.data + (first_output + thread / 8) * w.row_bytes + 2 * (from + thread % 8 * 8);
    const auto copy = [&](int step) {
      if (step < steps) {
#pragma unroll
        for (int i = 0; i < kTileOutputs / kRows; ++i)
          if (first_output + i * kRows + thread / 8 < w.rows)
            ptx::copy_16_bytes(&shared.weights[i * kRows + thread / 8][step % kStages * kTileStep + thread % 8 * 8],
                               data + i * kRows * w.row_bytes + step * 2 * kTileStep);
        copy_x(step);
      }
      ptx::close_copy_group();
    };
#pragma unroll
    for (int step = 0; step < kStages; ++step) copy(step);
    for (int step = 0; step < steps; ++step) {
      ptx::wait_for_copies<kStages - 1>();
      __syncthreads();
      multiply(step % kStages);
      if (step % kStages == kStages - 1 || step == steps - 1) store();
      if (step + kStages < steps) __syncthreads();  // all have multiplied what the next copy replaces
      copy(step + kStages);
    }
  } else {
    // A thread decodes every other 32 columns of a row, and asks for the next slice's before it multiplies this one's.
    const int row = thread / 2, k = thread % 2 * 32;
    const bool mine = first_output + row < w.rows;
    const uint8_t* data = w.data + (first_output + row) * w.row_bytes + (from + k) / 2;
    const uint8_t* block_scale = w.block_scale + (first_output + row) * w.block_scale_stride + from / 16;
    uint4 codes[4];
    uint2 scales[2] = {};
    const auto load = [&](int slice) {  // counted from `first`
      const int left = end - begin - slice * static_cast<int>(kSliceColumns);
      if (!mine || left <= 0) return;
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (i * 64 < left) codes[i] = __ldcs(reinterpret_cast<const uint4*>(data + slice * 128 + i * 32));
#pragma unroll
      for (int i = 0; i < 2; ++i)
        if (i * 128 < left) scales[i] = *reinterpret_cast<const uint2*>(block_scale + slice * 16 + i * 8);
    };
    load(0);
    for (int slice = 0; slice * kStages < steps; ++slice) {
      const int last_step = (slice + 1) * kStages < steps ? (slice + 1) * kStages : steps;
      if (slice > 0) __syncthreads();  // all have multiplied the slice before
      for (int step = slice * kStages; step < last_step; ++step) copy_x(step);
      ptx::close_copy_group();
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        // Scales of columns 64 i + k and 64 i + k + 16.
        const uint32_t four_scales = i % 2 == 0 ? scales[i / 2].x : scales[i / 2].y;
        const uint32_t two_scales = four_scales >> (thread % 2 * 16);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const __nv_bfloat162 scale = __float2bfloat162_rn(e4m3_value(two_scales >> (8 * half) & 0xff) * 64.0f);
          uint32_t pairs[8];
          decode_nvfp4(half == 0 ? codes[i].x : codes[i].z, scale, pairs);
          decode_nvfp4(half == 0 ? codes[i].y : codes[i].w, scale, pairs + 4);
          auto* to = reinterpret_cast<uint4*>(&shared.weights[row][64 * i + k + 16 * half]);
          to[0] = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
          to[1] = make_uint4(pairs[4], pairs[5], pairs[6], pairs[7]);
        }
      }
      load(slice + 1);
      ptx::wait_for_copies<0>();
      __syncthreads();
      for (int step = slice * kStages; step < last_step; ++step) multiply(step % kStages);
      store();
    }
  }
  // Slices that this part does not have add nothing.
  for (int slice = first + (steps + kStages - 1) / kStages; slice < last; ++slice) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
      for (int j = 0; j < 4; ++j) sums[i][j] = -0.0f;
    store();
  }
}

// Slices first .. last - 1 of a part, by whichever of the two fits.
template <int kN>
__device__ void bf16_any_slices(const Weights& w, const TileColumns& c, int64_t first_output, int first_column,
                                int parts, int part, int slices, int first, int last, std::byte* shared) {
  const bool aligned = slices_are_aligned(w, parts);
  with_form(w.form, [&]<WeightForm kForm>() {
    if constexpr (kForm == WeightForm::kBf16 || kForm == WeightForm::kNvfp4) {
      if (aligned) {
        bf16_slices<kForm, kN>(w, c, first_output, first_column, parts, part, slices, first, last,
                               *reinterpret_cast<SliceShared<kN>*>(shared));
        return;
      }
    }
    if constexpr (kForm != WeightForm::kF32)
      for (int slice = first; slice < last; ++slice)
        bf16_tile<kForm, kN>(w, c, first_output, first_column, parts, part, slices, slice,
                             *reinterpret_cast<TileShared<kN>*>(shared));
  });
}

// Slices that a block takes one after the other, when there are `tiles` tiles of them: one of BF16, whose copies are
// all on their way at once; of what is decoded, few enough that the device is full.
inline int slices_of_a_block(WeightForm form, int64_t tiles, int64_t slices) {
  if (form == WeightForm::kBf16) return 1;
  constexpr int64_t kBlocks = 2048;
  const int64_t run = tiles * slices / kBlocks;
  return static_cast<int>(run < 1 ? 1 : run < slices ? run : slices);
}

}  // namespace verbatim::ops::cuda
