// A weight matrix in device memory, and its values.
#pragma once

#include <cuda_fp16.h>

#include "ops/cuda/kernels.h"

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

// A scale of e4m3, neither negative nor NaN, as it is packed: 2^(exponent - 21) (1 + three bits / 8); and back.
__device__ inline uint8_t pack_scale(uint32_t scale) {
  if (scale >= 8) return static_cast<uint8_t>(scale + (14 << 3));
  if (scale == 0) return 0;
  const int shift = scale >= 4   ? 1
                    : scale >= 2 ? 2
                                 : 3;  // 2^-9 times one to seven: the first bit becomes the leading one
  return static_cast<uint8_t>((15 - shift) << 3 | (scale << shift & 7));
}
__device__ inline uint8_t unpack_scale(uint32_t packed) {
  if (packed >= 15 << 3) return static_cast<uint8_t>(packed - (14 << 3));
  if (packed == 0) return 0;
  return static_cast<uint8_t>((8 | (packed & 7)) >> (15 - (packed >> 3)));
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
      const uint32_t half = words[k % 64 / 16] >> (k % 2 * 16);
      const uint32_t at = pair == 3 ? 14 : 15 - 3 * pair, high = pair == 3 ? 13 : 8 - 3 * pair;
      const uint32_t low = pair == 3 ? 10 : 6 - 3 * pair;
      const uint32_t code = (half >> at & 1) << 3 | (half >> high & 1) << 2 | (half >> low & 3);
      const uint8_t scale =
          w.block_scale[(row / 16 * (w.columns / 64) + k / 64) * 64 + row % 8 * 8 + row % 16 / 8 * 4 + k % 64 / 16];
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
