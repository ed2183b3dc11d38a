// Columns of streamed products (sm90_stream_product.cu) on their way to the matrix units, wherever a warp finds them,
// and the products of a slice with them.
#pragma once

#include "ops/cuda/product_stream.cuh"
#include "ops/cuda/ptx/bf16.cuh"
#include "ops/cuda/ptx/mma.cuh"
#include "ops/cuda/rounding.cuh"

namespace verbatim::ops::cuda::product_stream {

// ---- columns of whole inputs ----------------------------------------------------------------------------------------
// The rows of one input that a block takes, each value as its terms of bfloat16, to `to` (Memory::input). All threads.
template <typename Own>
__device__ void take_input(const Block<Own>& block, const RowsProduct& p, uint2* to) {
  // A few at a time, so that their loads are on their way together.
  constexpr int kTogether = 4;
  const Group& group = block.group;
  const int rows = group.rows, terms = group.terms, first_row = block.first_row;
  const int steps = block.memory.steps, columns = block.memory.columns;
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

// All inputs of a launch, each once. All threads; a barrier of the block comes before anybody reads them.
template <typename Own>
__device__ void take_whole_inputs(const Block<Own>& block) {
  const Group& group = block.group;
  int filled = 0;
  for (int which = 0; which < group.count; ++which) {
    if (group.input[which] != filled) continue;
    take_input(block, group.products[which], block.memory.input(filled++));
  }
}

// ---- columns of slices ----------------------------------------------------------------------------------------------
// Slices of fragments, one a turn for all warps, which are alone on their row tiles: bulk copies of one thread bring
// the next two.
template <typename Own>
class ColumnSlices {
 public:
  __device__ explicit ColumnSlices(const Block<Own>& block) : block_(block) {
    const int64_t all = block.group.units;
    const int64_t units = all > blockIdx.x ? (all - blockIdx.x + gridDim.x - 1) / gridDim.x : 0;
    turns_ = static_cast<int>(units) * block.slices.total;
  }
  // All threads: the first two, when the barriers stand.
  __device__ void start() const {
    __syncthreads();
    if (threadIdx.x != 0) return;
    fetch(0);
    fetch(1);
  }
  // All threads: the turn's, once it is there; and when they have read it, the one that takes its place.
  __device__ const uint2* wait(int turn) const {
    ptx::wait_for(block_.memory.slice_there(turn), Memory<Own>::phase(turn));
    return block_.memory.slice(turn);
  }
  __device__ void leave(int turn) const {
    __syncthreads();
    if (threadIdx.x == 0) fetch(turn + 2);
  }

 private:
  __device__ void fetch(int turn) const {
    if (turn >= turns_) return;
    const int slice = turn % block_.slices.total;
    const Place at = place_of(block_.group, blockIdx.x + int64_t{turn / block_.slices.total} * gridDim.x, 0);
    const auto bytes = static_cast<uint32_t>(block_.slices.tiles(slice) * 256);
    const auto* from =
        reinterpret_cast<const uint2*>(block_.group.products[at.which].prepared) + block_.slices.column(slice) * 2;
    ptx::arrive_expecting(block_.memory.slice_there(turn), bytes * Own::kColumns8);
    for (int n = 0; n < Own::kColumns8; ++n)
      ptx::copy_bulk(block_.memory.slice(turn) + n * 512, from + n * block_.group.products[0].weights.columns * 2,
                     bytes, block_.memory.slice_there(turn));
  }

  const Block<Own>& block_;
  int turns_;
};

// ---- products of a slice --------------------------------------------------------------------------------------------
// Where a lane finds the columns of a slice. Lanes without a column take the last one's, and nobody keeps their sums.
template <typename Own>
struct SliceColumns {
  const uint2* from = nullptr;  // kWhole: the input; kSlices: the slice
  int step = 0;                 // kWhole: of the slice's first 16 inputs
  int count = 0;                // kWhole and kRows: of columns

  // The second operands for tile `tile` of the piece at `piece`, which is tile `of_slice` of the slice.
  __device__ void read(const uint8_t* piece, int tile, int of_slice, int lane, uint2 (&b)[Own::kColumns8]) const {
    if constexpr (Own::kColumns == Columns::kWhole) {
      const int column = lane / 4 < count ? lane / 4 : count - 1;
      b[0] = from[((step + of_slice) * count + column) * 4 + lane % 4];
    } else if constexpr (Own::kColumns == Columns::kRows) {
      const int row = lane / 4 < count ? lane / 4 : count - 1;
      const uint8_t* own = piece + Own::kColumnsAt + row * Own::kRowPitch + tile * 64 + lane % 4 * 8;
      const auto low = *reinterpret_cast<const float2*>(own), high = *reinterpret_cast<const float2*>(own + 32);
      b[0] = make_uint2(ptx::pack_bf16(low.x, low.y), ptx::pack_bf16(high.x, high.y));
    } else {
      constexpr bool kSlices = Own::kColumns == Columns::kSlices;
      const uint2* own =
          kSlices ? from + of_slice * 32 : reinterpret_cast<const uint2*>(piece + Own::kColumnsAt) + tile * 32;
      constexpr int kTilePitch = (kSlices ? 16 : Own::kTiles) * 32;
#pragma unroll
      for (int n = 0; n < Own::kColumns8; ++n) b[n] = own[n * kTilePitch + lane];
    }
  }
};

// Four tiles of 16 columns, 4 j to 4 j + 3, of a row tile's piece in shared memory.
template <typename Own>
__device__ void take_four(const uint8_t* piece, int j, int lane, Stage<Own::kForm, 4>& four) {
  if constexpr (Own::kBf16) {
#pragma unroll
    for (int i = 0; i < 4; ++i) four.tiles[i] = *reinterpret_cast<const uint4*>(piece + i * 512 + lane * 16);
  } else {
    four.codes[0] = *reinterpret_cast<const uint4*>(piece + j * 512 + lane * 16);
    four.scales[0] = *reinterpret_cast<const uint2*>(piece + Own::kScales + j * 64 + lane / 4 * 8);
  }
}

// Adds to `sums` those four tiles (the slice's from `of_slice` on, of which `count` are there) of all row tiles of a
// warp times the columns, ascending. kFull: all four are there, so that nothing branches between them.
template <typename Own, bool kFull>
__device__ void multiply_four(const uint8_t* piece, int j, int of_slice, int count, const SliceColumns<Own>& columns,
                              int lane, float (&sums)[Own::kRowTiles][Own::kColumns8][4]) {
  Stage<Own::kForm, 4> fours[Own::kRowTiles];
#pragma unroll
  for (int r = 0; r < Own::kRowTiles; ++r) take_four<Own>(piece + r * Own::kPiece, j, lane, fours[r]);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (!kFull && i >= count) break;
    uint2 b[Own::kColumns8];
    columns.read(piece, j * 4 + i, of_slice + i, lane, b);
#pragma unroll
    for (int r = 0; r < Own::kRowTiles; ++r) {
      uint32_t a[4];
      fours[r].operand(i, a);
#pragma unroll
      for (int n = 0; n < Own::kColumns8; ++n) ptx::mma_m16n8k16_bf16(sums[r][n], a, b[n]);
    }
  }
}

// Adds to `sums` a slice's `tiles` tiles of 16 columns, ascending, as they come into a warp's ring. All lanes.
template <typename Own>
__device__ void multiply_slice(Feed<Own>& feed, int tiles, const SliceColumns<Own>& columns, int lane,
                               float (&sums)[Own::kRowTiles][Own::kColumns8][4]) {
  for (int begin = 0; begin < tiles; begin += Own::kTiles) {
    const uint8_t* piece = feed.wait();
    if (tiles - begin >= Own::kTiles) {
#pragma unroll
      for (int j = 0; j < Own::kTiles / 4; ++j)
        multiply_four<Own, true>(piece, j, begin + j * 4, 4, columns, lane, sums);
    } else {
      // Not unrolled: of BF16's pieces this is one step, and a second one takes registers that kWhole has not.
#pragma unroll 1
      for (int j = 0; begin + j * 4 < tiles; ++j)
        multiply_four<Own, false>(piece, j, begin + j * 4, tiles - begin - j * 4, columns, lane, sums);
    }
    feed.refill();
  }
}

}  // namespace verbatim::ops::cuda::product_stream
