// Number formats of stored weights, bit-exact in both directions. Decoders are total: every bit pattern has a value.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace verbatim {

// ---- bfloat16: the upper half of a binary32 ---------------------------------------------------------------------
inline float bf16_to_float(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

// Nearest, ties to even. NaN stays NaN (quiet, sign and upper payload kept).
inline uint16_t float_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// ---- e4m3 (OCP "fn": no infinities, 0x7f and 0xff are NaN, largest finite 448) -------------------------------------
inline constexpr float kE4m3Max = 448.0f;
inline constexpr float kE4m3SmallestSubnormal = 0x1p-9f;

inline float e4m3_to_float(uint8_t bits) {
  const int exponent = (bits >> 3) & 15;
  const int mantissa = bits & 7;
  if ((bits & 0x7f) == 0x7f) return std::numeric_limits<float>::quiet_NaN();
  const float magnitude =
      exponent == 0 ? static_cast<float>(mantissa) * 0x1p-9f
                    : std::bit_cast<float>(static_cast<uint32_t>(((exponent + 120) << 23) | (mantissa << 20)));
  return (bits & 0x80) ? -magnitude : magnitude;
}

inline bool e4m3_is_nan(uint8_t bits) { return (bits & 0x7f) == 0x7f; }

// Nearest, ties to even; magnitudes that round past 448 (and infinities, NaN) become NaN, as torch.float8_e4m3fn does.
inline uint8_t float_to_e4m3(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint8_t>((bits >> 24) & 0x80);
  const uint32_t magnitude_bits = bits & 0x7fffffffu;
  if (magnitude_bits > std::bit_cast<uint32_t>(464.0f)) return sign | 0x7f;  // 464 = midway from 448 to 480
  const float magnitude = std::bit_cast<float>(magnitude_bits);
  if (magnitude >= 464.0f) return sign | 0x7e;  // the tie goes to the even mantissa, 448
  if (magnitude < 0x1p-6f) {
    // Subnormal range, steps of 2^-9: adding 2^14 leaves a multiple of 2^-9 in the mantissa, rounded to even.
    const float shifted = magnitude + 0x1p14f;
    return sign | static_cast<uint8_t>(std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(0x1p14f));
  }
  const uint32_t rounded = magnitude_bits + 0x7ffff + ((magnitude_bits >> 20) & 1);
  return sign | static_cast<uint8_t>((rounded >> 20) - (120u << 3));
}

// ---- e2m1: sign bit 3, magnitude by the low bits (MODEL.md section 9) ---------------------------------------------
inline constexpr float kE2m1Magnitudes[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};

inline float e2m1_to_float(uint8_t code) {
  const float magnitude = kE2m1Magnitudes[code & 7];
  return (code & 8) ? -magnitude : magnitude;
}

// Nearest with ties to the even code, above 5 saturates to 6; the sign bit is set when value < 0 (so -0.0 gives code 0,
// but -0.25 gives code 8), as ModelOpt does. NaN is a caller's error and gives 7.
inline uint8_t float_to_e2m1(float value) {
  const float magnitude = std::fabs(value);
  uint8_t code = 7;
  if (magnitude <= 0.25f)
    code = 0;
  else if (magnitude < 0.75f)
    code = 1;
  else if (magnitude <= 1.25f)
    code = 2;
  else if (magnitude < 1.75f)
    code = 3;
  else if (magnitude <= 2.5f)
    code = 4;
  else if (magnitude < 3.5f)
    code = 5;
  else if (magnitude <= 5.0f)
    code = 6;
  return static_cast<uint8_t>(code | (value < 0 ? 8 : 0));
}

// The e4m3 block scale of NVFP4 (weights and activations): amax / (6 * tensor_scale), 0 -> 1, into [2^-9, 448].
// `zero_is_one`: weights store 1 for an all-zero block; activations clamp to 2^-9.
inline uint8_t nvfp4_block_scale(float amax, float tensor_scale, bool zero_is_one) {
  float scale = amax / (6.0f * tensor_scale);
  if (zero_is_one && scale == 0.0f) scale = 1.0f;
  return float_to_e4m3(std::clamp(scale, kE4m3SmallestSubnormal, kE4m3Max));
}

}  // namespace verbatim
