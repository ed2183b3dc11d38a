// The first launch of attention_split.cuh: a block has up to 64 heads of a row and a run of its groups of 64 tokens,
// the queries in registers, the next groups' latents on their way. Bytes of a row: its latents once for each 64 heads,
// q once a run of groups, weights (128 a head and group) once; operations: 2 * heads * tokens * width.
#include "ops/cuda/attention_split.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/math.cuh"
#include "ops/cuda/ptx/async_copy.cuh"
#include "ops/cuda/ptx/dependency.cuh"
#include "ops/cuda/ptx/mma.cuh"
#include "ops/cuda/shapes.h"
#include "ops/cuda/spans.cuh"

namespace verbatim::ops::cuda::attention_split {

namespace {

constexpr int kRowBytes = kWidth * 2 + kPad, kGroupBytes = kTokens * kRowBytes;
// float32 queries of eight heads, two columns of each of four lanes, lie in all banks.
constexpr int kQueryFloats = kWidth + 8;
static_assert(kGroupBytes == kSplitGroupBytes && kQueryFloats * 4 == kSplitQueryBytes);

// What a block of the first launch takes: heads of a row and a run of its groups.
struct Run {
  int64_t row, first_head;
  int own_heads, begin, end;
  Visible seen;
};

// Waits for the kernel in front, finds where the run's latents stand, in shared memory and for the second launch, and
// sends for the queries, as a group of copies. Synchronised afterwards, if there are groups at all.
template <int kHeads>
__device__ Run start_run(const AttentionProblem& p, int parts, float* query, int32_t* stored) {
  const int thread = threadIdx.x;
  Run run{};
  ptx::let_next_start();
  const auto head_tiles = static_cast<unsigned>((p.heads + kHeads - 1) / kHeads);
  run.first_head = blockIdx.x % head_tiles * kHeads;
  const auto part = static_cast<int>(blockIdx.x / head_tiles % static_cast<unsigned>(parts));
  run.row = blockIdx.x / head_tiles / static_cast<unsigned>(parts);
  run.own_heads = static_cast<int>(p.heads - run.first_head < kHeads ? p.heads - run.first_head : kHeads);
  // Spans stand there since before the kernel in front (launch.h).
  const Row at = row_at(p.spans, run.row);
  const auto pool = static_cast<int>(p.shape.pool);
  const int64_t position = at.position;
  const int tail = static_cast<int>(position + 1) / pool * pool;
  ptx::wait_for_previous();
  const int chosen = p.selection.counts[run.row];
  // Heads that are not there: the last that is; nothing of theirs is written. Half of the queries is on its way while
  // places are looked up.
  const float* asked = p.q + (run.row * p.heads + run.first_head) * kWidth;
  const auto send_queries = [&](int half) {
    const int four = thread % (kWidth / 4) * 4, head0 = half * (kHeads / 2) + thread / (kWidth / 4);
    constexpr int kStep = kThreads / (kWidth / 4);
#pragma unroll
    for (int i = 0; i < kHeads / 2 / kStep; ++i) {
      const int head = head0 + i * kStep;
      ptx::copy_16_bytes(query + head * kQueryFloats + four,
                         asked + (head < run.own_heads ? head : run.own_heads - 1) * kWidth + four);
    }
  };
  send_queries(0);
  const Visible v = visible(p, position, chosen);
  run.seen = v;
  run.begin = part * v.groups / parts;
  run.end = (part + 1) * v.groups / parts;
  if (run.begin >= run.end) {
    ptx::close_copy_group();
    ptx::wait_for_copies<0>();
    return run;
  }
  const int32_t* pools = p.selection.pools + run.row * (p.shape.top / pool);
  int32_t* listed = p.tokens + run.row * p.groups * kTokens;
  // Of absent tokens, the last that is there: its weight is 0.
#pragma unroll 1
  for (int i = thread; i < (run.end - run.begin) * kTokens; i += kThreads) {
    const int wanted = run.begin * kTokens + i, rank = wanted < v.tokens ? wanted : v.tokens - 1;
    const int token = (rank < v.in_pools ? pools[rank / pool] * pool + rank % pool : tail + rank - v.in_pools) +
                      static_cast<int>(p.shape.storage_shift);
    constexpr int kPage = static_cast<int>(kPageTokens);
    const int place = at.pages[token / kPage] * kPage + token % kPage;
    stored[i] = place;
    if (run.first_head == 0) listed[wanted] = place;
  }
  send_queries(1);
  ptx::close_copy_group();
  __syncthreads();
  return run;
}

// Sends for a group's latents: `thread` of `kWith` takes a sixteen-byte piece of each kWith / 64th.
template <int kWith>
__device__ void send_latents(const AttentionProblem& p, const int32_t* places, uint8_t* to, int thread) {
  constexpr int kStep = kWith / 64;
  to += thread / 64 * kRowBytes + thread % 64 * 16;
  places += thread / 64;
  const auto* from = static_cast<const uint16_t*>(p.cache.latents) + thread % 64 * 8;
#pragma unroll
  for (int i = 0; i < kTokens / kStep; ++i)
    ptx::copy_16_bytes(to + i * kStep * kRowBytes, from + int64_t{places[i * kStep]} * kWidth);
}

// A pair of columns of a head's query, rounded.
__device__ uint32_t query_pair(const float* query, int head, int column) {
  const float2 two = *reinterpret_cast<const float2*>(query + head * kQueryFloats + column);
  return ptx::pack_bf16(two.x, two.y);
}

// 16 or 32 heads, each group by all warps.
template <int kHeads>
__global__ void __launch_bounds__(kThreads, 1) weigh_few_kernel(const __grid_constant__ AttentionProblem p, int parts) {
  extern __shared__ __align__(128) uint8_t memory[];
  using T = Tiles<kHeads>;
  constexpr int kStages = 2, kSteps = kSlice / 16;
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, slice = warp / 4;
  // Queries stand where the second group will, until they are in registers.
  auto* query = reinterpret_cast<float*>(memory + kGroupBytes);
  auto* scores = reinterpret_cast<float*>(memory + kStages * kGroupBytes);
  auto* stored = reinterpret_cast<int32_t*>(scores + kHeads * kScoreStride);
  const Run run = start_run<kHeads>(p, parts, query, stored);
  if (run.begin >= run.end) return;
  send_latents<kThreads>(p, stored, memory, thread);
  ptx::close_copy_group();
  ptx::wait_for_copies<1>();
  __syncthreads();
  const int head0 = warp % 4 / T::kTokenWarps * 16 * T::kHeadTiles;
  const int token0 = warp % 4 % T::kTokenWarps * 16 * T::kTokenTiles;
  uint32_t a[T::kHeadTiles][kSteps][4];
#pragma unroll
  for (int h = 0; h < T::kHeadTiles; ++h)
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        a[h][step][i] = query_pair(query, head0 + h * 16 + i % 2 * 8 + lane / 4,
                                   slice * kSlice + step * 16 + i / 2 * 8 + lane % 4 * 2);
  for (int group = run.begin; group < run.end; ++group) {
    const int turn = group - run.begin;
    ptx::wait_for_copies<0>();
    __syncthreads();
    if (group + 1 < run.end)
      send_latents<kThreads>(p, stored + (turn + 1) * kTokens, memory + (turn + 1) % kStages * kGroupBytes, thread);
    ptx::close_copy_group();
    float sums[T::kHeadTiles][2 * T::kTokenTiles][4] = {};
    const uint8_t* b_row = memory + turn % kStages * kGroupBytes + (token0 + lane % 8 + lane / 16 * 8) * kRowBytes +
                           lane / 8 % 2 * 16 + slice * kSlice * 2;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      uint32_t b[T::kTokenTiles][4];
#pragma unroll
      for (int t = 0; t < T::kTokenTiles; ++t) ptx::ldmatrix_x4(b[t], b_row + t * 16 * kRowBytes + step * 32);
#pragma unroll
      for (int h = 0; h < T::kHeadTiles; ++h)
#pragma unroll
        for (int t = 0; t < T::kTokenTiles; ++t) {
          ptx::mma_m16n8k16_bf16(sums[h][2 * t], a[h][step], make_uint2(b[t][0], b[t][1]));
          ptx::mma_m16n8k16_bf16(sums[h][2 * t + 1], a[h][step], make_uint2(b[t][2], b[t][3]));
        }
    }
    const int left = run.seen.tokens - group * kTokens;
    settle<kHeads>(sums, scores, kWidth / kSlice, left < kTokens ? left : kTokens, p.scale);
    float most = 0.0f, sum = 0.0f;
    const int64_t first = (run.row * p.groups + group) * p.heads + run.first_head;
    uint16_t* to = p.weights + first * kTokens;
    weigh<kHeads>(
        scores, most, sum, [](float) {},
        [&](int head, int token, auto bits) {
          if (head < run.own_heads) *reinterpret_cast<decltype(bits)*>(to + head * kTokens + token) = bits;
        });
    const int head = thread / T::kParts;
    if (thread % T::kParts == 0 && head < run.own_heads)
      *reinterpret_cast<float2*>(p.stats + (first + head) * 2) = make_float2(most, sum);
  }
}

// 64 heads, a group by four of the warps, sixteen heads each: while one half of the warps multiplies, and sends for its
// next group, the other finds the weights of the group before, in registers.
__global__ void __launch_bounds__(kThreads, 1) weigh_kernel(const __grid_constant__ AttentionProblem p, int parts) {
  extern __shared__ __align__(128) uint8_t memory[];
  constexpr int kHeads = 64, kStages = kSplitStages, kSteps = kSlice / 16, kHalf = kThreads / 2;
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, half = warp / 4;
  auto* query = reinterpret_cast<float*>(memory + kGroupBytes);
  auto* stored = reinterpret_cast<int32_t*>(memory + kStages * kGroupBytes);
  const Run run = start_run<kHeads>(p, parts, query, stored);
  const int turns = run.end - run.begin;
  if (turns <= 0) return;
  send_latents<kThreads>(p, stored, memory, thread);
  ptx::close_copy_group();
  ptx::wait_for_copies<1>();
  __syncthreads();
  const int head0 = warp % 4 * 16;
  uint32_t a[2][kSteps][4];
#pragma unroll
  for (int slice = 0; slice < 2; ++slice)
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        a[slice][step][i] =
            query_pair(query, head0 + i % 2 * 8 + lane / 4, slice * kSlice + step * 16 + i / 2 * 8 + lane % 4 * 2);
  ptx::wait_for_copies<0>();
  __syncthreads();
  const auto stage = [&](int turn) { return memory + turn % kStages * kGroupBytes; };
  if (half == 1 && turns > 1) send_latents<kHalf>(p, stored + kTokens, stage(1), thread % kHalf);
  ptx::close_copy_group();
  // Of the lane's two heads and sixteen of a group's tokens: 8 t + 2 (lane % 4) and the next.
  float sums[kTokens / 8][4] = {};
  for (int turn = 0; turn <= turns; ++turn) {
    if (turn % 2 == half) ptx::wait_for_copies<0>();
    __syncthreads();
    if (turn % 2 == half) {
      if (turn == turns) break;
      const uint8_t* b_row = stage(turn) + (lane % 8 + lane / 16 * 8) * kRowBytes + lane / 8 % 2 * 16;
      // A copy a step: the unit that takes them has time between loads.
      const bool sends = turn + 2 < turns;
      const int32_t* places = stored + (sends ? turn + 2 : 0) * kTokens + thread % kHalf / 64;
      uint8_t* to = stage(turn + 2) + thread % kHalf / 64 * kRowBytes + thread % 64 * 16;
      const auto* from = static_cast<const uint16_t*>(p.cache.latents) + thread % 64 * 8;
      constexpr int kCopyStep = kHalf / 64;
      static_assert(2 * kSteps * kCopyStep == kTokens);
      float second[kTokens / 8][4];
#pragma unroll
      for (int slice = 0; slice < 2; ++slice) {
        float(&own)[kTokens / 8][4] = slice == 0 ? sums : second;
#pragma unroll
        for (int t = 0; t < kTokens / 8; ++t) own[t][0] = own[t][1] = own[t][2] = own[t][3] = 0.0f;
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
#pragma unroll
          for (int t = 0; t < kTokens / 16; ++t) {
            uint32_t b[4];
            ptx::ldmatrix_x4(b, b_row + t * 16 * kRowBytes + slice * kSlice * 2 + step * 32);
            ptx::mma_m16n8k16_bf16(own[2 * t], a[slice][step], make_uint2(b[0], b[1]));
            ptx::mma_m16n8k16_bf16(own[2 * t + 1], a[slice][step], make_uint2(b[2], b[3]));
          }
          const int copied = (slice * kSteps + step) * kCopyStep;
          ptx::copy_16_bytes_if(sends, to + copied * kRowBytes, from + int64_t{places[copied]} * kWidth);
        }
      }
#pragma unroll
      for (int t = 0; t < kTokens / 8; ++t)
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[t][i] = sums[t][i] + second[t][i];
      ptx::close_copy_group();
      continue;
    }
    if (turn == 0) continue;
    const int group = run.begin + turn - 1, left = run.seen.tokens - group * kTokens;
    float most[2] = {-INFINITY, -INFINITY}, lanes[2][2][2] = {};
#pragma unroll
    for (int t = 0; t < kTokens / 8; ++t)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sums[t][i] = t * 8 + lane % 4 * 2 + i % 2 < left ? sums[t][i] * p.scale : -INFINITY;
        most[i / 2] = max_of(sums[t][i], most[i / 2]);
      }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      most[h] = max_of(__shfl_xor_sync(0xffffffffu, most[h], 1), most[h]);
      most[h] = max_of(__shfl_xor_sync(0xffffffffu, most[h], 2), most[h]);
    }
    uint32_t bits[2][kTokens / 8];
#pragma unroll
    for (int t = 0; t < kTokens / 8; ++t)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        bits[h][t] = ptx::pack_bf16(fade_of(sums[t][2 * h] - most[h]), fade_of(sums[t][2 * h + 1] - most[h]));
        lanes[h][t % 2][0] = lanes[h][t % 2][0] + __uint_as_float(bits[h][t] << 16);
        lanes[h][t % 2][1] = lanes[h][t % 2][1] + __uint_as_float(bits[h][t] & 0xffff0000u);
      }
    const int64_t first = (run.row * p.groups + group) * p.heads + run.first_head + head0 + lane / 4;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      // The lane tree: lanes 2 l, 2 l + 1 and eight more of sixteen are here, the others with three neighbours.
      float low = lanes[h][0][0] + lanes[h][1][0], high = lanes[h][0][1] + lanes[h][1][1];
      low = low + __shfl_xor_sync(0xffffffffu, low, 2);
      high = high + __shfl_xor_sync(0xffffffffu, high, 2);
      low = low + __shfl_xor_sync(0xffffffffu, low, 1);
      high = high + __shfl_xor_sync(0xffffffffu, high, 1);
      if (head0 + lane / 4 + h * 8 >= run.own_heads) continue;
      if (lane % 4 == 0) *reinterpret_cast<float2*>(p.stats + (first + h * 8) * 2) = make_float2(most[h], low + high);
      auto* to = reinterpret_cast<uint32_t*>(p.weights + (first + h * 8) * kTokens) + lane % 4;
#pragma unroll
      for (int t = 0; t < kTokens / 8; ++t) to[t * 4] = bits[h][t];
    }
  }
}

}  // namespace

cudaError_t launch_weights(cudaStream_t stream, const AttentionProblem& p, int multiprocessors) {
  const int64_t rows = p.spans.rows;
  // As many heads a block as still give most multiprocessors one.
  int64_t heads = 64;
  const auto tiles = [&] { return (p.heads + heads - 1) / heads; };
  while (heads > 16 && rows * p.groups * tiles() * 4 < int64_t{3} * multiprocessors) heads /= 2;
  int64_t parts = multiprocessors / (rows * tiles());
  parts = parts < 1 ? 1 : parts > p.groups ? p.groups : parts;
  const int64_t own = (p.groups + parts - 1) / parts;
  return launch(heads == 64   ? weigh_kernel
                : heads == 32 ? weigh_few_kernel<32>
                              : weigh_few_kernel<16>,
                static_cast<unsigned>(rows * parts * tiles()), kThreads,
                static_cast<size_t>(split_weigh_shared_bytes(heads, own)), stream, p, static_cast<int>(parts));
}

}  // namespace verbatim::ops::cuda::attention_split
