// What kernels of sparse attention over bfloat16 caches share: the shape of a group of 64 tokens on eight warps, and
// the weights of a group.
#pragma once

#include "ops/cuda/fade.cuh"
#include "ops/cuda/ptx/bf16.cuh"

namespace verbatim::ops::cuda::attention_tiles {

inline constexpr int kThreads = 256, kWarps = kThreads / 32, kTokens = 64, kSlice = 256;
// Floats from one head's scores to the next.
inline constexpr int kScoreStride = 80;
// Rows of bfloat16 in shared memory are sixteen bytes longer than their elements, so that one place of eight rows lies
// in all banks.
inline constexpr int kPad = 16;

template <int kHeads>
struct Tiles {
  // The scores of a slice, by four warps: tiles of sixteen heads and of sixteen tokens that a warp takes.
  static constexpr int kHeadTiles = kHeads == 16 ? 1 : 2, kTokenTiles = kHeads == 64 ? 2 : 1;
  static constexpr int kTokenWarps = kTokens / (16 * kTokenTiles);
  // Threads that share the softmax of a head, and which of sixteen lanes (dot16) each takes.
  static constexpr int kParts = kThreads / kHeads, kLanes = 16 / kParts;
};

// Scores of a group, scaled, from the sums of the warps' slices; absent tokens have none. The block is synchronised
// before and after they stand there.
template <int kHeads>
__device__ inline void settle(float (&sums)[Tiles<kHeads>::kHeadTiles][2 * Tiles<kHeads>::kTokenTiles][4],
                              float* scores, int slices, int count, float scale) {
  using T = Tiles<kHeads>;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, slice = warp / 4;
  const int head0 = warp % 4 / T::kTokenWarps * 16 * T::kHeadTiles;
  const int token0 = warp % 4 % T::kTokenWarps * 16 * T::kTokenTiles;
  // The second slice goes through shared memory to those who have the first.
  const auto each_pair = [&](const auto& body) {
#pragma unroll
    for (int h = 0; h < T::kHeadTiles; ++h)
#pragma unroll
      for (int t = 0; t < 2 * T::kTokenTiles; ++t)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int head = head0 + h * 16 + half * 8 + lane / 4, token = token0 + t * 8 + lane % 4 * 2;
          body(*reinterpret_cast<float2*>(scores + head * kScoreStride + token), sums[h][t][2 * half],
               sums[h][t][2 * half + 1], token);
        }
  };
  if (slice == 1 && slices > 1) each_pair([&](float2& at, float x, float y, int) { at = make_float2(x, y); });
  __syncthreads();
  if (slice == 0)
    each_pair([&](float2& at, float x, float y, int token) {
      if (slices > 1) {
        x = x + at.x;
        y = y + at.y;
      }
      at = make_float2(token < count ? x * scale : -INFINITY, token + 1 < count ? y * scale : -INFINITY);
    });
  __syncthreads();
}

// Weights of a group, rounded, from its scores; its maximum, which found() is told, and the sum of the weights (dot16)
// in all of the threads that share a head. keep(head, token, bits) is given the weights, one (16 bits) or two (32) at a
// time.
template <int kHeads, class Found, class Keep>
__device__ inline void weigh(const float* scores, float& most, float& sum, const Found& found, const Keep& keep) {
  using T = Tiles<kHeads>;
  const int head = threadIdx.x / T::kParts, first = threadIdx.x % T::kParts * T::kLanes;
  float own[kTokens / 16][T::kLanes];
  const float* from = scores + head * kScoreStride + first;
#pragma unroll
  for (int i = 0; i < kTokens / 16; ++i)
#pragma unroll
    for (int l = 0; l < T::kLanes; ++l) own[i][l] = from[i * 16 + l];
  most = own[0][0];
#pragma unroll
  for (int i = 0; i < kTokens / 16; ++i)
#pragma unroll
    for (int l = 0; l < T::kLanes; ++l) most = max_of(own[i][l], most);
#pragma unroll
  for (int step = 1; step < T::kParts; step *= 2) most = max_of(__shfl_xor_sync(0xffffffffu, most, step), most);
  found(most);
  float lanes[T::kLanes] = {};
#pragma unroll
  for (int i = 0; i < kTokens / 16; ++i) {
#pragma unroll
    for (int l = 0; l < T::kLanes; l += 2) {
      const float low = fade_of(own[i][l] - most);
      if constexpr (T::kLanes == 1) {
        const uint32_t bits = ptx::pack_bf16(low, 0.0f);
        lanes[0] = lanes[0] + __uint_as_float(bits << 16);
        keep(head, i * 16 + first, static_cast<uint16_t>(bits));
      } else {
        const uint32_t bits = ptx::pack_bf16(low, fade_of(own[i][l + 1] - most));
        lanes[l] = lanes[l] + __uint_as_float(bits << 16);
        lanes[l + 1] = lanes[l + 1] + __uint_as_float(bits & 0xffff0000u);
        keep(head, i * 16 + first + l, bits);
      }
    }
  }
  // The lane tree, as far as lanes are other threads'; then the rest.
#pragma unroll
  for (int step = 8; step > 0; step /= 2) {
    if (step >= T::kLanes) {
#pragma unroll
      for (int l = 0; l < T::kLanes; ++l)
        lanes[l] = lanes[l] + __shfl_xor_sync(0xffffffffu, lanes[l], step / T::kLanes);
    } else {
#pragma unroll
      for (int l = 0; l < step; ++l) lanes[l] = lanes[l] + lanes[l + step];
    }
  }
  sum = lanes[0];
}

}  // namespace verbatim::ops::cuda::attention_tiles
