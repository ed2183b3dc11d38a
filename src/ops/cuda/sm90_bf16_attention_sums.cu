// The second launch of attention_split.cuh, and both as one. Bytes of a row: its latents once for each 64 or sixteen
// heads, weights once a tile of columns; operations: 2 * heads * tokens * width.
#include "ops/cuda/attention_split.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/math.cuh"
#include "ops/cuda/ptx/async_copy.cuh"
#include "ops/cuda/ptx/dependency.cuh"
#include "ops/cuda/ptx/mma.cuh"
#include "ops/cuda/shapes.h"
#include "ops/cuda/spans.cuh"
#include "ops/cuda/swizzle.cuh"

namespace verbatim::ops::cuda {

namespace {

using namespace attention_split;

// Sends for what the first launch left of a row's heads, of all groups: maxima and sums of weights, places of latents.
// Becomes one group of copies.
template <int kHeads>
__device__ void read_groups(const AttentionProblem& p, int64_t row, int64_t first_head, int own_heads, float2* stats,
                            int32_t* stored) {
  const auto groups = static_cast<int>(p.groups);
  const float* from = p.stats + (row * p.groups * p.heads + first_head) * 2;
  for (int i = threadIdx.x; i < groups * (kHeads / 2); i += kThreads) {
    const int head = i % (kHeads / 2) * 2;
    ptx::copy_16_bytes(stats + i * 2, from + (i / (kHeads / 2) * p.heads + (head < own_heads ? head : 0)) * 2);
  }
  const int32_t* listed = p.tokens + row * p.groups * kTokens;
  for (int i = threadIdx.x; i < groups * (kTokens / 4); i += kThreads)
    ptx::copy_16_bytes(stored + i * 4, listed + i * 4);
  ptx::close_copy_group();
}

// A head's groups merged so far: the maximum and the sum of weights.
struct Merged {
  float most = 0.0f, total = 0.0f;
  // Takes the next group's and tells what the sums so far, and the group's, are multiplied by.
  __device__ float2 take(float2 group, bool is_first) {
    const float both = is_first ? group.x : max_of(most, group.x);
    const float2 by = is_first ? make_float2(0.0f, 1.0f) : make_float2(fade_of(most - both), fade_of(group.x - both));
    most = both;
    total = fmaf(group.y, by.y, total * by.x);
    return by;
  }
};

// 64 heads and kColumns columns of a row, all groups one after the other. Eight warps: two of heads, four of columns.
template <int kColumns, int kStages>
__global__ void __launch_bounds__(kThreads, kStages > kSplitStages ? 1 : 2)
    sum_kernel(const __grid_constant__ AttentionProblem p) {
  extern __shared__ __align__(128) uint8_t memory[];
  constexpr int kHeads = 64, kPairs = kColumns / 64, kTiles = kWidth / kColumns;
  constexpr int kWeightRow = kTokens * 2, kLatentRow = kColumns * 2;
  constexpr int kStageBytes = kHeads * kWeightRow + kTokens * kLatentRow;
  const auto most_groups = static_cast<int>(p.groups);
  auto* stats = reinterpret_cast<float2*>(memory + kStages * kStageBytes);
  float2* factors = stats + most_groups * kHeads;  // of two groups
  auto* stored = reinterpret_cast<int32_t*>(factors + 2 * kHeads);
  __shared__ float totals[kHeads];
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  ptx::let_next_start();
  const auto head_tiles = static_cast<unsigned>((p.heads + kHeads - 1) / kHeads);
  const int column0 = static_cast<int>(blockIdx.x % kTiles) * kColumns;
  const int64_t first_head = blockIdx.x / kTiles % head_tiles * kHeads, row = blockIdx.x / kTiles / head_tiles;
  const auto own_heads = static_cast<int>(p.heads - first_head < kHeads ? p.heads - first_head : kHeads);
  const Row at = row_at(p.spans, row);
  const int64_t position = at.position;
  ptx::wait_for_previous();
  read_groups<kHeads>(p, row, first_head, own_heads, stats, stored);
  const int groups = visible(p, position, p.selection.counts[row]).groups;
  ptx::wait_for_copies<0>();
  __syncthreads();
  // Loops of a known length: their addresses cost a few instructions.
  constexpr int kPieces = kColumns / 8, kTokensAtOnce = kThreads / kPieces, kHeadsAtOnce = kThreads / 8;
  const uint16_t* weights = p.weights + (row * p.groups * p.heads + first_head) * kTokens + thread % 8 * 8;
  const int64_t group_weights = p.heads * kTokens;
  int own_head[kHeads / kHeadsAtOnce];
#pragma unroll
  for (int i = 0; i < kHeads / kHeadsAtOnce; ++i) {
    const int head = thread / 8 + i * kHeadsAtOnce;
    own_head[i] = (head < own_heads ? head : own_heads - 1) * kTokens;
  }
  const auto* latents = static_cast<const uint16_t*>(p.cache.latents) + column0 + thread % kPieces * 8;
  uint8_t* to_weights = swizzled(memory, thread / 8, thread % 8, kWeightRow);
  uint8_t* to_latents = swizzled(memory + kHeads * kWeightRow, thread / kPieces, thread % kPieces, kLatentRow);
  static_assert(kHeadsAtOnce % 8 == 0 && kTokensAtOnce % 8 == 0);  // swizzled alike
  const auto fetch = [&](int wanted) {
    const bool is_there = wanted < groups;
    const int group = is_there ? wanted : 0, stage = wanted % kStages * kStageBytes;
    const uint16_t* from = weights + group * group_weights;
#pragma unroll
    for (int i = 0; i < kHeads / kHeadsAtOnce; ++i)
      ptx::copy_16_bytes_if(is_there, to_weights + stage + i * kHeadsAtOnce * kWeightRow, from + own_head[i]);
    const int32_t* places = stored + group * kTokens + thread / kPieces;
#pragma unroll
    for (int i = 0; i < kTokens / kTokensAtOnce; ++i)
      ptx::copy_16_bytes_if(is_there, to_latents + stage + i * kTokensAtOnce * kLatentRow,
                            latents + int64_t{places[i * kTokensAtOnce]} * kWidth);
  };
#pragma unroll
  for (int g = 0; g < kStages - 1; ++g) {
    fetch(g);
    ptx::close_copy_group();
  }
  // Each warp merges eight heads, a group ahead of the sums; four lanes do the same. Behind the last group nothing
  // counts. The loop is one piece without branches, so that all of this goes on beside the products.
  Merged merged;
  const int merged_head = warp * (kHeads / kWarps) + lane % (kHeads / kWarps);
  const auto merge = [&](int group) {
    Merged next = merged;
    const bool is_there = group < groups;
    const float2 by = next.take(stats[(is_there ? group : 0) * kHeads + merged_head], group == 0);
    merged.most = is_there ? next.most : merged.most;
    merged.total = is_there ? next.total : merged.total;
    factors[group % 2 * kHeads + merged_head] = by;
  };
  if (groups > 0) merge(0);
  const int head0 = warp / 4 * 32, own_column = warp % 4 * (kColumns / 4);
  float all[2][2 * kPairs][4] = {};
  for (int group = 0; group < groups; ++group) {
    ptx::wait_for_copies<kStages - 2>();
    __syncthreads();
    uint8_t* own_weights = memory + group % kStages * kStageBytes;
    uint8_t* own_latents = own_weights + kHeads * kWeightRow;
    float own[2][2 * kPairs][4] = {};
#pragma unroll
    for (int step = 0; step < kTokens / 16; ++step) {
      uint32_t a[2][4], b[kPairs][4];
#pragma unroll
      for (int h = 0; h < 2; ++h)
        ptx::ldmatrix_x4(a[h], swizzled(own_weights, head0 + h * 16 + lane % 16, 2 * step + lane / 16, kWeightRow));
#pragma unroll
      for (int n = 0; n < kPairs; ++n)
        ptx::ldmatrix_x4_transposed(
            b[n], swizzled(own_latents, step * 16 + lane % 16, own_column / 8 + 2 * n + lane / 16, kLatentRow));
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int n = 0; n < kPairs; ++n) {
          ptx::mma_m16n8k16_bf16(own[h][2 * n], a[h], make_uint2(b[n][0], b[n][1]));
          ptx::mma_m16n8k16_bf16(own[h][2 * n + 1], a[h], make_uint2(b[n][2], b[n][3]));
        }
    }
    fetch(group + kStages - 1);
    ptx::close_copy_group();
    merge(group + 1);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float2* by = factors + group % 2 * kHeads + head0 + h * 16 + lane / 4;
      const float2 low = by[0], high = by[8];
#pragma unroll
      for (int n = 0; n < 2 * kPairs; ++n) {
        float(&sum)[4] = all[h][n];
        sum[0] = fmaf(own[h][n][0], low.y, sum[0] * low.x);
        sum[1] = fmaf(own[h][n][1], low.y, sum[1] * low.x);
        sum[2] = fmaf(own[h][n][2], high.y, sum[2] * high.x);
        sum[3] = fmaf(own[h][n][3], high.y, sum[3] * high.x);
      }
    }
  }
  ptx::wait_for_copies<0>();
  totals[merged_head] = groups > 0 ? merged.total : 1.0f;
  __syncthreads();
#pragma unroll
  for (int h = 0; h < 2; ++h)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int head = head0 + h * 16 + half * 8 + lane / 4;
      if (head >= own_heads) continue;
      const float total = totals[head];
      float* to = p.out + (row * p.heads + first_head + head) * kWidth + column0 + own_column + lane % 4 * 2;
#pragma unroll
      for (int n = 0; n < 2 * kPairs; ++n)
        *reinterpret_cast<float2*>(to + n * 8) =
            make_float2(all[h][n][2 * half] / total, all[h][n][2 * half + 1] / total);
    }
}

// Sixteen heads and kColumns columns of a row: each of eight warps takes the product of every eighth group, then all
// threads merge eight groups.
template <int kColumns>
__global__ void __launch_bounds__(kThreads, 1) few_sum_kernel(const __grid_constant__ AttentionProblem p) {
  extern __shared__ __align__(128) uint8_t memory[];
  constexpr int kHeads = 16, kTiles = kWidth / kColumns, kPairs = kColumns / 16, kEach = kColumns / 16;
  constexpr int kWeightRow = kTokens * 2, kLatentRow = kColumns * 2, kPieces = kColumns / 8;
  constexpr int kOneBytes = kHeads * kWeightRow + kTokens * kLatentRow, kProductStride = kColumns + 8;
  const auto most_groups = static_cast<int>(p.groups);
  auto* products = reinterpret_cast<float*>(memory + 2 * kWarps * kOneBytes);  // [warp][head]
  auto* stats = reinterpret_cast<float2*>(products + kWarps * kHeads * kProductStride);
  float2* factors = stats + most_groups * kHeads;
  auto* stored = reinterpret_cast<int32_t*>(factors + most_groups * kHeads);
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  ptx::let_next_start();
  const auto head_tiles = static_cast<unsigned>((p.heads + kHeads - 1) / kHeads);
  const int column0 = static_cast<int>(blockIdx.x % kTiles) * kColumns;
  const int64_t first_head = blockIdx.x / kTiles % head_tiles * kHeads, row = blockIdx.x / kTiles / head_tiles;
  const auto own_heads = static_cast<int>(p.heads - first_head < kHeads ? p.heads - first_head : kHeads);
  const Row at = row_at(p.spans, row);
  const int64_t position = at.position;
  ptx::wait_for_previous();
  read_groups<kHeads>(p, row, first_head, own_heads, stats, stored);
  const int groups = visible(p, position, p.selection.counts[row]).groups;
  ptx::wait_for_copies<0>();
  __syncthreads();
  // Of each eight groups a warp fetches its own, so that it waits for nobody else's.
  constexpr int kTokensAtOnce = 32 / kPieces;
  const uint16_t* weights = p.weights + (row * p.groups * p.heads + first_head) * kTokens + lane % 8 * 8;
  const int64_t group_weights = p.heads * kTokens;
  int own_head[kHeads / 4];
#pragma unroll
  for (int i = 0; i < kHeads / 4; ++i) {
    const int own = lane / 8 + i * 4;
    own_head[i] = (own < own_heads ? own : own_heads - 1) * kTokens;
  }
  const auto* latents = static_cast<const uint16_t*>(p.cache.latents) + column0 + lane % kPieces * 8;
  const auto place_of = [](uint8_t* base, int token, int piece) {
    return base + token * kLatentRow + ((piece ^ (kPieces == 8 ? token & 7 : token >> 1 & 3)) << 4);
  };
  const auto fetch = [&](int round) {
    const int group = round * kWarps + warp;
    if (group < groups) {
      uint8_t* to = memory + (round % 2 * kWarps + warp) * kOneBytes;
      const uint16_t* from = weights + group * group_weights;
#pragma unroll
      for (int i = 0; i < kHeads / 4; ++i)
        ptx::copy_16_bytes(swizzled(to, lane / 8 + i * 4, lane % 8, kWeightRow), from + own_head[i]);
      to += kHeads * kWeightRow;
      const int32_t* places = stored + group * kTokens + lane / kPieces;
#pragma unroll
      for (int i = 0; i < kTokens / kTokensAtOnce; ++i)
        ptx::copy_16_bytes(place_of(to, lane / kPieces + i * kTokensAtOnce, lane % kPieces),
                           latents + int64_t{places[i * kTokensAtOnce]} * kWidth);
    }
    ptx::close_copy_group();
  };
  fetch(0);
  fetch(1);
  // Maxima in front of each group first, which are a chain; then all else has no order.
  if (thread < kHeads && groups > 0) {
    float before = stats[thread].x;
#pragma unroll 4
    for (int g = 1; g < groups; ++g) {
      factors[g * kHeads + thread].x = before;
      before = max_of(before, stats[g * kHeads + thread].x);
    }
  }
  __syncthreads();
#pragma unroll 1
  for (int i = thread; i < groups * kHeads; i += kThreads) {
    const float before = factors[i].x, most = stats[i].x, both = max_of(before, most);
    factors[i] = i < kHeads ? make_float2(0.0f, 1.0f) : make_float2(fade_of(before - both), fade_of(most - both));
  }
  const int head = thread / 16, column = thread % 16 * kEach;
  float all[kEach] = {}, total = 0.0f;
  for (int round = 0; round * kWarps < groups; ++round) {
    ptx::wait_for_copies<1>();
    __syncwarp();
    if (round * kWarps + warp < groups) {
      uint8_t* own_weights = memory + (round % 2 * kWarps + warp) * kOneBytes;
      uint8_t* own_latents = own_weights + kHeads * kWeightRow;
      float own[2 * kPairs][4] = {};
#pragma unroll
      for (int step = 0; step < kTokens / 16; ++step) {
        uint32_t a[4], b[kPairs][4];
        ptx::ldmatrix_x4(a, swizzled(own_weights, lane % 16, 2 * step + lane / 16, kWeightRow));
#pragma unroll
        for (int n = 0; n < kPairs; ++n)
          ptx::ldmatrix_x4_transposed(b[n], place_of(own_latents, step * 16 + lane % 16, 2 * n + lane / 16));
#pragma unroll
        for (int n = 0; n < kPairs; ++n) {
          ptx::mma_m16n8k16_bf16(own[2 * n], a, make_uint2(b[n][0], b[n][1]));
          ptx::mma_m16n8k16_bf16(own[2 * n + 1], a, make_uint2(b[n][2], b[n][3]));
        }
      }
      float* to = products + (warp * kHeads + lane / 4) * kProductStride + lane % 4 * 2;
#pragma unroll
      for (int n = 0; n < 2 * kPairs; ++n) {
        *reinterpret_cast<float2*>(to + n * 8) = make_float2(own[n][0], own[n][1]);
        *reinterpret_cast<float2*>(to + 8 * kProductStride + n * 8) = make_float2(own[n][2], own[n][3]);
      }
    }
    __syncwarp();
    fetch(round + 2);
    __syncthreads();
    const int left = groups - round * kWarps;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      if (w >= left) break;
      const float2 by = factors[(round * kWarps + w) * kHeads + head];
      const float* from = products + (w * kHeads + head) * kProductStride + column;
#pragma unroll
      for (int i = 0; i < kEach; ++i) all[i] = fmaf(from[i], by.y, all[i] * by.x);
      total = fmaf(stats[(round * kWarps + w) * kHeads + head].y, by.y, total * by.x);
    }
    __syncthreads();
  }
  if (groups == 0) total = 1.0f;
  if (head < own_heads) {
    float* to = p.out + (row * p.heads + first_head + head) * kWidth + column0 + column;
#pragma unroll
    for (int i = 0; i < kEach; i += 2)
      *reinterpret_cast<float2*>(to + i) = make_float2(all[i] / total, all[i + 1] / total);
  }
}

}  // namespace

bool attention_splits(const AttentionProblem& p, int64_t shared_bytes) {
  const int64_t groups = attention_groups(p.shape);
  const auto fits = [&](int64_t bytes) { return bytes + 1024 <= shared_bytes; };
  return p.width == kSplitWidth && p.spans.rows <= kMostSplitRows && groups > 0 && p.heads % 2 == 0 &&
         fits(split_weigh_shared_bytes(64, groups)) && fits(split_few_sum_shared_bytes(64, groups)) &&
         fits(split_sum_shared_bytes(128, kSplitStages, groups)) &&
         fits(split_sum_shared_bytes(64, kSplitMoreStages, groups));
}

int64_t attention_split_bytes(const AttentionProblem& p) {
  return p.spans.rows * attention_groups(p.shape) * (p.heads * (kTokens * 2 + 8) + kTokens * 4);
}

cudaError_t attend_split(cudaStream_t stream, const AttentionProblem& problem, std::byte* working,
                         int multiprocessors) {
  AttentionProblem p = problem;
  const int64_t rows = p.spans.rows;
  if (rows == 0 || p.heads == 0) return cudaSuccess;
  p.groups = attention_groups(p.shape);
  p.weights = reinterpret_cast<uint16_t*>(working);
  p.tokens = reinterpret_cast<int32_t*>(p.weights + rows * p.groups * p.heads * kTokens);
  p.stats = reinterpret_cast<float*>(p.tokens + rows * p.groups * kTokens);
  const cudaError_t error = launch_weights(stream, p, multiprocessors);
  if (error != cudaSuccess) return error;
  const auto launch_sums = [&](auto kernel, int64_t heads, int64_t columns, int64_t shared_bytes) {
    return launch(kernel, static_cast<unsigned>(rows * ((p.heads + heads - 1) / heads) * (kWidth / columns)), kThreads,
                  static_cast<size_t>(shared_bytes), stream, p);
  };
  const int64_t few = rows * ((p.heads + 15) / 16);  // blocks of sixteen heads that have all columns
  if (few * 16 <= multiprocessors)
    return launch_sums(few_sum_kernel<32>, 16, 32, split_few_sum_shared_bytes(32, p.groups));
  if (few * 8 <= 2 * multiprocessors)
    return launch_sums(few_sum_kernel<64>, 16, 64, split_few_sum_shared_bytes(64, p.groups));
  const int64_t tiles = rows * ((p.heads + 63) / 64);
  return tiles * 8 <= multiprocessors
             ? launch_sums(sum_kernel<64, kSplitMoreStages>, 64, 64,
                           split_sum_shared_bytes(64, kSplitMoreStages, p.groups))
             : launch_sums(sum_kernel<128, kSplitStages>, 64, 128, split_sum_shared_bytes(128, kSplitStages, p.groups));
}

}  // namespace verbatim::ops::cuda
