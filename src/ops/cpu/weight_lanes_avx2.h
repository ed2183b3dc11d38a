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
  static constexpr int kDirectLimit = 8;
  static constexpr int kOutputs = 2;
  static constexpr int kPanelOutputs = 4;
  static constexpr int kPanels = 1;
  // Direct products of NVFP4 take outputs in pairs: the lower half of each register is of one, the upper of the other.
  // Activations stand as elements 0, 2, ..., 14, 1, 3, ..., 15 of a group.
  static constexpr bool kPermutes = true;
  static constexpr bool kPairs = true;

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
  static L permute(L x) {
    const __m256 even = _mm256_shuffle_ps(x.low, x.high, 0x88), odd = _mm256_shuffle_ps(x.low, x.high, 0xdd);
    return {_mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(even), 0xd8)),
            _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(odd), 0xd8))};
  }

  static __m256i both(const uint8_t* low, const uint8_t* high) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(low))),
                                   _mm_load_si128(reinterpret_cast<const __m128i*>(high)), 1);
  }
  // A value fits bfloat16: its two bytes are looked up apart. group[0] holds the even elements of both outputs,
  // group[1] the odd ones.
  static void nvfp4_pair(const uint8_t* codes_a, uint8_t scale_a, const uint8_t* codes_b, uint8_t scale_b,
                         L (&group)[2]) {
    int64_t a, b;
    __builtin_memcpy(&a, codes_a, 8);
    __builtin_memcpy(&b, codes_b, 8);
    const __m256i words = _mm256_blend_epi32(_mm256_set1_epi64x(a), _mm256_set1_epi64x(b), 0xf0);
    const __m256i codes =
        _mm256_and_si256(_mm256_srlv_epi64(words, _mm256_setr_epi64x(0, 4, 0, 4)), _mm256_set1_epi8(15));
    const auto& table = WeightTables<L>::kNvfp4Bytes.v;
    const __m256i lower = _mm256_shuffle_epi8(both(table[scale_a][0], table[scale_b][0]), codes);
    const __m256i upper = _mm256_shuffle_epi8(both(table[scale_a][1], table[scale_b][1]), codes);
    const __m256i even = _mm256_unpacklo_epi8(lower, upper), odd = _mm256_unpackhi_epi8(lower, upper);
    const __m256i zero = _mm256_setzero_si256();
    group[0] = {_mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, even)),
                _mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, even))};
    group[1] = {_mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, odd)),
                _mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, odd))};
  }
  // Eight permuted activations for both outputs.
  static L load_pair(const float* x) {
    return {_mm256_broadcast_ps(reinterpret_cast<const __m128*>(x)),
            _mm256_broadcast_ps(reinterpret_cast<const __m128*>(x + 4))};
  }
  // v[0], v[1]: even and odd lanes of outputs a and b; v[2], v[3]: of c and d.
  static __m256 pair_lanes(L even, L odd) {
    const __m256 x = _mm256_add_ps(even.low, even.high), y = _mm256_add_ps(odd.low, odd.high);
    return _mm256_add_ps(_mm256_shuffle_ps(x, y, 0x44), _mm256_shuffle_ps(x, y, 0xee));
  }
  static Sums sum_pairs(const L* v) {
    const __m256 x = pair_lanes(v[0], v[1]), y = pair_lanes(v[2], v[3]);
    const __m256 two = _mm256_add_ps(_mm256_shuffle_ps(x, y, 0x88), _mm256_shuffle_ps(x, y, 0xdd));
    return {_mm256_add_ps(two, _mm256_permute_ps(two, 0xb1))};
  }

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
