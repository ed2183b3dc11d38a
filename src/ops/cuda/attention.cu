// Sparse attention by float32 multiply-adds: the order of sums is that of ops.h, the bits are the CPU backend's on the
// caches' values. Bytes of a query: its visible latents once a group of heads.
#include "ops/cuda/attention.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/math.cuh"
#include "ops/cuda/ptx/dependency.cuh"
#include "ops/cuda/shapes.h"
#include "ops/cuda/spans.cuh"
#include "ops/cuda/sums.cuh"

namespace verbatim::ops::cuda {

namespace {

constexpr int kThreads = 256, kGroups = kThreads / 16;
constexpr int64_t kGroupTokens = 64;

template <int kHeads, class Element>
__global__ void __launch_bounds__(kThreads)
    attend_kernel(const __grid_constant__ AttentionProblem p, int64_t head_tiles) {
  extern __shared__ float memory[];  // q [kHeads, width], then what is summed [kHeads, width]
  __shared__ float weights[kHeads][kGroupTokens];
  __shared__ float maximum[kHeads], total[kHeads], keep[kHeads], factor[kHeads];
  __shared__ const Element* latents[kGroupTokens];
  ptx::let_next_start();
  ptx::wait_for_previous();
  const IndexShape& shape = p.shape;
  const int64_t heads = p.heads, width = p.width;
  float* query = memory;
  float* summed = memory + kHeads * width;
  const Row at = row_at(p.spans, blockIdx.x / head_tiles);
  const int64_t first_head = blockIdx.x % head_tiles * kHeads;
  const int64_t own_heads = heads - first_head < kHeads ? heads - first_head : kHeads;
  const int64_t offset = (at.row * heads + first_head) * width;
  const int group = threadIdx.x / 16, lane = threadIdx.x % 16;
  for (int64_t i = threadIdx.x; i < kHeads * width; i += kThreads)
    query[i] = i < own_heads * width ? p.q[offset + i] : 0.0f;

  const int64_t in_pools = p.selection.counts[at.row] * shape.pool, budget = shape.top / shape.pool;
  const int64_t tail = (at.position + 1) / shape.pool * shape.pool;
  const int64_t tokens = in_pools + (shape.always_select_tail ? at.position + 1 - tail : 0);
  const int32_t* pools = p.selection.pools + at.row * budget;
  for (int64_t begin = 0; begin < tokens; begin += kGroupTokens) {
    const auto count = static_cast<int>(tokens - begin < kGroupTokens ? tokens - begin : kGroupTokens);
    __syncthreads();
    for (int j = threadIdx.x; j < count; j += kThreads) {
      const int64_t rank = begin + j;
      const int64_t token =
          rank < in_pools ? int64_t{pools[rank / shape.pool]} * shape.pool + rank % shape.pool : tail + rank - in_pools;
      latents[j] = latent_row<Element>(shape, p.cache, at, token, width);
    }
    __syncthreads();
    for (int j = group; j < kGroupTokens; j += kGroups) {
      const Element* latent = latents[j < count ? j : 0];
      float dots[kHeads];
      for (int64_t from = 0; from < width; from += kSumSlice) {
        const int64_t to = from + kSumSlice < width ? from + kSumSlice : width;
        float lanes[kHeads] = {};
        for (int64_t c = from + lane; c < to; c += 16) {
          const float value = cached_value(latent[c]);
#pragma unroll
          for (int h = 0; h < kHeads; ++h) lanes[h] = fmaf(query[h * width + c], value, lanes[h]);
        }
#pragma unroll
        for (int h = 0; h < kHeads; ++h) {
          const float slice = lane_tree(lanes[h]);
          dots[h] = from == 0 ? slice : dots[h] + slice;
        }
      }
      if (lane == 0)
        for (int h = 0; h < kHeads; ++h) weights[h][j] = j < count ? dots[h] * p.scale : -INFINITY;
    }
    __syncthreads();
    {
      const int h = group < kHeads ? group : 0;
      float scores[kGroupTokens / 16];
#pragma unroll
      for (int i = 0; i < kGroupTokens / 16; ++i) scores[i] = weights[h][i * 16 + lane];
      float most = scores[0];
#pragma unroll
      for (int i = 1; i < kGroupTokens / 16; ++i) most = scores[i] > most ? scores[i] : most;
      for (int step = 8; step > 0; step /= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, most, step);
        most = other > most ? other : most;
      }
      float sum = 0.0f;
#pragma unroll
      for (int i = 0; i < kGroupTokens / 16; ++i) {
        scores[i] = exp_of(scores[i] - most);
        sum = sum + scores[i];
      }
      sum = lane_tree(sum);
      __syncthreads();
      if (group < kHeads) {
#pragma unroll
        for (int i = 0; i < kGroupTokens / 16; ++i) weights[h][i * 16 + lane] = scores[i];
        if (lane == 0) {
          if (begin == 0) {
            maximum[h] = most;
            total[h] = sum;
          } else {
            const float before = maximum[h], both = max_of(before, most);
            keep[h] = exp_of(before - both);
            factor[h] = exp_of(most - both);
            total[h] = fmaf(sum, factor[h], total[h] * keep[h]);
            maximum[h] = both;
          }
        }
      }
    }
    __syncthreads();
    for (int64_t c = threadIdx.x; c < width; c += kThreads) {
      float sums[kHeads] = {};
#pragma unroll 4
      for (int k = 0; k < count; ++k) {
        const float value = cached_value(latents[k][c]);
#pragma unroll
        for (int h = 0; h < kHeads; ++h) sums[h] = fmaf(weights[h][k], value, sums[h]);
      }
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        float* to = summed + h * width + c;
        *to = begin == 0 ? sums[h] : fmaf(sums[h], factor[h], *to * keep[h]);
      }
    }
  }
  __syncthreads();
  for (int64_t i = threadIdx.x; i < own_heads * width; i += kThreads)
    p.out[offset + i] = tokens > 0 ? summed[i] / total[i / width] : 0.0f;
}

template <int kHeads>
cudaError_t launch_attend(cudaStream_t stream, const AttentionProblem& p, int64_t element_bytes) {
  const int64_t head_tiles = (p.heads + kHeads - 1) / kHeads;
  return launch(element_bytes == 2 ? attend_kernel<kHeads, uint16_t> : attend_kernel<kHeads, float>,
                static_cast<unsigned>(p.spans.rows * head_tiles), kThreads,
                static_cast<size_t>(attention_shared_bytes(kHeads, p.width)), stream, p, head_tiles);
}

}  // namespace

cudaError_t attend_rows(cudaStream_t stream, const AttentionProblem& p, int64_t element_bytes) {
  if (p.spans.rows == 0 || p.heads == 0) return cudaSuccess;
  // Few rows: fewer heads a block, so that more of the device works.
  return p.spans.rows * p.heads <= 2048 ? launch_attend<2>(stream, p, element_bytes)
                                        : launch_attend<8>(stream, p, element_bytes);
}

}  // namespace verbatim::ops::cuda
