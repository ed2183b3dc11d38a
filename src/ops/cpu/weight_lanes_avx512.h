// How weights become sixteen lanes with AVX-512. See weight_lanes_plain.h.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "ops/cpu/lanes_avx512.h"
#include "ops/cpu/weight_tables.h"

namespace verbatim::ops::cpu {

template <>
struct WeightLanes<Avx512Lanes> {
  using L = Avx512Lanes;
  static constexpr int kDirectRows = 4;
  static constexpr int kDirectLimit = 8;
  static constexpr int kOutputs = 4;
  static constexpr int kPanelOutputs = 8;
  static constexpr int kPanels = 2;
  // Register lane 2 i holds element i of a group, lane 2 i + 1 element i + 8.
  static constexpr bool kPermutes = true;
  static constexpr bool kPairs = false;

  // Sums of a, b, c, d at lanes 0, kB, 8, 8 + kB.
  template <int kB>
  struct SumsAt {
    __m512 v;
    friend SumsAt operator+(SumsAt a, SumsAt b) { return {_mm512_add_ps(a.v, b.v)}; }
    void get(float* p) const {
      float all[16];
      _mm512_storeu_ps(all, v);
      p[0] = all[0], p[1] = all[kB], p[2] = all[8], p[3] = all[8 + kB];
    }
  };
  static SumsAt<4> sum4(L a, L b, L c, L d) {
    const __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4(a.v, b.v, 0x44), _mm512_shuffle_f32x4(a.v, b.v, 0xee));
    const __m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4(c.v, d.v, 0x44), _mm512_shuffle_f32x4(c.v, d.v, 0xee));
    const __m512 four = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
    const __m512 two = _mm512_add_ps(four, _mm512_permute_ps(four, 0x4e));
    return {_mm512_add_ps(two, _mm512_permute_ps(two, 0xb1))};
  }
  static SumsAt<2> sum4_permuted(L a, L b, L c, L d) {
    const __m512 ab = _mm512_add_ps(_mm512_shuffle_ps(a.v, b.v, 0x88), _mm512_shuffle_ps(a.v, b.v, 0xdd));
    const __m512 cd = _mm512_add_ps(_mm512_shuffle_ps(c.v, d.v, 0x88), _mm512_shuffle_ps(c.v, d.v, 0xdd));
    const __m512 four = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x44), _mm512_shuffle_f32x4(ab, cd, 0xee));
    const __m512 two = _mm512_add_ps(four, _mm512_shuffle_f32x4(four, four, 0xb1));
    return {_mm512_add_ps(two, _mm512_permute_ps(two, 0xb1))};
  }

  static L f32(const uint8_t* bytes) { return L::load(reinterpret_cast<const float*>(bytes)); }

  // The permute reads the low four bits of each index, so that codes need no mask.
  static L nvfp4(const uint8_t* codes, uint8_t scale) {
    int64_t word;
    __builtin_memcpy(&word, codes, 8);
    const __m512i shifted = _mm512_srlv_epi32(
        _mm512_set1_epi64(word), _mm512_setr_epi32(0, 0, 4, 4, 8, 8, 12, 12, 16, 16, 20, 20, 24, 24, 28, 28));
    return {_mm512_permutexvar_ps(shifted, _mm512_load_ps(WeightTables<L>::kNvfp4.v[scale]))};
  }
  static L nvfp4_natural(const uint8_t* codes, uint8_t scale) {
    return {_mm512_permutexvar_ps(_mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15),
                                  nvfp4(codes, scale).v)};
  }
  static L permute(L x) {
    return {_mm512_permutexvar_ps(_mm512_setr_epi32(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15), x.v)};
  }

  // The bits of e4m3, seven places up, are a half-precision number 2^8 times smaller, subnormals included.
  static L e4m3(const uint8_t* bytes) {
    const __m256i words = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
    const __m256i magnitude = _mm256_and_si256(words, _mm256_set1_epi16(0x7f));
    const __mmask16 nan = _mm256_cmpeq_epi16_mask(magnitude, _mm256_set1_epi16(0x7f));
    const __m256i half =
        _mm256_or_si256(_mm256_slli_epi16(magnitude, 7), _mm256_and_si256(words, _mm256_set1_epi16(-32768)));
    const __m256i total = _mm256_mask_mov_epi16(half, nan, _mm256_set1_epi16(0x7e00));
    return {_mm512_mul_ps(_mm512_cvtph_ps(total), _mm512_set1_ps(256.0f))};
  }
};

}  // namespace verbatim::ops::cpu
