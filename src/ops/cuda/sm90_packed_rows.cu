// Products of packed weights with few rows: weights go from memory to the matrix units' registers, eight 512-byte tiles
// a warp on their way while as many are multiplied; a block takes 16 outputs (or more of short rows), its warps the
// slices, eight at a time, whose sums are added in order through shared memory. One launch a group of products: rows
// are rounded on their way in. Bytes: the weights once; rows out of the first-level cache. Shared memory: 8 KB a term.
#include "ops/cuda/launch.h"
#include "ops/cuda/packed.cuh"
#include "ops/cuda/ptx/dependency.cuh"
#include "ops/cuda/ptx/mma.cuh"
#include "ops/cuda/slices.cuh"

namespace verbatim::ops::cuda {

namespace {

constexpr int kWarps = 8, kThreads = kWarps * 32, kHalfTiles = 8;

struct Group {
  RowsProduct products[kMostGroup];
  uint32_t first_block[kMostGroup];
  int concurrent[kMostGroup];  // warps that share a row tile
  int count, rows;
};

// One block: 8 / concurrent row tiles from first_tile on.
template <WeightForm kForm, class Columns>
__device__ void few_rows_block(const RowsProduct& p, Columns x, float* y, int rows, int64_t first_tile, int concurrent,
                               float* shared) {
  constexpr int kTerms = Columns::kColumnTerms;
  constexpr int kTileFloats = kTerms * 128;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const Weights& w = p.weights;
  const Slices slices(w.columns, p.parts);
  const int64_t tile = first_tile + warp / concurrent;
  const bool mine = tile * kPackedRows < w.rows;
  int slice = warp % concurrent;
  Stage<kForm, kHalfTiles> stages[2];
  const auto load = [&](int stage, int s, int half) {
    const int count = slices.tiles(s) - half * kHalfTiles;
    if (mine && s < slices.total && count > 0) stages[stage].load(w, tile, slices.column(s) + half * 128, count, lane);
  };
  load(0, slice, 0);
  ptx::wait_for_previous();

  SliceTotals<4, kTerms> totals(p.parts, p.scale);
  for (int first = 0, buffer = 0; first < slices.total; first += concurrent, slice += concurrent, buffer ^= 1) {
    float sums[kTerms][4] = {};
    const int tiles = mine && slice < slices.total ? slices.tiles(slice) : 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (half == 0)
        load(1, slice, 1);
      else
        load(0, slice + concurrent, 0);
      const int begin = half * kHalfTiles;
      if (begin >= tiles) continue;
      x.load(slices.column(slice) + begin * 16, tiles - begin);
#pragma unroll
      for (int i = 0; i < kHalfTiles; ++i) {
        uint32_t a[4];
        stages[half].operand(i, a);
#pragma unroll
        for (int term = 0; term < kTerms; ++term) ptx::mma_m16n8k16_bf16(sums[term], a, x.operand(i, term));
      }
    }
    float* to = shared + (buffer * kWarps + warp) * kTileFloats;
#pragma unroll
    for (int term = 0; term < kTerms; ++term)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        *reinterpret_cast<float2*>(to + term * 128 + (lane / 4 + half * 8) * 8 + lane % 4 * 2) =
            make_float2(sums[term][half * 2], sums[term][half * 2 + 1]);
    __syncthreads();
    const float* from = shared + buffer * kWarps * kTileFloats;
    const int most = slices.total - first < concurrent ? slices.total - first : concurrent;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int element = static_cast<int>(threadIdx.x) + j * kThreads;
      if (element >= kWarps / concurrent * 128 || element % 8 >= rows) continue;
      const float* own = from + element / 128 * concurrent * kTileFloats + element % 128;
      for (int i = 0; i < most; ++i) {
        float terms[kTerms];
#pragma unroll
        for (int term = 0; term < kTerms; ++term) terms[term] = own[i * kTileFloats + term * 128];
        totals.add(j, slices, first + i, terms);
      }
    }
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int element = static_cast<int>(threadIdx.x) + j * kThreads;
    const int64_t output = (first_tile + element / 128) * kPackedRows + element % 128 / 8;
    if (element < kWarps / concurrent * 128 && element % 8 < rows && output < w.rows)
      y[element % 8 * p.y_stride + output] = totals.value(j);
  }
}

template <bool kPrepared>
__global__ void __launch_bounds__(kThreads, 2) few_rows_kernel(const __grid_constant__ Group group) {
  __shared__ float shared[2 * kWarps * (kPrepared ? 1 : 3) * 128];
  ptx::let_next_start();
  int which = 0;
  while (which + 1 < group.count && blockIdx.x >= group.first_block[which + 1]) ++which;
  const RowsProduct& p = group.products[which];
  const int concurrent = group.concurrent[which], lane = threadIdx.x % 32;
  const int64_t tile = int64_t{blockIdx.x - group.first_block[which]} * (kWarps / concurrent);
  // Eight rows a layer of the grid.
  const int64_t first_row = int64_t{blockIdx.y} * kFewRows;
  const int rows = group.rows - static_cast<int>(first_row) < static_cast<int>(kFewRows)
                       ? group.rows - static_cast<int>(first_row)
                       : static_cast<int>(kFewRows);
  const bool has_row = lane / 4 < rows;
  const auto run = [&]<class Columns>(Columns x) {
    if (p.weights.form == WeightForm::kBf16)
      few_rows_block<WeightForm::kBf16>(p, x, p.y + first_row * p.y_stride, rows, tile, concurrent, shared);
    else
      few_rows_block<WeightForm::kNvfp4>(p, x, p.y + first_row * p.y_stride, rows, tile, concurrent, shared);
  };
  const int64_t at = (first_row + lane / 4) * p.x_stride + lane % 4 * 2;
  if constexpr (kPrepared) {
    Bf16Columns<kHalfTiles> x;
    x.row = has_row ? p.prepared + at : nullptr;
    run(x);
  } else if (p.terms == 1) {
    FloatColumns<1, kHalfTiles> x;
    x.row = has_row ? p.x + at : nullptr;
    run(x);
  } else {
    FloatColumns<3, kHalfTiles> x;
    x.row = has_row ? p.x + at : nullptr;
    run(x);
  }
}

}  // namespace

cudaError_t few_rows_products(cudaStream_t stream, const RowsProduct* products, int count, int64_t rows) {
  Group group{};
  uint32_t blocks = 0;
  for (int i = 0; i < count; ++i) {
    const RowsProduct& p = products[i];
    group.products[i] = p;
    group.concurrent[i] = concurrent_slices(Slices(p.weights.columns, p.parts).total, 1);
    group.first_block[i] = blocks;
    const int64_t tiles = (p.weights.rows + kPackedRows - 1) / kPackedRows, own = kWarps / group.concurrent[i];
    blocks += static_cast<uint32_t>((tiles + own - 1) / own);
  }
  group.count = count;
  group.rows = static_cast<int>(rows);
  if (blocks == 0) return cudaSuccess;
  const dim3 grid(blocks, static_cast<unsigned>((rows + kFewRows - 1) / kFewRows));
  return products[0].prepared != nullptr ? launch(few_rows_kernel<true>, grid, kThreads, 0, stream, group)
                                         : launch(few_rows_kernel<false>, grid, kThreads, 0, stream, group);
}

}  // namespace verbatim::ops::cuda
