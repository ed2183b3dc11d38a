// Weights in the order in which the matrix units take them, made once at upload (pack.cu). A tile of 16 rows by 16
// columns is an operand of mma m16n8k16: lane l holds, of rows g = l / 4 and g + 8, the columns 2q, 2q + 1, 2q + 8 and
// 2q + 9, q = l % 4. Tiles of 16 rows follow each other, inside one the columns; rows are filled up with zeros.
//   BF16: [row tile][columns / 16][lane][16 bytes]: a0 (g), a1 (g + 8), a2 (g, columns + 8), a3 (g + 8, columns + 8).
//   NVFP4: codes [row tile][columns / 64][lane][16 bytes], one word a tile of 16 columns, whose pairs (nvfp4_words.cuh)
//     are a0 to a3. Scales [row tile][columns / 64][g][8 bytes]: a word of row g's four, one of row g + 8's; 0 is 0,
//     and codes under it, which weigh nothing, are 0 as well. None negative or NaN.
#pragma once

#include <cuda_bf16.h>

#include "ops/cuda/kernels.h"
#include "ops/cuda/ptx/load.cuh"
#include "ops/cuda/weights.cuh"

namespace verbatim::ops::cuda {

inline constexpr int kPackedRows = 16, kPackedBlockColumns = 64;

// Bytes from one row tile to the next.
__device__ __host__ inline int64_t packed_tile_bytes(WeightForm form, int64_t columns) {
  return form == WeightForm::kBf16 ? columns * 32 : columns * 8;
}
__device__ __host__ inline int64_t packed_scale_tile_bytes(int64_t columns) { return columns; }

__device__ inline __nv_bfloat162 as_pair(uint32_t bits) { return *reinterpret_cast<const __nv_bfloat162*>(&bits); }
__device__ inline uint32_t as_bits(__nv_bfloat162 pair) { return *reinterpret_cast<const uint32_t*>(&pair); }

// What an operand has too little of: a power of two, which a part's scale brings back without rounding.
__device__ __host__ inline float packed_lift(WeightForm form) { return form == WeightForm::kNvfp4 ? 256.0f : 1.0f; }

// Some tiles of 16 columns of one row tile on their way to the matrix units. kTiles is a multiple of 4.
template <WeightForm kForm, int kTiles>
struct Stage;

template <int kTiles>
struct Stage<WeightForm::kBf16, kTiles> {
  uint4 tiles[kTiles];

  // `count` tiles of 16 columns from `column` on of row tile `tile`; the rest is 0, which adds nothing.
  __device__ void load(const Weights& w, int64_t tile, int64_t column, int count, int lane) {
    load(w.data, w.block_scale, w.columns, tile, column, count, lane);
  }
  __device__ void load(const uint8_t* data, const uint8_t*, int64_t columns, int64_t tile, int64_t column, int count,
                       int lane) {
    const uint8_t* from = data + (tile * columns + column) * 32 + lane * 16;
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
      tiles[i] = i < count ? ptx::load_weights_16(from + i * 512) : make_uint4(0, 0, 0, 0);
  }
  __device__ void operand(int i, uint32_t (&a)[4]) const {
    a[0] = tiles[i].x, a[1] = tiles[i].y, a[2] = tiles[i].z, a[3] = tiles[i].w;
  }
};

template <int kTiles>
struct Stage<WeightForm::kNvfp4, kTiles> {
  uint4 codes[kTiles / 4];
  uint2 scales[kTiles / 4];

  __device__ void load(const Weights& w, int64_t tile, int64_t column, int count, int lane) {
    load(w.data, w.block_scale, w.columns, tile, column, count, lane);
  }
  __device__ void load(const uint8_t* data, const uint8_t* block_scale, int64_t columns, int64_t tile, int64_t column,
                       int count, int lane) {
    const uint8_t* from = data + (tile * columns + column) * 8 + lane * 16;
    const uint8_t* scale = block_scale + tile * columns + column + lane / 4 * 8;
#pragma unroll
    for (int i = 0; i < kTiles / 4; ++i) {
      codes[i] = i * 4 < count ? ptx::load_weights_16(from + i * 512) : make_uint4(0, 0, 0, 0);
      scales[i] = i * 4 < count ? ptx::load_weights_8(scale + i * 64) : make_uint2(0, 0);
    }
  }
  __device__ void operand(int i, uint32_t (&a)[4]) const {
    const uint4& four = codes[i / 4];
    const uint32_t word = i % 4 == 0 ? four.x : i % 4 == 1 ? four.y : i % 4 == 2 ? four.z : four.w;
    // Of rows g and g + 8, of tiles 0 and 2 and of 1 and 3, times 2^118. With the codes, 2^126 times smaller, one
    // multiplication gives the weights times 2^-8 exactly.
    __nv_bfloat162 low[2], high[2];
    unpack_scales(scales[i / 4].x, low);
    unpack_scales(scales[i / 4].y, high);
    const __nv_bfloat162 first = i % 4 < 2 ? __low2bfloat162(low[i % 2]) : __high2bfloat162(low[i % 2]);
    const __nv_bfloat162 second = i % 4 < 2 ? __low2bfloat162(high[i % 2]) : __high2bfloat162(high[i % 2]);
    uint32_t pairs[4];
    unpack_pairs(word, pairs);
    a[0] = as_bits(__hmul2(as_pair(pairs[0]), first));
    a[1] = as_bits(__hmul2(as_pair(pairs[1]), second));
    a[2] = as_bits(__hmul2(as_pair(pairs[2]), first));
    a[3] = as_bits(__hmul2(as_pair(pairs[3]), second));
  }
};

// ---- activations as the other operand -------------------------------------------------------------------------------
// Lane l holds, of column l / 4, the inputs 2q, 2q + 1, 2q + 8 and 2q + 9.

__device__ inline uint32_t rounded_pair(float low, float high) { return as_bits(__floats2bfloat162_rn(low, high)); }

// kTiles tiles of 16 inputs of up to eight rows of float32, rounded to one term or split in three (rounding.cuh).
template <int kTerms, int kTiles>
struct FloatColumns {
  static constexpr int kColumnTerms = kTerms;
  const float* row = nullptr;  // this lane's, from its input 2q on; null: zeros
  uint32_t pairs[kTerms][kTiles][2];

  __device__ void load(int64_t k, int count) {
    float2 values[kTiles][2];
#pragma unroll
    for (int i = 0; i < kTiles; ++i) values[i][0] = values[i][1] = make_float2(0.0f, 0.0f);
    if (row != nullptr && count >= kTiles) {
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        values[i][0] = *reinterpret_cast<const float2*>(row + k + 16 * i);
        values[i][1] = *reinterpret_cast<const float2*>(row + k + 16 * i + 8);
      }
    } else if (row != nullptr) {
#pragma unroll
      for (int i = 0; i < kTiles; ++i)
        if (i < count) {
          values[i][0] = *reinterpret_cast<const float2*>(row + k + 16 * i);
          values[i][1] = *reinterpret_cast<const float2*>(row + k + 16 * i + 8);
        }
    }
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float2 left = values[i][half];
#pragma unroll
        for (int term = 0; term < kTerms; ++term) {
          pairs[term][i][half] = rounded_pair(left.x, left.y);
          if (term + 1 < kTerms) take(left, pairs[term][i][half]);
        }
      }
  }
  __device__ uint2 operand(int i, int term) const { return make_uint2(pairs[term][i][0], pairs[term][i][1]); }

 private:
  // What is left of both after a term; of an infinity or NaN nothing.
  static __device__ void take(float2& from, uint32_t pair) {
    const float x = __uint_as_float(pair << 16), y = __uint_as_float(pair & 0xffff0000u);
    from.x = isfinite(x) ? from.x - x : 0.0f;
    from.y = isfinite(y) ? from.y - y : 0.0f;
  }
};

// Rows that are bfloat16 already.
template <int kTiles>
struct Bf16Columns {
  static constexpr int kColumnTerms = 1;
  const uint16_t* row = nullptr;
  uint32_t pairs[kTiles][2];

  __device__ void load(int64_t k, int count) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      pairs[i][0] = pairs[i][1] = 0;
      if (row != nullptr && i < count) {
        pairs[i][0] = *reinterpret_cast<const uint32_t*>(row + k + 16 * i);
        pairs[i][1] = *reinterpret_cast<const uint32_t*>(row + k + 16 * i + 8);
      }
    }
  }
  __device__ uint2 operand(int i, int) const { return make_uint2(pairs[i][0], pairs[i][1]); }
};

}  // namespace verbatim::ops::cuda
