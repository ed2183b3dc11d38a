// Sparse attention of few rows: a block takes one group of 64 tokens and sixteen heads of a row, so that one row fills
// the device; a second launch merges the groups left to right. The order of sums is that of ops.h, the bits are those
// of attention.cu. Bytes: the visible latents, from memory once and from the second-level cache twice for each sixteen
// heads. Shared memory: 16 (width + 64) floats, 37 KB at width 512.
#include "ops/cuda/attention.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/math.cuh"
#include "ops/cuda/ptx/dependency.cuh"
#include "ops/cuda/shapes.h"
#include "ops/cuda/spans.cuh"
#include "ops/cuda/sums.cuh"

namespace verbatim::ops::cuda {

namespace {

constexpr int kThreads = 256, kGroups = kThreads / 16, kHeads = 16, kTokens = 64, kOwnTokens = kTokens / kGroups;
constexpr int kDots = kHeads * kOwnTokens;

// Tokens that the row sees, and how many of them its pools hold.
__device__ int64_t tokens_of(const AttentionProblem& p, const Row& at, int64_t* in_pools) {
  *in_pools = p.selection.counts[at.row] * p.shape.pool;
  const int64_t tail = (at.position + 1) / p.shape.pool * p.shape.pool;
  return *in_pools + (p.shape.always_select_tail ? at.position + 1 - tail : 0);
}

// lane_tree of kCount sums at once: afterwards lane l holds the totals of sums l % 16 / 8 ..., in sums[0 .. kCount/16 -
// 1]. A lane gives half of its sums to its partner and keeps the other half, four times.
template <int kCount>
__device__ void reduce(float (&sums)[kCount]) {
  const int lane = threadIdx.x % 16;
#pragma unroll
  for (int level = 0, count = kCount; level < 4; ++level, count /= 2) {
    const int step = 8 >> level;
    const bool upper = (lane & step) != 0;
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) {
      if (i >= count / 2) break;
      const float given = upper ? sums[i] : sums[i + count / 2], kept = upper ? sums[i + count / 2] : sums[i];
      sums[i] = kept + __shfl_xor_sync(0xffffffffu, given, step);
    }
  }
}

__global__ void __launch_bounds__(kThreads, 2) group_kernel(const __grid_constant__ AttentionProblem p) {
  extern __shared__ __align__(16) float memory[];
  __shared__ const float* latents[kTokens];
  __shared__ float weights[kTokens][kHeads];
  float* query = memory;  // [kHeads][width]
  ptx::let_next_start();
  ptx::wait_for_previous();
  uint32_t index = blockIdx.x;
  const auto head_tiles = static_cast<uint32_t>((p.heads + kHeads - 1) / kHeads);
  const int64_t first_head = index % head_tiles * kHeads;
  index /= head_tiles;
  const int64_t group_index = index % p.groups, row = index / p.groups;
  const Row at = row_at(p.spans, row);
  int64_t in_pools = 0;
  const int64_t tokens = tokens_of(p, at, &in_pools), begin = group_index * kTokens, width = p.width;
  if (begin >= tokens) return;
  const auto count = static_cast<int>(tokens - begin < kTokens ? tokens - begin : kTokens);
  const int64_t own_heads = p.heads - first_head < kHeads ? p.heads - first_head : kHeads;
  const float* asked = p.q + (row * p.heads + first_head) * width;
  const int thread = threadIdx.x, group = thread / 16, lane = thread % 16;
  for (int64_t i = thread; i < kHeads * width; i += kThreads) query[i] = i < own_heads * width ? asked[i] : 0.0f;
  if (thread < kTokens) {
    const int64_t rank = begin + (thread < count ? thread : 0), pool = p.shape.pool;
    const int32_t* pools = p.selection.pools + row * (p.shape.top / p.shape.pool);
    const int64_t tail = (at.position + 1) / pool * pool;
    latents[thread] = latent_row<float>(
        p.shape, p.cache, at,
        rank < in_pools ? int64_t{pools[rank / pool]} * pool + rank % pool : tail + rank - in_pools, width);
  }
  __syncthreads();

  // Sixteen threads take four tokens and all heads; sum head * 4 + token.
  float dots[kDots / 16];
  for (int64_t from = 0; from < width; from += kSumSlice) {
    const int64_t to = from + kSumSlice < width ? from + kSumSlice : width;
    float sums[kDots] = {};
#pragma unroll 4
    for (int64_t c = from + lane; c < to; c += 16) {
      float values[kOwnTokens];
#pragma unroll
      for (int t = 0; t < kOwnTokens; ++t) values[t] = latents[group * kOwnTokens + t][c];
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        const float value = query[h * width + c];
#pragma unroll
        for (int t = 0; t < kOwnTokens; ++t)
          sums[h * kOwnTokens + t] = fmaf(value, values[t], sums[h * kOwnTokens + t]);
      }
    }
    reduce(sums);
#pragma unroll
    for (int i = 0; i < kDots / 16; ++i) dots[i] = from == 0 ? sums[i] : dots[i] + sums[i];
  }
  {
    // Which sums this lane kept: the lane's bits from the top choose halves.
    const int first = (lane & 8 ? kDots / 2 : 0) + (lane & 4 ? kDots / 4 : 0) + (lane & 2 ? kDots / 8 : 0) +
                      (lane & 1 ? kDots / 16 : 0);
#pragma unroll
    for (int i = 0; i < kDots / 16; ++i) {
      const int head = (first + i) / kOwnTokens, token = group * kOwnTokens + (first + i) % kOwnTokens;
      weights[token][head] = token < count ? dots[i] * p.scale : -INFINITY;
    }
  }
  __syncthreads();
  {
    // A head each sixteen threads.
    float scores[kTokens / 16];
#pragma unroll
    for (int i = 0; i < kTokens / 16; ++i) scores[i] = weights[i * 16 + lane][group];
    float most = scores[0];
#pragma unroll
    for (int i = 1; i < kTokens / 16; ++i) most = scores[i] > most ? scores[i] : most;
    for (int step = 8; step > 0; step /= 2) {
      const float other = __shfl_xor_sync(0xffffffffu, most, step);
      most = other > most ? other : most;
    }
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kTokens / 16; ++i) {
      scores[i] = exp_of(scores[i] - most);
      sum = sum + scores[i];
    }
    sum = lane_tree(sum);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kTokens / 16; ++i) weights[i * 16 + lane][group] = scores[i];
    if (lane == 0 && group < own_heads) {
      float* stats = p.stats + ((row * p.groups + group_index) * p.heads + first_head + group) * 2;
      stats[0] = most;
      stats[1] = sum;
    }
  }
  __syncthreads();
  float* to = p.sums + ((row * p.groups + group_index) * p.heads + first_head) * width;
  for (int64_t c = 2 * thread; c < width; c += 2 * kThreads) {
    float2 sums[kHeads] = {};
#pragma unroll 8
    for (int k = 0; k < count; ++k) {
      const float2 value = *reinterpret_cast<const float2*>(latents[k] + c);
#pragma unroll
      for (int h = 0; h < kHeads; h += 4) {
        const float4 four = *reinterpret_cast<const float4*>(&weights[k][h]);
        const float own[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          sums[h + j].x = fmaf(own[j], value.x, sums[h + j].x);
          sums[h + j].y = fmaf(own[j], value.y, sums[h + j].y);
        }
      }
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h)
      if (h < own_heads) *reinterpret_cast<float2*>(to + h * width + c) = sums[h];
  }
}

constexpr int kMergeThreads = 128;
constexpr int64_t kMostGroups = kMostAttentionGroups;

// One head of a row, four columns a thread (widths are multiples of 16).
__global__ void __launch_bounds__(kMergeThreads) merge_kernel(const __grid_constant__ AttentionProblem p) {
  __shared__ float maximum[kMostGroups], weight[kMostGroups], keep[kMostGroups], factor[kMostGroups];
  constexpr int kAhead = 12;  // groups whose sums are asked for at a time
  ptx::let_next_start();
  const int64_t row = blockIdx.x / p.heads, head = blockIdx.x % p.heads, width = p.width;
  const Row at = row_at(p.spans, row);
  ptx::wait_for_previous();
  int64_t in_pools = 0;
  const auto groups = static_cast<int>((tokens_of(p, at, &in_pools) + kTokens - 1) / kTokens);
  const float* sums = p.sums + (row * p.groups * p.heads + head) * width;
  const int64_t group_floats = p.heads * width;
  for (int g = threadIdx.x; g < groups; g += kMergeThreads) {
    const float* stats = p.stats + ((row * p.groups + g) * p.heads + head) * 2;
    maximum[g] = stats[0], weight[g] = stats[1];
  }
  const auto ask = [&](float4(&own)[kAhead], int first, int64_t column) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
      if (first + i < groups && column < width)
        own[i] = *reinterpret_cast<const float4*>(sums + (first + i) * group_floats + column);
  };
  float4 own[kAhead];
  ask(own, 0, 4 * threadIdx.x);
  __syncthreads();
  // Each thread finds the maximum before its group as the chain would; the factors then need no order.
  for (int g = threadIdx.x; g < groups; g += kMergeThreads) {
    float before = maximum[0];
#pragma unroll 8
    for (int i = 1; i < g; ++i) before = max_of(before, maximum[i]);
    const float both = g == 0 ? before : max_of(before, maximum[g]);
    keep[g] = g == 0 ? 0.0f : exp_of(before - both);
    factor[g] = g == 0 ? 1.0f : exp_of(maximum[g] - both);
  }
  __syncthreads();
  for (int64_t column = 4 * threadIdx.x; column < width; column += 4 * kMergeThreads) {
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    float total = 0.0f;
    for (int first = 0; first < groups; first += kAhead) {
      if (first > 0 || column >= 4 * kMergeThreads) ask(own, first, column);
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const int g = first + i;
        if (g >= groups) break;
        const float kept = keep[g], times = factor[g];
        sum.x = fmaf(own[i].x, times, sum.x * kept);
        sum.y = fmaf(own[i].y, times, sum.y * kept);
        sum.z = fmaf(own[i].z, times, sum.z * kept);
        sum.w = fmaf(own[i].w, times, sum.w * kept);
        total = fmaf(weight[g], times, total * kept);
      }
    }
    if (groups > 0) sum = make_float4(sum.x / total, sum.y / total, sum.z / total, sum.w / total);
    *reinterpret_cast<float4*>(p.out + (row * p.heads + head) * width + column) = sum;
  }
}

}  // namespace

int64_t attention_groups(const IndexShape& shape) { return (shape.top + shape.pool - 1 + kTokens - 1) / kTokens; }

int64_t attention_group_floats(const AttentionProblem& p) {
  return p.spans.rows * attention_groups(p.shape) * p.heads * (p.width + 2);
}

void place_groups(AttentionProblem& p, float* working) {
  p.groups = attention_groups(p.shape);
  p.sums = working;
  p.stats = working + p.spans.rows * p.groups * p.heads * p.width;
}

bool attends_by_groups(const AttentionProblem& p) {
  return p.spans.rows <= 64 && p.width % kSumSlice == 0 && attention_groups(p.shape) <= kMostGroups;
}

cudaError_t merge_groups(cudaStream_t stream, const AttentionProblem& p) {
  return launch(merge_kernel, static_cast<unsigned>(p.spans.rows * p.heads), kMergeThreads, 0, stream, p);
}

cudaError_t attend_groups(cudaStream_t stream, const AttentionProblem& p) {
  if (p.spans.rows == 0 || p.heads == 0) return cudaSuccess;
  const int64_t head_tiles = (p.heads + kHeads - 1) / kHeads;
  const cudaError_t error = launch(group_kernel, static_cast<unsigned>(p.spans.rows * p.groups * head_tiles), kThreads,
                                   static_cast<size_t>(attention_group_shared_bytes(p.width)), stream, p);
  return error != cudaSuccess ? error : merge_groups(stream, p);
}

}  // namespace verbatim::ops::cuda
