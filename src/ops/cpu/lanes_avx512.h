// Sixteen float32 lanes in one AVX-512 register (F, BW, VL, DQ). See lanes_plain.h for the contract of each function.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace verbatim::ops::cpu {

struct Avx512Lanes {
  __m512 v;

  static constexpr const char* kName = "avx512";

  static Avx512Lanes set1(float x) { return {_mm512_set1_ps(x)}; }
  static Avx512Lanes zero() { return {_mm512_setzero_ps()}; }
  static Avx512Lanes load(const float* p) { return {_mm512_loadu_ps(p)}; }
  static __mmask16 first_mask(int64_t n) { return static_cast<__mmask16>((1u << n) - 1); }
  static Avx512Lanes load_first(const float* p, int64_t n) { return {_mm512_maskz_loadu_ps(first_mask(n), p)}; }
  void store(float* p) const { _mm512_storeu_ps(p, v); }
  void store_first(float* p, int64_t n) const { _mm512_mask_storeu_ps(p, first_mask(n), v); }
  static Avx512Lanes load_bf16(const void* p) {
    const __m256i halves = _mm256_loadu_si256(static_cast<const __m256i*>(p));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16))};
  }

  friend Avx512Lanes operator+(Avx512Lanes a, Avx512Lanes b) { return {_mm512_add_ps(a.v, b.v)}; }
  friend Avx512Lanes operator-(Avx512Lanes a, Avx512Lanes b) { return {_mm512_sub_ps(a.v, b.v)}; }
  friend Avx512Lanes operator*(Avx512Lanes a, Avx512Lanes b) { return {_mm512_mul_ps(a.v, b.v)}; }
  friend Avx512Lanes operator/(Avx512Lanes a, Avx512Lanes b) { return {_mm512_div_ps(a.v, b.v)}; }
  static Avx512Lanes fma(Avx512Lanes a, Avx512Lanes b, Avx512Lanes c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
  static Avx512Lanes fnma(Avx512Lanes a, Avx512Lanes b, Avx512Lanes c) { return {_mm512_fnmadd_ps(a.v, b.v, c.v)}; }
  static Avx512Lanes min(Avx512Lanes a, Avx512Lanes b) { return {_mm512_min_ps(a.v, b.v)}; }
  static Avx512Lanes max(Avx512Lanes a, Avx512Lanes b) { return {_mm512_max_ps(a.v, b.v)}; }
  static Avx512Lanes sqrt(Avx512Lanes a) { return {_mm512_sqrt_ps(a.v)}; }
  static Avx512Lanes abs(Avx512Lanes a) { return {_mm512_abs_ps(a.v)}; }
  static Avx512Lanes round(Avx512Lanes a) {
    return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
  }
  static Avx512Lanes power_of_two(Avx512Lanes n) {
    const __m512i biased = _mm512_add_epi32(_mm512_cvttps_epi32(n.v), _mm512_set1_epi32(127));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(biased, 23))};
  }
  static Avx512Lanes select_less(Avx512Lanes a, Avx512Lanes b, Avx512Lanes x, Avx512Lanes y) {
    return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), y.v, x.v)};
  }
  static float sum(Avx512Lanes a) {
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
};

}  // namespace verbatim::ops::cpu
