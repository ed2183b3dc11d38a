// Scores of the indexer on the matrix units (mma.sync): bfloat16 pool keys against float32 queries in three bfloat16
// terms. A block takes a tile of pools, whose keys it holds in registers, for a few rows one after the other; the order
// of sums is that of ops.h and the same for any tile. Bytes: 256 a pool and block, 16 KB of queries a row and block;
// operations: 6 * heads * width a pool and row.
#include "ops/cuda/attention.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/ptx/async_copy.cuh"
#include "ops/cuda/ptx/dependency.cuh"
#include "ops/cuda/ptx/mma.cuh"
#include "ops/cuda/shapes.h"
#include "ops/cuda/spans.cuh"
#include "ops/cuda/swizzle.cuh"

namespace verbatim::ops::cuda {

namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kMostHeads = 32, kMostWidth = 128, kMostSteps = kMostWidth / 16;

// The nearest bfloat16 of two values, which become what is left beside them.
__device__ uint32_t take_terms(float& low, float& high) {
  const uint32_t both = ptx::pack_bf16(low, high);
  const float taken_low = __uint_as_float(both << 16), taken_high = __uint_as_float(both & 0xffff0000u);
  low = isfinite(taken_low) ? low - taken_low : 0.0f;
  high = isfinite(taken_high) ? high - taken_high : 0.0f;
  return both;
}

// A row's queries as the second operand of mma: [pair of head tiles][step][lane][16 bytes], steps by term, the smallest
// first, then 16 columns at a time. Heads that are not there are 0.
__device__ void split_queries(const float* q, int heads, int width, uint32_t* to) {
  const int warp = threadIdx.x / 32, steps = width / 16, padded = (heads + 15) / 16 * 16;
  constexpr int kHeads = kMostHeads / kWarps, kPairs = kMostWidth / 64;
  float2 own[kHeads][kPairs];
#pragma unroll
  for (int i = 0; i < kHeads; ++i)
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      const int head = warp + i * kWarps, k = (threadIdx.x % 32 + j * 32) * 2;
      own[i][j] =
          head < heads && k < width ? *reinterpret_cast<const float2*>(q + head * width + k) : make_float2(0.0f, 0.0f);
    }
#pragma unroll
  for (int i = 0; i < kHeads; ++i)
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      const int head = warp + i * kWarps, k = (threadIdx.x % 32 + j * 32) * 2;
      if (head >= padded || k >= width) continue;
      float low = own[i][j].x, high = own[i][j].y;
      const int lane = head % 8 * 4 + k % 8 / 2, word = head % 16 / 8 * 2 + k % 16 / 8;
#pragma unroll
      for (int term = 2; term >= 0; --term) {
        const int step = term * steps + k / 16;
        to[((head / 16 * 3 * steps + step) * 32 + lane) * 4 + word] = take_terms(low, high);
      }
    }
}

// kTiles tiles of sixteen pools a warp; fewer of them, more heads at a time.
template <int kTiles>
__global__ void __launch_bounds__(kThreads, 2)
    score_kernel(const __grid_constant__ PoolScores p, int64_t pool_tiles, int64_t block_rows) {
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ float weights[kMostHeads];
  constexpr int kBlockPools = kWarps * kTiles * 16, kPairs = 2 / kTiles;
  const auto width = static_cast<int>(p.shape.width), heads = static_cast<int>(p.shape.heads);
  const int steps = width / 16, row_bytes = swizzled_row_bytes(width);
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  uint8_t* keys = memory;
  auto* queries = reinterpret_cast<uint32_t*>(keys + kBlockPools * row_bytes);
  ptx::let_next_start();
  const float head_scale = 1.0f / sqrtf(static_cast<float>(heads));
  const float width_scale = 1.0f / sqrtf(static_cast<float>(width));
  const int64_t first_row = p.first + blockIdx.x / pool_tiles * block_rows;
  const int64_t all = p.first + p.count, end = first_row + block_rows < all ? first_row + block_rows : all;
  const int64_t begin = blockIdx.x % pool_tiles * kBlockPools;
  // Spans stand there since before the kernel in front (launch.h): the first row's is read once, before it ends.
  struct Place {
    const int32_t* pages;
    int64_t after;  // the row behind its span's last
    int32_t span;
    uint32_t seen;  // tokens
  };
  const auto place_of = [&](int64_t row) {
    const Row at = row_at(p.spans, row);
    return Place{at.pages, at.span.first_row + at.span.rows, p.spans.span_of_row[row],
                 static_cast<uint32_t>(at.position + 1)};
  };
  const auto pool = static_cast<uint32_t>(p.shape.pool);
  const auto budget = static_cast<uint32_t>(p.shape.top) / pool;
  Place at = place_of(first_row);
  uint32_t pools = at.seen / pool;
  const bool sees_nothing = at.after >= end && (at.seen + static_cast<uint32_t>(end - 1 - first_row)) / pool <= begin;
  ptx::wait_for_previous();
  if (sees_nothing) return;
  int32_t held = -1;  // the span whose keys the registers hold
  uint32_t a[kTiles][kMostSteps][4];
  for (int64_t row = first_row; row < end; ++row) {
    if (row > first_row) {
      at = place_of(row);
      pools = at.seen / pool;
    }
    if (pools <= budget || begin >= pools) continue;
    __syncthreads();  // those before have read queries and weights
    const bool reads_keys = at.span != held;
    if (reads_keys) {
      // The span's last row here sees the most pools.
      held = at.span;
      const int64_t last = (at.after < end ? at.after : end) - 1;
      const int64_t held_pools = (at.seen + static_cast<uint32_t>(last - row)) / pool;
      // A thread takes the same piece of every so many-th pool.
      const int pieces = width / 8, at_once = kThreads / pieces, piece = thread % pieces;
#pragma unroll 4
      for (int own = thread / pieces; own < kBlockPools && thread / pieces < at_once; own += at_once) {
        const int64_t wanted = begin + own < held_pools ? begin + own : held_pools - 1;
        ptx::copy_16_bytes(swizzled(keys, own, piece, row_bytes),
                           pool_key<uint16_t>(p.shape, p.cache, at.pages, wanted) + piece * 8);
      }
      ptx::close_copy_group();
    }
    split_queries(p.q + row * heads * width, heads, width, queries);
    if (thread < kMostHeads)
      weights[thread] = thread < heads ? p.head_weights[row * heads + thread] * head_scale : 0.0f;
    if (reads_keys) ptx::wait_for_copies<0>();
    __syncthreads();
    if (reads_keys)
#pragma unroll
      for (int t = 0; t < kTiles; ++t)
#pragma unroll
        for (int step = 0; step < kMostSteps; ++step)
          if (step < steps)
            ptx::ldmatrix_x4(a[t][step],
                             swizzled(keys, (warp * kTiles + t) * 16 + lane % 16, 2 * step + lane / 16, row_bytes));
    if (begin + warp * kTiles * 16 >= pools) continue;
    // A lane's heads are 2 l, 2 l + 1, 2 l + 8, ...: a chain; then the four lanes of a pool.
    float scores[kTiles][2] = {};
    const uint4* b_at = reinterpret_cast<const uint4*>(queries) + lane;
    const int pairs = (heads + 15) / 16;
    for (int first = 0; first < pairs; first += kPairs) {
      float dots[kPairs][kTiles][2][4] = {};
      // What runs once a launch is the faster the less of it there is to fetch.
#pragma unroll 1
      for (int term = 0; term < 3; ++term)
#pragma unroll
        for (int step = 0; step < kMostSteps; ++step) {
          if (step >= steps) break;
#pragma unroll
          for (int pair = 0; pair < kPairs; ++pair) {
            if (first + pair >= pairs) break;
            const uint4 b = b_at[(((first + pair) * 3 + term) * steps + step) * 32];
#pragma unroll
            for (int t = 0; t < kTiles; ++t) {
              ptx::mma_m16n8k16_bf16(dots[pair][t][0], a[t][step], make_uint2(b.x, b.y));
              ptx::mma_m16n8k16_bf16(dots[pair][t][1], a[t][step], make_uint2(b.z, b.w));
            }
          }
        }
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) {
        if (first + pair >= pairs) break;
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const float weight = weights[(first + pair) * 16 + n * 8 + lane % 4 * 2 + i];
#pragma unroll
            for (int t = 0; t < kTiles; ++t)
#pragma unroll
              for (int half = 0; half < 2; ++half) {
                const float scaled = dots[pair][t][n][2 * half + i] * width_scale;
                scores[t][half] = fmaf(weight, scaled > 0.0f ? scaled : 0.0f, scores[t][half]);
              }
          }
      }
    }
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float score = scores[t][half];
        score = score + __shfl_xor_sync(0xffffffffu, score, 1);
        score = score + __shfl_xor_sync(0xffffffffu, score, 2);
        const int64_t scored = begin + (warp * kTiles + t) * 16 + half * 8 + lane / 4;
        if (lane % 4 == 0 && scored < pools) p.scores[(row - p.first) * p.stride + scored] = score;
      }
  }
}

template <int kTiles>
cudaError_t launch_scores(cudaStream_t stream, const PoolScores& p, int64_t block_rows) {
  const int64_t block_pools = kWarps * kTiles * 16;
  const int64_t pool_tiles = (p.most_pools + block_pools - 1) / block_pools;
  const int64_t row_tiles = (p.count + block_rows - 1) / block_rows;
  return launch(score_kernel<kTiles>, static_cast<unsigned>(row_tiles * pool_tiles), kThreads,
                static_cast<size_t>(index_tile_shared_bytes(block_pools, p.shape.heads, p.shape.width)), stream, p,
                pool_tiles, block_rows);
}

}  // namespace

bool scores_fit_tiles(const IndexShape& shape) {
  return shape.width % 16 == 0 && shape.width <= kMostWidth && shape.heads <= kMostHeads;
}

cudaError_t score_pools_in_tiles(cudaStream_t stream, const PoolScores& p) {
  // Few rows: few pools a block, so that more of the device works.
  return p.count <= 64 ? launch_scores<1>(stream, p, 1) : launch_scores<2>(stream, p, 16);
}

}  // namespace verbatim::ops::cuda
