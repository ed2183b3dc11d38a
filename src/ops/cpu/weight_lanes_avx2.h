// How weights become sixteen lanes with AVX2. See weight_lanes_plain.h.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "ops/cpu/lanes_avx2.h"
#include "ops/cpu/weight_tables.h"

namespace verbatim::ops::cpu {

template <>
struct WeightLanes<Avx2Lanes> {
  using L = Avx2Lanes;
  static constexpr int kDirectRows = 2;
  static constexpr int kDirectLimit = 4;
  static constexpr int kOutputs = 2;
  static constexpr int kPanelOutputs = 4;
  static constexpr int kPanels = 1;
  static constexpr bool kPermutes = false;

  // a, a, c, c, b, b, d, d.
  struct Sums {
    __m256 v;
    friend Sums operator+(Sums a, Sums b) { return {_mm256_add_ps(a.v, b.v)}; }
    void get(float* p) const {
      float all[8];
      _mm256_storeu_ps(all, v);
      p[0] = all[0], p[1] = all[4], p[2] = all[2], p[3] = all[6];
    }
  };
  static __m256 pair(L a, L b) {  // a in the low half, b in the high half, lanes l, l + 8 and l + 4 added
    const __m256 x = _mm256_add_ps(a.low, a.high), y = _mm256_add_ps(b.low, b.high);
    return _mm256_add_ps(_mm256_permute2f128_ps(x, y, 0x20), _mm256_permute2f128_ps(x, y, 0x31));
  }
  static Sums sum4(L a, L b, L c, L d) {
    const __m256 x = pair(a, b), y = pair(c, d);
    const __m256 two = _mm256_add_ps(_mm256_shuffle_ps(x, y, 0x44), _mm256_shuffle_ps(x, y, 0xee));
    return {_mm256_add_ps(two, _mm256_permute_ps(two, 0xb1))};
  }
  static Sums sum4_permuted(L a, L b, L c, L d) { return sum4(a, b, c, d); }

  static L f32(const uint8_t* bytes) { return L::load(reinterpret_cast<const float*>(bytes)); }

  static __m256 eight_codes(int32_t codes, __m256 table) {
    const __m256i shifted = _mm256_srlv_epi32(_mm256_set1_epi32(codes), _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
    const __m256 looked_up = _mm256_permutevar8x32_ps(table, shifted);  // reads the low three bits
    return _mm256_xor_ps(looked_up, _mm256_castsi256_ps(_mm256_slli_epi32(shifted, 28)));
  }
  static L nvfp4(const uint8_t* codes, uint8_t scale) {
    const __m256 table = _mm256_load_ps(reinterpret_cast<const float*>(WeightTables<L>::kNvfp4Signed.v[scale]));
    int32_t low, high;
    __builtin_memcpy(&low, codes, 4);
    __builtin_memcpy(&high, codes + 4, 4);
    return {eight_codes(low, table), eight_codes(high, table)};
  }
  static L nvfp4_natural(const uint8_t* codes, uint8_t scale) { return nvfp4(codes, scale); }
  static L permute(L x) { return x; }

  // The bits of e4m3, seven places up, are a half-precision number 2^8 times smaller, subnormals included.
  static L e4m3(const uint8_t* bytes) {
    const __m256i words = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
    const __m256i magnitude = _mm256_and_si256(words, _mm256_set1_epi16(0x7f));
    const __m256i nan = _mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x7f));
    const __m256i half = _mm256_or_si256(
        _mm256_or_si256(_mm256_slli_epi16(magnitude, 7), _mm256_and_si256(words, _mm256_set1_epi16(-32768))),
        _mm256_and_si256(nan, _mm256_set1_epi16(0x7e00)));
    const __m256 unit = _mm256_set1_ps(256.0f);
    return {_mm256_mul_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(half)), unit),
            _mm256_mul_ps(_mm256_cvtph_ps(_mm256_extracti128_si256(half, 1)), unit)};
  }
};

}  // namespace verbatim::ops::cpu
