// The pooled indexer of sparse attention: what it appends, scores by float32 multiply-adds (the order of sums is that
// of ops.h, the bits are the CPU backend's on the caches' values), and the choice of the best. Bytes of a query: the
// pool keys of its sequence once.
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

// ---- append ---------------------------------------------------------------------------------------------------------
// Half of a block's threads store the latent, the other half do all else.
constexpr int kAppendThreads = 256, kAppendHalf = kAppendThreads / 2;

__device__ void store_four(float* to, float4 value) { *reinterpret_cast<float4*>(to) = value; }
__device__ void store_four(uint16_t* to, float4 value) {
  *reinterpret_cast<uint2*>(to) =
      make_uint2(bf16_bits(value.x) | bf16_bits(value.y) << 16, bf16_bits(value.z) | bf16_bits(value.w) << 16);
}

// A block a row. The tails of the rings are written behind whoever reads what stood there: a pool that earlier steps
// began is completed by one row of the span, which then writes all of them; else every row writes its own.
template <class Element>
__global__ void __launch_bounds__(kAppendThreads)
    append_kernel(IndexShape shape, int64_t latent_width, const float* latents, const float* keys, const float* gates,
                  const float* ape, SpanTable spans, LatentCache cache) {
  ptx::let_next_start();
  const Row at = row_at(spans, blockIdx.x);
  const auto thread = static_cast<int>(threadIdx.x), own = thread % kAppendHalf;
  const auto pool = static_cast<int>(shape.pool), ring = static_cast<int>(shape.pool + kWindowRows);
  const auto position = static_cast<int>(at.position), begin = static_cast<int>(at.span.position);
  // A pool's tokens are a power of two.
  const int end = begin + static_cast<int>(at.span.rows), in_pool = begin & (pool - 1);
  const int completed_at = begin - in_pool + pool - 1;  // of the pool that the span begins in
  const bool reads_ring = in_pool != 0 && completed_at < end, completes = ((position + 1) & (pool - 1)) == 0;
  const auto width = static_cast<int>(shape.width);
  Element* to = latent_row<Element>(shape, cache, at, at.position, latent_width);
  Element* key = completes ? pool_key<Element>(shape, cache, at, position / pool) : nullptr;
  // Of a token of the span, or of an earlier one in the rings.
  const int64_t slots = int64_t{at.span.sequence} * ring;
  const auto slot_of = [&](int token) { return (slots + token % ring) * width; };
  const auto row_of = [&](int token) { return (at.row - position + token) * width; };
  const int first = position + 1 - pool;
  constexpr int kHeld = 4;  // the released size: all is read before any is used
  int64_t held_at[kHeld];
#pragma unroll
  for (int i = 0; i < kHeld; ++i)
    held_at[i] = !completes || pool != kHeld ? 0 : first + i < begin ? slot_of(first + i) : row_of(first + i);
  ptx::wait_for_previous();
  if (thread >= kAppendHalf)
    for (int64_t c = 4 * own; c < latent_width; c += 4 * kAppendHalf)
      store_four(to + c, *reinterpret_cast<const float4*>(latents + at.row * latent_width + c));
  for (int c = thread; completes && c < width; c += kAppendHalf) {
    if (thread >= kAppendHalf) break;
    if (pool == kHeld) {
      float held_logit[kHeld], held_key[kHeld];
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        const bool in_ring = first + i < begin;
        held_logit[i] = (in_ring ? cache.tail_gate : gates)[held_at[i] + c] + ape[i * width + c];
        held_key[i] = (in_ring ? cache.tail_key : keys)[held_at[i] + c];
      }
      float maximum = held_logit[0];
#pragma unroll
      for (int i = 1; i < kHeld; ++i) maximum = max_of(maximum, held_logit[i]);
      float total = exp_of(held_logit[0] - maximum);
      float sum = total * held_key[0];
#pragma unroll
      for (int i = 1; i < kHeld; ++i) {
        const float weight = exp_of(held_logit[i] - maximum);
        total = total + weight;
        sum = fmaf(weight, held_key[i], sum);
      }
      store_cached(key + c, sum / total);
      continue;
    }
    const auto value = [&](const float* given, const float* tail, int i) {
      return first + i < begin ? tail[slot_of(first + i) + c] : given[row_of(first + i) + c];
    };
    const auto logit = [&](int i) { return value(gates, cache.tail_gate, i) + ape[i * width + c]; };
    float maximum = logit(0);
    for (int i = 1; i < pool; ++i) maximum = max_of(maximum, logit(i));
    float total = exp_of(logit(0) - maximum);
    float sum = total * value(keys, cache.tail_key, 0);
    for (int i = 1; i < pool; ++i) {
      const float weight = exp_of(logit(i) - maximum);
      total = total + weight;
      sum = fmaf(weight, value(keys, cache.tail_key, i), sum);
    }
    store_cached(key + c, sum / total);
  }
  const auto write_tail = [&](int token) {
    const int64_t slot = slot_of(token), from = row_of(token);
    for (int c = thread; c < width; c += kAppendHalf) {
      if (thread >= kAppendHalf) break;
      cache.tail_key[slot + c] = keys[from + c];
      cache.tail_gate[slot + c] = gates[from + c];
    }
  };
  const int kept = end - ring < begin ? begin : end - ring;
  if (!reads_ring) {
    if (position >= kept) write_tail(position);
  } else if (position == completed_at) {
    __syncthreads();
    for (int token = kept; token < end; ++token) write_tail(token);
  }
}

// ---- select ---------------------------------------------------------------------------------------------------------
constexpr int64_t kHeldWidth = 256;

template <class Element>
__global__ void score_kernel(const __grid_constant__ PoolScores p, int64_t tiles, int64_t block_pools) {
  extern __shared__ float query[];  // [heads, width], then the heads' weights
  ptx::let_next_start();
  ptx::wait_for_previous();
  const IndexShape& shape = p.shape;
  const Row at = row_at(p.spans, p.first + blockIdx.x / tiles);
  const int64_t pools = (at.position + 1) / shape.pool;
  const int64_t begin = blockIdx.x % tiles * block_pools;
  if (pools <= shape.top / shape.pool || begin >= pools) return;
  const int64_t width = shape.width, heads = shape.heads;
  float* weights = query + heads * width;
  const float head_scale = 1.0f / sqrtf(static_cast<float>(heads));
  const float width_scale = 1.0f / sqrtf(static_cast<float>(width));
  for (int64_t i = threadIdx.x; i < heads * width; i += kThreads) query[i] = p.q[at.row * heads * width + i];
  for (int64_t i = threadIdx.x; i < heads; i += kThreads) weights[i] = p.head_weights[at.row * heads + i] * head_scale;
  __syncthreads();
  const int group = threadIdx.x / 16, lane = threadIdx.x % 16;
  for (int64_t pool = begin + group; pool < begin + block_pools; pool += kGroups) {
    const Element* key = pool_key<Element>(shape, p.cache, at, pool < pools ? pool : pools - 1);
    float held[kHeldWidth / 16];
    if (width <= kHeldWidth) {
#pragma unroll
      for (int j = 0; j < kHeldWidth / 16; ++j) held[j] = j * 16 < width ? cached_value(key[j * 16 + lane]) : 0.0f;
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
            width, [&](int64_t c) { return asked[c]; }, [&](int64_t c) { return cached_value(key[c]); });
      }
      const float scaled = dot * width_scale;
      const float relu = scaled > 0.0f ? scaled : 0.0f;
      score = head == 0 ? weights[head] * relu : fmaf(weights[head], relu, score);
    }
    if (lane == 0 && pool < pools) p.scores[(at.row - p.first) * p.stride + pool] = score;
  }
}

// Order-preserving image of a score: a larger score has the larger image, both zeros are one, NaN is least.
__device__ uint32_t score_order(float score) {
  if (isnan(score)) return 0;
  const uint32_t bits = __float_as_uint(score == 0.0f ? 0.0f : score);
  return (bits & 0x80000000u) ? ~bits : bits | 0x80000000u;
}

// The budget best scores of a row, lower index on ties, ascending: the image of the last one by four passes over its
// bytes (counts are whole numbers, so their order does not matter), then each warp takes what is chosen of its own run
// of pools. Scores stand in shared memory between passes where they fit in `held` places.
__global__ void __launch_bounds__(kThreads)
    select_kernel(const __grid_constant__ PoolScores p, Selection selection, int64_t held) {
  extern __shared__ uint32_t orders[];
  constexpr int kWarps = kThreads / 32;
  __shared__ __align__(16) uint32_t counts[4][256];
  __shared__ int32_t better[kWarps], tied[kWarps];
  ptx::let_next_start();
  const Row at = row_at(p.spans, p.first + blockIdx.x);
  const auto pools = static_cast<int>((at.position + 1) / p.shape.pool);
  const auto budget = static_cast<int>(p.shape.top / p.shape.pool);
  int32_t* chosen = selection.pools + at.row * budget;
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  for (int i = thread; i < 4 * 256; i += kThreads) counts[0][i] = 0;
  ptx::wait_for_previous();
  if (thread == 0) selection.counts[at.row] = pools < budget ? pools : budget;
  if (pools <= budget) {
    for (int i = thread; i < pools; i += kThreads) chosen[i] = i;
    return;
  }
  const float* scores = p.scores + (at.row - p.first) * p.stride;
  const bool holds = pools <= held;
  if (holds)
    for (int i = thread; i < pools; i += kThreads) orders[i] = score_order(scores[i]);
  const auto order_of = [&](int i) { return holds ? orders[i] : score_order(scores[i]); };
  __syncthreads();
  uint32_t last = 0, wanted = static_cast<uint32_t>(budget);
  // Loops stay loops: what runs once a launch is the faster the less of it there is to fetch.
#pragma unroll 1
  for (int pass = 0; pass < 4; ++pass) {
    const int shift = 24 - 8 * pass;
#pragma unroll 1
    for (int begin = 0; begin < pools; begin += kThreads) {
      const int i = begin + thread;
      const uint32_t order = i < pools ? order_of(i) : 0, digit = order >> shift & 255;
      const bool is_counted = i < pools && (pass == 0 || order >> (shift + 8) % 32 == last >> (shift + 8) % 32);
      if (pass > 0) {
        if (is_counted) atomicAdd(&counts[pass][digit], 1u);
        continue;
      }
      // Few exponents occur: a warp's equal ones are added at once.
      const uint32_t all = __ballot_sync(0xffffffffu, is_counted);
      if (!is_counted) continue;
      const uint32_t equal = __match_any_sync(all, digit);
      if (lane == __ffs(static_cast<int>(equal)) - 1)
        atomicAdd(&counts[0][digit], static_cast<uint32_t>(__popc(equal)));
    }
    __syncthreads();
    // Every warp finds where the digits, counted from the top, reach what is wanted: eight a lane.
    const uint4* from = reinterpret_cast<const uint4*>(&counts[pass][248 - 8 * lane]);
    const uint4 low = from[0], high = from[1];
    const uint32_t own[8] = {high.w, high.z, high.y, high.x, low.w, low.z, low.y, low.x};
    uint32_t total = 0;
#pragma unroll
    for (int j = 0; j < 8; ++j) total += own[j];
    uint32_t above = total;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const uint32_t other = __shfl_up_sync(0xffffffffu, above, step);
      if (lane >= step) above += other;
    }
    above -= total;
    const bool is_here = above < wanted && wanted <= above + total;
    uint32_t digit = 0, left = 0;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      if (above < wanted && wanted <= above + own[j]) {
        digit = static_cast<uint32_t>(255 - 8 * lane - j);
        left = wanted - above;
      }
      above += own[j];
    }
    const int source = __ffs(static_cast<int>(__ballot_sync(0xffffffffu, is_here))) - 1;
    last |= __shfl_sync(0xffffffffu, digit, source) << shift;
    wanted = __shfl_sync(0xffffffffu, left, source);
  }
  // `wanted` of those that equal the last are taken.
  const auto ties = static_cast<int32_t>(wanted);
  const int run = (pools + kThreads - 1) / kThreads * 32, first = warp * run;
  const int end = first + run < pools ? first + run : pools;
  int32_t better_here = 0, tied_here = 0;
#pragma unroll 1
  for (int begin = first; begin < end; begin += 32) {
    const uint32_t order = begin + lane < end ? order_of(begin + lane) : 0;
    better_here += __popc(__ballot_sync(0xffffffffu, begin + lane < end && order > last));
    tied_here += __popc(__ballot_sync(0xffffffffu, begin + lane < end && order == last));
  }
  if (lane == 0) {
    better[warp] = better_here;
    tied[warp] = tied_here;
  }
  __syncthreads();
  int32_t taken = 0, tied_before = 0;
#pragma unroll 1
  for (int w = 0; w < warp; ++w) {
    taken += better[w];
    tied_before += tied[w];
  }
  taken += tied_before < ties ? tied_before : ties;
  const uint32_t before_me = (1u << lane) - 1;
#pragma unroll 1
  for (int begin = first; begin < end; begin += 32) {
    const int i = begin + lane;
    const uint32_t order = i < end ? order_of(i) : 0;
    const bool is_tied = i < end && order == last;
    const uint32_t tie_votes = __ballot_sync(0xffffffffu, is_tied);
    const bool takes = (i < end && order > last) || (is_tied && tied_before + __popc(tie_votes & before_me) < ties);
    const uint32_t votes = __ballot_sync(0xffffffffu, takes);
    if (takes) chosen[taken + __popc(votes & before_me)] = i;
    taken += __popc(votes);
    tied_before += __popc(tie_votes);
  }
}

}  // namespace

cudaError_t append_latents(cudaStream_t stream, const IndexShape& shape, int64_t latent_width, const float* latents,
                           const float* keys, const float* gates, const float* ape, const SpanTable& spans,
                           const LatentCache& cache, int64_t element_bytes) {
  if (spans.rows == 0) return cudaSuccess;
  return launch(element_bytes == 2 ? append_kernel<uint16_t> : append_kernel<float>, static_cast<unsigned>(spans.rows),
                kAppendThreads, 0, stream, shape, latent_width, latents, keys, gates, ape, spans, cache);
}

cudaError_t score_pools(cudaStream_t stream, const PoolScores& p, int64_t element_bytes) {
  // Few rows: few pools a block, so that more of the device works.
  const int64_t block_pools = p.count <= 16 ? kGroups : 4 * kGroups;
  const int64_t tiles = (p.most_pools + block_pools - 1) / block_pools;
  return launch(element_bytes == 2 ? score_kernel<uint16_t> : score_kernel<float>,
                static_cast<unsigned>(p.count * tiles), kThreads,
                static_cast<size_t>(index_score_shared_bytes(p.shape.heads, p.shape.width)), stream, p, tiles,
                block_pools);
}

cudaError_t select_best(cudaStream_t stream, const PoolScores& p, const Selection& selection) {
  const int64_t held = select_held_scores(p.stride);
  return launch(select_kernel, static_cast<unsigned>(p.count), kThreads, static_cast<size_t>(select_shared_bytes(held)),
                stream, p, selection, held);
}

}  // namespace verbatim::ops::cuda
