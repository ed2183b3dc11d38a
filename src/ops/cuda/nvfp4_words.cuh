// NVFP4 in the words of packed.cuh: eight codes of four bits, or four block scales, arranged at upload so that few
// instructions make bfloat16 of them. Logic, rotations and shifts to the right go through a unit of half rate, which
// bounds streamed experts: 8.5 of these for a word of codes and its share of the scales (shifts to the left are
// multiplications, of another unit; the shift to the right as one, too, was slower).
//
// A pair is two codes, one a half, sign at bit 15 and magnitude at bits 8 to 6: bfloat16 times 2^-126. Four pairs of
// such bits cannot fill a word by four shifts; these five leave no bit over, of each half:
//   pair 0 six places down (bits 0 to 2, sign 9), pair 1 two places down (4 to 6, 13), pair 2 four places up (10 to 12,
//   its sign at bit 3 of the other half), pair 3 in place (15, 8, 7), its lowest bit eight places up (14).
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "ops/cuda/ptx/logic.cuh"

namespace verbatim::ops::cuda {

inline constexpr uint32_t kPairBits = 0x81c081c0u, kThirdInPlace = 0x81808180u, kThirdLowest = 0x00400040u;

__device__ inline uint32_t rotated(uint32_t word, int left) { return __funnelshift_l(word, word, left); }

// A pair of two codes of e2m1, and its codes.
__device__ inline uint32_t pair_of_codes(uint32_t low, uint32_t high) {
  const uint32_t both = low | high << 16;
  return (both & 0x00080008u) << 12 | (both & 0x00070007u) << 6;
}
__device__ inline uint32_t code_of_pair(uint32_t pair, int half) {
  const uint32_t own = pair >> (16 * half);
  return (own >> 12 & 8) | (own >> 6 & 7);
}

__device__ inline uint32_t pack_pairs(const uint32_t (&pairs)[4]) {
  return pairs[0] >> 6 | pairs[1] >> 2 | rotated(pairs[2], 4) | (pairs[3] & kThirdInPlace) |
         (pairs[3] & kThirdLowest) << 8;
}
__device__ inline void unpack_pairs(uint32_t word, uint32_t (&pairs)[4]) {
  pairs[0] = word << 6 & kPairBits;
  pairs[1] = word << 2 & kPairBits;
  pairs[2] = rotated(word, 28) & kPairBits;
  pairs[3] = (word & kThirdInPlace) | (word >> 8 & kThirdLowest);
}

// A scale of e4m3, neither negative nor NaN, with an exponent of five bits in the place of sign and four:
// 2^(exponent - 21) (1 + three bits / 8), 0 for 0; and back.
__device__ inline uint8_t pack_scale(uint32_t scale) {
  if (scale >= 8) return static_cast<uint8_t>(scale + (14 << 3));
  if (scale == 0) return 0;
  const int shift = scale >= 4   ? 1
                    : scale >= 2 ? 2
                                 : 3;  // 2^-9 times one to seven: the first bit becomes the leading one
  return static_cast<uint8_t>((15 - shift) << 3 | (scale << shift & 7));
}
__device__ inline uint8_t unpack_scale(uint32_t packed) {
  if (packed >= 15 << 3) return static_cast<uint8_t>(packed - (14 << 3));
  if (packed == 0) return 0;
  return static_cast<uint8_t>((8 | (packed & 7)) >> (15 - (packed >> 3)));
}

// Packed scales of four blocks in a word: those of blocks 0 and 2 at bits 4 to 11 of the halves, those of 1 and 3 there
// once the word is rotated eight places up.
__device__ inline uint32_t pack_scales(const uint8_t (&packed)[4]) {
  return packed[0] << 4 | packed[2] << 20 | rotated(packed[1] << 4 | packed[3] << 20, 24);
}
__device__ inline uint8_t packed_scale_of(uint32_t word, int block) {
  return static_cast<uint8_t>(rotated(word, block % 2 * 8) >> (block / 2 * 16 + 4));
}
// The scales times 2^118, of blocks 0 and 2 and of 1 and 3, in halves: their bits and 224 more of the exponent.
__device__ inline void unpack_scales(uint32_t word, __nv_bfloat162 (&pairs)[2]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t bits = ptx::and_or<0x0ff00ff0, 0x70007000>(rotated(word, i * 8));
    pairs[i] = *reinterpret_cast<const __nv_bfloat162*>(&bits);
  }
}

}  // namespace verbatim::ops::cuda
