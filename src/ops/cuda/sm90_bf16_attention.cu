// Sparse attention over bfloat16 caches on the matrix units (mma.sync). A block takes 16, 32 or 64 heads of a row and
// either one group of 64 tokens, whose sums another launch merges (few rows), or all groups one after the other, the
// next one's latents on their way while one is computed. The order of sums is that of ops.h and the same in all of
// them. Bytes: the visible latents, 1 KB a token at width 512, once a block, and q once a block; operations: 4 * heads
// * tokens * width a row.
#include <utility>

#include "ops/cuda/attention.h"
#include "ops/cuda/attention_tiles.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/math.cuh"
#include "ops/cuda/ptx/bulk_copy.cuh"
#include "ops/cuda/ptx/dependency.cuh"
#include "ops/cuda/ptx/mma.cuh"
#include "ops/cuda/shapes.h"
#include "ops/cuda/spans.cuh"
#include "ops/cuda/swizzle.cuh"

namespace verbatim::ops::cuda {

namespace {

using namespace attention_tiles;

// A warp sums the columns of 64 latents.
constexpr int kOwnColumns = 64;
constexpr int64_t kMostWidth = kWarps * kOwnColumns;
// Up to here the merge of groups costs less than walking them.
constexpr int64_t kMostGroupedRows = 12;
// How often a warp may do something else while it computes scores, and as often while it sums latents.
constexpr int kHooks = 4;
constexpr int kWeightBytes = kTokens * 2 + kPad;

// Where things stand in a block's shared memory.
template <int kHeads, int kStages>
struct Shared {
  uint8_t *query, *latents, *weights;
  float* scores;
  float2* statistics;  // of each head so far: maximum, sum of weights
  float2* scales;      // of each head: what the sums so far and the group's are multiplied by
  uint64_t* arrived;   // [kStages]: barriers that count the latents' bytes

  __device__ Shared(uint8_t* memory, int row_bytes) {
    query = memory;
    latents = query + kHeads * row_bytes;
    weights = latents + kStages * kTokens * row_bytes;
    scores = reinterpret_cast<float*>(weights + kHeads * kWeightBytes);
    statistics = reinterpret_cast<float2*>(scores + kHeads * kScoreStride);
    scales = statistics + kHeads;
    arrived = reinterpret_cast<uint64_t*>(scales + kHeads);
  }
};

// Scores of a group, scaled, by slice; absent tokens have none.
// Between steps meanwhile(0), ... (kHooks - 1) are called.
template <int kHeads, int kWidth, class Meanwhile>
__device__ void score(const uint8_t* query, const uint8_t* latents, float* scores, int width, int count, float scale,
                      const Meanwhile& meanwhile) {
  using T = Tiles<kHeads>;
  const int row_bytes = width * 2 + kPad;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, slice = warp / 4;
  const int slices = (width + kSlice - 1) / kSlice;
  const int head0 = warp % 4 / T::kTokenWarps * 16 * T::kHeadTiles;
  const int token0 = warp % 4 % T::kTokenWarps * 16 * T::kTokenTiles;
  float sums[T::kHeadTiles][2 * T::kTokenTiles][4] = {};
  const uint8_t* a_row = query + (head0 + lane % 16) * row_bytes + lane / 16 * 16 + slice * kSlice * 2;
  const uint8_t* b_row =
      latents + (token0 + lane % 8 + lane / 16 * 8) * row_bytes + lane / 8 % 2 * 16 + slice * kSlice * 2;
  const auto multiply = [&](int step) {
    uint32_t a[T::kHeadTiles][4], b[T::kTokenTiles][4];
#pragma unroll
    for (int h = 0; h < T::kHeadTiles; ++h) ptx::ldmatrix_x4(a[h], a_row + h * 16 * row_bytes + step * 32);
#pragma unroll
    for (int t = 0; t < T::kTokenTiles; ++t) ptx::ldmatrix_x4(b[t], b_row + t * 16 * row_bytes + step * 32);
#pragma unroll
    for (int h = 0; h < T::kHeadTiles; ++h)
#pragma unroll
      for (int t = 0; t < T::kTokenTiles; ++t) {
        ptx::mma_m16n8k16_bf16(sums[h][2 * t], a[h], make_uint2(b[t][0], b[t][1]));
        ptx::mma_m16n8k16_bf16(sums[h][2 * t + 1], a[h], make_uint2(b[t][2], b[t][3]));
      }
  };
  if constexpr (kWidth == 2 * kSlice) {
#pragma unroll
    for (int step = 0; step < kSlice / 16; ++step) {
      if (step % (kSlice / 16 / kHooks) == 0) meanwhile(step / (kSlice / 16 / kHooks));
      multiply(step);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kHooks; ++i) meanwhile(i);
    const int left = (width - slice * kSlice) / 16, steps = left < kSlice / 16 ? left : kSlice / 16;
    for (int step = 0; step < steps; ++step) multiply(step);
  }
  settle<kHeads>(sums, scores, slices, count, scale);
}

// The products of a group's weights and latents for the warp's columns, sixteen heads and 32 columns at a time:
// take(head tile, tile of eight columns, sums, get(head tile)). Meanwhile
// meanwhile(kHooks), ... (2 * kHooks - 1) are called by warps that have columns.
template <int kHeads, class Meanwhile, class Get, class Take>
__device__ void sum_latents(const uint8_t* weights, const uint8_t* latents, int width, const Meanwhile& meanwhile,
                            const Get& get, const Take& take) {
  const int row_bytes = width * 2 + kPad;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int column0 = warp * kOwnColumns + half * 32;
    if (column0 >= width) return;
    // Past the width: any columns that are there.
    const int next = column0 + 16 < width ? 32 : 0;
    const uint8_t* b_row = latents + lane % 16 * row_bytes + column0 * 2 + lane / 16 * 16;
    uint32_t b[kTokens / 16][2][4];
#pragma unroll
    for (int step = 0; step < kTokens / 16; ++step) {
      ptx::ldmatrix_x4_transposed(b[step][0], b_row + step * 16 * row_bytes);
      ptx::ldmatrix_x4_transposed(b[step][1], b_row + step * 16 * row_bytes + next);
    }
#pragma unroll
    for (int h = 0; h < kHeads / 16; ++h) {
      const auto got = get(h);
      if (half == 0) {
        constexpr int kEach = kHooks * 16 / kHeads;
#pragma unroll
        for (int i = h * kEach; i < (h + 1) * kEach; ++i) meanwhile(kHooks + i);
      }
      const uint8_t* a_row = weights + (h * 16 + lane % 16) * kWeightBytes + lane / 16 * 16;
      float sums[4][4] = {};
#pragma unroll
      for (int step = 0; step < kTokens / 16; ++step) {
        uint32_t a[4];
        ptx::ldmatrix_x4(a, a_row + step * 32);
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          ptx::mma_m16n8k16_bf16(sums[2 * n], a, make_uint2(b[step][n][0], b[step][n][1]));
          ptx::mma_m16n8k16_bf16(sums[2 * n + 1], a, make_uint2(b[step][n][2], b[step][n][3]));
        }
      }
#pragma unroll
      for (int n = 0; n < 4; ++n) take(h, half * 4 + n, sums[n], got);
    }
  }
}

// What sums of sixteen heads' two rows of a fragment are multiplied by.
struct Scales {
  float2 low, high;
};

// kWidth: the latents' width, or 0 where it is not known.
template <int kHeads, int kStages, bool kWalks, int kWidth>
__global__ void __launch_bounds__(kThreads, kStages == 1 ? 2 : 1)
    attention_kernel(const __grid_constant__ AttentionProblem p) {
  extern __shared__ __align__(128) uint8_t memory[];
  using T = Tiles<kHeads>;
  const int width = kWidth > 0 ? kWidth : static_cast<int>(p.width), row_bytes = width * 2 + kPad;
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const Shared<kHeads, kStages> s(memory, row_bytes);
  ptx::let_next_start();
  if (thread == 0)
    for (int i = 0; i < kStages; ++i) ptx::make_barrier(s.arrived + i, kWarps);
  ptx::fence_barriers();
  const int64_t head_tiles = (p.heads + kHeads - 1) / kHeads;
  const int64_t first_head = blockIdx.x % head_tiles * kHeads, place = blockIdx.x / head_tiles;
  const int64_t row = kWalks ? place : place / p.groups;
  const int own_group = kWalks ? 0 : static_cast<int>(place % p.groups);
  // Spans stand there since before the kernel in front (launch.h).
  const Row at = row_at(p.spans, row);
  const auto pool = static_cast<int>(p.shape.pool);
  const int64_t tail = (at.position + 1) / pool * pool, position = at.position;
  ptx::wait_for_previous();
  const int in_pools = p.selection.counts[row] * pool;
  const int tokens = in_pools + static_cast<int>(p.shape.always_select_tail ? position + 1 - tail : 0);
  const int groups = (tokens + kTokens - 1) / kTokens;
  if (!kWalks && own_group >= groups) return;
  const auto own_heads = static_cast<int>(p.heads - first_head < kHeads ? p.heads - first_head : kHeads);
  const int end = kWalks ? groups : own_group + 1;
  const int32_t* pools = p.selection.pools + row * (p.shape.top / pool);
  // The first lanes of each warp fetch a token of a group each: which pool holds it (a read), where it stands, its page
  // (a read), its latent. Of absent tokens, the last that is there: its weight is 0.
  constexpr int kFetched = kTokens / kWarps;
  static_assert(kFetched == 2 * kHooks);
  const int own_token = warp * kFetched + lane;
  const bool fetches = lane < kFetched;
  const auto rank_of = [&](int group) {
    const int wanted = group * kTokens + own_token;
    return wanted < tokens ? wanted : tokens - 1;
  };
  const auto pool_of = [&](int group) {
    const int rank = rank_of(group);
    return rank < in_pools ? pools[rank / pool] : 0;
  };
  const auto stored_at = [&](int group, int32_t its_pool) {
    const int rank = rank_of(group);
    return (rank < in_pools ? int64_t{its_pool} * pool + rank % pool : tail + rank - in_pools) + p.shape.storage_shift;
  };
  const auto page_of = [&](int64_t stored) { return at.pages[stored / kPageTokens]; };
  const auto latent_of = [&](int64_t stored, int32_t page) {
    return static_cast<const uint16_t*>(p.cache.latents) + (page * kPageTokens + stored % kPageTokens) * width;
  };
  // A warp's tokens are announced once, then fetched by as many lanes.
  const auto bytes = static_cast<uint32_t>(width * 2);
  const auto announce = [&](int stage) {
    if (lane == 0) ptx::arrive_expecting(s.arrived + stage, kFetched * bytes);
    __syncwarp();
  };
  const auto fetch = [&](int stage, const uint16_t* latent) {
    ptx::copy_bulk(s.latents + (stage * kTokens + own_token) * row_bytes, latent, bytes, s.arrived + stage);
  };
  // In the walk each read is a group behind the one it needs, so that nobody waits for it.
  const uint16_t* next_latent = nullptr;
  int64_t stored = 0;
  int32_t page = 0, next_pool = 0;
  const auto look_ahead = [&](int group) {
    next_latent = latent_of(stored, page);
    stored = stored_at(group + 1, next_pool);
    page = page_of(stored);
    next_pool = pool_of(group + 2);
  };
  __syncthreads();
  if (own_group < end) announce(0);
  if (fetches && own_group < end) {
    stored = stored_at(own_group, pool_of(own_group));
    fetch(0, latent_of(stored, page_of(stored)));
    if (kWalks) {
      stored = stored_at(1, pool_of(1));
      page = page_of(stored);
      next_pool = pool_of(2);
      look_ahead(1);
    }
  }
  __syncwarp();
  round_rows<kWarps>([&](int head, int piece) { return s.query + head * row_bytes + piece * 16; }, kHeads, own_heads,
                     width, [&](int head) { return p.q + (row * p.heads + first_head + head) * width; });

  float sums[kWalks ? kHeads / 16 : 1][8][4] = {};
  for (int group = own_group; group < end; ++group) {
    const int turn = group - own_group, stage = kStages == 2 ? turn % 2 : 0;
    const uint8_t* latents = s.latents + stage * kTokens * row_bytes;
    __syncthreads();
    const bool fetches_next = kWalks && kStages == 2 && group + 1 < end;
    if (fetches_next) announce(1 - stage);
    ptx::wait_for(s.arrived + stage, turn / kStages & 1);
    const int count = tokens - group * kTokens < kTokens ? tokens - group * kTokens : kTokens;
    // The next group's latents are asked for one by one: all at once would take the memory's time for them.
    const auto fetch_one = [&](int token) {
      if (fetches_next && lane == token) fetch(1 - stage, next_latent);
    };
    score<kHeads, kWidth>(s.query, latents, s.scores, width, count, p.scale, [&](int hook) {
      fetch_one(hook);
      if (kWidth == 0) fetch_one(kHooks + hook);
    });
    float most = 0.0f, sum = 0.0f;
    const int head = thread / T::kParts;
    float2 scales = make_float2(0.0f, 1.0f), before = make_float2(0.0f, 0.0f);
    if (kWalks && turn > 0) before = s.statistics[head];
    weigh<kHeads>(
        s.scores, most, sum,
        [&](float own) {
          if (!kWalks || turn == 0) return;
          const float both = max_of(before.x, own);
          scales = make_float2(fade_of(before.x - both), fade_of(own - both));
        },
        [&](int of, int token, auto bits) {
          *reinterpret_cast<decltype(bits)*>(s.weights + of * kWeightBytes + token * 2) = bits;
        });
    if (thread % T::kParts == 0) {
      if constexpr (kWalks) {
        s.scales[head] = scales;
        s.statistics[head] = turn > 0 ? make_float2(max_of(before.x, most), fmaf(sum, scales.y, before.y * scales.x))
                                      : make_float2(most, sum);
      } else if (head < own_heads) {
        *reinterpret_cast<float2*>(p.stats + ((row * p.groups + group) * p.heads + first_head + head) * 2) =
            make_float2(most, sum);
      }
    }
    __syncthreads();
    if constexpr (kWalks) {
      sum_latents<kHeads>(
          s.weights, latents, width,
          [&](int hook) {
            if (kWidth > 0) fetch_one(hook);
          },
          [&](int h) {
            return Scales{s.scales[h * 16 + lane / 4], s.scales[h * 16 + 8 + lane / 4]};
          },
          [&](int h, int n, const float(&own)[4], const Scales& by) {
            float(&all)[4] = sums[h][n];
            all[0] = fmaf(own[0], by.low.y, all[0] * by.low.x);
            all[1] = fmaf(own[1], by.low.y, all[1] * by.low.x);
            all[2] = fmaf(own[2], by.high.y, all[2] * by.high.x);
            all[3] = fmaf(own[3], by.high.y, all[3] * by.high.x);
          });
      if (fetches_next && fetches) look_ahead(group + 2);
      if (kStages == 1 && group + 1 < end) {
        __syncthreads();
        announce(0);
        if (fetches) {
          fetch(0, next_latent);
          look_ahead(group + 2);
        }
      }
    } else {
      sum_latents<kHeads>(
          s.weights, latents, width, [](int) {}, [](int) { return 0; },
          [&](int h, int n, const float(&own)[4], int) {
            const int head = h * 16 + lane / 4, column = warp * kOwnColumns + n * 8 + lane % 4 * 2;
            if (column >= width) return;
            float* to = p.sums + ((row * p.groups + group) * p.heads + first_head + head) * width + column;
            if (head < own_heads) *reinterpret_cast<float2*>(to) = make_float2(own[0], own[1]);
            if (head + 8 < own_heads) *reinterpret_cast<float2*>(to + 8 * width) = make_float2(own[2], own[3]);
          });
    }
  }
  if constexpr (kWalks) {
#pragma unroll
    for (int h = 0; h < kHeads / 16; ++h)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int head = h * 16 + half * 8 + lane / 4;
        if (head >= own_heads) continue;
        const float total = groups > 0 ? s.statistics[head].y : 1.0f;
        float* to = p.out + (row * p.heads + first_head + head) * width;
#pragma unroll
        for (int n = 0; n < 8; ++n) {
          const int column = warp * kOwnColumns + n * 8 + lane % 4 * 2;
          if (column < width)
            *reinterpret_cast<float2*>(to + column) =
                make_float2(sums[h][n][2 * half] / total, sums[h][n][2 * half + 1] / total);
        }
      }
  }
}

template <int kHeads, int kStages, bool kWalks>
cudaError_t launch_tiles(cudaStream_t stream, const AttentionProblem& p) {
  const int64_t head_tiles = (p.heads + kHeads - 1) / kHeads;
  constexpr int kReleased = 512;
  return launch(p.width == kReleased ? attention_kernel<kHeads, kStages, kWalks, kReleased>
                                     : attention_kernel<kHeads, kStages, kWalks, 0>,
                static_cast<unsigned>(p.spans.rows * (kWalks ? 1 : p.groups) * head_tiles), kThreads,
                static_cast<size_t>(attention_tile_shared_bytes(kHeads, kStages, p.width)), stream, p);
}

}  // namespace

bool attention_fits_tiles(const AttentionProblem& p) { return p.width % 16 == 0 && p.width <= kMostWidth; }

AttentionCut attention_cut(const AttentionProblem& p, int multiprocessors, int64_t shared_bytes) {
  if (p.spans.rows <= kMostGroupedRows && attention_groups(p.shape) <= kMostAttentionGroups) return {16, 1, false};
  // What a group costs a block of so many heads, roughly, times the turns that blocks take.
  AttentionCut best{16, 1, true};
  int64_t least = INT64_MAX;
  for (const auto& [heads, cost] : {std::pair{16, 4}, std::pair{32, 5}, std::pair{64, 8}}) {
    if (heads > 16 && (p.heads <= heads / 2 || attention_tile_shared_bytes(heads, 2, p.width) > shared_bytes)) continue;
    const int64_t blocks = p.spans.rows * ((p.heads + heads - 1) / heads);
    const int64_t time = (blocks + multiprocessors - 1) / multiprocessors * cost;
    if (time > least) continue;
    least = time;
    best.heads = heads;
    // One block a multiprocessor anyway: the next group's latents come meanwhile.
    const bool alone = heads > 16 || blocks <= multiprocessors;
    best.stages = alone && attention_tile_shared_bytes(heads, 2, p.width) <= shared_bytes ? 2 : 1;
  }
  return best;
}

cudaError_t attend_in_tiles(cudaStream_t stream, const AttentionProblem& p, const AttentionCut& cut) {
  if (p.spans.rows == 0 || p.heads == 0) return cudaSuccess;
  if (!cut.walks) {
    const cudaError_t error = launch_tiles<16, 1, false>(stream, p);
    return error != cudaSuccess ? error : merge_groups(stream, p);
  }
  if (cut.heads == 64) return launch_tiles<64, 2, true>(stream, p);
  if (cut.heads == 32) return launch_tiles<32, 2, true>(stream, p);
  return cut.stages == 2 ? launch_tiles<16, 2, true>(stream, p) : launch_tiles<16, 1, true>(stream, p);
}

}  // namespace verbatim::ops::cuda
