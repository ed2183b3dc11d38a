// A weight matrix in device memory, and its values.
#pragma once

#include <cuda_fp16.h>

#include "ops/cuda/kernels.h"
#include "ops/cuda/nvfp4_words.cuh"

namespace verbatim::ops::cuda {

__device__ inline float bf16_value(uint32_t bits) { return __uint_as_float(bits << 16); }

// Nearest, ties to even; NaN stays NaN.
__device__ inline uint32_t bf16_bits(float value) {
  const uint32_t bits = __float_as_uint(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return (bits >> 16) | 0x40;
  return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}

// The bits of e4m3, seven places up, are a half-precision number 2^8 times smaller, subnormals included.
__device__ inline float e4m3_value(uint32_t bits) {
  if ((bits & 0x7f) == 0x7f) return __int_as_float(0x7fc00000);
  const auto half = static_cast<unsigned short>(((bits & 0x7f) << 7) | ((bits & 0x80) << 8));
  return __half2float(__ushort_as_half(half)) * 256.0f;
}

// The three low bits, nine places up, are a half-precision number 2^14 times smaller.
__device__ inline float e2m1_value(uint32_t code) {
  const auto half = static_cast<unsigned short>(((code & 7) << 9) | ((code & 8) << 12));
  return __half2float(__ushort_as_half(half)) * 16384.0f;
}

// Where packed.cuh puts sixteen bytes: of the tile of `columns` columns that holds (row, k), and lane l of it.
__device__ inline int64_t packed_lane(int64_t row, int64_t k, int64_t all_columns, int columns) {
  const int64_t lane = row % 8 * 4 + k % 8 / 2;
  return ((row / 16 * (all_columns / columns) + k / columns) * 32 + lane) * 16;
}

// Weight k of a row as float32: NVFP4 as code x block scale, FP8 as value x grid scale.
template <WeightForm kForm>
__device__ inline float weight_value(const Weights& w, int64_t row, int64_t k) {
  const uint8_t* data = w.data + row * w.row_bytes;
  if constexpr (kForm == WeightForm::kBf16) {
    if (w.packed) {
      const int64_t pair = row % 16 / 8 + k % 16 / 8 * 2;
      const auto* lane = reinterpret_cast<const uint16_t*>(w.data + packed_lane(row, k, w.columns, 16));
      return bf16_value(lane[pair * 2 + k % 2]);
    }
    return bf16_value(reinterpret_cast<const uint16_t*>(data)[k]);
  } else if constexpr (kForm == WeightForm::kF32) {
    return reinterpret_cast<const float*>(data)[k];
  } else if constexpr (kForm == WeightForm::kNvfp4) {
    if (w.packed) {
      const auto pair = static_cast<int>(row % 16 / 8 + k % 16 / 8 * 2);
      const auto* words = reinterpret_cast<const uint32_t*>(w.data + packed_lane(row, k, w.columns, 64));
      uint32_t pairs[4];
      unpack_pairs(words[k % 64 / 16], pairs);
      const uint32_t code = code_of_pair(pairs[pair], static_cast<int>(k % 2));
      const int64_t scales = (row / 16 * (w.columns / 64) + k / 64) * 64 + row % 8 * 8 + row % 16 / 8 * 4;
      const uint8_t scale =
          packed_scale_of(*reinterpret_cast<const uint32_t*>(w.block_scale + scales), static_cast<int>(k % 64 / 16));
      return e2m1_value(code) * e4m3_value(unpack_scale(scale));
    }
    const uint32_t byte = data[k / 2];
    const uint32_t scale = w.block_scale[row * w.block_scale_stride + (w.first_column_in_block + k) / 16];
    return e2m1_value(k % 2 == 0 ? byte & 15 : byte >> 4) * e4m3_value(scale);
  } else {
    const float grid = w.grid_scale[(w.grid_row + row) / 128 * w.grid_stride + (w.grid_column + k) / 128];
    return e4m3_value(data[k]) * grid;
  }
}

// Calls body.template operator()<form>() with the form as a constant.
template <class Body>
__device__ inline void with_form(WeightForm form, const Body& body) {
  switch (form) {
    case WeightForm::kBf16: return body.template operator()<WeightForm::kBf16>();
    case WeightForm::kF32: return body.template operator()<WeightForm::kF32>();
    case WeightForm::kNvfp4: return body.template operator()<WeightForm::kNvfp4>();
    case WeightForm::kFp8Block: return body.template operator()<WeightForm::kFp8Block>();
  }
}

}  // namespace verbatim::ops::cuda
