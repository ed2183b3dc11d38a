// Routed and shared experts of many rows on wgmma (sm90a_warpgroup_tile.cuh): gate and up in one launch, each a half of
// a tile, with clamp, SwiGLU and rounding behind them; down; the weighted sum. An expert's tiles stand next to each
// other, its columns outside of its outputs. Operations of a row: 2 x 3 x width x inner for each of its experts,
// columns of an expert rounded up to 32. Bytes: the stored weights of the experts that are chosen once, for each place
// the hidden row written and read in bfloat16 and the sums of down in float32.
#include "ops/cuda/math.cuh"
#include "ops/cuda/sm90a_warpgroup_tile.cuh"
#include "ops/cuda/warpgroup_products.h"
#include "ops/cuda/weights.cuh"

namespace verbatim::ops::cuda {

namespace {

constexpr int kThreads = 256;

__device__ float part_scale(const Weights& w) {
  return w.form == WeightForm::kNvfp4 ? w.matrix_scale * packed_lift(w.form) : 1.0f;
}

// Columns of tile `slot` and the place of the first.
__device__ int32_t locate_columns(const ExpertsScratch& s, uint32_t slot, int32_t expert, TileOrder& order) {
  const int32_t begin = s.tile_begin[slot], left = s.count[expert] - begin;
  order.count = left < kGroupColumns ? left : kGroupColumns;
  return s.first[expert] + begin;
}

// Each half holds 64 outputs: h to rows of bfloat16.
struct StoreHidden {
  float limit;

  template <int kN>
  __device__ void operator()(GroupShared& shared, const TileOrder& order, const float (&totals)[kN / 2]) const {
    const int half = threadIdx.x / 128, column = threadIdx.x / 8, output = threadIdx.x % 8 * 8;
#pragma unroll
    for (int chunk = 0; chunk < kN / kStagedColumns; ++chunk) {
      ptx::synchronise_some<3, kAddingThreads>();
      stage_sums(totals, chunk, half == 0 ? order.scale[0] : order.scale[1], shared.staged[half]);
      ptx::synchronise_some<3, kAddingThreads>();
      if (chunk * kStagedColumns + column >= order.count || output >= order.outputs) continue;
      uint32_t pairs[4];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float4 gate = *reinterpret_cast<const float4*>(&shared.staged[0][column][output + 4 * i]);
        const float4 up = *reinterpret_cast<const float4*>(&shared.staged[1][column][output + 4 * i]);
        const auto h = [&](float g, float u) { return bf16_bits(swiglu_of(g, u, limit)); };
        pairs[2 * i] = h(gate.x, up.x) | h(gate.y, up.y) << 16;
        pairs[2 * i + 1] = h(gate.z, up.z) | h(gate.w, up.w) << 16;
      }
      auto* to = static_cast<uint16_t*>(order.to) + (chunk * kStagedColumns + column) * order.stride + output;
      *reinterpret_cast<uint4*>(to) = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
    }
  }
};

struct StoreDown {
  template <int kN>
  __device__ void operator()(GroupShared& shared, const TileOrder& order, const float (&totals)[kN / 2]) const {
    store_sums<kN>(shared, order, totals);
  }
};

// kUnused: for `if constexpr`.
template <int kUnused>
__global__ void __launch_bounds__(kGroupThreads, 1)
    gate_up_kernel(const __grid_constant__ ExpertsProblem p, const __grid_constant__ ExpertsScratch s) {
  extern __shared__ __align__(16) std::byte memory[];
  if constexpr (ptx::kHasWgmma) {
    const auto across = static_cast<uint32_t>((p.inner + 63) / 64);
    const auto locate = [&](uint32_t index, FilledTile& t) {
      const uint32_t slot = index / across;
      const int32_t e = s.tile_expert[slot];
      const ExpertTable& expert = p.table[e];
      const auto output = static_cast<int64_t>(index % across) * 64;
      if (output >= expert.gate.rows) return false;
      const int32_t place = locate_columns(s, slot, e, t.order);
      t.order.form = expert.gate.form;
      t.order.steps = static_cast<int>(p.columns / kGroupStep);
      t.order.outputs = static_cast<int>(expert.gate.rows - output);
      t.order.scale[0] = part_scale(expert.gate);
      t.order.scale[1] = part_scale(expert.up);
      t.order.to = s.hidden + place * p.inner + output;
      t.order.stride = p.inner;
      t.columns = p.columns;
      fill_half(t, 0, expert.gate, output / kPackedRows, 0);
      fill_half(t, 1, expert.up, output / kPackedRows, 0);
      t.x = s.x_rows;
      t.x_stride = p.columns;
      t.source = s.source + place;
      return true;
    };
    run_tiles<false>(memory, static_cast<uint32_t>(*s.tile_count) * across, locate, StoreHidden{p.limit});
  }
}

template <int kUnused>
__global__ void __launch_bounds__(kGroupThreads, 1)
    down_kernel(const __grid_constant__ ExpertsProblem p, const __grid_constant__ ExpertsScratch s) {
  extern __shared__ __align__(16) std::byte memory[];
  if constexpr (ptx::kHasWgmma) {
    const auto across = static_cast<uint32_t>((p.width + kGroupOutputs - 1) / kGroupOutputs);
    const auto parts = static_cast<uint32_t>(p.parts);
    const auto locate = [&](uint32_t index, FilledTile& t) {
      const uint32_t slot = index / (across * parts), part = index / across % parts;
      const int32_t e = s.tile_expert[slot];
      const Weights& w = p.table[e].down;
      const auto output = static_cast<int64_t>(index % across) * kGroupOutputs;
      const int64_t length = w.columns / p.parts, from = part * length;
      const int32_t place = locate_columns(s, slot, e, t.order);
      t.order.form = w.form;
      t.order.steps = static_cast<int>(length / kGroupStep);
      t.order.outputs = static_cast<int>(w.rows - output);
      t.order.scale[0] = t.order.scale[1] = part_scale(w);
      t.order.to = s.down + (part * p.places() + place) * p.width + output;
      t.order.stride = p.width;
      t.columns = w.columns;
      fill_half(t, 0, w, output / kPackedRows, from);
      fill_half(t, 1, w, output / kPackedRows + 4, from);
      t.x = s.hidden + place * p.inner + from;
      t.x_stride = p.inner;
      return true;
    };
    run_tiles<false>(memory, static_cast<uint32_t>(*s.tile_count) * across * parts, locate, StoreDown{});
  }
}

// ---- the weighted sum -----------------------------------------------------------------------------------------------
// kWide outputs of a row a thread: in each part the experts in slot order, then the shared one; parts as a tree.
template <int kWide>
__global__ void __launch_bounds__(kThreads)
    combine_kernel(const __grid_constant__ ExpertsProblem p, const __grid_constant__ ExpertsScratch s) {
  const int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kWide;
  if (i >= p.rows * p.width) return;
  const int64_t row = i / p.width, output = i % p.width;
  const auto load = [](const float* from, float(&to)[kWide]) {
    if constexpr (kWide == 4) {
      const float4 four = __ldcs(reinterpret_cast<const float4*>(from));
      to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
    } else {
      to[0] = *from;
    }
  };
  float waiting[7][kWide], result[kWide] = {};
  for (int part = 0; part < p.parts; ++part) {
    const float* down = s.down + part * p.places() * p.width + output;
    float sum[kWide] = {}, term[kWide];
#pragma unroll 8
    for (int64_t slot = 0; slot < p.top; ++slot) {
      const float weight = p.weights[row * p.top + slot];
      load(down + s.place[row * p.top + slot] * p.width, term);
#pragma unroll
      for (int j = 0; j < kWide; ++j) sum[j] = slot == 0 ? weight * term[j] : fmaf(weight, term[j], sum[j]);
    }
    if (p.has_shared) {
      load(down + (p.rows * p.top + row) * p.width, term);
#pragma unroll
      for (int j = 0; j < kWide; ++j) sum[j] = p.top == 0 ? term[j] : sum[j] + term[j];
    }
    // Finished subtrees: bit b of the number of parts so far says whether one of 2^b parts waits.
#pragma unroll
    for (int j = 0; j < kWide; ++j) result[j] = sum[j];
    if (p.parts == 1) break;
    int level = 0;
    for (; part >> level & 1; ++level)
      for (int j = 0; j < kWide; ++j) result[j] = waiting[level][j] + result[j];
    for (int j = 0; j < kWide; ++j) waiting[level][j] = result[j];
  }
  if constexpr (kWide == 4)
    *reinterpret_cast<float4*>(p.y + i) = make_float4(result[0], result[1], result[2], result[3]);
  else
    p.y[i] = result[0];
}

unsigned blocks_for(int64_t count) { return static_cast<unsigned>((count + kThreads - 1) / kThreads); }

}  // namespace

cudaError_t warpgroup_experts(cudaStream_t stream, const ExpertsProblem& p, const ExpertsScratch& s) {
  if (p.rows == 0 || p.places() == 0) return cudaSuccess;
  int device = 0, multiprocessors = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess) return error;
  error = place_experts(stream, p, s);
  if (error != cudaSuccess) return error;
  Preparation rows;
  rows.x = p.x;
  rows.x_stride = p.columns;
  rows.rows = p.rows;
  rows.columns = p.columns;
  rows.to = s.x_rows;
  rows.stride = p.columns;
  error = prepare(stream, rows);
  if (error != cudaSuccess) return error;
  constexpr auto kBytes = static_cast<int>(warpgroup_tile_shared_bytes());
  error = cudaFuncSetAttribute(gate_up_kernel<0>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error == cudaSuccess)
    error = cudaFuncSetAttribute(down_kernel<0>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return error;
  gate_up_kernel<0><<<static_cast<unsigned>(multiprocessors), kGroupThreads, kBytes, stream>>>(p, s);
  down_kernel<0><<<static_cast<unsigned>(multiprocessors), kGroupThreads, kBytes, stream>>>(p, s);
  if (p.width % 4 == 0 && reinterpret_cast<uintptr_t>(p.y) % 16 == 0)
    combine_kernel<4><<<blocks_for(p.rows * p.width / 4), kThreads, 0, stream>>>(p, s);
  else
    combine_kernel<1><<<blocks_for(p.rows * p.width), kThreads, 0, stream>>>(p, s);
  return cudaGetLastError();
}

}  // namespace verbatim::ops::cuda
