// Products of packed weights with up to 64 columns (rows times terms). Weights stream: each warp keeps a ring of pieces
// in shared memory that copies of 16 bytes a lane fill (2 KB of BF16 or a slice of NVFP4 with its scales, for one or
// two row tiles of 16 outputs), so that some 100 KB a multiprocessor are on their way whatever the registers do, and
// the first of them leave before the launch in front has ended. Blocks stay, one a multiprocessor (no two of them fit),
// each taking some row tiles at a time, a row tile by `concurrent` warps that take its slices in turn. A warp alone on
// its row tile keeps the totals; otherwise slices' sums are added in order through shared memory. Columns come whole
// into shared memory (up to eight, rounded on their way in), or as fragments: a slice at a time for all warps that are
// alone on theirs, or in the ring beside the weights. Bytes: the weights once; fragments once a block's turn, or once
// for each one or two row tiles.
#include <algorithm>

#include "ops/cuda/launch.h"
#include "ops/cuda/packed.cuh"
#include "ops/cuda/ptx/async_copy.cuh"
#include "ops/cuda/ptx/bf16.cuh"
#include "ops/cuda/ptx/bulk_copy.cuh"
#include "ops/cuda/ptx/dependency.cuh"
#include "ops/cuda/ptx/mma.cuh"
#include "ops/cuda/rounding.cuh"
#include "ops/cuda/shapes.h"
#include "ops/cuda/slices.cuh"

namespace verbatim::ops::cuda {

namespace {

// Where a warp finds its columns: kRing as fragments, kRows as rows of x.
enum class Columns { kWhole, kSlices, kRing, kRows };
template <Columns kColumns>
constexpr bool kInRing = kColumns == Columns::kRing || kColumns == Columns::kRows;

// A piece of a row tile: tiles of 16 columns, weights and then NVFP4's scales.
template <WeightForm kForm, int kColumns8, Columns kColumns>
constexpr int kPieceTiles = static_cast<int>(stream_piece_tiles(kForm == WeightForm::kBf16, kColumns8,
                                                                kInRing<kColumns>));
template <WeightForm kForm, int kColumns8, Columns kColumns>
constexpr int kPieceBytes = static_cast<int>(stream_piece_bytes(kForm == WeightForm::kBf16, kColumns8,
                                                                kInRing<kColumns>));

// A stage of a warp's ring: a piece of each of its row tiles, then, if they come with them, the columns' fragments.
template <WeightForm kForm, int kColumns8, Columns kColumns, int kRowTiles>
constexpr int kStageBytes = kRowTiles* kPieceBytes<kForm, kColumns8, kColumns> +
                            (kColumns == Columns::kRing ? kPieceTiles<kForm, kColumns8, kColumns> * kColumns8 * 256
                             : kColumns == Columns::kRows
                                 ? static_cast<int>(kMostRingRows *
                                                    stream_ring_row_bytes(kPieceTiles<kForm, kColumns8, kColumns>))
                                 : 0);

struct Group {
  RowsProduct products[kMostGroup];
  int64_t first_unit[kMostGroup], units;
  int input[kMostGroup];  // of a product, in shared memory
  int count, inputs, row_tiles, concurrent, stages;
  // Inputs that stand in shared memory whole: so many rows a layer of the grid, of all.
  int rows, all_rows, terms;
  bool beside;  // StreamTurn
};

// The row tiles of a unit, and this warp's.
struct Place {
  int which = 0;
  int64_t first_tile = 0, tile = 0;
  bool mine = false;
};
__device__ Place place_of(const Group& group, int64_t unit, int own) {
  Place at;
  while (at.which + 1 < group.count && unit >= group.first_unit[at.which + 1]) ++at.which;
  at.first_tile = (unit - group.first_unit[at.which]) * group.row_tiles;
  at.tile = at.first_tile + own;
  at.mine = at.tile * kPackedRows < group.products[at.which].weights.rows;
  return at;
}

// Columns of a product that a block takes: rows, from one term of a row to the next, and all of them.
struct OwnColumns {
  int rows, pitch, all;
};
template <Columns kColumns>
__device__ OwnColumns columns_of(const Group& group, const RowsProduct& p, int first_row) {
  const auto left = static_cast<int>(p.rows) - first_row;
  const int rows = kColumns == Columns::kWhole && group.rows < left ? group.rows : left;
  const int pitch = kColumns == Columns::kWhole ? group.rows : rows;
  return {rows, pitch, (p.terms - 1) * pitch + rows};
}

// Fills a warp's ring with its pieces in the order in which it takes them. All lanes, sixteen bytes each at a time
// (bulk copies of so few bytes come too slowly).
template <WeightForm kForm, int kColumns8, Columns kColumns, int kRowTiles>
class Feed {
 public:
  __device__ Feed(const Group& group, const Slices& slices, int own_tile, int own_slice, uint8_t* ring)
      : group_(group),
        slices_(slices),
        own_tile_(own_tile),
        own_slice_(own_slice),
        lane_(static_cast<int>(threadIdx.x % 32)),
        ring_(ring) {
    unit_ = blockIdx.x;
    find();
  }

  // The next piece into stage `stage`, whose last one every lane has read: its weights, its columns, or both; a group
  // of copies.
  __device__ void fill(int stage, bool weights, bool columns) {
    if (unit_ < group_.units) copy(stage, weights, columns);
    ptx::close_copy_group();
  }

 private:
  __device__ void copy(int stage, bool weights, bool columns) {
    const RowsProduct& p = group_.products[at_.which];
    const Weights& w = p.weights;
    const int left = slices_.tiles(slice_) - piece_ * kPieceTiles<kForm, kColumns8, kColumns>;
    const int tiles = left < kPieceTiles<kForm, kColumns8, kColumns> ? left : kPieceTiles<kForm, kColumns8, kColumns>;
    const int64_t column = slices_.column(slice_) + piece_ * (kPieceTiles<kForm, kColumns8, kColumns> * 16);
    const int row_tiles = kRowTiles == 2 && (at_.tile + 1) * kPackedRows < w.rows ? 2 : 1;
    uint8_t* to = ring_ + stage * kStageBytes<kForm, kColumns8, kColumns, kRowTiles> + lane_ * 16;
    if (weights) {
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
        if (r >= row_tiles) break;
        const int64_t at = (at_.tile + r) * w.columns + column;
        const uint8_t* from = w.data + at * (kForm == WeightForm::kBf16 ? 32 : 8) + lane_ * 16;
        // 512 bytes: a tile of 16 columns of BF16, four of NVFP4.
        const int pieces = kForm == WeightForm::kBf16 ? tiles : tiles / 4;
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (i < pieces)
            ptx::copy_16_bytes(to + r * kPieceBytes<kForm, kColumns8, kColumns> + i * 512, from + i * 512);
        if (kForm == WeightForm::kNvfp4 && lane_ < tiles)
          ptx::copy_16_bytes(
              to + r * kPieceBytes<kForm, kColumns8, kColumns> + kPieceTiles<kForm, kColumns8, kColumns> * 128,
              w.block_scale + at + lane_ * 16);
      }
    }
    if (kColumns == Columns::kRing && columns) {
#pragma unroll
      for (int n = 0; n < kColumns8; ++n) {
        const uint8_t* from = reinterpret_cast<const uint8_t*>(p.prepared) + (n * w.columns + column) * 16 + lane_ * 16;
        uint8_t* own = to + kRowTiles * kPieceBytes<kForm, kColumns8, kColumns> +
                       n * kPieceTiles<kForm, kColumns8, kColumns> * 256;
#pragma unroll
        for (int i = 0; i < kPieceTiles<kForm, kColumns8, kColumns> / 2; ++i)
          if (i * 512 + lane_ * 16 < tiles * 256) ptx::copy_16_bytes(own + i * 512, from + i * 512);
      }
    }
    if (kColumns == Columns::kRows && columns) {
      constexpr int kPitch = static_cast<int>(stream_ring_row_bytes(kPieceTiles<kForm, kColumns8, kColumns>));
      uint8_t* own = to - lane_ * 16 + kRowTiles * kPieceBytes<kForm, kColumns8, kColumns>;
      constexpr int kOfRow = kPieceTiles<kForm, kColumns8, kColumns> * 4;  // of 16 bytes
      for (int i = lane_; i < p.rows * kOfRow; i += 32) {
        const int row = i / kOfRow, at = i % kOfRow;
        if (at < tiles * 4) ptx::copy_16_bytes(own + row * kPitch + at * 16, p.x + row * p.x_stride + column + at * 4);
      }
    }
    ++piece_;
    if (left > kPieceTiles<kForm, kColumns8, kColumns>) return;
    piece_ = 0;
    slice_ += group_.concurrent;
    if (slice_ < slices_.total) return;
    unit_ += gridDim.x;
    find();
  }
  __device__ void find() {
    slice_ = own_slice_;
    for (; unit_ < group_.units; unit_ += gridDim.x) {
      at_ = place_of(group_, unit_, own_tile_);
      if (at_.mine) return;
    }
  }

  const Group& group_;
  const Slices& slices_;
  int own_tile_, own_slice_, lane_;
  uint8_t* ring_;
  int64_t unit_ = 0;
  int slice_ = 0, piece_ = 0;
  Place at_;
};

// Until the oldest of this thread's last `groups` groups of copies is there.
__device__ inline void wait_for_oldest(int groups) {
  switch (groups) {
    case 2: return ptx::wait_for_copies<1>();
    case 3: return ptx::wait_for_copies<2>();
    case 4: return ptx::wait_for_copies<3>();
    case 5: return ptx::wait_for_copies<4>();
    default: return ptx::wait_for_copies<5>();
  }
}

// Four tiles of 16 columns, 4 j to 4 j + 3, of a piece in shared memory.
template <WeightForm kForm, int kColumns8, Columns kColumns>
struct Piece {
  Stage<kForm, 4> four;

  __device__ void take(const uint8_t* base, int j, int lane) {
    if constexpr (kForm == WeightForm::kBf16) {
#pragma unroll
      for (int i = 0; i < 4; ++i) four.tiles[i] = *reinterpret_cast<const uint4*>(base + i * 512 + lane * 16);
    } else {
      four.codes[0] = *reinterpret_cast<const uint4*>(base + j * 512 + lane * 16);
      four.scales[0] =
          *reinterpret_cast<const uint2*>(base + kPieceTiles<kForm, kColumns8, kColumns> * 128 + j * 64 + lane / 4 * 8);
    }
  }
};

// Inputs 0, 1, 8 and 9 from `from` on, past the first-level cache: a launch beside the one in front has not waited.
__device__ inline void read_inputs(const float* from, int64_t stride, float (&to)[4]) {
  if (stride % 2 == 0 && reinterpret_cast<uintptr_t>(from) % 8 == 0) {
    const float2 first = __ldcg(reinterpret_cast<const float2*>(from));
    const float2 second = __ldcg(reinterpret_cast<const float2*>(from + 8));
    to[0] = first.x, to[1] = first.y, to[2] = second.x, to[3] = second.y;
  } else {
    to[0] = __ldcg(from), to[1] = __ldcg(from + 1), to[2] = __ldcg(from + 8), to[3] = __ldcg(from + 9);
  }
}

template <WeightForm kForm, int kColumns8, bool kAlone, Columns kColumns, int kRowTiles>
__global__ void __launch_bounds__(kAlone ? kStreamThreads : stream_shared_threads(kColumns8),
                                  kColumns == Columns::kWhole ? 2 : 1)
    stream_kernel(const __grid_constant__ Group group) {
  extern __shared__ __align__(128) uint8_t memory[];
  if (group.beside) ptx::let_next_start();
  constexpr int kStage = kStageBytes<kForm, kColumns8, kColumns, kRowTiles>, kTileFloats = 128 * kColumns8;
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
        Piece<kForm, kColumns8, kColumns> pieces[kRowTiles];
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) pieces[r].take(here + r * kPieceBytes<kForm, kColumns8, kColumns>, j, lane);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (!kFull && i >= count) break;
          uint2 b[kColumns8];
          if constexpr (kColumns == Columns::kWhole) {
            // Lanes without a column take the last one's, and nobody keeps their sums.
            const int column = lane / 4 < columns ? lane / 4 : columns - 1;
            b[0] = input[((step + k + i) * columns + column) * 4 + lane % 4];
          } else if constexpr (kColumns == Columns::kRows) {
            constexpr int kPitch = static_cast<int>(stream_ring_row_bytes(kPieceTiles<kForm, kColumns8, kColumns>));
            const int row = lane / 4 < rows ? lane / 4 : rows - 1;
            const uint8_t* from = here + kRowTiles * kPieceBytes<kForm, kColumns8, kColumns> + row * kPitch +
                                  (j * 4 + i) * 64 + lane % 4 * 8;
            const auto low = *reinterpret_cast<const float2*>(from), high = *reinterpret_cast<const float2*>(from + 32);
            b[0] = make_uint2(ptx::pack_bf16(low.x, low.y), ptx::pack_bf16(high.x, high.y));
          } else {
            const uint2* from =
                kColumns == Columns::kSlices
                    ? x + turn % 2 * kSliceFragments + (k + i) * 32
                    : reinterpret_cast<const uint2*>(here + kRowTiles * kPieceBytes<kForm, kColumns8, kColumns>) +
                          (j * 4 + i) * 32;
            constexpr int kTilePitch = (kColumns == Columns::kSlices ? 16 : kPieceTiles<kForm, kColumns8, kColumns>)*32;
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
      for (int begin = 0; begin < tiles; begin += kPieceTiles<kForm, kColumns8, kColumns>) {
        wait_for_oldest(stages);
        __syncwarp();
        const uint8_t* here = ring + stage * kStage;
        if (tiles - begin >= kPieceTiles<kForm, kColumns8, kColumns>) {
#pragma unroll
          for (int j = 0; j < kPieceTiles<kForm, kColumns8, kColumns> / 4; ++j)
            multiply.template operator()<true>(here, j, begin + j * 4, 4);
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

// A thread makes four inputs of a column, a warp a tile of eight columns and sixteen inputs.
constexpr int kPrepareThreads = 256;
struct Sets {
  Fragments sets[kMostGroup];
  int64_t first[kMostGroup], all;  // in warps
  int count;
};
__global__ void prepare_kernel(const __grid_constant__ Sets group) {
  ptx::let_next_start();
  ptx::wait_for_previous();
  int64_t i = int64_t{blockIdx.x} * (kPrepareThreads / 32) + threadIdx.x / 32;
  if (i >= group.all) return;
  int which = 0;
  while (which + 1 < group.count && i >= group.first[which + 1]) ++which;
  const Fragments& p = group.sets[which];
  i -= group.first[which];
  const auto steps = static_cast<int>(p.columns / 16), rows = static_cast<int>(p.rows);
  const auto tile = static_cast<int>(i / steps), step = static_cast<int>(i % steps);
  const int lane = static_cast<int>(threadIdx.x % 32), q = lane % 4, column = tile * 8 + lane / 4;
  const int row = column % rows, term = column / rows;
  uint32_t bits[4] = {};
  if (term < p.terms) {
    float rest[4];
    read_inputs(p.x + row * p.x_stride + step * 16 + 2 * q, p.x_stride, rest);
    if (p.input_scale > 0.0f) {
      // Sixteen inputs, those of four lanes, have one scale (rounding.cuh).
      float most = 0.0f;
#pragma unroll
      for (int j = 0; j < 4; ++j) most = most < fabsf(rest[j]) ? fabsf(rest[j]) : most;
#pragma unroll
      for (int other_lane = 1; other_lane < 4; other_lane *= 2) {
        const float other = __shfl_xor_sync(0xfu << lane / 4 * 4, most, other_lane);
        most = most < other ? other : most;
      }
      const float scale = activation_block_scale(most, p.input_scale);
#pragma unroll
      for (int j = 0; j < 4; ++j) bits[j] = term == 0 ? bf16_bits(coded_activation(rest[j], scale, p.input_scale)) : 0;
    } else {
      for (int t = 0; t <= term; ++t) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          bits[j] = bf16_bits(rest[j]);
          const float taken = bf16_value(bits[j]);
          rest[j] = isfinite(taken) ? rest[j] - taken : 0.0f;
        }
      }
    }
  }
  reinterpret_cast<uint2*>(p.to)[(int64_t{tile} * steps + step) * 32 + lane] =
      make_uint2(bits[0] | bits[1] << 16, bits[2] | bits[3] << 16);
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

cudaError_t prepare_fragments(cudaStream_t stream, const Fragments* fragments, int count) {
  Sets group{};
  group.count = count;
  for (int i = 0; i < count; ++i) {
    group.sets[i] = fragments[i];
    group.first[i] = group.all;
    group.all += fragments[i].columns / 16 * fragments[i].tiles;
  }
  return launch(prepare_kernel, static_cast<unsigned>((group.all * 32 + kPrepareThreads - 1) / kPrepareThreads),
                kPrepareThreads, 0, stream, group);
}

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
