#include <cpuid.h>
#include <immintrin.h>

#include "base/sha256_blocks.h"

namespace verbatim {

bool sha_instructions_are_available() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __builtin_cpu_supports("sse4.1") && __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b & bit_SHA) != 0;
}

// The instructions want the state as (A B E F) and (C D G H), highest lane first, and do two rounds each.
void sha256_blocks_by_instructions(uint32_t* state, const uint8_t* data, size_t blocks) {
  const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  __m128i dcba = _mm_shuffle_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(state)), 0xb1);
  __m128i hgfe = _mm_shuffle_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(state + 4)), 0x1b);
  __m128i abef = _mm_alignr_epi8(dcba, hgfe, 8);
  __m128i cdgh = _mm_blend_epi16(hgfe, dcba, 0xf0);
  for (; blocks > 0; --blocks, data += 64) {
    const __m128i abef_before = abef, cdgh_before = cdgh;
    __m128i w[4];
    for (int i = 0; i < 4; ++i)
      w[i] = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(data + 16 * i)), big_endian);
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      const __m128i constants = _mm_loadu_si128(reinterpret_cast<const __m128i*>(kSha256Rounds + 4 * i));
      const __m128i words = _mm_add_epi32(w[i % 4], constants);
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, words);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(words, 0x0e));
      // Words 4 i + 16 .. 4 i + 19 take the place of words 4 i .. 4 i + 3.
      const __m128i &w1 = w[(i + 1) % 4], &w2 = w[(i + 2) % 4], &w3 = w[(i + 3) % 4];
      const __m128i sum = _mm_add_epi32(_mm_sha256msg1_epu32(w[i % 4], w1), _mm_alignr_epi8(w3, w2, 4));
      w[i % 4] = _mm_sha256msg2_epu32(sum, w3);
    }
    abef = _mm_add_epi32(abef, abef_before);
    cdgh = _mm_add_epi32(cdgh, cdgh_before);
  }
  const __m128i feba = _mm_shuffle_epi32(abef, 0x1b);
  const __m128i dchg = _mm_shuffle_epi32(cdgh, 0xb1);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(state), _mm_blend_epi16(feba, dchg, 0xf0));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(state + 4), _mm_alignr_epi8(dchg, feba, 8));
}

}  // namespace verbatim
