// What blocks of sm90_stream_product.cu take, how their shared memory is laid out, and how a warp's pieces come into
// its ring. product_columns.cuh has the columns and the products, product_sums.cuh what becomes of their sums.
#pragma once

#include "ops/cuda/packed.cuh"
#include "ops/cuda/ptx/async_copy.cuh"
#include "ops/cuda/ptx/bulk_copy.cuh"
#include "ops/cuda/shapes.h"
#include "ops/cuda/slices.cuh"

namespace verbatim::ops::cuda::product_stream {

// Where a warp finds its columns: kWhole, all inputs of a launch in shared memory; kSlices, a slice of them there for
// all warps at a time, as fragments; kRing, beside its weights as fragments; kRows, there as rows of x.
enum class Columns { kWhole, kSlices, kRing, kRows };

// One kernel: weights of `form`; `columns8` tiles of eight columns; warps alone on their row tile, or several that take
// its slices in turn; `row_tiles` to a warp. A stage of a warp's ring is a piece of each of its row tiles (tiles of 16
// columns of weights, then NVFP4's scales), then, if they come with them, the columns.
template <WeightForm form, int columns8, bool alone, Columns columns, int row_tiles>
struct Kernel {
  static constexpr WeightForm kForm = form;
  static constexpr bool kBf16 = form == WeightForm::kBf16;
  static constexpr int kColumns8 = columns8;
  static constexpr bool kAlone = alone;
  static constexpr Columns kColumns = columns;
  static constexpr bool kInRing = columns == Columns::kRing || columns == Columns::kRows;
  static constexpr int kRowTiles = row_tiles;
  // Sums of a turn stand twice in shared memory and are added a turn later.
  static constexpr bool kLags = !alone && kInRing && stream_sum_buffers(columns8, row_tiles) == 2;

  // Tiles of a piece; bytes of it, of a row of columns, and from a stage to the next; where things stand in a piece of
  // NVFP4 and in a stage.
  static constexpr int kTiles = static_cast<int>(stream_piece_tiles(kBf16, columns8, kInRing));
  static constexpr int kPiece = static_cast<int>(stream_piece_bytes(kBf16, columns8, kInRing));
  static constexpr int kScales = kTiles * 128;
  static constexpr int kColumnsAt = row_tiles * kPiece;
  static constexpr int kRowPitch = static_cast<int>(stream_ring_row_bytes(kTiles));
  static constexpr int kStage = kColumnsAt + (columns == Columns::kRing   ? kTiles * columns8 * 256
                                              : columns == Columns::kRows ? static_cast<int>(kMostRingRows) * kRowPitch
                                                                          : 0);
  static constexpr int kColumnFloats = columns8 * 8;               // sums of an output
  static constexpr int kTileFloats = kPackedRows * kColumnFloats;  // of a row tile
  static constexpr int kWarpFloats = row_tiles * kTileFloats;
};

// A launch: products, which blocks take in units of `row_tiles` row tiles; unit u is block u % blocks'.
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
__device__ inline Place place_of(const Group& group, int64_t unit, int own) {
  Place at;
  while (at.which + 1 < group.count && unit >= group.first_unit[at.which + 1]) ++at.which;
  at.first_tile = (unit - group.first_unit[at.which]) * group.row_tiles;
  at.tile = at.first_tile + own;
  at.mine = at.tile * kPackedRows < group.products[at.which].weights.rows;
  return at;
}

// A block's shared memory, in this order: barriers; each warp's ring; columns that all warps take (all inputs, or two
// slices); sums.
template <typename Own>
struct Memory {
  static constexpr int kSliceFragments = 16 * Own::kColumns8 * 32;  // of uint2

  uint8_t* base;
  int warps, stages;
  int steps, columns;  // of a whole input: of 16 values of a row; rows times terms
  uint2* all_columns;
  float* all_sums;

  __device__ Memory(uint8_t* from, const Group& group)
      : base(from),
        warps(static_cast<int>(blockDim.x / 32)),
        stages(group.stages),
        steps(static_cast<int>(group.products[0].weights.columns / 16)),
        columns(group.rows * group.terms),
        all_columns(reinterpret_cast<uint2*>(ring(warps))),
        all_sums(reinterpret_cast<float*>(Own::kColumns == Columns::kWhole    ? input(group.inputs)
                                          : Own::kColumns == Columns::kSlices ? all_columns + 2 * kSliceFragments
                                                                              : all_columns)) {}

  // One thread, before any of the block's copies is on its way: these fences wait for a thread's copies too.
  __device__ void make_barriers() const {
    for (int i = 0; i < 2; ++i) {
      ptx::make_barrier(slice_there(i), 1);
      ptx::make_barrier(sums_there(i), static_cast<uint32_t>(warps) * ptx::kWarpArrivals);
    }
    if (Own::kColumns == Columns::kSlices) {
      ptx::fence_barriers();
      ptx::fence_async();
    }
  }
  // Barriers, in turn: a turn's slice of columns is there; its sums are. And the parity of their phase then.
  __device__ uint64_t* slice_there(int turn) const { return reinterpret_cast<uint64_t*>(base) + turn % 2; }
  __device__ uint64_t* sums_there(int turn) const { return reinterpret_cast<uint64_t*>(base) + 2 + turn % 2; }
  __device__ static uint32_t phase(int turn) { return static_cast<uint32_t>(turn / 2 % 2); }

  __device__ uint8_t* ring(int warp) const { return base + kStreamBarrierBytes + warp * stages * Own::kStage; }
  // Whole inputs: [input][step][row and term][q], values 2q, 2q + 1, 2q + 8 and 2q + 9 of the step.
  __device__ uint2* input(int which) const { return all_columns + which * steps * columns * 4; }
  // Slices: [turn][tile of 8 columns][step][lane], as fragments.
  __device__ uint2* slice(int turn) const { return all_columns + turn % 2 * kSliceFragments; }
  // [turn, where sums are added a turn later][warp][row tile][16 outputs][columns]
  __device__ float* sums(int turn) const { return all_sums + (Own::kLags ? turn % 2 * (warps * Own::kWarpFloats) : 0); }
};

// What a thread knows from the start. Units come one after the other; a turn of one takes a slice to each warp.
template <typename Own>
struct Block {
  const Group& group;
  int warp, lane;
  int concurrent;           // warps that share a row tile
  int first_row;            // of whole inputs: that of its layer of the grid
  int own_tile, own_slice;  // the warp's first row tile of a unit, its first slice
  int elements;             // sums of the row tiles of a unit
  Slices slices;
  Memory<Own> memory;

  __device__ Block(const Group& of, uint8_t* shared_memory)
      : group(of),
        warp(static_cast<int>(threadIdx.x / 32)),
        lane(static_cast<int>(threadIdx.x % 32)),
        concurrent(Own::kAlone ? 1 : of.concurrent),
        first_row(Own::kColumns == Columns::kWhole ? static_cast<int>(blockIdx.y) * of.rows : 0),
        own_tile(warp / concurrent * Own::kRowTiles),
        own_slice(warp % concurrent),
        elements(of.row_tiles * Own::kTileFloats),
        slices(of.products[0].weights.columns, of.products[0].parts),
        memory(shared_memory, of) {}
};

// Columns of a product that a block takes: its rows, from one term of a row to the next, all of them, and the terms.
struct OwnColumns {
  int first_row, rows, pitch, all, terms;
  // y of one of these rows; a last row tile may have outputs that the matrix has not.
  __device__ void write(const RowsProduct& p, int row, int64_t output, float value) const {
    if (output < p.weights.rows) p.y[(first_row + row) * p.y_stride + output] = value;
  }
};
template <typename Own>
__device__ OwnColumns columns_of(const Block<Own>& block, const RowsProduct& p) {
  constexpr bool kWhole = Own::kColumns == Columns::kWhole;
  const auto left = static_cast<int>(p.rows) - block.first_row;
  const int rows = kWhole && block.group.rows < left ? block.group.rows : left;
  const int pitch = kWhole ? block.group.rows : rows;
  return {block.first_row, rows, pitch, (p.terms - 1) * pitch + rows, p.terms};
}

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

// Fills a warp's ring with its pieces in the order in which it takes them, and gives them. All lanes, sixteen bytes
// each at a time (bulk copies of so few bytes come too slowly).
template <typename Own>
class Feed {
 public:
  __device__ explicit Feed(const Block<Own>& block) : block_(block), ring_(block.memory.ring(block.warp)) {
    unit_ = blockIdx.x;
    find();
  }

  // The first pieces' weights into all stages, or (from the same place in the order) their columns.
  __device__ void start(bool weights, bool columns) {
    for (int i = 0; i < block_.memory.stages; ++i) fill(i, weights, columns);
  }
  // The oldest piece, once it is there; and the next one into its stage, when no lane reads it any more.
  __device__ const uint8_t* wait() const {
    wait_for_oldest(block_.memory.stages);
    __syncwarp();
    return ring_ + stage_ * Own::kStage;
  }
  __device__ void refill() {
    __syncwarp();
    fill(stage_, true, true);
    if (++stage_ == block_.memory.stages) stage_ = 0;
  }

 private:
  // The next piece into stage `stage`: its weights, its columns, or both; a group of copies.
  __device__ void fill(int stage, bool weights, bool columns) {
    if (unit_ < block_.group.units) copy(stage, weights, columns);
    ptx::close_copy_group();
  }
  __device__ void copy(int stage, bool weights, bool columns) {
    const RowsProduct& p = block_.group.products[at_.which];
    const Weights& w = p.weights;
    const int left = block_.slices.tiles(slice_) - piece_ * Own::kTiles;
    const int tiles = left < Own::kTiles ? left : Own::kTiles;
    const int64_t column = block_.slices.column(slice_) + piece_ * (Own::kTiles * 16);
    const int row_tiles = Own::kRowTiles == 2 && (at_.tile + 1) * kPackedRows < w.rows ? 2 : 1;
    uint8_t* to = ring_ + stage * Own::kStage + block_.lane * 16;
    if (weights) {
#pragma unroll
      for (int r = 0; r < Own::kRowTiles; ++r) {
        if (r >= row_tiles) break;
        const int64_t at = (at_.tile + r) * w.columns + column;
        const uint8_t* from = w.data + at * (Own::kBf16 ? 32 : 8) + block_.lane * 16;
        // 512 bytes: a tile of 16 columns of BF16, four of NVFP4.
        const int pieces = Own::kBf16 ? tiles : tiles / 4;
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (i < pieces) ptx::copy_16_bytes(to + r * Own::kPiece + i * 512, from + i * 512);
        if (!Own::kBf16 && block_.lane < tiles)
          ptx::copy_16_bytes(to + r * Own::kPiece + Own::kScales, w.block_scale + at + block_.lane * 16);
      }
    }
    if (Own::kColumns == Columns::kRing && columns) {
#pragma unroll
      for (int n = 0; n < Own::kColumns8; ++n) {
        const uint8_t* from =
            reinterpret_cast<const uint8_t*>(p.prepared) + (n * w.columns + column) * 16 + block_.lane * 16;
        uint8_t* own = to + Own::kColumnsAt + n * Own::kTiles * 256;
#pragma unroll
        for (int i = 0; i < Own::kTiles / 2; ++i)
          if (i * 512 + block_.lane * 16 < tiles * 256) ptx::copy_16_bytes(own + i * 512, from + i * 512);
      }
    }
    if (Own::kColumns == Columns::kRows && columns) {
      uint8_t* own = to - block_.lane * 16 + Own::kColumnsAt;
      constexpr int kOfRow = Own::kTiles * 4;  // of 16 bytes
      for (int i = block_.lane; i < p.rows * kOfRow; i += 32) {
        const int row = i / kOfRow, at = i % kOfRow;
        if (at < tiles * 4)
          ptx::copy_16_bytes(own + row * Own::kRowPitch + at * 16, p.x + row * p.x_stride + column + at * 4);
      }
    }
    ++piece_;
    if (left > Own::kTiles) return;
    piece_ = 0;
    slice_ += block_.group.concurrent;
    if (slice_ < block_.slices.total) return;
    unit_ += gridDim.x;
    find();
  }
  __device__ void find() {
    slice_ = block_.own_slice;
    for (; unit_ < block_.group.units; unit_ += gridDim.x) {
      at_ = place_of(block_.group, unit_, block_.own_tile);
      if (at_.mine) return;
    }
  }

  const Block<Own>& block_;
  uint8_t* ring_;
  int stage_ = 0;  // of the oldest piece
  int64_t unit_ = 0;
  int slice_ = 0, piece_ = 0;
  Place at_;
};

}  // namespace verbatim::ops::cuda::product_stream
