// Sixteen float32 lanes in two AVX registers (AVX2, FMA, F16C). See lanes_plain.h for the contract of each function.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace verbatim::ops::cpu {

struct Avx2Lanes {
  __m256 low, high;

  static constexpr const char* kName = "avx2";

  static Avx2Lanes set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  static Avx2Lanes zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static Avx2Lanes load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  // Mask with the first n of eight words set; n may lie outside 0..8.
  static __m256i first_mask(int64_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  static Avx2Lanes load_first(const float* p, int64_t n) {
    return {_mm256_maskload_ps(p, first_mask(n)), _mm256_maskload_ps(p + 8, first_mask(n - 8))};
  }
  void store(float* p) const {
    _mm256_storeu_ps(p, low);
    _mm256_storeu_ps(p + 8, high);
  }
  void store_first(float* p, int64_t n) const {
    _mm256_maskstore_ps(p, first_mask(n), low);
    _mm256_maskstore_ps(p + 8, first_mask(n - 8), high);
  }
  static __m256 widen_bf16(const void* p) {
    const __m128i halves = _mm_loadu_si128(static_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
  }
  static Avx2Lanes load_bf16(const void* p) { return {widen_bf16(p), widen_bf16(static_cast<const char*>(p) + 16)}; }

  friend Avx2Lanes operator+(Avx2Lanes a, Avx2Lanes b) {
    return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
  }
  friend Avx2Lanes operator-(Avx2Lanes a, Avx2Lanes b) {
    return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
  }
  friend Avx2Lanes operator*(Avx2Lanes a, Avx2Lanes b) {
    return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
  }
  friend Avx2Lanes operator/(Avx2Lanes a, Avx2Lanes b) {
    return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)};
  }
  static Avx2Lanes fma(Avx2Lanes a, Avx2Lanes b, Avx2Lanes c) {
    return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
  }
  static Avx2Lanes fnma(Avx2Lanes a, Avx2Lanes b, Avx2Lanes c) {
    return {_mm256_fnmadd_ps(a.low, b.low, c.low), _mm256_fnmadd_ps(a.high, b.high, c.high)};
  }
  static Avx2Lanes min(Avx2Lanes a, Avx2Lanes b) {
    return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)};
  }
  static Avx2Lanes max(Avx2Lanes a, Avx2Lanes b) {
    return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)};
  }
  static Avx2Lanes sqrt(Avx2Lanes a) { return {_mm256_sqrt_ps(a.low), _mm256_sqrt_ps(a.high)}; }
  static Avx2Lanes abs(Avx2Lanes a) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_andnot_ps(sign, a.low), _mm256_andnot_ps(sign, a.high)};
  }
  static Avx2Lanes round(Avx2Lanes a) {
    return {_mm256_round_ps(a.low, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
            _mm256_round_ps(a.high, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
  }
  static __m256 power_of_two_half(__m256 n) {
    const __m256i biased = _mm256_add_epi32(_mm256_cvttps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23));
  }
  static Avx2Lanes power_of_two(Avx2Lanes n) { return {power_of_two_half(n.low), power_of_two_half(n.high)}; }
  static Avx2Lanes select_less(Avx2Lanes a, Avx2Lanes b, Avx2Lanes x, Avx2Lanes y) {
    return {_mm256_blendv_ps(y.low, x.low, _mm256_cmp_ps(a.low, b.low, _CMP_LT_OQ)),
            _mm256_blendv_ps(y.high, x.high, _mm256_cmp_ps(a.high, b.high, _CMP_LT_OQ))};
  }
  static float sum(Avx2Lanes a) {
    const __m256 eight = _mm256_add_ps(a.low, a.high);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
};

}  // namespace verbatim::ops::cpu
