// Sparse attention and its pooled indexer in float32: the order of sums is that of ops.h, the bits are the CPU
// backend's. Bytes of a query: the pool keys of its sequence once (indexer), its visible latents once a group of heads
// (attention).
#include "ops/cuda/kernels.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/math.cuh"
#include "ops/cuda/ptx/dependency.cuh"
#include "ops/cuda/shapes.h"
#include "ops/cuda/spans.cuh"
#include "ops/cuda/sums.cuh"

namespace verbatim::ops::cuda {

namespace {

constexpr int kThreads = 256, kGroups = kThreads / 16;

// ---- append ---------------------------------------------------------------------------------------------------------
__global__ void append_kernel(IndexShape shape, int64_t latent_width, const float* latents, const float* keys,
                              const float* gates, const float* ape, SpanTable spans, LatentCache cache) {
  ptx::let_next_start();
  ptx::wait_for_previous();
  const Row at = row_at(spans, blockIdx.x);
  const DeviceSpan& span = at.span;
  const int64_t width = shape.width, ring = shape.pool + kWindowRows;
  float* to = latent_row(shape, cache, at, at.position, latent_width);
  for (int64_t c = threadIdx.x; c < latent_width; c += blockDim.x) to[c] = latents[at.row * latent_width + c];
  if ((at.position + 1) % shape.pool != 0) return;
  float* pool = pool_key(shape, cache, at, at.position / shape.pool);
  const int64_t first = at.position + 1 - shape.pool;
  // A pool's earlier tokens are in the rings.
  const auto value = [&](const float* own, const float* tail, int64_t i, int64_t c) {
    const int64_t token = first + i;
    return token < span.position ? tail[(span.sequence * ring + token % ring) * width + c]
                                 : own[(at.row - (at.position - token)) * width + c];
  };
  for (int64_t c = threadIdx.x; c < width; c += blockDim.x) {
    const auto logit = [&](int64_t i) { return value(gates, cache.tail_gate, i, c) + ape[i * width + c]; };
    float maximum = logit(0);
    for (int64_t i = 1; i < shape.pool; ++i) maximum = max_of(maximum, logit(i));
    float total = exp_of(logit(0) - maximum);
    float sum = total * value(keys, cache.tail_key, 0, c);
    for (int64_t i = 1; i < shape.pool; ++i) {
      const float weight = exp_of(logit(i) - maximum);
      total = total + weight;
      sum = fmaf(weight, value(keys, cache.tail_key, i, c), sum);
    }
    pool[c] = sum / total;
  }
}

// After append_kernel, which reads what these slots held before.
__global__ void tail_kernel(IndexShape shape, const float* keys, const float* gates, SpanTable spans,
                            LatentCache cache) {
  ptx::let_next_start();
  ptx::wait_for_previous();
  const Row at = row_at(spans, blockIdx.x);
  const int64_t ring = shape.pool + kWindowRows;
  if (at.position < at.span.position + at.span.rows - ring) return;
  const int64_t to = (at.span.sequence * ring + at.position % ring) * shape.width, from = at.row * shape.width;
  for (int64_t c = threadIdx.x; c < shape.width; c += blockDim.x) {
    cache.tail_key[to + c] = keys[from + c];
    cache.tail_gate[to + c] = gates[from + c];
  }
}

// ---- select ---------------------------------------------------------------------------------------------------------
constexpr int64_t kHeldWidth = 256;

__global__ void score_kernel(IndexShape shape, const float* q, const float* head_weights, SpanTable spans,
                             int64_t first, LatentCache cache, float* scores, int64_t stride, int64_t tiles,
                             int64_t block_pools) {
  extern __shared__ float query[];  // [heads, width], then the heads' weights
  ptx::let_next_start();
  ptx::wait_for_previous();
  const Row at = row_at(spans, first + blockIdx.x / tiles);
  const int64_t pools = (at.position + 1) / shape.pool;
  const int64_t begin = blockIdx.x % tiles * block_pools;
  if (pools <= shape.top / shape.pool || begin >= pools) return;
  const int64_t width = shape.width, heads = shape.heads;
  float* weights = query + heads * width;
  const float head_scale = 1.0f / sqrtf(static_cast<float>(heads));
  const float width_scale = 1.0f / sqrtf(static_cast<float>(width));
  for (int64_t i = threadIdx.x; i < heads * width; i += kThreads) query[i] = q[at.row * heads * width + i];
  for (int64_t i = threadIdx.x; i < heads; i += kThreads) weights[i] = head_weights[at.row * heads + i] * head_scale;
  __syncthreads();
  const int group = threadIdx.x / 16, lane = threadIdx.x % 16;
  for (int64_t pool = begin + group; pool < begin + block_pools; pool += kGroups) {
    const float* key = pool_key(shape, cache, at, pool < pools ? pool : pools - 1);
    float held[kHeldWidth / 16];
    if (width <= kHeldWidth) {
#pragma unroll
      for (int j = 0; j < kHeldWidth / 16; ++j) held[j] = j * 16 < width ? key[j * 16 + lane] : 0.0f;
    }
    float score = 0.0f;
    for (int64_t head = 0; head < heads; ++head) {
      const float* asked = query + head * width;
      float dot = 0.0f;
      if (width <= kHeldWidth) {
#pragma unroll
        for (int j = 0; j < kHeldWidth / 16; ++j)
          if (j * 16 < width) dot = fmaf(asked[j * 16 + lane], held[j], dot);
        dot = lane_tree(dot);
      } else {
        dot = group_dot16(
            width, [&](int64_t c) { return asked[c]; }, [&](int64_t c) { return key[c]; });
      }
      const float scaled = dot * width_scale;
      const float relu = scaled > 0.0f ? scaled : 0.0f;
      score = head == 0 ? weights[head] * relu : fmaf(weights[head], relu, score);
    }
    if (lane == 0 && pool < pools) scores[(at.row - first) * stride + pool] = score;
  }
}

// Order-preserving image of a score: a larger score has the larger image, both zeros are one, NaN is least.
__device__ uint32_t score_order(float score) {
  if (isnan(score)) return 0;
  const uint32_t bits = __float_as_uint(score == 0.0f ? 0.0f : score);
  return (bits & 0x80000000u) ? ~bits : bits | 0x80000000u;
}

// The budget best scores of a row, lower index on ties, ascending: the image of the last one by four passes over its
// bytes (counts are whole numbers, so their order does not matter), then one pass in index order.
__global__ void select_kernel(IndexShape shape, SpanTable spans, int64_t first, const float* scores, int64_t stride,
                              Selection selection) {
  __shared__ uint32_t counts[256];
  __shared__ uint32_t prefix, wanted, tops[kThreads / 32];
  __shared__ int32_t better[kThreads / 32], tied[kThreads / 32];
  ptx::let_next_start();
  ptx::wait_for_previous();
  const Row at = row_at(spans, first + blockIdx.x);
  const int64_t pools = (at.position + 1) / shape.pool, budget = shape.top / shape.pool;
  int32_t* chosen = selection.pools + at.row * budget;
  if (threadIdx.x == 0) selection.counts[at.row] = static_cast<int32_t>(pools < budget ? pools : budget);
  if (pools <= budget) {
    for (int64_t i = threadIdx.x; i < pools; i += kThreads) chosen[i] = static_cast<int32_t>(i);
    return;
  }
  scores += (at.row - first) * stride;
  if (threadIdx.x == 0) prefix = 0, wanted = static_cast<uint32_t>(budget);
  for (int shift = 24; shift >= 0; shift -= 8) {
    counts[threadIdx.x] = 0;
    __syncthreads();
    const uint32_t mask = shift == 24 ? 0u : 0xffffffffu << (shift + 8), known = prefix;
    for (int64_t i = threadIdx.x; i < pools; i += kThreads) {
      const uint32_t order = score_order(scores[i]);
      if ((order & mask) == known) atomicAdd(&counts[order >> shift & 255], 1u);
    }
    __syncthreads();
    // Thread t looks at digit 255 - t: where those counted from the top reach what is wanted.
    const uint32_t own = counts[255 - threadIdx.x], left = wanted;
    uint32_t above = own;
    for (int step = 1; step < 32; step *= 2) {
      const uint32_t other = __shfl_up_sync(0xffffffffu, above, step);
      if (threadIdx.x % 32 >= step) above += other;
    }
    if (threadIdx.x % 32 == 31) tops[threadIdx.x / 32] = above;
    __syncthreads();
    for (int w = 0; w < static_cast<int>(threadIdx.x) / 32; ++w) above += tops[w];
    if (above >= left && above - own < left) {
      prefix = known | (255 - threadIdx.x) << shift;
      wanted = left - (above - own);
    }
    __syncthreads();
  }
  // `wanted` of those that equal the last are taken.
  const uint32_t last = prefix;
  const auto ties = static_cast<int32_t>(wanted);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t before_me = (1u << lane) - 1;
  int32_t taken = 0, tied_before = 0;
  for (int64_t begin = 0; begin < pools; begin += kThreads) {
    const int64_t i = begin + threadIdx.x;
    const uint32_t order = i < pools ? score_order(scores[i]) : 0;
    const bool is_tied = i < pools && order == last, is_better = i < pools && order > last;
    const uint32_t tie_votes = __ballot_sync(0xffffffffu, is_tied);
    if (lane == 0) tied[warp] = __popc(tie_votes);
    __syncthreads();
    int32_t tie = tied_before + __popc(tie_votes & before_me);
    for (int w = 0; w < kThreads / 32; ++w) {
      if (w < warp) tie += tied[w];
      tied_before += tied[w];
    }
    const bool takes = is_better || (is_tied && tie < ties);
    const uint32_t votes = __ballot_sync(0xffffffffu, takes);
    if (lane == 0) better[warp] = __popc(votes);
    __syncthreads();
    int32_t place = taken + __popc(votes & before_me);
    for (int w = 0; w < kThreads / 32; ++w) {
      if (w < warp) place += better[w];
      taken += better[w];
    }
    if (takes) chosen[place] = static_cast<int32_t>(i);
    __syncthreads();
  }
}

// ---- attend ---------------------------------------------------------------------------------------------------------
constexpr int64_t kGroupTokens = 64;

template <int kHeads>
__global__ void __launch_bounds__(kThreads)
    attend_kernel(IndexShape shape, int64_t heads, int64_t width, float scale, const float* q, SpanTable spans,
                  LatentCache cache, Selection selection, float* out, int64_t head_tiles) {
  extern __shared__ float memory[];  // q [kHeads, width], then what is summed [kHeads, width]
  __shared__ float weights[kHeads][kGroupTokens];
  __shared__ float maximum[kHeads], total[kHeads], keep[kHeads], factor[kHeads];
  __shared__ const float* latents[kGroupTokens];
  float* query = memory;
  float* summed = memory + kHeads * width;
  const Row at = row_at(spans, blockIdx.x / head_tiles);
  const int64_t first_head = blockIdx.x % head_tiles * kHeads;
  const int64_t own_heads = heads - first_head < kHeads ? heads - first_head : kHeads;
  const int64_t offset = (at.row * heads + first_head) * width;
  const int group = threadIdx.x / 16, lane = threadIdx.x % 16;
  for (int64_t i = threadIdx.x; i < kHeads * width; i += kThreads)
    query[i] = i < own_heads * width ? q[offset + i] : 0.0f;

  const int64_t in_pools = selection.counts[at.row] * shape.pool, budget = shape.top / shape.pool;
  const int64_t tail = (at.position + 1) / shape.pool * shape.pool;
  const int64_t tokens = in_pools + (shape.always_select_tail ? at.position + 1 - tail : 0);
  const int32_t* pools = selection.pools + at.row * budget;
  for (int64_t begin = 0; begin < tokens; begin += kGroupTokens) {
    const auto count = static_cast<int>(tokens - begin < kGroupTokens ? tokens - begin : kGroupTokens);
    __syncthreads();
    for (int j = threadIdx.x; j < count; j += kThreads) {
      const int64_t rank = begin + j;
      const int64_t token =
          rank < in_pools ? int64_t{pools[rank / shape.pool]} * shape.pool + rank % shape.pool : tail + rank - in_pools;
      latents[j] = latent_row(shape, cache, at, token, width);
    }
    __syncthreads();
    for (int j = group; j < kGroupTokens; j += kGroups) {
      const float* latent = latents[j < count ? j : 0];
      float dots[kHeads];
      for (int64_t from = 0; from < width; from += kSumSlice) {
        const int64_t to = from + kSumSlice < width ? from + kSumSlice : width;
        float lanes[kHeads] = {};
        for (int64_t c = from + lane; c < to; c += 16) {
          const float value = latent[c];
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
        for (int h = 0; h < kHeads; ++h) weights[h][j] = j < count ? dots[h] * scale : -INFINITY;
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
        const float value = latents[k][c];
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
    out[offset + i] = tokens > 0 ? summed[i] / total[i / width] : 0.0f;
}

template <int kHeads>
cudaError_t launch_attend(cudaStream_t stream, const IndexShape& shape, int64_t heads, int64_t width, float scale,
                          const float* q, const SpanTable& spans, const LatentCache& cache, const Selection& selection,
                          float* out) {
  const auto bytes = static_cast<int>(attention_shared_bytes(kHeads, width));
  const cudaError_t error =
      cudaFuncSetAttribute(attend_kernel<kHeads>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) return error;
  const int64_t head_tiles = (heads + kHeads - 1) / kHeads;
  attend_kernel<kHeads>
      <<<static_cast<unsigned>(spans.rows * head_tiles), kThreads, static_cast<size_t>(bytes), stream>>>(
          shape, heads, width, scale, q, spans, cache, selection, out, head_tiles);
  return cudaGetLastError();
}

}  // namespace

cudaError_t append_latents(cudaStream_t stream, const IndexShape& shape, int64_t latent_width, const float* latents,
                           const float* keys, const float* gates, const float* ape, const SpanTable& spans,
                           const LatentCache& cache) {
  if (spans.rows == 0) return cudaSuccess;
  const auto rows = static_cast<unsigned>(spans.rows);
  const cudaError_t error =
      launch(append_kernel, rows, 128, 0, stream, shape, latent_width, latents, keys, gates, ape, spans, cache);
  return error != cudaSuccess ? error : launch(tail_kernel, rows, 128, 0, stream, shape, keys, gates, spans, cache);
}

cudaError_t select_pools(cudaStream_t stream, const IndexShape& shape, const float* q, const float* head_weights,
                         const SpanTable& spans, int64_t first, int64_t count, int64_t most_pools,
                         const LatentCache& cache, float* scores, int64_t stride, const Selection& selection) {
  if (count == 0) return cudaSuccess;
  if (most_pools > shape.top / shape.pool) {
    // Few rows: few pools a block, so that more of the device works.
    const int64_t block_pools = count <= 16 ? kGroups : 4 * kGroups;
    const int64_t tiles = (most_pools + block_pools - 1) / block_pools;
    const auto bytes = static_cast<int>(index_score_shared_bytes(shape.heads, shape.width));
    const cudaError_t error =
        launch(score_kernel, static_cast<unsigned>(count * tiles), kThreads, static_cast<size_t>(bytes), stream, shape,
               q, head_weights, spans, first, cache, scores, stride, tiles, block_pools);
    if (error != cudaSuccess) return error;
  }
  return launch(select_kernel, static_cast<unsigned>(count), kThreads, 0, stream, shape, spans, first,
                static_cast<const float*>(scores), stride, selection);
}

cudaError_t sparse_attention(cudaStream_t stream, const IndexShape& shape, int64_t heads, int64_t latent_width,
                             float scale, const float* q, const SpanTable& spans, const LatentCache& cache,
                             const Selection& selection, float* out) {
  if (spans.rows == 0 || heads == 0) return cudaSuccess;
  // Few rows: fewer heads a block, so that more of the device works.
  if (spans.rows * heads <= 2048)
    return launch_attend<2>(stream, shape, heads, latent_width, scale, q, spans, cache, selection, out);
  return launch_attend<8>(stream, shape, heads, latent_width, scale, q, spans, cache, selection, out);
}

}  // namespace verbatim::ops::cuda
