// What blocks of sm90_stream_product.cu take, and how a warp's pieces come into its ring.
#pragma once

#include "ops/cuda/packed.cuh"
#include "ops/cuda/ptx/async_copy.cuh"
#include "ops/cuda/shapes.h"
#include "ops/cuda/slices.cuh"

namespace verbatim::ops::cuda::product_stream {

// Where a warp finds its columns: kRing as fragments, kRows as rows of x.
enum class Columns { kWhole, kSlices, kRing, kRows };
template <Columns kColumns>
constexpr bool kInRing = kColumns == Columns::kRing || kColumns == Columns::kRows;

// How a stage of a warp's ring stands in shared memory: a piece of each of its row tiles (tiles of 16 columns of
// weights, then NVFP4's scales), then, if they come with them, the columns.
template <WeightForm kForm, int kColumns8, Columns kColumns, int kRowTiles>
struct Layout {
  static constexpr bool kBf16 = kForm == WeightForm::kBf16;
  static constexpr int kTiles = static_cast<int>(stream_piece_tiles(kBf16, kColumns8, kInRing<kColumns>));
  static constexpr int kPiece = static_cast<int>(stream_piece_bytes(kBf16, kColumns8, kInRing<kColumns>));
  static constexpr int kScales = kTiles * 128;  // in a piece of NVFP4
  static constexpr int kColumnsAt = kRowTiles * kPiece;
  static constexpr int kRowPitch = static_cast<int>(stream_ring_row_bytes(kTiles));  // of rows
  static constexpr int kStage = kColumnsAt + (kColumns == Columns::kRing   ? kTiles * kColumns8 * 256
                                              : kColumns == Columns::kRows ? static_cast<int>(kMostRingRows) * kRowPitch
                                                                           : 0);
};

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
  using Own = Layout<kForm, kColumns8, kColumns, kRowTiles>;

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
    const int left = slices_.tiles(slice_) - piece_ * Own::kTiles;
    const int tiles = left < Own::kTiles ? left : Own::kTiles;
    const int64_t column = slices_.column(slice_) + piece_ * (Own::kTiles * 16);
    const int row_tiles = kRowTiles == 2 && (at_.tile + 1) * kPackedRows < w.rows ? 2 : 1;
    uint8_t* to = ring_ + stage * Own::kStage + lane_ * 16;
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
          if (i < pieces) ptx::copy_16_bytes(to + r * Own::kPiece + i * 512, from + i * 512);
        if (kForm == WeightForm::kNvfp4 && lane_ < tiles)
          ptx::copy_16_bytes(to + r * Own::kPiece + Own::kScales, w.block_scale + at + lane_ * 16);
      }
    }
    if (kColumns == Columns::kRing && columns) {
#pragma unroll
      for (int n = 0; n < kColumns8; ++n) {
        const uint8_t* from = reinterpret_cast<const uint8_t*>(p.prepared) + (n * w.columns + column) * 16 + lane_ * 16;
        uint8_t* own = to + Own::kColumnsAt + n * Own::kTiles * 256;
#pragma unroll
        for (int i = 0; i < Own::kTiles / 2; ++i)
          if (i * 512 + lane_ * 16 < tiles * 256) ptx::copy_16_bytes(own + i * 512, from + i * 512);
      }
    }
    if (kColumns == Columns::kRows && columns) {
      uint8_t* own = to - lane_ * 16 + Own::kColumnsAt;
      constexpr int kOfRow = Own::kTiles * 4;  // of 16 bytes
      for (int i = lane_; i < p.rows * kOfRow; i += 32) {
        const int row = i / kOfRow, at = i % kOfRow;
        if (at < tiles * 4)
          ptx::copy_16_bytes(own + row * Own::kRowPitch + at * 16, p.x + row * p.x_stride + column + at * 4);
      }
    }
    ++piece_;
    if (left > Own::kTiles) return;
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
template <WeightForm kForm, int kScales>
struct Piece {
  Stage<kForm, 4> four;

  __device__ void take(const uint8_t* base, int j, int lane) {
    if constexpr (kForm == WeightForm::kBf16) {
#pragma unroll
      for (int i = 0; i < 4; ++i) four.tiles[i] = *reinterpret_cast<const uint4*>(base + i * 512 + lane * 16);
    } else {
      four.codes[0] = *reinterpret_cast<const uint4*>(base + j * 512 + lane * 16);
      four.scales[0] = *reinterpret_cast<const uint2*>(base + kScales + j * 64 + lane / 4 * 8);
    }
  }
};

}  // namespace verbatim::ops::cuda::product_stream
