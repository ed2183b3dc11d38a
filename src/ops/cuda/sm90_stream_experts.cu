// Experts of packed weights with few rows, their weights streamed as in sm90_stream_product.cu: blocks stay, one a
// multiprocessor, and take units in order: an equal share of the shared expert's (whose weights are known before the
// launch in front has ended), then most of an equal share of the routed ones, the rest of which come from a pool, since
// multiprocessors are not equally fast. A unit is 16 outputs of gate and up, or 32 of down, for up to eight places of
// an expert, taken by so many of the sixteen warps as there are slices of 256 inputs; what they leave takes more
// outputs. A warp multiplies a slice at a time out of its own ring of copies (a slice of both matrices in NVFP4, a
// quarter of it in BF16); two more warps add the slices' sums in order and leave SwiGLU's result or down's, and one
// deals units to all of them. Who takes a unit changes no bit. Launches: places (none for one row, whose experts are
// its choices), gate and up, down, the weighted sum.
// Bytes: the stored weights of the chosen experts, once for each eight places. Inputs are bfloat16 in the order of the
// matrix units, in shared memory where all rows' fit, else out of the first-level cache. Instructions of the inner
// loop: 16.5 for 256 weights, 8.5 of them of the unit of half rate that bounds it (nvfp4_words.cuh).
#include "ops/cuda/expert_stream.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/math.cuh"
#include "ops/cuda/packed.cuh"
#include "ops/cuda/ptx/async_copy.cuh"
#include "ops/cuda/ptx/barrier.cuh"
#include "ops/cuda/ptx/bulk_copy.cuh"
#include "ops/cuda/ptx/dependency.cuh"
#include "ops/cuda/ptx/mma.cuh"
#include "ops/cuda/rounding.cuh"
#include "ops/cuda/shapes.h"
#include "ops/cuda/slices.cuh"

namespace verbatim::ops::cuda {

using namespace expert_stream;

namespace {

// Four tiles of 16 columns, j of a piece, of both matrices times the places' inputs from `x` on (16 bytes: two tiles).
template <WeightForm kForm>
__device__ void multiply(const uint8_t* piece, int j, int count, const uint4* x, int lane, float (&sums)[2][4]) {
  Stage<kForm, 4> stages[2];
#pragma unroll
  for (int m = 0; m < 2; ++m) {
    if constexpr (kForm == WeightForm::kNvfp4) {
      stages[m].codes[0] = *reinterpret_cast<const uint4*>(piece + m * 2048 + j * 512 + lane * 16);
      stages[m].scales[0] = *reinterpret_cast<const uint2*>(piece + 4096 + m * 256 + j * 64 + lane / 4 * 8);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        stages[m].tiles[i] = *reinterpret_cast<const uint4*>(piece + m * 2048 + i * 512 + lane * 16);
    }
  }
  uint4 b[2];
  b[0] = x[0];
  b[1] = x[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (kForm == WeightForm::kBf16 && i >= count) break;
    const uint2 own = i % 2 == 0 ? make_uint2(b[i / 2].x, b[i / 2].y) : make_uint2(b[i / 2].z, b[i / 2].w);
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      uint32_t a[4];
      stages[m].operand(i, a);
      ptx::mma_m16n8k16_bf16(sums[m], a, own);
    }
  }
}

struct Memory {
  uint8_t* base;
  __device__ uint64_t* sums_full() const { return reinterpret_cast<uint64_t*>(base); }
  __device__ uint64_t* sums_empty() const { return sums_full() + 2; }
  __device__ Dealt dealt() const { return {sums_full() + 4, base + kExpertBarrierBytes}; }
  __device__ uint8_t* rings() const { return base + kExpertBarrierBytes + kExpertPortionBytes; }
  __device__ uint8_t* ring(int warp) const { return rings() + warp * kStages * kPieceBytes; }
  // [buffer][warp][matrix][16 outputs][place]
  __device__ float* sums(int buffer, int warp) const {
    return reinterpret_cast<float*>(rings() + kWarps * kStages * kPieceBytes) +
           (buffer * kWarps + warp) * kPartialFloats;
  }
  __device__ uint8_t* inputs() const { return reinterpret_cast<uint8_t*>(sums(2, 0)); }
};
static_assert((4 + 3 * kPortions) * 8 <= kExpertBarrierBytes);

// kResident: inputs stand in shared memory, by row (gate and up) or place (down); else where they are stored.
template <bool kDown, bool kResident>
__device__ void multiply_units(const Job& job, const Dealt& dealt, const Memory& memory, Feed<kDown>& feed, int warp,
                               int lane) {
  int stage = 0, buffer = 0;
  uint32_t buffer_phase = 1;
  const auto await = [&]() -> const uint8_t* {
    ptx::wait_for_copies<kStages - 1>();
    __syncwarp();
    return memory.ring(warp) + stage * kPieceBytes;
  };
  const auto release = [&] {
    __syncwarp();
    feed.fill(stage);
    if (++stage == kStages) stage = 0;
  };
  const auto leave = [&](const float(&sums)[2][4]) {
    ptx::wait_for(memory.sums_empty() + buffer, buffer_phase);
    float* to = memory.sums(buffer, warp) + lane / 4 * kPlaces + lane % 4 * 2;
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        *reinterpret_cast<float2*>(to + m * 128 + half * 64) = make_float2(sums[m][half * 2], sums[m][half * 2 + 1]);
    ptx::arrive_warp(memory.sums_full() + buffer, lane);
    buffer ^= 1;
    if (buffer == 0) buffer_phase ^= 1;
  };
  for (int n = 0;; ++n) {
    const Portion& portion = dealt.wait(n);
    const int units = portion.units;
    if (units == 0) return;
    const Kind& kind = portion.is_shared != 0 ? job.shared : job.routed;
    const int first_slice = kind.first_slice(warp);
    // Lanes without a place take the first one's, and nobody keeps their sums.
    const auto* inputs = reinterpret_cast<const uint4*>(kResident ? memory.inputs()
                                                        : kDown   ? job.hidden
                                                                  : job.x) +
                         portion.inputs[lane / 4] + lane % 4;
    if (has_whole_slices(kind, first_slice)) {
      const uint4* own = inputs + first_slice * 32;
      for (int i = 0; i < units; ++i) {
        float sums[2][4] = {};
        const uint8_t* piece = await();
#pragma unroll
        for (int j = 0; j < 4; ++j) multiply<WeightForm::kNvfp4>(piece, j, 4, own + j * 8, lane, sums);
        release();
        leave(sums);
      }
      dealt.leave(n, lane);
      continue;
    }
    int pair = portion.index * kind.pairs + kind.own_pair(warp);
    for (int i = 0; i < units; ++i, pair += kind.pairs) {
      int slice = first_slice;
      for (int turn = 0; turn < kind.turns; ++turn, slice += kind.sharers) {
        float sums[2][4] = {};
        const int tiles = pair < kind.all_pairs ? tiles_of(kind, slice) : 0;
        const uint4* own = inputs + slice * 32;
        if (kind.form == WeightForm::kNvfp4) {
          const uint8_t* piece = await();
          for (int j = 0; j * 4 < tiles; ++j) multiply<WeightForm::kNvfp4>(piece, j, 4, own + j * 8, lane, sums);
          release();
        } else {
          int j = 0;
          do {
            const uint8_t* piece = await();
            if (tiles - j * 4 >= 4)
              multiply<WeightForm::kBf16>(piece, 0, 4, own + j * 8, lane, sums);
            else if (tiles - j * 4 > 0)
              multiply<WeightForm::kBf16>(piece, 0, tiles - j * 4, own + j * 8, lane, sums);
            release();
          } while (++j * 4 < tiles);
        }
        leave(sums);
      }
    }
    dealt.leave(n, lane);
  }
}

// Thread t of the adders: output t / 4, places 2 (t % 4) and the next, of both matrices.
template <bool kDown>
__device__ void add_units(const Job& job, const Dealt& dealt, const Memory& memory, int thread) {
  const int output = thread / 4, column = thread % 4 * 2;
  int buffer = 0;
  uint32_t phase = 0;
  for (int n = 0;; ++n) {
    const Portion& portion = dealt.wait(n);
    const int units = portion.units;
    if (units == 0) return;
    const Kind& kind = portion.is_shared != 0 ? job.shared : job.routed;
    const float factors[2] = {portion.factors[0], portion.factors[1]};
    const int first_place = portion.first, places = portion.count;
    const auto leave = [&](int64_t pair, const float2(&totals)[2]) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (column + i >= places) break;
        const int64_t place = first_place + column + i;
        const float first = (i == 0 ? totals[0].x : totals[0].y) * factors[0];
        const float second = (i == 0 ? totals[1].x : totals[1].y) * factors[1];
        if constexpr (kDown) {
          const int64_t to = pair * 32 + output;
          float* row = job.down + place * job.p.width;
          if (to < job.p.width) row[to] = first;
          if (to + 16 < job.p.width) row[to + 16] = second;
        } else if (pair * 16 + output < kind.row_tiles * 16) {
          const float value = swiglu_of(first, second, job.p.limit);
          *reinterpret_cast<uint16_t*>(job.hidden + place * stored_bytes(job.p.inner) +
                                       stored_at(static_cast<int>(pair) * 16 + output)) =
              static_cast<uint16_t>(bf16_bits(value));
        }
      }
    };
    for (int unit = portion.index, end = unit + units; unit < end; ++unit) {
      float2 totals[2];
      for (int turn = 0; turn < kind.turns; ++turn) {
        ptx::wait_for(memory.sums_full() + buffer, phase);
        const int left = kind.slices - turn * kind.sharers, count = left < kind.sharers ? left : kind.sharers;
        for (int pair = 0; pair < kind.pairs; ++pair) {
          const float* from = memory.sums(buffer, pair * kind.sharers) + output * kPlaces + column;
#pragma unroll
          for (int m = 0; m < 2; ++m)
            for (int first = 0; first < count; first += 8) {
              float2 values[8];
#pragma unroll
              for (int i = 0; i < 8; ++i)
                if (first + i < count)
                  values[i] = *reinterpret_cast<const float2*>(from + (first + i) * kPartialFloats + m * 128);
#pragma unroll
              for (int i = 0; i < 8; ++i) {
                if (first + i >= count) break;
                const bool starts = turn == 0 && first + i == 0;
                totals[m].x = starts ? values[i].x : totals[m].x + values[i].x;
                totals[m].y = starts ? values[i].y : totals[m].y + values[i].y;
              }
            }
          // Several turns are of one pair alone.
          if (turn + 1 == kind.turns) leave(int64_t{unit} * kind.pairs + pair, totals);
        }
        ptx::arrive_warp(memory.sums_empty() + buffer, thread % 32);
        buffer ^= 1;
        if (buffer == 0) phase ^= 1;
      }
    }
    dealt.leave(n, thread % 32);
  }
}

// Inputs into shared memory, by all that follow: those of down as they are stored, the others in that order.
template <bool kDown>
__device__ void take_inputs(const Job& job, const Memory& memory, int thread) {
  constexpr int kTogether = kDown ? 6 : 1;
  const int words = static_cast<int>(kDown ? job.p.places() * job.x_pitch / 16 : job.p.rows * job.p.columns / 8);
  auto* to = reinterpret_cast<uint4*>(memory.inputs());
  for (int first = thread; first < words; first += kTogether * kFollowers) {
    if constexpr (kDown) {
      uint4 own[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i)
        if (first + i * kFollowers < words) own[i] = reinterpret_cast<const uint4*>(job.hidden)[first + i * kFollowers];
#pragma unroll
      for (int i = 0; i < kTogether; ++i)
        if (first + i * kFollowers < words) to[first + i * kFollowers] = own[i];
    } else {
      // Eight inputs of a row: 2q, 2q + 1 and those 8, 16 and 24 further.
      const auto of_row = static_cast<int>(job.p.columns / 8);
      const int row = first / of_row, word = first % of_row;
      const float* from = job.p.x + int64_t{row} * job.p.columns + word / 4 * 32 + word % 4 * 2;
      uint32_t pairs[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 pair = __ldcg(reinterpret_cast<const float2*>(from + i * 8));
        pairs[i] = bf16_bits(pair.x) | bf16_bits(pair.y) << 16;
      }
      to[row * static_cast<int>(job.x_pitch / 16) + word] = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
    }
  }
}

template <bool kDown, bool kResident>
__global__ void __launch_bounds__(kThreads, 1) expert_kernel(const __grid_constant__ Job job) {
  extern __shared__ __align__(128) uint8_t shared_memory[];
  __shared__ bool is_known;  // the first portion has been dealt
  const Memory memory{shared_memory};
  const Dealt dealt = memory.dealt();
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  if (thread >= kFollowers) {
    if (lane == 0) {
      for (int i = 0; i < 2; ++i) {
        ptx::make_barrier(memory.sums_full() + i, kWarps * ptx::kWarpArrivals);
        ptx::make_barrier(memory.sums_empty() + i, kAdders / 32 * ptx::kWarpArrivals);
      }
      dealt.make();
    }
    __syncwarp();
    Dealer<kDown>(job, dealt, lane).deal_all(&is_known);
    return;
  }
  __syncthreads();
  Feed<kDown> feed(job, dealt, warp, lane, memory.ring(warp));
  int filled = 0;
  if (warp < kWarps && is_known)
    while (filled < kStages && feed.fill_known(filled)) ++filled;
  // Inputs that have settled are read, and the shared expert begun, while choices and places are still being made: the
  // warp that deals waits for those before it deals what is routed.
  if (kDown || !kResident || !job.p.settled) {
    ptx::wait_for_previous();
    // After the wait: what the launches in front of this one left is there when the next one starts. Down deals by that
    // before its own wait.
    ptx::let_next_start();
  }
  if constexpr (kResident) take_inputs<kDown>(job, memory, thread);
  if (warp < kWarps)
    for (; filled < kStages; ++filled) feed.fill(filled);
  if constexpr (kResident) ptx::synchronise_some<1, kFollowers>();
  if (warp < kWarps)
    multiply_units<kDown, kResident>(job, dealt, memory, feed, warp, lane);
  else
    add_units<kDown>(job, dealt, memory, thread - kWarps * 32);
}

// ---- places ---------------------------------------------------------------------------------------------------------
constexpr int kPlaceThreads = 512;

// Block 0: pairs sorted by expert and runs of up to eight of them; the others: rows as they are stored. The order
// inside an expert is left open: columns of a product do not see each other.
__global__ void __launch_bounds__(kPlaceThreads) place_kernel(const __grid_constant__ Job job) {
  extern __shared__ int32_t counts[];  // [experts], then [experts] where the next place of each goes
  __shared__ int32_t warps[2][kPlaceThreads / 32];
  ptx::let_next_start();
  ptx::wait_for_previous();
  const ExpertsProblem& p = job.p;
  const int thread = threadIdx.x;
  if (blockIdx.x > 0) {
    const int64_t i = (int64_t{blockIdx.x} - 1) * kPlaceThreads + thread;
    if (i >= p.rows * p.columns / 2) return;
    const int64_t row = i / (p.columns / 2);
    const auto column = static_cast<int>(i % (p.columns / 2) * 2);
    const float2 pair = *reinterpret_cast<const float2*>(p.x + row * p.columns + column);
    *reinterpret_cast<uint32_t*>(job.x + row * job.x_pitch + stored_at(column)) = bf16_bits(pair.x) | bf16_bits(pair.y)
                                                                                                          << 16;
    return;
  }
  const auto experts = static_cast<int>(p.experts), pairs = static_cast<int>(p.rows * p.top);
  int32_t* next = counts + experts;
  for (int e = thread; e < experts; e += kPlaceThreads) counts[e] = 0;
  __syncthreads();
  for (int i = thread; i < pairs; i += kPlaceThreads) atomicAdd(&counts[p.chosen[i]], 1);
  __syncthreads();
  int32_t base_place = 0, base_run = 0;
  for (int begin = 0; begin < experts; begin += kPlaceThreads) {
    const int e = begin + thread, lane = thread % 32, warp = thread / 32;
    const int32_t own = e < experts ? counts[e] : 0, own_runs = (own + kPlaces - 1) / kPlaces;
    int32_t places = own, runs = own_runs;
    for (int step = 1; step < 32; step *= 2) {
      const int32_t a = __shfl_up_sync(0xffffffffu, places, step), b = __shfl_up_sync(0xffffffffu, runs, step);
      if (lane >= step) places += a, runs += b;
    }
    if (lane == 31) warps[0][warp] = places, warps[1][warp] = runs;
    __syncthreads();
    int32_t first = base_place + places - own, run = base_run + runs - own_runs;
    for (int w = 0; w < kPlaceThreads / 32; ++w) {
      if (w < warp) first += warps[0][w], run += warps[1][w];
      base_place += warps[0][w], base_run += warps[1][w];
    }
    if (e < experts) {
      next[e] = first;
      for (int i = 0; i < own_runs; ++i)
        job.runs[run + i] = {e, first + i * kPlaces, own - i * kPlaces < kPlaces ? own - i * kPlaces : kPlaces};
    }
    __syncthreads();
  }
  if (thread == 0) *job.run_count = base_run;
  for (int i = thread; i < pairs; i += kPlaceThreads) {
    const int32_t at = atomicAdd(&next[p.chosen[i]], 1);
    job.place[i] = at;
    job.source[at] = static_cast<int32_t>(i / p.top);
  }
  for (int r = thread; r < p.rows; r += kPlaceThreads)
    if (p.has_shared) job.source[pairs + r] = r;
}

// ---- the weighted sum -----------------------------------------------------------------------------------------------
// A thread adds four outputs of a row, slots in order. What it loads depends on nothing but places: up to eight of them
// at a time.
constexpr int kCombineThreads = 64, kCombineOutputs = 4;

__global__ void __launch_bounds__(kCombineThreads) combine_kernel(const __grid_constant__ Job job) {
  ptx::let_next_start();
  ptx::wait_for_previous();
  const ExpertsProblem& p = job.p;
  const auto threads = static_cast<int>(p.width / kCombineOutputs), top = static_cast<int>(p.top);
  const int i = static_cast<int>(blockIdx.x) * kCombineThreads + static_cast<int>(threadIdx.x), row = i / threads;
  if (row >= p.rows) return;
  const int64_t output = int64_t{i - row * threads} * kCombineOutputs;
  const auto term_of = [&](int64_t place) {
    return *reinterpret_cast<const float4*>(job.down + place * p.width + output);
  };
  float4 last{}, sum{};
  if (p.has_shared) last = term_of(p.rows * p.top + row);
  for (int first = 0; first < top; first += 8) {
    float weights[8];
    float4 terms[8];
    int places[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      if (first + j >= top) break;
      const int64_t pair = int64_t{row} * top + first + j;
      weights[j] = p.weights[pair];
      places[j] = job.direct ? static_cast<int>(pair) : job.place[pair];
    }
#pragma unroll
    for (int j = 0; j < 8; ++j)
      if (first + j < top) terms[j] = term_of(places[j]);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      if (first + j >= top) break;
      const float4& term = terms[j];
      const float weight = weights[j];
      const bool starts = first + j == 0;
      sum.x = starts ? weight * term.x : fmaf(weight, term.x, sum.x);
      sum.y = starts ? weight * term.y : fmaf(weight, term.y, sum.y);
      sum.z = starts ? weight * term.z : fmaf(weight, term.z, sum.z);
      sum.w = starts ? weight * term.w : fmaf(weight, term.w, sum.w);
    }
  }
  if (p.has_shared) sum.x = sum.x + last.x, sum.y = sum.y + last.y, sum.z = sum.z + last.z, sum.w = sum.w + last.w;
  float* y = p.y + int64_t{row} * p.width + output;
  if (reinterpret_cast<uintptr_t>(p.y) % 16 == 0)
    *reinterpret_cast<float4*>(y) = sum;
  else
    y[0] = sum.x, y[1] = sum.y, y[2] = sum.z, y[3] = sum.w;
}

// ---- launches -------------------------------------------------------------------------------------------------------
Job describe(const ExpertsProblem& p, bool down, int blocks, void* working, int64_t* bytes) {
  Job job;
  job.p = p;
  job.direct = p.rows == 1;
  const auto kind = [&](WeightForm form, int64_t inner) {
    Kind k;
    k.form = form;
    k.columns = static_cast<int>(down ? inner : p.columns);
    k.slices = Slices(k.columns, 1).total;
    while (k.sharers < k.slices && k.sharers < kWarps) k.sharers *= 2, ++k.shift;
    k.pairs = kWarps / k.sharers;
    k.turns = (k.slices + k.sharers - 1) / k.sharers;
    k.row_tiles = static_cast<int>(((down ? p.width : inner) + kPackedRows - 1) / kPackedRows);
    k.all_pairs = down ? k.row_tiles / 2 : k.row_tiles;
    k.units = (k.all_pairs + k.pairs - 1) / k.pairs;
    k.cost = int64_t{k.columns} * k.pairs * (form == WeightForm::kBf16 ? 32 : 9);
    k.whole = form == WeightForm::kNvfp4 && k.turns == 1 && k.all_pairs % k.pairs == 0;
    k.tile_bytes = static_cast<int>(packed_tile_bytes(form, k.columns));
    k.unit_bytes = (down ? 2 : 1) * k.pairs * k.tile_bytes;
    k.unit_scale_bytes = (down ? 2 : 1) * k.pairs * k.columns;
    return k;
  };
  job.routed = kind(p.routed_form, p.routed_inner);
  if (p.has_shared) job.shared = kind(p.shared_form, p.shared_inner);
  job.shared_runs = p.has_shared ? static_cast<int>((p.rows + kPlaces - 1) / kPlaces) : 0;
  job.x_pitch = stored_bytes(down ? p.inner : p.columns);
  job.shared_least = static_cast<int>(int64_t{job.shared_runs} * job.shared.units / blocks);
  job.relative_cost = static_cast<float>(job.shared.cost) / static_cast<float>(job.routed.cost);
  job.resident = (down ? p.places() : p.rows) * job.x_pitch <= kExpertInputBytes;
  int64_t used = 0;
  const auto take = [&]<typename T>(T*& pointer, int64_t count) {
    pointer = reinterpret_cast<T*>(static_cast<char*>(working) + used);
    used += (count * static_cast<int64_t>(sizeof(T)) + 255) / 256 * 256;
  };
  take(job.place, p.rows * p.top);
  take(job.source, p.places());
  take(job.runs, p.rows * p.top);
  take(job.run_count, 1);
  take(job.x, p.rows * stored_bytes(p.columns));
  take(job.hidden, p.places() * stored_bytes(p.inner));
  take(job.down, p.places() * p.width);
  if (bytes != nullptr) *bytes = used;
  return job;
}

}  // namespace

bool streams_experts(const DeviceLimits& limits, const ExpertsProblem& p) {
  return p.packed && p.uniform && p.terms == 1 && p.parts == 1 && p.width % 32 == 0 && p.experts > 0 &&
         p.experts <= 4096 && p.top > 0 && p.rows <= kMostFragmentColumns && !p.gate_by_place && !p.up_by_place &&
         !p.down_by_place && expert_shared_bytes() <= limits.shared_bytes;
}

int64_t stream_experts_bytes(const ExpertsProblem& p) {
  int64_t bytes = 0;
  describe(p, false, 1, nullptr, &bytes);
  return bytes;
}

cudaError_t stream_experts(cudaStream_t stream, const DeviceLimits& limits, const ExpertsProblem& p, void* working,
                           unsigned* counters) {
  if (p.rows == 0) return cudaSuccess;
  const int multiprocessors = limits.multiprocessors;
  Job first = describe(p, false, multiprocessors, working, nullptr);
  Job second = describe(p, true, multiprocessors, working, nullptr);
  first.counter = counters, second.counter = counters + 1;
  if (!first.direct) {
    const int64_t pairs = first.resident ? 0 : p.rows * p.columns / 2;
    const cudaError_t error =
        launch(place_kernel, static_cast<unsigned>(1 + (pairs + kPlaceThreads - 1) / kPlaceThreads), kPlaceThreads,
               static_cast<size_t>(2 * p.experts * 4), stream, first);
    if (error != cudaSuccess) return error;
  }
  const auto blocks = static_cast<unsigned>(multiprocessors);
  const auto bytes = [](const Job& job) {
    return static_cast<size_t>(expert_shared_bytes() - (job.resident ? 0 : kExpertInputBytes));
  };
  cudaError_t error = first.resident
                          ? launch(expert_kernel<false, true>, blocks, kThreads, bytes(first), stream, first)
                          : launch(expert_kernel<false, false>, blocks, kThreads, bytes(first), stream, first);
  if (error == cudaSuccess)
    error = second.resident ? launch(expert_kernel<true, true>, blocks, kThreads, bytes(second), stream, second)
                            : launch(expert_kernel<true, false>, blocks, kThreads, bytes(second), stream, second);
  if (error != cudaSuccess) return error;
  const int64_t threads = p.rows * p.width / kCombineOutputs;
  return launch(combine_kernel, static_cast<unsigned>((threads + kCombineThreads - 1) / kCombineThreads),
                kCombineThreads, 0, stream, second);
}

}  // namespace verbatim::ops::cuda
