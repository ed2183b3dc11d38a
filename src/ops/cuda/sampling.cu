// Tokens from rows of logits by integers alone (ops/sampling.h). Three launches: the largest logit of each chunk of
// ids; weights, their sums by chunk and, for rows that are cut, a histogram by magnitude; then a block a row finds the
// lightest weight that stays and walks to the token. Sums of integers may be taken in any order, so atomics change
// nothing.
#include <algorithm>
#include <cstddef>

#include "ops/cuda/launch.h"
#include "ops/cuda/ptx/dependency.cuh"
#include "ops/cuda/sampling.h"
#include "ops/cuda/shapes.h"

namespace verbatim::ops::cuda {

namespace {

constexpr int kThreads = 256, kPickThreads = 1024;
constexpr unsigned kAll = 0xffffffffu;

// A weight's bin: its exponent (0 to 40) and the five bits behind its leading one.
constexpr int kFractionBits = 5, kBins = 41 << kFractionBits;
static_assert(kBins == kSampleBins);
__device__ int bin_of(uint64_t weight) {
  const int exponent = 63 - __clzll(static_cast<int64_t>(weight));
  const uint64_t fraction =
      exponent >= kFractionBits ? weight >> (exponent - kFractionBits) : weight << (kFractionBits - exponent);
  return (exponent << kFractionBits) | static_cast<int>(fraction & ((1 << kFractionBits) - 1));
}

// What the launches leave each other. Chunks and bins of all rows stand together.
struct Working {
  uint64_t* best;         // [rows, chunks]: ranked()
  uint64_t* chunk_sum;    // [rows, chunks]: of weights that are heavy enough
  uint32_t* chunk_count;  // [rows, chunks]: of those weights
  uint64_t* bin_sum;      // [rows, kBins]
  uint32_t* bin_count;    // [rows, kBins]
  uint64_t* weights;      // [rows, limit]; 0 where too light
};

// As sample_working_bytes() counts it.
Working lay_out(int64_t rows, int64_t chunks, int64_t limit, void* base) {
  Working w{};
  int64_t used = 0;
  const auto take = [&]<typename T>(T*& pointer, int64_t count) {
    pointer = reinterpret_cast<T*>(static_cast<std::byte*>(base) + used);
    used += working_rounded(count * static_cast<int64_t>(sizeof(T)));
  };
  take(w.best, rows * chunks);
  take(w.chunk_sum, rows * chunks);
  take(w.chunk_count, rows * chunks);
  take(w.bin_sum, rows * kBins);
  take(w.bin_count, rows * kBins);
  take(w.weights, rows * limit);
  return w;
}

// A float as an integer of the same order (both zeros one, NaN least), over the index turned round: the larger wins.
__device__ uint64_t ranked(float key, uint32_t index) {
  const uint32_t bits = __float_as_uint(key == 0.0f ? 0.0f : key);
  const uint32_t order = isnan(key) ? 0 : (bits & 0x80000000u) ? ~bits : bits | 0x80000000u;
  return uint64_t{order} << 32 | (0xffffffffu - index);
}
__device__ int32_t id_of(uint64_t rank) { return static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(rank)); }

template <typename T>
__device__ T warp_sum(T own) {
  for (int step = 16; step > 0; step /= 2) own += __shfl_xor_sync(kAll, own, step);
  return own;
}
__device__ uint64_t warp_largest(uint64_t own) {
  for (int step = 16; step > 0; step /= 2) {
    const uint64_t other = __shfl_xor_sync(kAll, own, step);
    own = other > own ? other : own;
  }
  return own;
}

__device__ bool is_cut(const SampleRow& how) { return how.top_k > 0 || how.top_p < 1.0f; }

__global__ void adjust_kernel(float* logits, int64_t stride, const LogitAdjustment* adjustments, int64_t count) {
  ptx::let_next_start();
  ptx::wait_for_previous();
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  const LogitAdjustment by = adjustments[i];
  float& logit = logits[by.row * stride + by.id];
  logit = adjusted_logit(logit, by);
}

// Block: chunk x of row y. Also clears its share of the row's bins.
__global__ void largest_kernel(const float* logits, int64_t stride, int64_t limit, Working working) {
  __shared__ uint64_t warps[kThreads / 32];
  ptx::let_next_start();
  ptx::wait_for_previous();
  const int64_t row = blockIdx.y;
  for (int64_t bin = int64_t{blockIdx.x} * kThreads + threadIdx.x; bin < kBins; bin += int64_t{gridDim.x} * kThreads) {
    working.bin_sum[row * kBins + bin] = 0;
    working.bin_count[row * kBins + bin] = 0;
  }
  logits += row * stride;
  const int64_t first = int64_t{blockIdx.x} * kChunkIds, end = min(first + kChunkIds, limit);
  uint64_t own = 0;
  for (int64_t id = first + threadIdx.x; id < end; id += kThreads) {
    const uint64_t candidate = ranked(logits[id], static_cast<uint32_t>(id));
    own = candidate > own ? candidate : own;
  }
  own = warp_largest(own);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = own;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (const uint64_t each : warps) own = each > own ? each : own;
  working.best[row * gridDim.x + blockIdx.x] = own;
}

// The largest of a row's chunks, by one warp.
__device__ uint64_t best_of_row(const Working& working, int64_t row, int chunks) {
  uint64_t best = 0;
  for (int chunk = static_cast<int>(threadIdx.x % 32); chunk < chunks; chunk += 32) {
    const uint64_t other = working.best[row * chunks + chunk];
    best = other > best ? other : best;
  }
  return warp_largest(best);
}

// Block: chunk x of row y, as above. A chunk's sums of the low 20 bits of weights and of the rest fit in 32 bits each.
__global__ void weigh_kernel(const float* logits, int64_t stride, int64_t limit, const SampleRow* rows,
                             Working working) {
  constexpr int kLowBits = 20;
  static_assert(kChunkIds << kLowBits <= int64_t{1} << 31);
  static_assert(sample_weigh_shared_bytes(kBins) <= 48 * 1024);
  __shared__ uint32_t bins[3][kBins];
  __shared__ uint64_t sums[kThreads / 32];
  __shared__ uint32_t counts[kThreads / 32];
  __shared__ uint64_t shared_best;
  ptx::let_next_start();
  ptx::wait_for_previous();
  const int64_t row = blockIdx.y;
  const int chunks = static_cast<int>(gridDim.x);
  const SampleRow how = rows[row];
  if (how.temperature == 0.0f) return;
  const bool cut = is_cut(how);
  if (threadIdx.x < 32) {
    const uint64_t best = best_of_row(working, row, chunks);
    if (threadIdx.x == 0) shared_best = best;
  }
  if (cut)
    for (auto& each : bins)
      for (int i = threadIdx.x; i < kBins; i += kThreads) each[i] = 0;
  __syncthreads();
  if (shared_best >> 32 == 0) return;  // NaN alone
  logits += row * stride;
  const float most = logits[id_of(shared_best)];
  if (!(most > -INFINITY)) return;
  const double per = per_temperature(how);
  const uint64_t least = least_weight(how, sampling_weight(most, most, per));
  const int64_t first = int64_t{blockIdx.x} * kChunkIds, end = min(first + kChunkIds, limit);
  uint64_t sum = 0;
  uint32_t count = 0;
  for (int64_t id = first + threadIdx.x; id < end; id += kThreads) {
    uint64_t weight = sampling_weight(logits[id], most, per);
    if (weight < least) weight = 0;
    working.weights[row * limit + id] = weight;
    if (weight == 0) continue;
    sum += weight;
    ++count;
    if (!cut) continue;
    const int bin = bin_of(weight);
    atomicAdd(&bins[0][bin], 1u);
    atomicAdd(&bins[1][bin], static_cast<uint32_t>(weight & ((1u << kLowBits) - 1)));
    atomicAdd(&bins[2][bin], static_cast<uint32_t>(weight >> kLowBits));
  }
  sum = warp_sum(sum);
  count = warp_sum(count);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum, counts[threadIdx.x / 32] = count;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int warp = 1; warp < kThreads / 32; ++warp) sum += sums[warp], count += counts[warp];
    working.chunk_sum[row * chunks + blockIdx.x] = sum;
    working.chunk_count[row * chunks + blockIdx.x] = count;
  }
  if (!cut) return;
  for (int bin = threadIdx.x; bin < kBins; bin += kThreads) {
    if (bins[0][bin] == 0) continue;
    atomicAdd(&working.bin_count[row * kBins + bin], bins[0][bin]);
    atomicAdd(reinterpret_cast<unsigned long long*>(&working.bin_sum[row * kBins + bin]),
              (static_cast<unsigned long long>(bins[2][bin]) << kLowBits) + bins[1][bin]);
  }
}

// ---- one block of kPickThreads --------------------------------------------------------------------------------------
struct Tally {
  uint64_t sum, count;
};

constexpr int kMostCandidates = 4096;
struct PickShared {
  uint64_t candidates[kMostCandidates];
  uint64_t chunk_sum[kMostChunks];
  uint32_t chunk_count[kMostChunks];
  Tally warps[kPickThreads / 32];
  Tally total;
  uint64_t value, target;
  Tally above;
  int bin, found;
  uint32_t candidate_count;
};
static_assert(sizeof(PickShared) <= sample_pick_shared_bytes() && sample_pick_shared_bytes() <= 48 * 1024);

// Sums over the block, to every thread.
__device__ Tally block_sum(Tally own, PickShared& shared) {
  own = {warp_sum(own.sum), warp_sum(own.count)};
  __syncthreads();  // what was read before is written again
  if (threadIdx.x % 32 == 0) shared.warps[threadIdx.x / 32] = own;
  __syncthreads();
  if (threadIdx.x < 32) {
    const Tally each = shared.warps[threadIdx.x];
    const Tally all = {warp_sum(each.sum), warp_sum(each.count)};
    if (threadIdx.x == 0) shared.total = all;
  }
  __syncthreads();
  return shared.total;
}

// Sums over the threads before this one.
__device__ Tally block_scan(Tally own, PickShared& shared) {
  const int lane = threadIdx.x % 32;
  const auto scan_warp = [&](Tally t) {
    for (int step = 1; step < 32; step *= 2) {
      const Tally before = {__shfl_up_sync(kAll, t.sum, step), __shfl_up_sync(kAll, t.count, step)};
      if (lane >= step) t.sum += before.sum, t.count += before.count;
    }
    return t;
  };
  const Tally inclusive = scan_warp(own);
  __syncthreads();
  if (lane == 31) shared.warps[threadIdx.x / 32] = inclusive;
  __syncthreads();
  if (threadIdx.x < 32) {
    const Tally each = shared.warps[threadIdx.x], upto = scan_warp(each);
    __syncwarp();
    shared.warps[threadIdx.x] = {upto.sum - each.sum, upto.count - each.count};
  }
  __syncthreads();
  const Tally before = shared.warps[threadIdx.x / 32];
  return {before.sum + inclusive.sum - own.sum, before.count + inclusive.count - own.count};
}

// The heaviest weight t for which weights of at least t number (or, by sum, add up to) `need`, which is at least 1 and
// no more than all do; and what is heavier.
struct Cut {
  uint64_t weight;
  Tally above;
};
__device__ Cut find_cut(const Working& working, int64_t row, int64_t limit, uint64_t need, bool by_sum,
                        PickShared& shared) {
  const auto measure = [by_sum](const Tally& t) { return by_sum ? t.sum : t.count; };
  // Bins from the heaviest on, two a thread.
  static_assert(kBins <= 2 * kPickThreads);
  Tally bins[2] = {};
  for (int i = 0; i < 2; ++i) {
    const int bin = kBins - 1 - 2 * static_cast<int>(threadIdx.x) - i;
    if (bin >= 0) bins[i] = {working.bin_sum[row * kBins + bin], working.bin_count[row * kBins + bin]};
  }
  Tally before = block_scan({bins[0].sum + bins[1].sum, bins[0].count + bins[1].count}, shared);
  for (int i = 0; i < 2; ++i) {
    const Tally after = {before.sum + bins[i].sum, before.count + bins[i].count};
    if (measure(before) < need && need <= measure(after)) {
      shared.bin = kBins - 1 - 2 * static_cast<int>(threadIdx.x) - i;
      shared.above = before;
      shared.candidate_count = 0;
    }
    before = after;
  }
  __syncthreads();
  const Tally above = shared.above;
  const int bin = shared.bin, exponent = bin >> kFractionBits;
  const uint64_t leading = (1 << kFractionBits) + (bin & ((1 << kFractionBits) - 1));
  const int bits = exponent > kFractionBits ? exponent - kFractionBits : 0;
  uint64_t weight = exponent >= kFractionBits ? leading << bits : leading >> (kFractionBits - exponent);
  if (bits == 0) return {weight, above};
  const uint64_t* weights = working.weights + row * limit;
  const bool held = working.bin_count[row * kBins + bin] <= kMostCandidates;
  if (held)
    for (int64_t id = threadIdx.x; id < limit; id += kPickThreads)
      if (weights[id] >> bits == leading) shared.candidates[atomicAdd(&shared.candidate_count, 1u)] = weights[id];
  __syncthreads();
  const auto tally_from = [&](uint64_t least) {
    Tally own = {0, 0};
    const auto see = [&](uint64_t each) {
      if (each >= least) own.sum += each, ++own.count;
    };
    if (held) {
      for (uint32_t i = threadIdx.x; i < shared.candidate_count; i += kPickThreads) see(shared.candidates[i]);
    } else {
      for (int64_t id = threadIdx.x; id < limit; id += kPickThreads)
        if (weights[id] >> bits == leading) see(weights[id]);
    }
    return block_sum(own, shared);
  };
  for (int bit = bits - 1; bit >= 0; --bit) {
    const uint64_t trial = weight | uint64_t{1} << bit;
    if (measure(above) + measure(tally_from(trial)) >= need) weight = trial;
  }
  const Tally heavier = tally_from(weight + 1);
  return {weight, {above.sum + heavier.sum, above.count + heavier.count}};
}

__global__ void __launch_bounds__(kPickThreads)
    pick_kernel(const float* logits, int64_t stride, int64_t limit, int chunks, const SampleRow* rows, Working working,
                int32_t* ids) {
  __shared__ PickShared shared;
  ptx::let_next_start();
  ptx::wait_for_previous();
  const int64_t row = blockIdx.x;
  const SampleRow how = rows[row];
  if (threadIdx.x < 32) {
    const uint64_t best = best_of_row(working, row, chunks);
    if (threadIdx.x == 0) shared.value = best;
  }
  __syncthreads();
  const uint64_t rank = shared.value;
  const int32_t best = id_of(rank);
  const bool nothing = rank >> 32 == 0 || !(logits[row * stride + best] > -INFINITY);
  if (nothing || how.temperature == 0.0f) {
    if (threadIdx.x == 0) ids[row] = nothing ? how.otherwise : best;
    return;
  }

  Tally own = {0, 0};
  for (int chunk = static_cast<int>(threadIdx.x); chunk < chunks; chunk += kPickThreads) {
    shared.chunk_sum[chunk] = working.chunk_sum[row * chunks + chunk];
    shared.chunk_count[chunk] = 0;
    own.sum += shared.chunk_sum[chunk];
    own.count += working.chunk_count[row * chunks + chunk];
  }
  const Tally all = block_sum(own, shared);
  if (all.sum == 0) {  // below an infinite logit everything weighs nothing
    if (threadIdx.x == 0) ids[row] = best;
    return;
  }
  // What stays: weights above `lightest`, and of those equal to it the first `equals`.
  uint64_t lightest = 0, equals = 0, total = all.sum;
  if (how.top_k > 0 && all.count > static_cast<uint64_t>(how.top_k)) {
    const Cut cut = find_cut(working, row, limit, static_cast<uint64_t>(how.top_k), false, shared);
    lightest = cut.weight;
    equals = static_cast<uint64_t>(how.top_k) - cut.above.count;
    total = cut.above.sum + equals * lightest;
  }
  if (how.top_p < 1.0f) {
    const auto wanted = static_cast<uint64_t>(ceil(static_cast<double>(total) * static_cast<double>(how.top_p)));
    const Cut cut = find_cut(working, row, limit, wanted > 1 ? wanted : 1, true, shared);
    lightest = cut.weight;
    equals = ((wanted > 1 ? wanted : 1) - cut.above.sum + lightest - 1) / lightest;
    total = cut.above.sum + equals * lightest;
  }
  const uint64_t* weights = working.weights + row * limit;
  if (lightest > 0) {
    __syncthreads();
    for (int chunk = static_cast<int>(threadIdx.x / 32); chunk < chunks; chunk += kPickThreads / 32) {
      const int64_t first = chunk * kChunkIds, end = min(first + kChunkIds, limit);
      uint64_t sum = 0;
      uint32_t count = 0;
      for (int64_t id = first + threadIdx.x % 32; id < end; id += 32) {
        sum += weights[id] > lightest ? weights[id] : 0;
        count += weights[id] == lightest ? 1 : 0;
      }
      sum = warp_sum(sum);
      count = warp_sum(count);
      if (threadIdx.x % 32 == 0) shared.chunk_sum[chunk] = sum, shared.chunk_count[chunk] = count;
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    uint64_t target = __umul64hi(how.random, total), left = equals;
    int chunk = 0;
    for (; chunk + 1 < chunks; ++chunk) {
      const uint64_t count = min(uint64_t{shared.chunk_count[chunk]}, left);
      const uint64_t sum = shared.chunk_sum[chunk] + count * lightest;
      if (target < sum) break;
      target -= sum;
      left -= count;
    }
    shared.found = chunk;
    shared.target = target;
    shared.value = left;
    ids[row] = best;
  }
  __syncthreads();
  // Two ids a thread.
  static_assert(kChunkIds == 2 * kPickThreads);
  const uint64_t target = shared.target, left = shared.value;
  const int64_t first = shared.found * kChunkIds + 2 * threadIdx.x;
  uint64_t two[2] = {};
  for (int i = 0; i < 2; ++i)
    if (first + i < limit) two[i] = weights[first + i];
  uint64_t rank_of_equal =
      block_scan({0, (lightest > 0) * (uint64_t{two[0] == lightest} + uint64_t{two[1] == lightest})}, shared).count;
  for (uint64_t& each : two) {
    const bool is_equal = lightest > 0 && each == lightest;
    const bool stays = each > lightest || (is_equal && rank_of_equal < left);
    rank_of_equal += is_equal ? 1 : 0;
    if (!stays) each = 0;
  }
  uint64_t before = block_scan({two[0] + two[1], 0}, shared).sum;
  for (int i = 0; i < 2; ++i) {
    if (before <= target && target < before + two[i]) ids[row] = static_cast<int32_t>(first + i);
    before += two[i];
  }
}

}  // namespace

cudaError_t sample(cudaStream_t stream, const SampleProblem& p, void* space) {
  if (p.rows == 0) return cudaSuccess;
  const int64_t chunks = (p.limit + kChunkIds - 1) / kChunkIds;
  if (chunks < 1 || chunks > kMostChunks) return cudaErrorInvalidValue;
  cudaError_t error = cudaSuccess;
  if (p.adjustment_count > 0)
    error = launch(adjust_kernel, static_cast<unsigned>((p.adjustment_count + kThreads - 1) / kThreads), kThreads, 0,
                   stream, p.logits, p.stride, p.adjustments, p.adjustment_count);
  for (int64_t first = 0; first < p.rows && error == cudaSuccess; first += kSampledRows) {
    const int64_t rows = std::min(kSampledRows, p.rows - first);
    const Working working = lay_out(rows, chunks, p.limit, space);
    const dim3 grid(static_cast<unsigned>(chunks), static_cast<unsigned>(rows));
    const float* logits = p.logits + first * p.stride;
    error = launch(largest_kernel, grid, kThreads, 0, stream, logits, p.stride, p.limit, working);
    if (error != cudaSuccess) return error;
    error = launch(weigh_kernel, grid, kThreads, 0, stream, logits, p.stride, p.limit, p.how + first, working);
    if (error != cudaSuccess) return error;
    error = launch(pick_kernel, static_cast<unsigned>(rows), kPickThreads, 0, stream, logits, p.stride, p.limit,
                   static_cast<int>(chunks), p.how + first, working, p.ids + first);
  }
  return error;
}

}  // namespace verbatim::ops::cuda
