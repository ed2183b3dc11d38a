// Products of packed weights with 9 to 64 columns (rows times terms): as sm90_packed_rows.cu, with the columns as
// fragments that a launch in front has made, so that a warp's load of them is one piece, and two row tiles a warp share
// it. Bytes: the weights once; fragments out of the first-level cache. Shared memory: 32 to 64 KB.
#include "ops/cuda/launch.h"
#include "ops/cuda/packed.cuh"
#include "ops/cuda/ptx/dependency.cuh"
#include "ops/cuda/ptx/mma.cuh"
#include "ops/cuda/rounding.cuh"
#include "ops/cuda/shapes.h"
#include "ops/cuda/slices.cuh"

namespace verbatim::ops::cuda {

namespace {

constexpr int kWarps = 8, kThreads = kWarps * 32, kStageTiles = 4, kStages = 16 / kStageTiles;

struct Group {
  RowsProduct products[kMostGroup];
  uint32_t first_block[kMostGroup];
  int concurrent[kMostGroup];
  int count, rows;
};

// kColumnTiles tiles of eight columns, kRowTiles row tiles a warp.
template <int kColumns8, int kRowTiles>
constexpr size_t shared_bytes() {
  return static_cast<size_t>(fragments_shared_bytes(kColumns8, kRowTiles));
}
template <int kColumns8, int kRowTiles>
constexpr int least_concurrent() {
  // At most eight elements of the totals a thread.
  int concurrent = 1;
  while (kWarps / concurrent * kRowTiles * 128 * kColumns8 > 8 * kThreads) concurrent *= 2;
  return concurrent;
}

template <WeightForm kForm, int kColumns8, int kRowTiles>
__device__ void fragments_block(const RowsProduct& p, int rows, int64_t first_tile, int concurrent, float* shared) {
  constexpr int kTileFloats = kRowTiles * 128 * kColumns8, kElements = 8;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, columns = rows * p.terms;
  const Weights& w = p.weights;
  const Slices slices(w.columns, p.parts);
  const int64_t tile = first_tile + warp / concurrent * kRowTiles, all_tiles = (w.rows + kPackedRows - 1) / kPackedRows;
  int slice = warp % concurrent;
  Stage<kForm, kStageTiles> stages[2][kRowTiles];
  const auto load = [&](int to, int s, int stage) {
    const int count = s < slices.total ? slices.tiles(s) - stage * kStageTiles : 0;
    if (count <= 0) return;
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r)
      if (tile + r < all_tiles)
        stages[to][r].load(w, tile + r, slices.column(s) + stage * kStageTiles * 16, count, lane);
  };
  load(0, slice, 0);
  ptx::wait_for_previous();
  const auto* fragments = reinterpret_cast<const uint2*>(p.prepared) + lane;

  SliceTotals<kElements, 1> totals(p.parts, p.scale);
  const int elements = kWarps / concurrent * kTileFloats;
  for (int first = 0, buffer = 0; first < slices.total; first += concurrent, slice += concurrent, buffer ^= 1) {
    float sums[kRowTiles][kColumns8][4] = {};
    const int tiles = tile < all_tiles && slice < slices.total ? slices.tiles(slice) : 0;
#pragma unroll
    for (int stage = 0; stage < kStages; ++stage) {
      if (stage + 1 < kStages)
        load((stage + 1) % 2, slice, stage + 1);
      else
        load(0, slice + concurrent, 0);
      const int64_t step = slices.column(slice) / 16 + stage * kStageTiles;
      if (stage * kStageTiles >= tiles) continue;
#pragma unroll
      for (int i = 0; i < kStageTiles; ++i) {
        // Past the slice's end there are no fragments, and the weights are 0.
        const int64_t at = stage * kStageTiles + i < tiles ? step + i : step;
        uint2 b[kColumns8];
#pragma unroll
        for (int n = 0; n < kColumns8; ++n) b[n] = fragments[(at * kColumns8 + n) * 32];
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) {
          uint32_t a[4];
          stages[stage % 2][r].operand(i, a);
#pragma unroll
          for (int n = 0; n < kColumns8; ++n) ptx::mma_m16n8k16_bf16(sums[r][n], a, b[n]);
        }
      }
    }
    // [row tile][16 outputs][columns]
    float* to = shared + (buffer * kWarps + warp) * kTileFloats;
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r)
#pragma unroll
      for (int n = 0; n < kColumns8; ++n)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          *reinterpret_cast<float2*>(to + (r * 16 + lane / 4 + half * 8) * (kColumns8 * 8) + n * 8 + lane % 4 * 2) =
              make_float2(sums[r][n][half * 2], sums[r][n][half * 2 + 1]);
    __syncthreads();
    const float* from = shared + buffer * kWarps * kTileFloats;
    const int most = slices.total - first < concurrent ? slices.total - first : concurrent;
#pragma unroll
    for (int j = 0; j < kElements; ++j) {
      const int element = static_cast<int>(threadIdx.x) + j * kThreads;
      if (element >= elements || element % (kColumns8 * 8) >= columns) continue;
      const float* own = from + element / kTileFloats * concurrent * kTileFloats + element % kTileFloats;
      for (int i = 0; i < most; ++i) {
        const float sum[1] = {own[i * kTileFloats]};
        totals.add(j, slices, first + i, sum);
      }
    }
  }
  const auto output_of = [&](int element) {
    return first_tile * kPackedRows + element / kTileFloats * kRowTiles * kPackedRows +
           element % kTileFloats / (kColumns8 * 8);
  };
  if (p.terms == 1) {
#pragma unroll
    for (int j = 0; j < kElements; ++j) {
      const int element = static_cast<int>(threadIdx.x) + j * kThreads, column = element % (kColumns8 * 8);
      if (element < elements && column < columns && output_of(element) < w.rows)
        p.y[column * p.y_stride + output_of(element)] = totals.value(j);
    }
    return;
  }
  __syncthreads();
#pragma unroll
  for (int j = 0; j < kElements; ++j) {
    const int element = static_cast<int>(threadIdx.x) + j * kThreads;
    if (element < elements && element % (kColumns8 * 8) < columns) shared[element] = totals.value(j);
  }
  __syncthreads();
  for (int element = static_cast<int>(threadIdx.x); element < elements; element += kThreads) {
    const int row = element % (kColumns8 * 8);
    if (row >= rows || output_of(element) >= w.rows) continue;
    float sum = shared[element];
    for (int term = 1; term < p.terms; ++term) sum = sum + shared[element + term * rows];
    p.y[row * p.y_stride + output_of(element)] = sum;
  }
}

template <int kColumns8, int kRowTiles>
__global__ void __launch_bounds__(kThreads, kColumns8 <= 6 ? 2 : 1)
    fragments_kernel(const __grid_constant__ Group group) {
  extern __shared__ __align__(16) float shared[];
  ptx::let_next_start();
  int which = 0;
  while (which + 1 < group.count && blockIdx.x >= group.first_block[which + 1]) ++which;
  const RowsProduct& p = group.products[which];
  const int concurrent = group.concurrent[which];
  const int64_t tile = int64_t{blockIdx.x - group.first_block[which]} * (kWarps / concurrent * kRowTiles);
  if (p.weights.form == WeightForm::kBf16)
    fragments_block<WeightForm::kBf16, kColumns8, kRowTiles>(p, group.rows, tile, concurrent, shared);
  else
    fragments_block<WeightForm::kNvfp4, kColumns8, kRowTiles>(p, group.rows, tile, concurrent, shared);
}

// A thread makes a block of sixteen inputs of a column.
__global__ void prepare_kernel(Preparation p, int tiles) {
  ptx::let_next_start();
  ptx::wait_for_previous();
  const int64_t steps = p.columns / 16;
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= steps * tiles * 8) return;
  const int64_t column = i % (tiles * 8), step = i / (tiles * 8);
  auto* to = reinterpret_cast<uint2*>(p.to) + (step * tiles + column / 8) * 32 + column % 8 * 4;
  uint16_t terms[3][16] = {};
  const int64_t row = column % p.rows, term = column / p.rows;
  if (term < p.terms) {
    const float* x = p.x + row * p.x_stride + step * 16;
    prepare_block([&](int64_t k) { return x[k]; }, 0, 16, p.terms, p.input_scale, terms[0], 16);
  }
  const uint16_t* own = terms[term < p.terms ? term : 0];
#pragma unroll
  for (int q = 0; q < 4; ++q)
    to[q] = make_uint2(own[2 * q] | uint32_t{own[2 * q + 1]} << 16, own[2 * q + 8] | uint32_t{own[2 * q + 9]} << 16);
}

template <int kColumns8, int kRowTiles>
cudaError_t launch_fragments(cudaStream_t stream, const RowsProduct* products, int count, int64_t rows) {
  Group group{};
  uint32_t blocks = 0;
  for (int i = 0; i < count; ++i) {
    const RowsProduct& p = products[i];
    group.products[i] = p;
    group.concurrent[i] =
        concurrent_slices(Slices(p.weights.columns, p.parts).total, least_concurrent<kColumns8, kRowTiles>());
    group.first_block[i] = blocks;
    const int64_t outputs = kWarps / group.concurrent[i] * kRowTiles * kPackedRows;
    blocks += static_cast<uint32_t>((p.weights.rows + outputs - 1) / outputs);
  }
  group.count = count;
  group.rows = static_cast<int>(rows);
  if (blocks == 0) return cudaSuccess;
  return launch(fragments_kernel<kColumns8, kRowTiles>, blocks, kThreads, shared_bytes<kColumns8, kRowTiles>(), stream,
                group);
}

}  // namespace

int fragment_tiles(int64_t rows, int terms) {
  return rows * terms <= 16 ? 2 : rows * terms <= 32 ? 4 : rows * terms <= 48 ? 6 : 8;
}

cudaError_t prepare_fragments(cudaStream_t stream, const Preparation& p, int tiles) {
  const int64_t count = p.columns / 16 * tiles * 8;
  return launch(prepare_kernel, static_cast<unsigned>((count + kThreads - 1) / kThreads), kThreads, 0, stream, p,
                tiles);
}

cudaError_t fragment_products(cudaStream_t stream, const RowsProduct* products, int count, int64_t rows, int tiles) {
  // Few outputs: one row tile a warp, so that there are blocks enough.
  constexpr int64_t kFewOutputs = 8192;
  int64_t outputs = 0;
  for (int i = 0; i < count; ++i) outputs += products[i].weights.rows;
  if (tiles == 2)
    return outputs <= kFewOutputs ? launch_fragments<2, 1>(stream, products, count, rows)
                                  : launch_fragments<2, 2>(stream, products, count, rows);
  if (tiles == 4)
    return outputs <= kFewOutputs ? launch_fragments<4, 1>(stream, products, count, rows)
                                  : launch_fragments<4, 2>(stream, products, count, rows);
  if (tiles == 6) return launch_fragments<6, 1>(stream, products, count, rows);
  return launch_fragments<8, 1>(stream, products, count, rows);
}

}  // namespace verbatim::ops::cuda
