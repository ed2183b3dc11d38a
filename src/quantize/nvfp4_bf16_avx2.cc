#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "quantize/nvfp4_bf16.h"

namespace verbatim::quantize {

namespace {

constexpr int64_t kPrefetchBytes = 4096;  // how far ahead weights are asked for; past the end it does no harm

// The largest unsigned 16-bit lane.
inline int32_t largest_lane(__m256i lanes) {
  const __m128i half = _mm_max_epu16(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256(lanes, 1));
  const __m128i inverted = _mm_xor_si128(half, _mm_set1_epi16(-1));
  return 0xffff - _mm_extract_epi16(_mm_minpos_epu16(inverted), 0);
}

uint16_t largest(const uint16_t* weights, int64_t count) {
  const __m256i magnitude_bits = _mm256_set1_epi16(0x7fff);
  __m256i most[4] = {};
  int64_t i = 0;
  for (; i + 64 <= count; i += 64) {
    for (int line = 0; line < 2; ++line)
      _mm_prefetch(reinterpret_cast<const char*>(weights + i) + kPrefetchBytes + 64 * line, _MM_HINT_T0);
    for (int j = 0; j < 4; ++j)
      most[j] = _mm256_max_epu16(
          most[j],
          _mm256_and_si256(magnitude_bits, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(weights + i + 16 * j))));
  }
  int32_t result =
      largest_lane(_mm256_max_epu16(_mm256_max_epu16(most[0], most[1]), _mm256_max_epu16(most[2], most[3])));
  for (; i < count; ++i) result = std::max<int32_t>(result, weights[i] & 0x7fff);
  return static_cast<uint16_t>(result);
}

// Eight blocks: where each one's scale stands in the table, or -1 for those whose scale is 1.
inline void scale_places(const Bf16Tables& tables, const uint16_t* weights, int16_t* places) {
  const __m256i magnitude_bits = _mm256_set1_epi16(0x7fff);
  __m256i w[8];
  for (int j = 0; j < 8; ++j)
    w[j] = _mm256_and_si256(magnitude_bits, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(weights + 16 * j)));
  // A transpose that takes the larger at every level: word j of each half ends as the half's largest of block j.
  __m256i pair[4], quad[2];
  for (int j = 0; j < 4; ++j)
    pair[j] =
        _mm256_max_epu16(_mm256_unpacklo_epi16(w[2 * j], w[2 * j + 1]), _mm256_unpackhi_epi16(w[2 * j], w[2 * j + 1]));
  for (int j = 0; j < 2; ++j)
    quad[j] = _mm256_max_epu16(_mm256_unpacklo_epi32(pair[2 * j], pair[2 * j + 1]),
                               _mm256_unpackhi_epi32(pair[2 * j], pair[2 * j + 1]));
  const __m256i both =
      _mm256_max_epu16(_mm256_unpacklo_epi64(quad[0], quad[1]), _mm256_unpackhi_epi64(quad[0], quad[1]));
  const __m128i all = _mm_max_epu16(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
  const __m128i lowest = _mm_set1_epi16(static_cast<int16_t>(tables.lowest));
  const __m128i place = _mm_sub_epi16(_mm_max_epi16(all, lowest), lowest);
  const __m128i told_apart = _mm_cmpgt_epi16(all, _mm_set1_epi16(static_cast<int16_t>(tables.zero_limit)));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(places),
                   _mm_or_si128(place, _mm_xor_si128(told_apart, _mm_set1_epi16(-1))));
}

// One block under its scale's cuts: a word a pair of elements with the pair's byte at the bottom, other bits zero.
inline __m256i encode_block(const uint32_t* cuts, const uint16_t* weights) {
  const __m256i w = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(weights));
  const __m256i magnitude = _mm256_and_si256(w, _mm256_set1_epi16(0x7fff));
  auto above = [&](int k) { return _mm256_cmpgt_epi16(magnitude, _mm256_set1_epi32(static_cast<int>(cuts[k]))); };
  // Each comparison is 0 or -1. Two chains, so that they overlap.
  const __m256i low = _mm256_add_epi16(_mm256_add_epi16(above(0), above(1)), _mm256_add_epi16(above(2), above(3)));
  const __m256i high = _mm256_add_epi16(_mm256_add_epi16(above(4), above(5)), above(6));
  const __m256i sign = _mm256_and_si256(_mm256_srli_epi16(_mm256_and_si256(w, above(7)), 12), _mm256_set1_epi16(8));
  const __m256i code = _mm256_sub_epi16(sign, _mm256_add_epi16(low, high));
  return _mm256_madd_epi16(code, _mm256_set1_epi32(16 << 16 | 1));  // even + 16 x odd
}

// Four blocks to 32 bytes.
inline void encode_four(const Bf16Tables& tables, const uint16_t* weights, const uint8_t* scales, uint8_t* codes) {
  const __m256i pair0 = encode_block(tables.cuts[scales[0]], weights);
  const __m256i pair1 = encode_block(tables.cuts[scales[1]], weights + 16);
  const __m256i pair2 = encode_block(tables.cuts[scales[2]], weights + 32);
  const __m256i pair3 = encode_block(tables.cuts[scales[3]], weights + 48);
  const __m256i bytes = _mm256_packus_epi16(_mm256_packus_epi32(pair0, pair1), _mm256_packus_epi32(pair2, pair3));
  // Packing keeps to halves: groups of four bytes stand as 0 1 2 3 (low halves of each block) | high halves.
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes), _mm256_permutevar8x32_epi32(bytes, order));
}

void encode(const Bf16Tables& tables, const uint16_t* weights, int64_t blocks, uint8_t* codes, uint8_t* scales) {
  int64_t block = 0;
  for (; block + 8 <= blocks; block += 8, weights += 128, codes += 64) {
    // Hardware stops reading ahead at every page.
    for (int line = 0; line < 4; ++line)
      _mm_prefetch(reinterpret_cast<const char*>(weights) + kPrefetchBytes + 64 * line, _MM_HINT_T0);
    int16_t places[8];
    scale_places(tables, weights, places);
    uint8_t eight[8];
    for (int j = 0; j < 8; ++j) eight[j] = places[j] < 0 ? uint8_t{0x38} : tables.scales[places[j]];
    encode_four(tables, weights, eight, codes);
    encode_four(tables, weights + 64, eight + 4, codes + 32);
    std::memcpy(scales + block, eight, 8);
  }
  if (block < blocks) plain_bf16_kernels().encode(tables, weights, blocks - block, codes, scales + block);
}

// bfloat16 to float32, eight at a time.
inline __m256 widen(__m128i halves) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

inline double pairwise(__m256 low, __m256 high) {
  const __m256d first =
      _mm256_add_pd(_mm256_cvtps_pd(_mm256_castps256_ps128(low)), _mm256_cvtps_pd(_mm256_castps256_ps128(high)));
  const __m256d second =
      _mm256_add_pd(_mm256_cvtps_pd(_mm256_extractf128_ps(low, 1)), _mm256_cvtps_pd(_mm256_extractf128_ps(high, 1)));
  alignas(32) double sums[4];
  _mm256_store_pd(sums, _mm256_add_pd(first, second));
  return (sums[0] + sums[2]) + (sums[1] + sums[3]);
}

ErrorSums errors(const Bf16Tables& tables, const uint16_t* weights, int64_t blocks, const uint8_t* codes,
                 const uint8_t* scales) {
  // Values of the codes, doubled: integers.
  const __m128i doubled = _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
  const __m128i nibble = _mm_set1_epi8(15);
  __m256 error[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()}, weight[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
  for (int64_t block = 0; block < blocks; ++block) {
    const __m128i packed = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes + 8 * block));
    const __m128i both =
        _mm_unpacklo_epi8(_mm_and_si128(packed, nibble), _mm_and_si128(_mm_srli_epi16(packed, 4), nibble));
    const __m128i values = _mm_shuffle_epi8(doubled, both);
    const __m256 unit = _mm256_set1_ps(tables.units[scales[block]]);
    for (int half = 0; half < 2; ++half) {
      const __m128i eight = half == 0 ? values : _mm_srli_si128(values, 8);
      // Halving is exact, so this is the code's value; its product with the unit is rounded once, as in plain C++.
      const __m256 code = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(eight)), _mm256_set1_ps(0.5f));
      const __m256 w = widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(weights + 16 * block + 8 * half)));
      const __m256 d = _mm256_sub_ps(w, _mm256_mul_ps(code, unit));
      error[half] = _mm256_add_ps(error[half], _mm256_mul_ps(d, d));
      weight[half] = _mm256_add_ps(weight[half], _mm256_mul_ps(w, w));
    }
  }
  return {pairwise(error[0], error[1]), pairwise(weight[0], weight[1])};
}

}  // namespace

const Bf16Kernels& avx2_bf16_kernels() {
  static constexpr Bf16Kernels kKernels = {largest, encode, errors};
  return kKernels;
}

}  // namespace verbatim::quantize
