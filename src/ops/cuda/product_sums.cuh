// Sums of streamed products (sm90_stream_product.cu): slices to totals, totals of terms to outputs. A lane's sums of a
// row tile are [8 columns][4] as the matrix units leave them: outputs lane / 4 and eight more (from 2 on), columns
// 2 (lane % 4) and the next.
#pragma once

#include "ops/cuda/product_stream.cuh"

namespace verbatim::ops::cuda::product_stream {

// A unit's totals of a warp alone on its row tile, which takes its slices left to right. All lanes.
template <typename Own>
class AloneTotals {
 public:
  // The next slice's sums, or the first's.
  __device__ void add(bool begins, const float (&sums)[Own::kRowTiles][Own::kColumns8][4]) {
#pragma unroll
    for (int n = 0; n < Own::kColumns8; ++n)
#pragma unroll
      for (int j = 0; j < 4; ++j) totals_[n][j] = begins ? sums[0][n][j] : totals_[n][j] + sums[0][n][j];
  }
  // Leaves the outputs: terms of a row left to right, which meet through the warp's place in shared memory.
  __device__ void leave(const Block<Own>& block, const RowsProduct& p, const Place& at, const OwnColumns& own) const {
    const int lane = block.lane;
    if (own.terms == 1) {
#pragma unroll
      for (int n = 0; n < Own::kColumns8; ++n)
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int row = n * 8 + lane % 4 * 2 + j % 2;
          if (at.mine && row < own.rows)
            own.write(p, row, at.tile * kPackedRows + lane / 4 + j / 2 * 8, totals_[n][j] * p.scale);
        }
      return;
    }
    float* to = block.memory.sums(0) + block.warp * Own::kTileFloats;
#pragma unroll
    for (int n = 0; n < Own::kColumns8; ++n)
#pragma unroll
      for (int j = 0; j < 4; ++j)
        to[(lane / 4 + j / 2 * 8) * Own::kColumnFloats + n * 8 + lane % 4 * 2 + j % 2] = totals_[n][j] * p.scale;
    __syncwarp();
    for (int i = lane; i < kPackedRows * own.rows; i += 32) {
      const int row = i / kPackedRows, output = i % kPackedRows;
      const float* from = to + output * Own::kColumnFloats + row;
      float sum = from[0];
      for (int term = 1; term < own.terms; ++term) sum = sum + from[term * own.pitch];
      if (at.mine) own.write(p, row, at.tile * kPackedRows + output, sum);
    }
    __syncwarp();
  }

 private:
  float totals_[Own::kColumns8][4];
};

// Totals of several warps to a row tile. A turn is a slice of each warp: all leave their sums in shared memory, then
// all threads add those of their elements (an output and a column) in the order of slices, and leave the outputs of a
// unit whose last turn it is. One turn later where sums stand twice (kLags), so that no warp waits for the others'
// copies.
template <typename Own>
class SharedTotals {
 public:
  __device__ explicit SharedTotals(const Group& group) : totals_(group.products[0].parts, group.products[0].scale) {}

  // All threads: a warp's sums of turn `turn` of all, which takes the unit's slices from `first` on. Where they are
  // added a turn later, one more call after the last unit adds the last ones and returns false.
  __device__ bool take(const Block<Own>& block, int64_t unit, int first, int turn,
                       const float (&sums)[Own::kRowTiles][Own::kColumns8][4]) {
    const int concurrent = block.concurrent;
    if constexpr (Own::kLags) {
      if (turn > 0)
        add(block, first > 0 ? unit : unit - gridDim.x,
            first > 0 ? first - concurrent : (block.slices.total - 1) / concurrent * concurrent, turn - 1);
      if (unit >= block.group.units) return false;
      leave(block, turn, sums);
      ptx::arrive_warp(block.memory.sums_there(turn), block.lane);
    } else {
      leave(block, turn, sums);
      __syncthreads();
      add(block, unit, first, turn);
      __syncthreads();
    }
    return true;
  }

 private:
  static constexpr int kElements = 2 * Own::kColumns8;  // of a thread, at most

  // A warp's sums to where all threads find them.
  __device__ void leave(const Block<Own>& block, int turn,
                        const float (&sums)[Own::kRowTiles][Own::kColumns8][4]) const {
    const int lane = block.lane;
    float* to = block.memory.sums(turn) + block.warp * Own::kWarpFloats;
#pragma unroll
    for (int r = 0; r < Own::kRowTiles; ++r)
#pragma unroll
      for (int n = 0; n < Own::kColumns8; ++n)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          *reinterpret_cast<float2*>(to + r * Own::kTileFloats + (lane / 4 + half * 8) * Own::kColumnFloats + n * 8 +
                                     lane % 4 * 2) = make_float2(sums[r][n][half * 2], sums[r][n][half * 2 + 1]);
  }

  // All threads: the turn's sums, and the outputs if the unit ends with it.
  __device__ void add(const Block<Own>& block, int64_t unit, int first, int turn) {
    if constexpr (Own::kLags) ptx::wait_for(block.memory.sums_there(turn), Memory<Own>::phase(turn));
    const Place at = place_of(block.group, unit, 0);
    const RowsProduct& p = block.group.products[at.which];
    const OwnColumns own = columns_of(block, p);
    if (first == 0) totals_.begin(p.scale);
    float* sums = block.memory.sums(turn);
    const int concurrent = block.concurrent, elements = block.elements;
    const int left = block.slices.total - first, count = left < concurrent ? left : concurrent;
    const bool ends = left <= concurrent;
#pragma unroll
    for (int j = 0; j < kElements; ++j) {
      const int element = static_cast<int>(threadIdx.x) + j * static_cast<int>(blockDim.x);
      const int column = element % Own::kColumnFloats;
      if (element >= elements || column >= own.all) continue;
      const float* own_sums =
          sums + element / Own::kWarpFloats * concurrent * Own::kWarpFloats + element % Own::kWarpFloats;
      add_slices(block, j, own_sums, first, count);
      if (ends && p.terms == 1) own.write(p, column, output_of(at, element), totals_.value(j));
    }
    if (!ends || p.terms == 1) return;
    leave_terms(block, p, at, own, sums);
  }

  // A thread's element j: `count` slices from `first` on, a warp's each, the first one's sum at `sums`.
  __device__ void add_slices(const Block<Own>& block, int j, const float* sums, int first, int count) {
    if (block.group.products[0].parts == 1) {
      for (int begin = 0; begin < count; begin += 4) {
        float values[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) values[i] = begin + i < count ? sums[(begin + i) * Own::kWarpFloats] : 0.0f;
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (begin + i < count) totals_.add_to_part(j, first + begin + i == 0, values[i]);
      }
    } else {
#pragma unroll 1
      for (int i = 0; i < count; ++i) {
        const float sum[1] = {sums[i * Own::kWarpFloats]};
        totals_.add(j, block.slices, first + i, sum);
      }
    }
  }

  // Leaves outputs of several terms, left to right, which meet where the turn's sums stood. All threads.
  __device__ void leave_terms(const Block<Own>& block, const RowsProduct& p, const Place& at, const OwnColumns& own,
                              float* sums) const {
    const auto thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
    const int elements = block.elements;
    __syncthreads();
#pragma unroll
    for (int j = 0; j < kElements; ++j) {
      const int element = thread + j * threads;
      if (element < elements && element % Own::kColumnFloats < own.all) sums[element] = totals_.value(j);
    }
    __syncthreads();
    for (int element = thread; element < elements; element += threads) {
      const int row = element % Own::kColumnFloats;
      if (row >= own.rows) continue;
      float sum = sums[element];
      for (int term = 1; term < p.terms; ++term) sum = sum + sums[element + term * own.pitch];
      own.write(p, row, output_of(at, element), sum);
    }
  }

  __device__ static int64_t output_of(const Place& at, int element) {
    return (at.first_tile + element / Own::kTileFloats) * kPackedRows + element % Own::kTileFloats / Own::kColumnFloats;
  }

  SliceTotals<kElements, 1> totals_;
};

}  // namespace verbatim::ops::cuda::product_stream
