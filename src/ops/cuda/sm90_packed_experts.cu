// Experts of packed weights with few rows. Four launches: places sorted by expert and tiles of up to eight of them, by
// one block; gate and up of a tile with clamp and SwiGLU behind them; down; the weighted sum. As in sm90_packed_rows.cu
// weights go from memory to the matrix units' registers and a block's warps take the slices of 16 outputs. Bytes: the
// stored weights of the chosen experts, once for each eight places. Shared memory: up to 48 KB.
#include "ops/cuda/launch.h"
#include "ops/cuda/math.cuh"
#include "ops/cuda/packed.cuh"
#include "ops/cuda/ptx/dependency.cuh"
#include "ops/cuda/ptx/mma.cuh"
#include "ops/cuda/rounding.cuh"
#include "ops/cuda/shapes.h"
#include "ops/cuda/slices.cuh"

namespace verbatim::ops::cuda {

namespace {

constexpr int kWarps = 8, kThreads = kWarps * 32, kColumns = static_cast<int>(kFewRows), kDownStageTiles = 8;

int64_t tiles_of(int64_t count, int64_t size) { return (count + size - 1) / size; }

int64_t most_tiles(const ExpertsProblem& p) {
  const int64_t used = p.experts + 1 < p.places() ? p.experts + 1 : p.places();
  return p.places() / kColumns + used;
}

__device__ float part_scale(const Weights& w) {
  const float scale = w.form == WeightForm::kNvfp4 ? w.matrix_scale * packed_lift(w.form) : 1.0f;
  return w.input_scale > 0.0f ? w.input_scale * scale : scale;
}

// ---- places ---------------------------------------------------------------------------------------------------------
// The shared expert's tiles come first: they are the longest.
__global__ void __launch_bounds__(1024) places_kernel(ExpertsProblem p, ExpertsScratch s) {
  extern __shared__ int32_t memory[];
  ptx::let_next_start();
  ptx::wait_for_previous();
  const auto experts = static_cast<int>(p.experts), pairs = static_cast<int>(p.rows * p.top);
  const auto rows = static_cast<int>(p.rows), thread = static_cast<int>(threadIdx.x);
  int32_t* counts = memory;            // [experts]
  int32_t* firsts = counts + experts;  // [experts]: then where the next place of each goes
  int32_t* tiles = firsts + experts;   // [experts]: tiles before
  int32_t* warps = tiles + experts;    // [2][32]
  for (int e = thread; e < experts; e += 1024) counts[e] = 0;
  __syncthreads();
  for (int i = thread; i < pairs; i += 1024) atomicAdd(&counts[p.chosen[i]], 1);
  __syncthreads();
  const int shared_tiles = p.has_shared ? (rows + kColumns - 1) / kColumns : 0;
  int32_t base_count = 0, base_tiles = shared_tiles;
  for (int begin = 0; begin < experts; begin += 1024) {
    const int e = begin + thread, lane = thread % 32, warp = thread / 32;
    const int32_t own = e < experts ? counts[e] : 0, own_tiles = (own + kColumns - 1) / kColumns;
    int32_t count = own, tile = own_tiles;
    for (int step = 1; step < 32; step *= 2) {
      const int32_t a = __shfl_up_sync(0xffffffffu, count, step), b = __shfl_up_sync(0xffffffffu, tile, step);
      if (lane >= step) count += a, tile += b;
    }
    if (lane == 31) warps[warp] = count, warps[32 + warp] = tile;
    __syncthreads();
    int32_t before = base_count, tiles_before = base_tiles;
    for (int w = 0; w < 32; ++w) {
      if (w < warp) before += warps[w], tiles_before += warps[32 + w];
      base_count += warps[w], base_tiles += warps[32 + w];
    }
    if (e < experts) {
      firsts[e] = before + count - own;
      tiles[e] = tiles_before + tile - own_tiles;
      s.first[e] = firsts[e];
      s.count[e] = own;
      for (int i = 0; i < own_tiles; ++i) {
        s.tile_expert[tiles[e] + i] = e;
        s.tile_begin[tiles[e] + i] = i * kColumns;
      }
    }
    __syncthreads();
  }
  if (thread == 0) *s.tile_count = base_tiles;
  if (p.has_shared) {
    for (int r = thread; r < rows; r += 1024) {
      s.source[pairs + r] = r;
      s.owner[pairs + r] = experts;
    }
    for (int i = thread; i < shared_tiles; i += 1024) {
      s.tile_expert[i] = experts;
      s.tile_begin[i] = i * kColumns;
    }
    if (thread == 0) s.first[experts] = pairs, s.count[experts] = rows;
  }
  // Ascending inside an expert: one warp, 32 pairs at a time.
  if (thread >= 32) return;
  for (int begin = 0; begin < pairs; begin += 32) {
    const int i = begin + thread;
    const int32_t e = i < pairs ? p.chosen[i] : -1;
    const uint32_t same = __match_any_sync(0xffffffffu, e);
    const int rank = __popc(same & ((1u << thread) - 1));
    const int32_t at = e < 0 ? 0 : firsts[e] + rank;
    __syncwarp();
    if (e >= 0) {
      s.place[i] = at;
      s.source[at] = static_cast<int32_t>(i / p.top);
      s.owner[at] = e;
      if (rank == 0) firsts[e] += __popc(same);
    }
    __syncwarp();
  }
}

// ---- activations that the experts' input scales round
// ----------------------------------------------------------------- which: 0 gate, 1 up, 2 down. Rows of `from` by
// source, or by place.
__global__ void prepare_kernel(ExpertsProblem p, ExpertsScratch s, int which, const float* from, int64_t columns,
                               bool by_source, uint16_t* to, int64_t stride) {
  ptx::let_next_start();
  ptx::wait_for_previous();
  const int64_t blocks = columns / 16, i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= p.places() * blocks) return;
  const int64_t place = i / blocks, begin = i % blocks * 16;
  const ExpertTable& expert = p.table[s.owner[place]];
  const float scale = which == 0   ? expert.gate.input_scale
                      : which == 1 ? expert.up.input_scale
                                   : expert.down.input_scale;
  const float* x = from + (by_source ? s.source[place] : place) * columns + begin;
  prepare_block([&](int64_t k) { return x[k]; }, 0, 16, 1, scale, to + place * stride + begin, 0);
}

// ---- gate and up ----------------------------------------------------------------------------------------------------
template <WeightForm kForm>
constexpr int gate_stage_tiles() {
  return kForm == WeightForm::kNvfp4 ? 8 : 4;
}

template <WeightForm kForm, class Columns, bool kTwoInputs>
__device__ void gate_up_block(const ExpertsProblem& p, const ExpertsScratch& s, const ExpertTable& expert,
                              Columns gate_x, Columns up_x, int64_t first_tile, int row_tiles, int64_t first_place,
                              int count, float* shared) {
  constexpr int kTerms = Columns::kColumnTerms, kMatrixFloats = kTerms * 128, kWarpFloats = 2 * kMatrixFloats;
  constexpr int kStageTiles = gate_stage_tiles<kForm>(), kStages = 16 / kStageTiles;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const Slices slices(p.columns, 1);
  const int64_t all_tiles = (expert.gate.rows + kPackedRows - 1) / kPackedRows;
  const int64_t last = first_tile + row_tiles < all_tiles ? first_tile + row_tiles : all_tiles;
  Stage<kForm, kStageTiles> gates[2], ups[2];
  const auto load = [&](int to, int64_t tile, int at, int stage) {
    const int left = at < slices.total && tile < last ? slices.tiles(at) - stage * kStageTiles : 0;
    if (left <= 0) return;
    gates[to].load(expert.gate, tile, slices.column(at) + stage * kStageTiles * 16, left, lane);
    ups[to].load(expert.up, tile, slices.column(at) + stage * kStageTiles * 16, left, lane);
  };
  load(0, first_tile, warp, 0);
  // Threads 0 to 127 add the gate's sums, the others up's.
  const int matrix = threadIdx.x / 128, element = threadIdx.x % 128;
  const float scale = part_scale(matrix == 0 ? expert.gate : expert.up);
  int buffer = 0;
  for (int64_t tile = first_tile; tile < last; ++tile) {
    SliceTotals<1, kTerms> totals(1, scale);
    for (int first = 0; first < slices.total; first += kWarps, buffer ^= 1) {
      const int slice = first + warp;
      float gate_sums[kTerms][4] = {}, up_sums[kTerms][4] = {};
      const int tiles = slice < slices.total ? slices.tiles(slice) : 0;
#pragma unroll
      for (int stage = 0; stage < kStages; ++stage) {
        if (stage + 1 < kStages)
          load((stage + 1) % 2, tile, slice, stage + 1);
        else if (first + kWarps < slices.total)
          load(0, tile, slice + kWarps, 0);
        else
          load(0, tile + 1, warp, 0);
        const int begin = stage * kStageTiles;
        if (begin >= tiles) continue;
        gate_x.load(slices.column(slice) + begin * 16, tiles - begin);
        if (kTwoInputs) up_x.load(slices.column(slice) + begin * 16, tiles - begin);
#pragma unroll
        for (int i = 0; i < kStageTiles; ++i) {
          uint32_t gate[4], up[4];
          gates[stage % 2].operand(i, gate);
          ups[stage % 2].operand(i, up);
#pragma unroll
          for (int term = 0; term < kTerms; ++term) {
            ptx::mma_m16n8k16_bf16(gate_sums[term], gate, gate_x.operand(i, term));
            ptx::mma_m16n8k16_bf16(up_sums[term], up, (kTwoInputs ? up_x : gate_x).operand(i, term));
          }
        }
      }
      float* to = shared + (buffer * kWarps + warp) * kWarpFloats + lane / 4 * 8 + lane % 4 * 2;
#pragma unroll
      for (int term = 0; term < kTerms; ++term)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          *reinterpret_cast<float2*>(to + term * 128 + half * 64) =
              make_float2(gate_sums[term][half * 2], gate_sums[term][half * 2 + 1]);
          *reinterpret_cast<float2*>(to + kMatrixFloats + term * 128 + half * 64) =
              make_float2(up_sums[term][half * 2], up_sums[term][half * 2 + 1]);
        }
      __syncthreads();
      const float* from = shared + buffer * kWarps * kWarpFloats + matrix * kMatrixFloats + element;
      for (int i = 0; i < kWarps && first + i < slices.total; ++i) {
        float terms[kTerms];
#pragma unroll
        for (int term = 0; term < kTerms; ++term) terms[term] = from[i * kWarpFloats + term * 128];
        totals.add(0, slices, first + i, terms);
      }
    }
    // Up's totals, where no sums of the last round stand.
    float* of_up = shared + buffer * kWarps * kWarpFloats;
    if (matrix == 1) of_up[element] = totals.value(0);
    __syncthreads();
    const int64_t output = tile * kPackedRows + element / 8;
    if (matrix == 0 && element % 8 < count && output < expert.gate.rows)
      s.hidden_float[(first_place + element % 8) * p.inner + output] =
          swiglu_of(totals.value(0), of_up[element], p.limit);
    __syncthreads();
  }
}

template <int kTerms, bool kPrepared>
__global__ void __launch_bounds__(kThreads, 2)
    gate_up_kernel(const __grid_constant__ ExpertsProblem p, const __grid_constant__ ExpertsScratch s, uint32_t blocks,
                   int row_tiles, int64_t x_stride) {
  extern __shared__ __align__(16) float shared[];
  ptx::let_next_start();
  ptx::wait_for_previous();
  const uint32_t slot = blockIdx.x / blocks;
  if (slot >= static_cast<uint32_t>(*s.tile_count)) return;
  const int64_t tile = int64_t{blockIdx.x % blocks} * row_tiles;
  const int32_t e = s.tile_expert[slot], begin = s.tile_begin[slot];
  const ExpertTable& expert = p.table[e];
  if (tile * kPackedRows >= expert.gate.rows) return;
  const int count = s.count[e] - begin < kColumns ? s.count[e] - begin : kColumns;
  const int64_t first = s.first[e] + begin;
  const int lane = threadIdx.x % 32, column = lane / 4;
  const auto run = [&]<WeightForm kForm>() {
    constexpr int kTiles = gate_stage_tiles<kForm>();
    if constexpr (kPrepared) {
      Bf16Columns<kTiles> gate_x, up_x;
      const int64_t at = (first + column) * x_stride + lane % 4 * 2;
      gate_x.row = column < count ? s.x_gate + at : nullptr;
      up_x.row = column < count ? s.x_up + at : nullptr;
      gate_up_block<kForm, Bf16Columns<kTiles>, true>(p, s, expert, gate_x, up_x, tile, row_tiles, first, count,
                                                      shared);
    } else {
      FloatColumns<kTerms, kTiles> x;
      x.row = column < count ? p.x + s.source[first + column] * p.columns + lane % 4 * 2 : nullptr;
      gate_up_block<kForm, FloatColumns<kTerms, kTiles>, false>(p, s, expert, x, x, tile, row_tiles, first, count,
                                                                shared);
    }
  };
  if (expert.gate.form == WeightForm::kBf16)
    run.template operator()<WeightForm::kBf16>();
  else
    run.template operator()<WeightForm::kNvfp4>();
}

// ---- down -----------------------------------------------------------------------------------------------------------
template <WeightForm kForm, class Columns>
__device__ void down_block(const ExpertsProblem& p, const ExpertsScratch& s, const Weights& w, Columns x,
                           int64_t first_tile, int row_tiles, int64_t first_place, int count, float* shared) {
  constexpr int kTerms = Columns::kColumnTerms, kWarpFloats = kTerms * 128;
  constexpr int kStageTiles = kDownStageTiles, kStages = 16 / kStageTiles;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const Slices slices(w.columns, p.parts);
  const int rounds = (slices.total + kWarps - 1) / kWarps;
  Stage<kForm, kStageTiles> stages[2];
  // Round r of row tile t is round t * rounds + r.
  const auto load = [&](int to, int round, int stage) {
    const int slice = round % rounds * kWarps + warp;
    const int64_t tile = first_tile + round / rounds;
    if (round >= row_tiles * rounds || slice >= slices.total || tile * kPackedRows >= w.rows) return;
    const int left = slices.tiles(slice) - stage * kStageTiles;
    if (left > 0) stages[to].load(w, tile, slices.column(slice) + stage * kStageTiles * 16, left, lane);
  };
  load(0, 0, 0);
  const int own_tile = threadIdx.x / 128, element = threadIdx.x % 128;
  const float scale = part_scale(w);
  float totals[kTerms] = {};
  for (int round = 0; round < row_tiles * rounds; ++round) {
    const int first = round % rounds * kWarps, slice = first + warp;
    const int64_t tile = first_tile + round / rounds;
    float sums[kTerms][4] = {};
    const int tiles = slice < slices.total && tile * kPackedRows < w.rows ? slices.tiles(slice) : 0;
#pragma unroll
    for (int stage = 0; stage < kStages; ++stage) {
      if (stage + 1 < kStages)
        load((stage + 1) % 2, round, stage + 1);
      else
        load(0, round + 1, 0);
      const int begin = stage * kStageTiles;
      if (begin >= tiles) continue;
      x.load(slices.column(slice) + begin * 16, tiles - begin);
#pragma unroll
      for (int i = 0; i < kStageTiles; ++i) {
        uint32_t a[4];
        stages[stage % 2].operand(i, a);
#pragma unroll
        for (int term = 0; term < kTerms; ++term) ptx::mma_m16n8k16_bf16(sums[term], a, x.operand(i, term));
      }
    }
    float* to = shared + (round % 2 * kWarps + warp) * kWarpFloats + lane / 4 * 8 + lane % 4 * 2;
#pragma unroll
    for (int term = 0; term < kTerms; ++term)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        *reinterpret_cast<float2*>(to + term * 128 + half * 64) =
            make_float2(sums[term][half * 2], sums[term][half * 2 + 1]);
    __syncthreads();
    if (own_tile != round / rounds % 2) continue;
    const int64_t output = tile * kPackedRows + element / 8;
    if (element % 8 >= count || output >= w.rows) continue;
    const float* from = shared + round % 2 * kWarps * kWarpFloats + element;
    for (int i = 0; i < kWarps && first + i < slices.total; ++i) {
      const int in_part = slices.in_part(first + i);
      float sum = 0.0f;
#pragma unroll
      for (int term = 0; term < kTerms; ++term) {
        const float next = from[i * kWarpFloats + term * 128];
        totals[term] = in_part == 0 ? next : totals[term] + next;
        sum = term == 0 ? totals[term] * scale : sum + totals[term] * scale;
      }
      if (in_part + 1 == slices.of_part)
        s.down[(slices.part(first + i) * p.places() + first_place + element % 8) * p.width + output] = sum;
    }
  }
}

template <int kTerms, bool kPrepared>
__global__ void __launch_bounds__(kThreads, 2)
    down_kernel(const __grid_constant__ ExpertsProblem p, const __grid_constant__ ExpertsScratch s, uint32_t blocks,
                int row_tiles, int64_t x_stride) {
  __shared__ float shared[2 * kWarps * kTerms * 128];
  ptx::let_next_start();
  ptx::wait_for_previous();
  const uint32_t slot = blockIdx.x / blocks;
  if (slot >= static_cast<uint32_t>(*s.tile_count)) return;
  const int64_t tile = int64_t{blockIdx.x % blocks} * row_tiles;
  const int32_t e = s.tile_expert[slot], begin = s.tile_begin[slot];
  const Weights& w = p.table[e].down;
  if (tile * kPackedRows >= w.rows) return;
  const int count = s.count[e] - begin < kColumns ? s.count[e] - begin : kColumns;
  const int64_t first = s.first[e] + begin;
  const int lane = threadIdx.x % 32, column = lane / 4;
  const auto run = [&]<class Columns>(Columns x) {
    if (w.form == WeightForm::kBf16)
      down_block<WeightForm::kBf16>(p, s, w, x, tile, row_tiles, first, count, shared);
    else
      down_block<WeightForm::kNvfp4>(p, s, w, x, tile, row_tiles, first, count, shared);
  };
  if constexpr (kPrepared) {
    Bf16Columns<kDownStageTiles> x;
    x.row = column < count ? s.hidden + (first + column) * x_stride + lane % 4 * 2 : nullptr;
    run(x);
  } else {
    FloatColumns<kTerms, kDownStageTiles> x;
    x.row = column < count ? s.hidden_float + (first + column) * p.inner + lane % 4 * 2 : nullptr;
    run(x);
  }
}

// ---- the weighted sum
// -------------------------------------------------------------------------------------------------
__global__ void combine_kernel(const __grid_constant__ ExpertsProblem p, const __grid_constant__ ExpertsScratch s) {
  ptx::let_next_start();
  ptx::wait_for_previous();
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= p.rows * p.width) return;
  const int64_t row = i / p.width, output = i % p.width;
  float waiting[7];
  float result = 0.0f;
  for (int part = 0; part < p.parts; ++part) {
    const float* down = s.down + part * p.places() * p.width + output;
    float sum = 0.0f;
    for (int64_t slot = 0; slot < p.top; ++slot) {
      const float weight = p.weights[row * p.top + slot], term = down[s.place[row * p.top + slot] * p.width];
      sum = slot == 0 ? weight * term : fmaf(weight, term, sum);
    }
    if (p.has_shared) {
      const float last = down[(p.rows * p.top + row) * p.width];
      sum = p.top == 0 ? last : sum + last;
    }
    int level = 0;
    for (; part >> level & 1; ++level) sum = waiting[level] + sum;
    waiting[level] = sum;
    result = sum;
  }
  p.y[i] = result;
}

template <int kTerms, bool kPrepared>
cudaError_t launch_experts(cudaStream_t stream, const ExpertsProblem& p, const ExpertsScratch& s) {
  const auto slots = static_cast<uint32_t>(most_tiles(p));
  // Row tiles of a block: more of them where there are blocks enough, so that starting one costs less.
  const int gate_tiles = p.rows == 1 ? 1 : p.rows <= 4 ? 2 : 4, down_tiles = 2 * gate_tiles;
  const auto gate_blocks = static_cast<uint32_t>(tiles_of(p.inner, kPackedRows * gate_tiles));
  const auto down_blocks = static_cast<uint32_t>(tiles_of(p.width, kPackedRows * down_tiles));
  const auto prepare = [&](int which, const float* from, int64_t columns, bool by_source, uint16_t* to) {
    return launch(prepare_kernel, static_cast<unsigned>(tiles_of(p.places() * (columns / 16), kThreads)), kThreads, 0,
                  stream, p, s, which, from, columns, by_source, to, columns);
  };
  if constexpr (kPrepared) {
    cudaError_t error = prepare(0, p.x, p.columns, true, s.x_gate);
    if (error == cudaSuccess) error = prepare(1, p.x, p.columns, true, s.x_up);
    if (error != cudaSuccess) return error;
  }
  constexpr auto kShared = static_cast<size_t>(gate_up_shared_bytes(kTerms));
  cudaError_t error = launch(gate_up_kernel<kTerms, kPrepared>, slots * gate_blocks, kThreads, kShared, stream, p, s,
                             gate_blocks, gate_tiles, p.columns);
  if (error != cudaSuccess) return error;
  if constexpr (kPrepared) {
    error = prepare(2, s.hidden_float, p.inner, false, s.hidden);
    if (error != cudaSuccess) return error;
  }
  return launch(down_kernel<kTerms, kPrepared>, slots * down_blocks, kThreads, 0, stream, p, s, down_blocks, down_tiles,
                p.inner);
}

}  // namespace

bool experts_have_few_rows(const ExpertsProblem& p) {
  constexpr int64_t kMostPairs = 2048;
  const bool rounds = p.gate_by_place || p.up_by_place || p.down_by_place;
  return p.packed && !(rounds && p.terms > 1) && p.rows * p.top <= kMostPairs &&
         p.rows * p.top <= 8 * (p.experts > 0 ? p.experts : 1) && p.rows <= 128 && p.experts <= 4096;
}

cudaError_t few_rows_experts(cudaStream_t stream, const ExpertsProblem& p, const ExpertsScratch& s) {
  if (p.rows == 0 || p.places() == 0) return cudaSuccess;
  const auto shared = static_cast<size_t>(places_shared_bytes(p.experts));
  cudaError_t error = launch(places_kernel, 1, 1024, shared, stream, p, s);
  if (error != cudaSuccess) return error;
  error = p.gate_by_place || p.up_by_place || p.down_by_place ? launch_experts<1, true>(stream, p, s)
          : p.terms == 1                                      ? launch_experts<1, false>(stream, p, s)
                                                              : launch_experts<3, false>(stream, p, s);
  if (error != cudaSuccess) return error;
  return launch(combine_kernel, static_cast<unsigned>(tiles_of(p.rows * p.width, kThreads)), kThreads, 0, stream, p, s);
}

}  // namespace verbatim::ops::cuda
