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
#include "ops/cuda/product_columns.cuh"
#include "ops/cuda/product_stream.cuh"
#include "ops/cuda/product_sums.cuh"
#include "ops/cuda/ptx/dependency.cuh"

namespace verbatim::ops::cuda {

using namespace product_stream;

namespace {

// Blocks take units in turn, all layers of the grid the same for other rows. Of a unit each warp takes a slice a turn,
// from its ring, times the columns; its sums become totals in the order of slices, totals outputs.
template <WeightForm kForm, int kColumns8, bool kAlone, Columns kColumns, int kRowTiles>
__global__ void __launch_bounds__(kAlone ? kStreamThreads : stream_shared_threads(kColumns8),
                                  kColumns == Columns::kWhole ? 2 : 1)
    stream_kernel(const __grid_constant__ Group group) {
  using Own = Kernel<kForm, kColumns8, kAlone, kColumns, kRowTiles>;
  extern __shared__ __align__(128) uint8_t shared_memory[];
  if (group.beside) ptx::let_next_start();
  const Block<Own> block(group, shared_memory);
  const Slices& slices = block.slices;
  if ((kColumns == Columns::kSlices || Own::kLags) && threadIdx.x == 0) block.memory.make_barriers();

  // Weights are on their way before the launch in front has ended, columns after it.
  Feed<Own> feed(block);
  Feed<Own> columns_feed = feed;
  feed.start(true, false);
  if (!group.beside) {
    ptx::wait_for_previous();
    ptx::let_next_start();
  }
  const ColumnSlices<Own> column_slices(block);
  if constexpr (Own::kInRing) {
    columns_feed.start(false, true);
    if (Own::kLags) __syncthreads();  // the barriers stand
  } else if constexpr (kColumns == Columns::kSlices) {
    column_slices.start();
  } else {
    take_whole_inputs(block);
    __syncthreads();
  }

  // Units, and turns of a slice to each warp. Where sums are added a turn later, one more turn adds the last.
  SharedTotals<Own> shared_totals(group);
  int turn = 0;
  for (int64_t unit = blockIdx.x; unit < group.units || (Own::kLags && turn > 0); unit += gridDim.x) {
    const Place at = place_of(group, unit, block.own_tile);
    const RowsProduct& p = group.products[at.which];
    const OwnColumns own_columns = columns_of(block, p);
    AloneTotals<Own> alone_totals;
    for (int first = 0; first < slices.total; first += block.concurrent, ++turn) {
      const int slice = first + block.own_slice;
      const int tiles = at.mine && slice < slices.total ? slices.tiles(slice) : 0;
      SliceColumns<Own> columns;
      if constexpr (kColumns == Columns::kWhole) {
        columns.from = block.memory.input(group.input[at.which]);
        columns.step = static_cast<int>(slices.column(slice < slices.total ? slice : 0) / 16);
        columns.count = block.memory.columns;
      } else if constexpr (kColumns == Columns::kSlices) {
        columns.from = column_slices.wait(turn);
      } else {
        columns.count = own_columns.rows;
      }
      float sums[kRowTiles][kColumns8][4] = {};
      multiply_slice(feed, tiles, columns, block.lane, sums);
      if constexpr (kColumns == Columns::kSlices) column_slices.leave(turn);
      if constexpr (kAlone) {
        alone_totals.add(first == 0, sums);
      } else if (!shared_totals.take(block, unit, first, turn, sums)) {
        break;
      }
    }
    if (Own::kLags && unit >= group.units) break;
    if constexpr (kAlone) alone_totals.leave(block, p, at, own_columns);
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
