// Experts of packed weights with few rows, their weights streamed as in sm90_stream_product.cu: blocks stay, one a
// multiprocessor, and take units in order, first of the shared expert (whose weights are known before the launch in
// front has ended), then of the routed ones. A unit is 16 outputs of gate and up, or 32 of down, for up to eight places
// of an expert, taken by so many of the sixteen warps as there are slices of 256 inputs; what they leave takes more
// outputs. A warp multiplies a slice at a time out of its own ring of copies (a slice of both matrices in NVFP4, a
// quarter of it in BF16); two more warps add the slices' sums in order and leave SwiGLU's result or down's. Launches:
// places (none for one row, whose experts are its choices), gate and up, down, the weighted sum.
// Bytes: the stored weights of the chosen experts, once for each eight places. Inputs are bfloat16 in the order of the
// matrix units, in shared memory where all rows' fit, else out of the first-level cache. Instructions of the inner
// loop: 19 for 256 weights.
#include "ops/cuda/expert_stream.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/math.cuh"
#include "ops/cuda/packed.cuh"
#include "ops/cuda/ptx/async_copy.cuh"
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
  __device__ uint8_t* ring(int warp) const { return base + kExpertBarrierBytes + warp * kStages * kPieceBytes; }
  // [buffer][warp][matrix][16 outputs][place]
  __device__ float* sums(int buffer, int warp) const {
    return reinterpret_cast<float*>(base + kExpertBarrierBytes + kWarps * kStages * kPieceBytes) +
           (buffer * kWarps + warp) * kPartialFloats;
  }
  __device__ uint8_t* inputs() const { return reinterpret_cast<uint8_t*>(sums(2, 0)); }
};

// kResident: inputs stand in shared memory, by row (gate and up) or place (down); else where they are stored.
template <bool kDown, bool kResident>
__device__ void multiply_units(const Job& job, const Plan& plan, const Memory& memory, Feed<kDown>& feed, int warp,
                               int lane) {
  int stage = 0, buffer = 0;
  uint32_t buffer_phase = 1;
  bool changed = true;
  const uint4* inputs = nullptr;
  int first_slice = 0, own_pair = 0;
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
    __syncwarp();
    if (lane == 0) ptx::arrive(memory.sums_full() + buffer);
    buffer ^= 1;
    if (buffer == 0) buffer_phase ^= 1;
  };
  for (Units at(job, plan); at.settle();) {
    const Kind& kind = at.kind();
    if (changed) {
      const Run places = run_of(job, at.shared, at.run);
      const int column = lane / 4;
      first_slice = warp % kind.sharers, own_pair = warp / kind.sharers;
      // Lanes without a place take the first one's, and nobody keeps their sums.
      const int place = places.first + (column < places.count ? column : 0);
      int64_t slot = place;
      if constexpr (!kDown)
        slot = at.shared ? place - static_cast<int>(job.p.rows * job.p.top) : job.direct ? 0 : job.source[place];
      inputs = reinterpret_cast<const uint4*>((kResident ? memory.inputs()
                                               : kDown   ? job.hidden
                                                         : job.x) +
                                              slot * job.x_pitch) +
               lane % 4;
    }
    if (has_whole_slices(kind, first_slice)) {
      const int count = at.rest();
      const uint4* own = inputs + first_slice * 32;
      for (int i = 0; i < count; ++i) {
        float sums[2][4] = {};
        const uint8_t* piece = await();
#pragma unroll
        for (int j = 0; j < 4; ++j) multiply<WeightForm::kNvfp4>(piece, j, 4, own + j * 8, lane, sums);
        release();
        leave(sums);
      }
      changed = at.skip(count);
      continue;
    }
    const bool mine = at.index * kind.pairs + own_pair < kind.all_pairs;
    int slice = first_slice;
    for (int turn = 0; turn < kind.turns; ++turn, slice += kind.sharers) {
      float sums[2][4] = {};
      const int tiles = mine ? tiles_of(kind, slice) : 0;
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
    changed = at.skip(1);
  }
}

// Thread t of the adders: output t / 4, places 2 (t % 4) and the next, of both matrices.
template <bool kDown>
__device__ void add_units(const Job& job, const Plan& plan, const Memory& memory, int thread) {
  const int output = thread / 4, column = thread % 4 * 2;
  int buffer = 0;
  uint32_t phase = 0;
  bool changed = true;
  float scales[2] = {};
  Run places{};
  for (Units at(job, plan); at.settle();) {
    const Kind& kind = at.kind();
    if (changed) {
      places = run_of(job, at.shared, at.run);
      const ExpertTable& expert = job.p.table[places.expert];
      scales[0] = scale_of(kDown ? expert.down : expert.gate);
      scales[1] = scale_of(kDown ? expert.down : expert.up);
    }
    const auto leave = [&](int64_t pair, const float2(&totals)[2]) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (column + i >= places.count) break;
        const int64_t place = places.first + column + i;
        const float first = (i == 0 ? totals[0].x : totals[0].y) * scales[0];
        const float second = (i == 0 ? totals[1].x : totals[1].y) * scales[1];
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
        if (turn + 1 == kind.turns) leave(int64_t{at.index} * kind.pairs + pair, totals);
      }
      __syncwarp();
      if (thread % 32 == 0) ptx::arrive(memory.sums_empty() + buffer);
      buffer ^= 1;
      if (buffer == 0) phase ^= 1;
    }
    changed = at.skip(1);
  }
}

template <bool kDown, bool kResident>
__global__ void __launch_bounds__(kThreads, 1) expert_kernel(const __grid_constant__ Job job) {
  extern __shared__ __align__(128) uint8_t shared_memory[];
  __shared__ Plan plan;
  ptx::let_next_start();
  const Memory memory{shared_memory};
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  if (thread == kWarps * 32) {
    for (int i = 0; i < 2; ++i) {
      ptx::make_barrier(memory.sums_full() + i, kWarps);
      ptx::make_barrier(memory.sums_empty() + i, kAdders / 32);
    }
    const int64_t first = shared_before(job, blockIdx.x);
    plan.shared_first = static_cast<int>(first);
    plan.shared_count = static_cast<int>(shared_before(job, blockIdx.x + 1) - first);
  }
  __syncthreads();
  Feed<kDown> feed(job, plan, warp, lane, memory.ring(warp));
  int filled = 0;
  if (warp < kWarps)
    while (filled < kStages && feed.fill_known(filled)) ++filled;
  ptx::wait_for_previous();
  if (thread == kWarps * 32) {
    const int64_t runs = job.direct ? job.p.top : *job.run_count, routed = runs * job.routed.units;
    const int64_t first = routed_before(job, blockIdx.x, routed);
    plan.routed_first = static_cast<int>(first);
    const int64_t last = routed_before(job, blockIdx.x + 1, routed);
    plan.routed_count = static_cast<int>(last > first ? last - first : 0);
  }
  if constexpr (kResident && kDown) {
    // Every place's, as they are stored.
    const auto words = static_cast<int>(job.p.places() * job.x_pitch / 16);
    const auto* from = reinterpret_cast<const uint4*>(job.hidden);
    for (int i = thread; i < words; i += kThreads) reinterpret_cast<uint4*>(memory.inputs())[i] = from[i];
  } else if constexpr (kResident) {
    const auto rows = static_cast<int>(job.p.rows), columns = static_cast<int>(job.p.columns);
    for (int i = thread; i < rows * columns / 2; i += kThreads) {
      const int row = i / (columns / 2), column = i % (columns / 2) * 2;
      const float2 pair = *reinterpret_cast<const float2*>(job.p.x + int64_t{row} * columns + column);
      *reinterpret_cast<uint32_t*>(memory.inputs() + row * job.x_pitch + stored_at(column)) =
          bf16_bits(pair.x) | bf16_bits(pair.y) << 16;
    }
  }
  __syncthreads();
  if (warp >= kWarps) {
    add_units<kDown>(job, plan, memory, thread - kWarps * 32);
    return;
  }
  for (; filled < kStages; ++filled) feed.fill(filled);
  multiply_units<kDown, kResident>(job, plan, memory, feed, warp, lane);
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
__global__ void combine_kernel(const __grid_constant__ Job job) {
  ptx::let_next_start();
  ptx::wait_for_previous();
  const ExpertsProblem& p = job.p;
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= p.rows * p.width) return;
  const int64_t row = i / p.width, output = i % p.width;
  const float* down = job.down + output;
  float sum = 0.0f;
  for (int64_t slot = 0; slot < p.top; ++slot) {
    const int64_t pair = row * p.top + slot;
    const float weight = p.weights[pair], term = down[(job.direct ? pair : job.place[pair]) * p.width];
    sum = slot == 0 ? weight * term : fmaf(weight, term, sum);
  }
  if (p.has_shared) {
    const float last = down[(p.rows * p.top + row) * p.width];
    sum = p.top == 0 ? last : sum + last;
  }
  p.y[i] = sum;
}

// ---- launches -------------------------------------------------------------------------------------------------------
Job describe(const ExpertsProblem& p, bool down, void* working, int64_t* bytes) {
  Job job;
  job.p = p;
  job.direct = p.rows == 1;
  const auto kind = [&](WeightForm form, int64_t inner) {
    Kind k;
    k.form = form;
    k.columns = static_cast<int>(down ? inner : p.columns);
    k.slices = Slices(k.columns, 1).total;
    while (k.sharers < k.slices && k.sharers < kWarps) k.sharers *= 2;
    k.pairs = kWarps / k.sharers;
    k.turns = (k.slices + k.sharers - 1) / k.sharers;
    k.row_tiles = static_cast<int>(((down ? p.width : inner) + kPackedRows - 1) / kPackedRows);
    k.all_pairs = down ? k.row_tiles / 2 : k.row_tiles;
    k.units = (k.all_pairs + k.pairs - 1) / k.pairs;
    k.cost = int64_t{k.columns} * k.pairs * (form == WeightForm::kBf16 ? 32 : 9);
    return k;
  };
  job.routed = kind(p.routed_form, p.routed_inner);
  if (p.has_shared) job.shared = kind(p.shared_form, p.shared_inner);
  job.shared_runs = p.has_shared ? static_cast<int>((p.rows + kPlaces - 1) / kPlaces) : 0;
  job.x_pitch = stored_bytes(down ? p.inner : p.columns);
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
  describe(p, false, nullptr, &bytes);
  return bytes;
}

cudaError_t stream_experts(cudaStream_t stream, const DeviceLimits& limits, const ExpertsProblem& p, void* working) {
  if (p.rows == 0) return cudaSuccess;
  const Job first = describe(p, false, working, nullptr), second = describe(p, true, working, nullptr);
  if (!first.direct) {
    const int64_t pairs = first.resident ? 0 : p.rows * p.columns / 2;
    const cudaError_t error =
        launch(place_kernel, static_cast<unsigned>(1 + (pairs + kPlaceThreads - 1) / kPlaceThreads), kPlaceThreads,
               static_cast<size_t>(2 * p.experts * 4), stream, first);
    if (error != cudaSuccess) return error;
  }
  const auto blocks = static_cast<unsigned>(limits.multiprocessors);
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
  return launch(combine_kernel, static_cast<unsigned>((p.rows * p.width + 255) / 256), 256, 0, stream, second);
}

}  // namespace verbatim::ops::cuda
