// Products of packed weights with up to 64 columns (rows times terms). Weights stream: each warp keeps a ring of pieces
// in shared memory that copies of 16 bytes a lane fill (2 KB of BF16 or a slice of NVFP4 with its scales, for one or
// two row tiles of 16 outputs), so that some 100 KB a multiprocessor are on their way whatever the registers do, and
// the first of them leave before the launch in front has ended. Blocks stay, one a multiprocessor (no two of them fit),
// each taking some row tiles at a time, a row tile by `concurrent` warps that take its slices in turn. A warp alone on
// its row tile keeps the totals; otherwise slices' sums are added in order through shared memory. Columns come whole
// into shared memory (up to eight, rounded on their way in); in the ring beside the weights, as fragments or (up to
// four rows) as they are; or as fragments a slice at a time for all warps that are alone on theirs. Bytes: the weights
// once; what comes in the ring once for each one or two row tiles; fragments of slices once a block's turn.
//
// A launch lets the next one start after its own wait, so that whatever starts then knows what was in front of this one
// to be there: launches of one group run beside each other by that (StreamTurn), and stream_experts begins by it.
#include <algorithm>

#include "ops/cuda/launch.h"
#include "ops/cuda/product_stream.cuh"
#include "ops/cuda/ptx/bf16.cuh"
#include "ops/cuda/ptx/bulk_copy.cuh"
#include "ops/cuda/ptx/dependency.cuh"
#include "ops/cuda/ptx/mma.cuh"
#include "ops/cuda/rounding.cuh"

namespace verbatim::ops::cuda {

using namespace product_stream;

namespace {

template <WeightForm kForm, int kColumns8, bool kAlone, Columns kColumns, int kRowTiles>
__global__ void __launch_bounds__(kAlone ? kStreamThreads : stream_shared_threads(kColumns8),
                                  kColumns == Columns::kWhole ? 2 : 1)
    stream_kernel(const __grid_constant__ Group group) {
  extern __shared__ __align__(128) uint8_t memory[];
  if (group.beside) ptx::let_next_start();
  using Own = Layout<kForm, kColumns8, kColumns, kRowTiles>;
  constexpr int kStage = Own::kStage, kTileFloats = 128 * kColumns8;
  constexpr bool kLags = !kAlone && kInRing<kColumns> && stream_sum_buffers(kColumns8, kRowTiles) == 2;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
  const int concurrent = kAlone ? 1 : group.concurrent, stages = group.stages;
  const int own_tile = warp / concurrent * kRowTiles, own_slice = warp % concurrent;
  const RowsProduct& any = group.products[0];
  const Slices slices(any.weights.columns, any.parts);
  const int columns = group.rows * group.terms;  // of whole inputs
  const int first_row = kColumns == Columns::kWhole ? static_cast<int>(blockIdx.y) * group.rows : 0;
  const auto steps = static_cast<int>(any.weights.columns / 16);

  // Barriers of the columns' slices; rings; columns; sums.
  auto* slice_barriers = reinterpret_cast<uint64_t*>(memory);
  auto* sums_there = slice_barriers + 2;
  uint8_t* ring = memory + kStreamBarrierBytes + warp * stages * kStage;
  auto* x = reinterpret_cast<uint2*>(memory + kStreamBarrierBytes + warps * stages * kStage);
  constexpr int kSliceFragments = 16 * kColumns8 * 32;  // of uint2
  auto* partials = reinterpret_cast<float*>(x + (kColumns == Columns::kWhole    ? group.inputs * steps * columns * 4
                                                 : kColumns == Columns::kSlices ? 2 * kSliceFragments
                                                                                : 0));
  // Before any copy is on its way: these fences wait for a thread's copies too.
  if ((kColumns == Columns::kSlices || kLags) && threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) {
      ptx::make_barrier(&slice_barriers[i], 1);
      ptx::make_barrier(&sums_there[i], static_cast<uint32_t>(warps));
    }
    if (kColumns == Columns::kSlices) {
      ptx::fence_barriers();
      ptx::fence_async();
    }
  }
  Feed<kForm, kColumns8, kColumns, kRowTiles> feed(group, slices, own_tile, own_slice, ring);
  auto later = feed;
  for (int i = 0; i < stages; ++i) feed.fill(i, true, false);
  if (!group.beside) {
    ptx::wait_for_previous();
    ptx::let_next_start();
  }
  if constexpr (kInRing<kColumns>) {
    for (int i = 0; i < stages; ++i) later.fill(i, false, true);
    if (kLags) __syncthreads();  // the barriers stand
  }

  const int64_t units = group.units > blockIdx.x ? (group.units - blockIdx.x + gridDim.x - 1) / gridDim.x : 0;
  const auto turns = static_cast<int>(units) * slices.total;  // of columns' slices
  const auto fill_slice = [&](int turn) {
    if (turn >= turns) return;
    const int slice = turn % slices.total;
    const Place at = place_of(group, blockIdx.x + int64_t{turn / slices.total} * gridDim.x, 0);
    const auto bytes = static_cast<uint32_t>(slices.tiles(slice) * 256);
    const auto* from = reinterpret_cast<const uint2*>(group.products[at.which].prepared) + slices.column(slice) * 2;
    ptx::arrive_expecting(&slice_barriers[turn % 2], bytes * kColumns8);
    for (int n = 0; n < kColumns8; ++n)
      ptx::copy_bulk(x + turn % 2 * kSliceFragments + n * 512, from + n * any.weights.columns * 2, bytes,
                     &slice_barriers[turn % 2]);
  };
  if constexpr (kColumns == Columns::kWhole) {
    // [input][16 columns][row and term][q]: inputs 2q, 2q + 1, 2q + 8 and 2q + 9.
    const int rows = group.rows, terms = group.terms;
    int filled = 0;
    for (int which = 0; which < group.count; ++which) {
      if (group.input[which] != filled) continue;
      const RowsProduct& p = group.products[which];
      uint2* to = x + filled++ * steps * columns * 4;
      // A few at a time, so that their loads are on their way together.
      constexpr int kTogether = 4;
      const int count = steps * rows * 4, threads = static_cast<int>(blockDim.x);
      const auto place = [&](int i, int& row, int& step) {
        const int rest = i / 4;
        row = rows == 1 ? 0 : rest % rows, step = rows == 1 ? rest : rest / rows;
      };
      for (int begin = static_cast<int>(threadIdx.x); begin < count; begin += kTogether * threads) {
        float rest[kTogether][4];
#pragma unroll
        for (int j = 0; j < kTogether; ++j) {
          const int i = begin + j * threads;
          int row, step;
          place(i, row, step);
          if (i < count && first_row + row < group.all_rows)
            read_inputs(p.x + (first_row + row) * p.x_stride + step * 16 + 2 * (i % 4), p.x_stride, rest[j]);
        }
#pragma unroll
        for (int j = 0; j < kTogether; ++j) {
          const int i = begin + j * threads;
          int row, step;
          place(i, row, step);
          if (i >= count || first_row + row >= group.all_rows) continue;
          for (int term = 0; term < terms; ++term) {
            uint32_t bits[4];
#pragma unroll
            for (int k = 0; k < 4; ++k) {
              bits[k] = bf16_bits(rest[j][k]);
              const float taken = bf16_value(bits[k]);
              rest[j][k] = isfinite(taken) ? rest[j][k] - taken : 0.0f;
            }
            to[(step * columns + term * rows + row) * 4 + i % 4] =
                make_uint2(bits[0] | bits[1] << 16, bits[2] | bits[3] << 16);
          }
        }
      }
    }
    __syncthreads();
  } else if constexpr (kColumns == Columns::kSlices) {
    __syncthreads();  // the barriers stand
    if (threadIdx.x == 0) {
      fill_slice(0);
      fill_slice(1);
    }
  }

  const auto write = [&](const RowsProduct& p, int row, int64_t output, float value) {
    if (output < p.weights.rows) p.y[(first_row + row) * p.y_stride + output] = value;
  };
  const auto output_of = [&](int64_t first_tile, int element) {
    return (first_tile + element / kTileFloats) * kPackedRows + element % kTileFloats / (kColumns8 * 8);
  };
  // Sums of a turn of several warps to a row tile: all threads add them, and leave the outputs of a unit whose last
  // turn it is. One turn later where they stand twice, so that no warp waits for the others' copies.
  constexpr int kElements = kAlone ? 1 : 2 * kColumns8;
  const int elements = group.row_tiles * kTileFloats, partial_floats = warps * kRowTiles * kTileFloats;
  SliceTotals<kElements, 1> shared_totals(any.parts, any.scale);
  const auto add_turn = [&](int64_t unit, int first, int turn) {
    if (kLags) ptx::wait_for(&sums_there[turn % 2], turn / 2 % 2);
    const Place at = place_of(group, unit, 0);
    const RowsProduct& p = group.products[at.which];
    const OwnColumns own_columns = columns_of<kColumns>(group, p, first_row);
    if (first == 0) shared_totals.begin(p.scale);
    float* base = partials + (kLags ? turn % 2 * partial_floats : 0);
    const int left = slices.total - first, most = left < concurrent ? left : concurrent;
    const bool ends = left <= concurrent;
#pragma unroll
    for (int j = 0; j < kElements; ++j) {
      const int element = static_cast<int>(threadIdx.x) + j * static_cast<int>(blockDim.x);
      const int column = element % (kColumns8 * 8);
      if (element >= elements || column >= own_columns.all) continue;
      constexpr int kWarpFloats = kRowTiles * kTileFloats;
      const float* own = base + element / kWarpFloats * concurrent * kWarpFloats + element % kWarpFloats;
      if (any.parts == 1) {
        for (int begin = 0; begin < most; begin += 4) {
          float values[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) values[i] = begin + i < most ? own[(begin + i) * kWarpFloats] : 0.0f;
#pragma unroll
          for (int i = 0; i < 4; ++i)
            if (begin + i < most) shared_totals.add_to_part(j, first + begin + i == 0, values[i]);
        }
      } else {
#pragma unroll 1
        for (int i = 0; i < most; ++i) {
          const float sum[1] = {own[i * kWarpFloats]};
          shared_totals.add(j, slices, first + i, sum);
        }
      }
      if (ends && p.terms == 1) write(p, column, output_of(at.first_tile, element), shared_totals.value(j));
    }
    if (!ends || p.terms == 1) return;
    // Terms meet through shared memory.
    __syncthreads();
#pragma unroll
    for (int j = 0; j < kElements; ++j) {
      const int element = static_cast<int>(threadIdx.x) + j * static_cast<int>(blockDim.x);
      if (element < elements && element % (kColumns8 * 8) < own_columns.all) base[element] = shared_totals.value(j);
    }
    __syncthreads();
    for (int element = static_cast<int>(threadIdx.x); element < elements; element += static_cast<int>(blockDim.x)) {
      const int row = element % (kColumns8 * 8);
      if (row >= own_columns.rows) continue;
      float sum = base[element];
      for (int term = 1; term < p.terms; ++term) sum = sum + base[element + term * own_columns.pitch];
      write(p, row, output_of(at.first_tile, element), sum);
    }
  };

  int stage = 0, turn = 0;
  // Where sums are added a turn later, one more turn adds the last.
  for (int64_t unit = blockIdx.x; unit < group.units || (kLags && turn > 0); unit += gridDim.x) {
    const Place at = place_of(group, unit, own_tile);
    const RowsProduct& p = group.products[at.which];
    const OwnColumns own_columns = columns_of<kColumns>(group, p, first_row);
    const int rows = own_columns.rows;
    const int terms = p.terms;
    const uint2* input = x + (kColumns == Columns::kWhole ? group.input[at.which] * steps * columns * 4 : 0);
    float totals[kAlone ? kColumns8 : 1][4];
    for (int first = 0; first < slices.total; first += concurrent, ++turn) {
      const int slice = first + own_slice;
      const int tiles = at.mine && slice < slices.total ? slices.tiles(slice) : 0;
      const auto step = static_cast<int>(slices.column(slice < slices.total ? slice : 0) / 16);
      if constexpr (kColumns == Columns::kSlices) ptx::wait_for(&slice_barriers[turn % 2], turn / 2 % 2);
      float sums[kRowTiles][kColumns8][4] = {};
      // Four tiles of 16 columns, j of the piece; kFull: all four are there, so that nothing branches between them.
      const auto multiply = [&]<bool kFull>(const uint8_t* here, int j, int k, int count) {
        Piece<kForm, Own::kScales> pieces[kRowTiles];
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) pieces[r].take(here + r * Own::kPiece, j, lane);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (!kFull && i >= count) break;
          uint2 b[kColumns8];
          if constexpr (kColumns == Columns::kWhole) {
            // Lanes without a column take the last one's, and nobody keeps their sums.
            const int column = lane / 4 < columns ? lane / 4 : columns - 1;
            b[0] = input[((step + k + i) * columns + column) * 4 + lane % 4];
          } else if constexpr (kColumns == Columns::kRows) {
            const int row = lane / 4 < rows ? lane / 4 : rows - 1;
            const uint8_t* from = here + Own::kColumnsAt + row * Own::kRowPitch + (j * 4 + i) * 64 + lane % 4 * 8;
            const auto low = *reinterpret_cast<const float2*>(from), high = *reinterpret_cast<const float2*>(from + 32);
            b[0] = make_uint2(ptx::pack_bf16(low.x, low.y), ptx::pack_bf16(high.x, high.y));
          } else {
            const uint2* from = kColumns == Columns::kSlices
                                    ? x + turn % 2 * kSliceFragments + (k + i) * 32
                                    : reinterpret_cast<const uint2*>(here + Own::kColumnsAt) + (j * 4 + i) * 32;
            constexpr int kTilePitch = (kColumns == Columns::kSlices ? 16 : Own::kTiles) * 32;
#pragma unroll
            for (int n = 0; n < kColumns8; ++n) b[n] = from[n * kTilePitch + lane];
          }
#pragma unroll
          for (int r = 0; r < kRowTiles; ++r) {
            uint32_t a[4];
            pieces[r].four.operand(i, a);
#pragma unroll
            for (int n = 0; n < kColumns8; ++n) ptx::mma_m16n8k16_bf16(sums[r][n], a, b[n]);
          }
        }
      };
      for (int begin = 0; begin < tiles; begin += Own::kTiles) {
        wait_for_oldest(stages);
        __syncwarp();
        const uint8_t* here = ring + stage * kStage;
        if (tiles - begin >= Own::kTiles) {
#pragma unroll
          for (int j = 0; j < Own::kTiles / 4; ++j) multiply.template operator()<true>(here, j, begin + j * 4, 4);
        } else {
          for (int j = 0; begin + j * 4 < tiles; ++j)
            multiply.template operator()<false>(here, j, begin + j * 4, tiles - begin - j * 4);
        }
        __syncwarp();
        feed.fill(stage, true, true);
        if (++stage == stages) stage = 0;
      }
      if constexpr (kColumns == Columns::kSlices) {
        __syncthreads();
        if (threadIdx.x == 0) fill_slice(turn + 2);
      }
      if constexpr (kAlone) {
#pragma unroll
        for (int n = 0; n < kColumns8; ++n)
#pragma unroll
          for (int j = 0; j < 4; ++j) totals[n][j] = first == 0 ? sums[0][n][j] : totals[n][j] + sums[0][n][j];
      } else {
        // [turn][warp][row tile][16 outputs][columns]
        if (kLags && turn > 0)
          add_turn(first > 0 ? unit : unit - gridDim.x,
                   first > 0 ? first - concurrent : (slices.total - 1) / concurrent * concurrent, turn - 1);
        if (kLags && unit >= group.units) break;
        float* to = partials + (kLags ? turn % 2 * partial_floats : 0) + warp * kRowTiles * kTileFloats;
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r)
#pragma unroll
          for (int n = 0; n < kColumns8; ++n)
#pragma unroll
            for (int half = 0; half < 2; ++half)
              *reinterpret_cast<float2*>(to + r * kTileFloats + (lane / 4 + half * 8) * (kColumns8 * 8) + n * 8 +
                                         lane % 4 * 2) = make_float2(sums[r][n][half * 2], sums[r][n][half * 2 + 1]);
        if constexpr (kLags) {
          __syncwarp();
          if (lane == 0) ptx::arrive(&sums_there[turn % 2]);
        } else {
          __syncthreads();
          add_turn(unit, first, turn);
          __syncthreads();
        }
      }
    }

    if (kLags && unit >= group.units) break;
    if constexpr (kAlone) {
      if (terms == 1) {
#pragma unroll
        for (int n = 0; n < kColumns8; ++n)
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            const int row = n * 8 + lane % 4 * 2 + j % 2;
            if (at.mine && row < rows)
              write(p, row, at.tile * kPackedRows + lane / 4 + j / 2 * 8, totals[n][j] * p.scale);
          }
      } else {
        float* to = partials + warp * kTileFloats;
#pragma unroll
        for (int n = 0; n < kColumns8; ++n)
#pragma unroll
          for (int j = 0; j < 4; ++j)
            to[(lane / 4 + j / 2 * 8) * (kColumns8 * 8) + n * 8 + lane % 4 * 2 + j % 2] = totals[n][j] * p.scale;
        __syncwarp();
        for (int i = lane; i < 16 * rows; i += 32) {
          const int row = i / 16, output = i % 16;
          const float* from = to + output * (kColumns8 * 8) + row;
          float sum = from[0];
          for (int term = 1; term < terms; ++term) sum = sum + from[term * own_columns.pitch];
          if (at.mine) write(p, row, at.tile * kPackedRows + output, sum);
        }
        __syncwarp();
      }
    }
  }
  // One block ends last; the others make room.
  if (group.beside && blockIdx.x == 0 && blockIdx.y == 0) ptx::wait_for_previous();
}

template <WeightForm kForm, int kColumns8, bool kAlone, Columns kColumns, int kRowTiles>
cudaError_t start(cudaStream_t stream, const Group& group, const StreamShape& shape) {
  const int layers = kColumns == Columns::kWhole ? (group.all_rows + group.rows - 1) / group.rows : 1;
  const dim3 grid(static_cast<unsigned>(shape.blocks), static_cast<unsigned>(layers));
  return launch(stream_kernel<kForm, kColumns8, kAlone, kColumns, kRowTiles>, grid,
                static_cast<unsigned>(shape.warps() * 32), static_cast<size_t>(shape.shared_bytes), stream, group);
}

template <WeightForm kForm, int kColumns8>
cudaError_t start_form(cudaStream_t stream, const Group& group, const StreamShape& shape, bool whole) {
  const bool alone = shape.concurrent == 1;
  if constexpr (kColumns8 == 1) {
    if (group.products[0].ring_rows)
      return shape.warp_tiles == 2 ? start<kForm, 1, false, Columns::kRows, 2>(stream, group, shape)
                                   : start<kForm, 1, false, Columns::kRows, 1>(stream, group, shape);
    if (whole)
      return alone ? start<kForm, 1, true, Columns::kWhole, 1>(stream, group, shape)
                   : start<kForm, 1, false, Columns::kWhole, 1>(stream, group, shape);
  }
  if (alone) return start<kForm, kColumns8, true, Columns::kSlices, 1>(stream, group, shape);
  return shape.warp_tiles == 2 ? start<kForm, kColumns8, false, Columns::kRing, 2>(stream, group, shape)
                               : start<kForm, kColumns8, false, Columns::kRing, 1>(stream, group, shape);
}

template <WeightForm kForm>
cudaError_t start_columns(cudaStream_t stream, const Group& group, const StreamShape& shape, int tiles, bool whole) {
  switch (tiles) {
    case 1: return start_form<kForm, 1>(stream, group, shape, whole);
    case 2: return start_form<kForm, 2>(stream, group, shape, whole);
    case 4: return start_form<kForm, 4>(stream, group, shape, whole);
    case 6: return start_form<kForm, 6>(stream, group, shape, whole);
    default: return start_form<kForm, 8>(stream, group, shape, whole);
  }
}

}  // namespace

cudaError_t stream_products(cudaStream_t stream, const DeviceLimits& limits, const RowsProduct* products, int count,
                            StreamTurn& turn) {
  const RowsProduct& any = products[0];
  const bool whole = any.prepared == nullptr && !any.ring_rows, bf16 = any.weights.form == WeightForm::kBf16;
  Group group{};
  group.count = count;
  group.beside = turn.beside;
  group.all_rows = static_cast<int>(any.rows);
  group.rows = any.block_rows > 0 ? any.block_rows : group.all_rows;
  int tiles = 1;
  StreamProblem problem;
  for (int i = 0; i < count; ++i) {
    const RowsProduct& p = products[i];
    group.products[i] = p;
    group.terms = p.terms > group.terms ? p.terms : group.terms;
    tiles = std::max(tiles, fragment_tiles(whole ? group.rows : p.rows, p.terms));
    group.input[i] = group.inputs;
    for (int j = 0; j < i; ++j)
      if (products[j].x == p.x && products[j].x_stride == p.x_stride) group.input[i] = group.input[j];
    if (group.input[i] == group.inputs) ++group.inputs;
    problem.row_tiles[i] = (p.weights.rows + kPackedRows - 1) / kPackedRows;
  }
  problem.count = count;
  problem.columns8 = tiles;
  problem.slices = Slices(any.weights.columns, any.parts).total;
  problem.whole_bytes = whole ? group.inputs * any.weights.columns * group.rows * group.terms * 2 : 0;
  problem.parts = any.parts;
  problem.terms = group.terms;
  problem.bf16 = bf16;
  problem.ring_rows = any.ring_rows;
  problem.beside_bytes = turn.beside ? turn.shared_bytes : 0;
  problem.layers = static_cast<int>((group.all_rows + group.rows - 1) / group.rows);
  const StreamShape shape = stream_shape(problem, limits.multiprocessors, limits.shared_bytes);
  if (shape.units == 0)
    return std::any_of(problem.row_tiles, problem.row_tiles + count, [](int64_t tiles) { return tiles > 0; })
               ? cudaErrorInvalidConfiguration
               : cudaSuccess;
  turn.shared_bytes += shape.shared_bytes;
  group.row_tiles = shape.row_tiles;
  group.concurrent = shape.concurrent;
  group.stages = shape.stages;
  for (int i = 0; i < count; ++i) {
    group.first_unit[i] = group.units;
    group.units += (problem.row_tiles[i] + shape.row_tiles - 1) / shape.row_tiles;
  }
  return bf16 ? start_columns<WeightForm::kBf16>(stream, group, shape, tiles, whole)
              : start_columns<WeightForm::kNvfp4>(stream, group, shape, tiles, whole);
}

}  // namespace verbatim::ops::cuda
