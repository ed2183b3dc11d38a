#include <immintrin.h>

#include "quantize/nvfp4_bf16.h"

namespace verbatim::quantize {

namespace {

// Lanes l and l + 8, then l + 4, l + 2, l + 1, in float64.
double pairwise(__m512 lanes) {
  const __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(lanes));
  const __m512d high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(lanes, 1));
  alignas(64) double sums[8];
  _mm512_store_pd(sums, _mm512_add_pd(low, high));
  for (int step = 4; step > 0; step /= 2)
    for (int i = 0; i < step; ++i) sums[i] += sums[i + step];
  return sums[0];
}

ErrorSums errors(const Bf16Tables& tables, const uint16_t* weights, int64_t blocks, const uint8_t* codes,
                 const uint8_t* scales) {
  const __m512 values = _mm512_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6);
  const __m128i nibble = _mm_set1_epi8(15);
  __m512 error = _mm512_setzero_ps(), weight = _mm512_setzero_ps();
  for (int64_t block = 0; block < blocks; ++block) {
    const __m128i packed = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes + 8 * block));
    const __m128i both =
        _mm_unpacklo_epi8(_mm_and_si128(packed, nibble), _mm_and_si128(_mm_srli_epi16(packed, 4), nibble));
    const __m512 code = _mm512_permutexvar_ps(_mm512_cvtepu8_epi32(both), values);
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(weights + 16 * block));
    const __m512 w = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
    const __m512 d = _mm512_sub_ps(w, _mm512_mul_ps(code, _mm512_set1_ps(tables.units[scales[block]])));
    error = _mm512_add_ps(error, _mm512_mul_ps(d, d));
    weight = _mm512_add_ps(weight, _mm512_mul_ps(w, w));
  }
  return {pairwise(error), pairwise(weight)};
}

}  // namespace

// Codes come three registers of sixteen a cycle from AVX2; 512 bits would give two of thirty-two and lose it in masks.
const Bf16Kernels& avx512_bf16_kernels() {
  static const Bf16Kernels kKernels = {avx2_bf16_kernels().largest, avx2_bf16_kernels().encode, errors};
  return kKernels;
}

}  // namespace verbatim::quantize
