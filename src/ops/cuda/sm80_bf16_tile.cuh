// A tile of a product on the matrix units (mma.sync m16n8k16, bfloat16 operands, float32 sums), from sm_80 on: 64
// outputs of a stored matrix times kN columns, which are rows of prepared activations. 128 threads; (64 + kN) * 144
// bytes of shared memory. One accumulation chain a slice of 256 columns (FP8: a cell of 128), k ascending 16 at a time
// from 0.
#pragma once

#include "ops/cuda/kernels.h"
#include "ops/cuda/ptx/mma.cuh"
#include "ops/cuda/weights.cuh"

namespace verbatim::ops::cuda {

inline constexpr int kTileOutputs = 64, kTileThreads = 128, kTileStep = 64, kTilePitch = kTileStep + 8;

// The columns of a product: term t of row i is column t * count + i.
struct TileColumns {
  const uint16_t* x = nullptr;  // [terms][x_term_rows][x_stride]
  int64_t x_stride = 0, x_term_rows = 0;
  const int32_t* source = nullptr;  // row of x of place first + i, or null: first + i itself
  int64_t first = 0, count = 0;
  int terms = 1;
  float* raw = nullptr;  // [parts][slices][terms][raw_term_rows][raw_stride]
  int64_t raw_term_rows = 0, raw_stride = 0;
};

template <int kN>
struct TileShared {
  uint16_t weights[kTileOutputs][kTilePitch];
  uint16_t x[kN][kTilePitch];
};

// Where slice `index` of the part that begins at `from` begins; may be past the part's end.
__device__ __host__ inline int64_t slice_begin(const Weights& w, int64_t from, int64_t index) {
  if (w.form != WeightForm::kFp8Block) return from + index * kSliceColumns;
  return index == 0 ? from : (((w.grid_column + from) / kGridColumns) + index) * kGridColumns - w.grid_column;
}

// Pairs of columns k, k + 1, ... (32 of them) of a row as bfloat16; 0 from `end` on.
template <WeightForm kForm>
__device__ inline void load_weights(const Weights& w, int64_t row, int64_t k, int64_t end, uint32_t (&pairs)[16]) {
  const uint8_t* data = w.data + row * w.row_bytes;
  const bool whole = row < w.rows && k + 32 <= end && !w.packed;
  if constexpr (kForm == WeightForm::kBf16) {
    const uint8_t* from = data + 2 * k;
    if (whole && reinterpret_cast<uintptr_t>(from) % 16 == 0) {
      for (int i = 0; i < 4; ++i) {
        const uint4 four = __ldcs(reinterpret_cast<const uint4*>(from) + i);
        pairs[4 * i] = four.x, pairs[4 * i + 1] = four.y, pairs[4 * i + 2] = four.z, pairs[4 * i + 3] = four.w;
      }
      return;
    }
  } else if constexpr (kForm == WeightForm::kNvfp4) {
    const uint8_t* from = data + k / 2;
    const int64_t in_block = w.first_column_in_block + k;
    if (whole && in_block % 16 == 0 && k % 2 == 0 && reinterpret_cast<uintptr_t>(from) % 16 == 0) {
      const uint4 codes = __ldcs(reinterpret_cast<const uint4*>(from));
      const uint8_t* scales = w.block_scale + row * w.block_scale_stride + in_block / 16;
      const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
      for (int i = 0; i < 2; ++i) {
        const float scale = e4m3_value(scales[i]) * 16384.0f;
        for (int j = 0; j < 8; ++j) {
          const uint32_t byte = words[2 * i + j / 4] >> (8 * (j % 4));
          const uint32_t halves =
              ((byte & 7) << 9) | ((byte & 8) << 12) | ((byte & 0x70) << 21) | ((byte & 0x80) << 24);
          const float2 values = __half22float2(*reinterpret_cast<const __half2*>(&halves));
          // code x scale has six significant bits: its upper half is the bfloat16.
          pairs[8 * i + j] = __byte_perm(__float_as_uint(values.x * scale), __float_as_uint(values.y * scale), 0x7632);
        }
      }
      return;
    }
  } else if constexpr (kForm == WeightForm::kFp8Block) {
    const uint8_t* from = data + k;
    if (whole && reinterpret_cast<uintptr_t>(from) % 16 == 0) {
      for (int i = 0; i < 2; ++i) {
        const uint4 bytes = __ldcs(reinterpret_cast<const uint4*>(from) + i);
        const uint32_t words[4] = {bytes.x, bytes.y, bytes.z, bytes.w};
        for (int j = 0; j < 8; ++j) {
          const uint32_t two = words[j / 2] >> (16 * (j % 2));
          pairs[8 * i + j] = __byte_perm(__float_as_uint(e4m3_value(two & 0xff)),
                                         __float_as_uint(e4m3_value(two >> 8 & 0xff)), 0x7632);
        }
      }
      return;
    }
  }
  const auto bits = [&](int64_t column) -> uint32_t {
    if (row >= w.rows || column >= end) return 0;
    if constexpr (kForm == WeightForm::kFp8Block)
      return __float_as_uint(e4m3_value(data[column])) >> 16;
    else
      return __float_as_uint(weight_value<kForm>(w, row, column)) >> 16;
  };
  for (int i = 0; i < 16; ++i) pairs[i] = bits(k + 2 * i) | bits(k + 2 * i + 1) << 16;
}

// kWords pairs of columns from k on of a row of x; 0 from `end` on and without a row.
template <int kWords>
__device__ inline void load_columns(const uint16_t* row, int64_t k, int64_t end, uint32_t (&pairs)[kWords]) {
  if (row == nullptr) {
    for (uint32_t& pair : pairs) pair = 0;
    return;
  }
  const uint16_t* from = row + k;
  constexpr int kWide = kWords >= 4 ? 16 : 8;  // bytes of a load
  if (k + 2 * kWords <= end && reinterpret_cast<uintptr_t>(from) % kWide == 0) {
    if constexpr (kWords >= 4) {
      for (int i = 0; i < kWords / 4; ++i) {
        const uint4 four = reinterpret_cast<const uint4*>(from)[i];
        pairs[4 * i] = four.x, pairs[4 * i + 1] = four.y, pairs[4 * i + 2] = four.z, pairs[4 * i + 3] = four.w;
      }
    } else {
      const uint2 two = *reinterpret_cast<const uint2*>(from);
      pairs[0] = two.x, pairs[1] = two.y;
    }
    return;
  }
  for (int i = 0; i < kWords; ++i) {
    const uint32_t low = k + 2 * i < end ? from[2 * i] : 0, high = k + 2 * i + 1 < end ? from[2 * i + 1] : 0;
    pairs[i] = low | high << 16;
  }
}

// Sums of a tile to place `index` of raw's [parts][slices].
template <int kTiles>
__device__ inline void store_tile(const Weights& w, const TileColumns& c, int64_t first_output, int64_t first_column,
                                  int64_t index, const float (&sums)[kTiles][4]) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float* raw = c.raw + index * c.terms * c.raw_term_rows * c.raw_stride;
  for (int i = 0; i < kTiles; ++i)
    for (int j = 0; j < 4; ++j) {
      const int64_t column = first_column + i * 8 + lane % 4 * 2 + j % 2;
      const int64_t output = first_output + warp * 16 + lane / 4 + j / 2 * 8;
      if (column >= c.count * c.terms || output >= w.rows) continue;
      const int64_t term = column / c.count, place = c.first + column % c.count;
      raw[(term * c.raw_term_rows + place) * c.raw_stride + output] = sums[i][j];
    }
}

// Outputs first_output .. + 63, columns first_column .. + kN - 1 of one part: slice `slice` alone (of `slices` that a
// part has in raw), or, with slice -1, all of them added left to right.
template <WeightForm kForm, int kN>
__device__ void bf16_tile(const Weights& w, const TileColumns& c, int64_t first_output, int64_t first_column, int parts,
                          int part, int64_t slices, int64_t slice, TileShared<kN>& shared) {
  constexpr int kTiles = kN / 8, kColumnWords = kN / 4;
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int64_t length = w.columns / parts, from = part * length, to = from + length;
  int64_t index = slice < 0 ? 0 : slice;
  int64_t begin = slice_begin(w, from, index);
  const int64_t columns = c.count * c.terms;

  const int64_t weight_row = first_output + thread / 2;
  const int weight_column = thread % 2 * 32;
  constexpr int kThreadsARow = kTileThreads / kN;
  const int x_row = thread / kThreadsARow, x_column = thread % kThreadsARow * 2 * kColumnWords;
  const uint16_t* x = nullptr;
  if (first_column + x_row < columns) {
    const int64_t term = (first_column + x_row) / c.count, place = c.first + (first_column + x_row) % c.count;
    x = c.x + (term * c.x_term_rows + (c.source == nullptr ? place : c.source[place])) * c.x_stride;
  }

  float total[kTiles][4], sums[kTiles][4];
  for (int i = 0; i < kTiles; ++i)
    for (int j = 0; j < 4; ++j) total[i][j] = -0.0f, sums[i][j] = 0.0f;  // -0 + a is a
  uint32_t weight_pairs[16], x_pairs[kColumnWords];
  int64_t end = 0;
  const auto begin_slice = [&] {
    end = slice_begin(w, from, index + 1);
    end = end < to ? end : to;
  };
  begin_slice();
  int64_t k = begin;
  if (k < to) {
    load_weights<kForm>(w, weight_row, k + weight_column, end, weight_pairs);
    load_columns(x, k + x_column, end, x_pairs);
  }
  while (k < to) {
    __syncthreads();
    for (int i = 0; i < 4; ++i)
      *reinterpret_cast<uint4*>(&shared.weights[thread / 2][weight_column + 8 * i]) =
          make_uint4(weight_pairs[4 * i], weight_pairs[4 * i + 1], weight_pairs[4 * i + 2], weight_pairs[4 * i + 3]);
    for (int i = 0; i < kColumnWords; i += 2)
      *reinterpret_cast<uint2*>(&shared.x[x_row][x_column + 2 * i]) = make_uint2(x_pairs[i], x_pairs[i + 1]);
    __syncthreads();

    const int64_t left = end - k;
    const int64_t cell = (w.grid_column + k) / kGridColumns;
    const bool closes = left <= kTileStep;
    bool more = true;
    if (!closes) {
      k += kTileStep;
    } else {
      k = end;
      more = slice < 0 && k < to;
      ++index;
      if (more) begin_slice();
    }
    if (more) {
      load_weights<kForm>(w, weight_row, k + weight_column, end, weight_pairs);
      load_columns(x, k + x_column, end, x_pairs);
    }
    const int steps = left >= kTileStep ? kTileStep / 16 : static_cast<int>((left + 15) / 16);
#pragma unroll
    for (int step = 0; step < kTileStep / 16; ++step) {
      if (step >= steps) break;
      uint32_t a[4];
      ptx::ldmatrix_x4(a, &shared.weights[warp * 16 + lane % 16][step * 16 + lane / 16 * 8]);
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        uint32_t b[2];
        ptx::ldmatrix_x2(b, &shared.x[i * 8 + lane % 8][step * 16 + lane / 8 % 2 * 8]);
        ptx::mma_m16n8k16_bf16(sums[i], a, b);
      }
    }
    if (closes) {
      float scale[2] = {1.0f, 1.0f};
      if constexpr (kForm == WeightForm::kFp8Block) {
        for (int half = 0; half < 2; ++half) {
          const int64_t row = first_output + warp * 16 + lane / 4 + 8 * half;
          if (row < w.rows) scale[half] = w.grid_scale[(w.grid_row + row) / kGridColumns * w.grid_stride + cell];
        }
      }
      for (int i = 0; i < kTiles; ++i)
        for (int j = 0; j < 4; ++j) {
          const float sum = kForm == WeightForm::kFp8Block ? sums[i][j] * scale[j / 2] : sums[i][j];
          total[i][j] = total[i][j] + sum;
          sums[i][j] = 0.0f;
        }
    }
    if (!more) break;
  }

  store_tile<kTiles>(w, c, first_output, first_column, part * slices + (slice < 0 ? 0 : slice), total);
}

}  // namespace verbatim::ops::cuda
