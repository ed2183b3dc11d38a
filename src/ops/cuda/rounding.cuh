// Activations on their way to the matrix units: three bfloat16 terms of a float32, and rounding to NVFP4 under an input
// scale (MODEL.md section 9; the same operations as base/formats.h).
#pragma once

#include <cstdint>

#include "ops/cuda/weights.cuh"

namespace verbatim::ops::cuda {

// value = sum of terms, exactly where nothing falls below bfloat16's range; of an infinity or NaN the first is all.
__device__ inline void split_terms(float value, int terms, uint16_t* to, int64_t term_stride) {
  float rest = value;
  for (int t = 0; t < terms; ++t) {
    const uint32_t bits = bf16_bits(rest);
    to[t * term_stride] = static_cast<uint16_t>(bits);
    const float taken = bf16_value(bits);
    rest = isfinite(taken) ? rest - taken : 0.0f;
  }
}

// Nearest, ties to even, of values in [2^-9, 448].
__device__ inline float round_to_e4m3(float value) {
  if (value < 0x1p-6f) return value + 0x1p14f - 0x1p14f;
  const uint32_t bits = __float_as_uint(value);
  return __uint_as_float((bits + 0x7ffff + ((bits >> 20) & 1)) & 0xfff00000u);
}

// The scale of a block whose largest magnitude is `most`.
__device__ inline float activation_block_scale(float most, float input_scale) {
  const float scale = most / (6.0f * input_scale);
  return round_to_e4m3(scale < 0x1p-9f ? 0x1p-9f : 448.0f < scale ? 448.0f : scale);
}

// Nearest e2m1 with ties to the even code, above 5 to 6.
__device__ inline float round_to_e2m1(float value) {
  const float magnitude = fabsf(value);
  const float rounded = magnitude <= 0.25f   ? 0.0f
                        : magnitude < 0.75f  ? 0.5f
                        : magnitude <= 1.25f ? 1.0f
                        : magnitude < 1.75f  ? 1.5f
                        : magnitude <= 2.5f  ? 2.0f
                        : magnitude < 3.5f   ? 3.0f
                        : magnitude <= 5.0f  ? 4.0f
                                             : 6.0f;
  return value < 0.0f ? -rounded : rounded;
}

// What stands for an activation in a block of that scale: code x scale, exact in bfloat16.
__device__ inline float coded_activation(float value, float scale, float input_scale) {
  const float coded = value / (scale * input_scale);
  return isnan(coded) ? coded : round_to_e2m1(coded) * scale;
}

// Columns begin .. end - 1 of one block of a row: value(k) is the activation; writes `terms` terms.
template <class Value>
__device__ inline void prepare_block(const Value& value, int64_t begin, int64_t end, int terms, float input_scale,
                                     uint16_t* to, int64_t term_stride) {
  if (!(input_scale > 0.0f)) {
    for (int64_t k = begin; k < end; ++k) split_terms(value(k), terms, to + k, term_stride);
    return;
  }
  float most = 0.0f;
  for (int64_t k = begin; k < end; ++k) {
    const float magnitude = fabsf(value(k));
    most = most < magnitude ? magnitude : most;
  }
  const float scale = activation_block_scale(most, input_scale);
  for (int64_t k = begin; k < end; ++k) {
    to[k] = static_cast<uint16_t>(bf16_bits(coded_activation(value(k), scale, input_scale)));
    for (int t = 1; t < terms; ++t) to[k + t * term_stride] = 0;
  }
}

// Inputs 0, 1, 8 and 9 (a lane's of a second operand of 16) from `from` on, past the first-level cache: a launch beside
// the one in front has not waited.
__device__ inline void read_inputs(const float* from, int64_t stride, float (&to)[4]) {
  if (stride % 2 == 0 && reinterpret_cast<uintptr_t>(from) % 8 == 0) {
    const float2 first = __ldcg(reinterpret_cast<const float2*>(from));
    const float2 second = __ldcg(reinterpret_cast<const float2*>(from + 8));
    to[0] = first.x, to[1] = first.y, to[2] = second.x, to[3] = second.y;
  } else {
    to[0] = __ldcg(from), to[1] = __ldcg(from + 1), to[2] = __ldcg(from + 8), to[3] = __ldcg(from + 9);
  }
}

}  // namespace verbatim::ops::cuda
