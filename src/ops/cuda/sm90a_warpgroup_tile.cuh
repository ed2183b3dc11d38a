// Tiles of products of packed weights for many rows on Hopper's matrix units (ptx/wgmma.cuh): 128 outputs, two
// warpgroups of 64, times up to 128 columns, which are rows of prepared activations. Weights stand in packed.cuh's
// order, which is the order of wgmma's first operand in registers; the second operand is read out of shared memory.
//
// A block stays and takes tiles one after another. 128 threads fill a ring of steps of 64 inputs by copies of 16 bytes,
// the rows to where the 128-byte swizzle puts them. (Bulk copies of the weights' pieces of 64 to 2,048 bytes held the
// rest up: 420 and 290 TFLOP/s instead of 565 and 525.) The two warpgroups of sums take a step's weights to registers
// (NVFP4: and unpack them) while the step before is multiplied. What a tile is stands in the ring too, so that those
// who add wait for no descriptions.
//
// Order of sums (ops.h): one chain of 16 instructions a slice of 256 inputs, slices added left to right, as in
// sm80_packed_tile.cuh; mma.sync and wgmma give equal bits. Inputs of a part are a multiple of 64.
//
// A step of 128 x 128 x 64: 2.1 MFLOP, 512 cycles of the matrix units; from the second-level cache 16 KB of rows and 16
// KB of BF16 weights (4.5 KB of NVFP4); out of shared memory 32 KB of rows and the weights once.
#pragma once

#include "ops/cuda/packed.cuh"
#include "ops/cuda/ptx/async_copy.cuh"
#include "ops/cuda/ptx/barrier.cuh"
#include "ops/cuda/ptx/bulk_copy.cuh"
#include "ops/cuda/ptx/wgmma.cuh"
#include "ops/cuda/shapes.h"

namespace verbatim::ops::cuda {

inline constexpr int kGroupOutputs = 128, kGroupColumns = 128, kGroupStep = 64, kGroupRing = 6;
inline constexpr int kAddingThreads = 256, kFillingThreads = 128, kGroupThreads = kAddingThreads + kFillingThreads;
inline constexpr int kStagedColumns = 32, kStagedPitch = 68;

// What those who add must know of a tile.
struct TileOrder {
  WeightForm form = WeightForm::kBf16;
  int steps = 0;    // of 64 inputs; 0: there are no more tiles
  int count = 0;    // columns, at most kGroupColumns
  int outputs = 0;  // from the tile's first on; may be more than kGroupOutputs
  int terms = 1;    // of the columns, whose sums times the scale are added
  float scale[2] = {1.0f, 1.0f};
  void* to = nullptr;  // of column 0 and the first output
  int64_t stride = 0;
};

// A tile as those who fill the ring see it. Its weights are two halves of four row tiles each.
struct FilledTile {
  TileOrder order;
  const uint8_t* data[2];    // of a half's first row tile, from the part's first input on
  const uint8_t* scales[2];  // NVFP4
  int row_tiles[2];          // of the four, those that there are
  int64_t columns = 0;       // of the matrices
  const uint16_t* x = nullptr;
  int64_t x_stride = 0, x_term_stride = 0;
  const int32_t* source = nullptr;  // row of x of each column, or null: columns are rows
};

struct GroupShared {
  struct Step {
    uint16_t x[kGroupColumns][kGroupStep];
    uint8_t weights[kGroupOutputs * kGroupStep * 2];
  } ring[kGroupRing];
  float staged[2][kStagedColumns][kStagedPitch];
  TileOrder orders[kGroupRing];
  uint64_t full[kGroupRing], empty[kGroupRing];
};
inline constexpr int kGroupAlignment = 1024;
static_assert(sizeof(GroupShared) + kGroupAlignment == warpgroup_tile_shared_bytes());

struct RingPlace {
  int slot = 0;
  uint32_t phase = 0;
  __device__ void advance() {
    if (++slot == kGroupRing) slot = 0, phase ^= 1;
  }
};

// A half's weights of a matrix from row tile `tile` on, input `from` on.
__device__ inline void fill_half(FilledTile& t, int half, const Weights& w, int64_t tile, int64_t from) {
  const int64_t there = (w.rows + kPackedRows - 1) / kPackedRows - tile;
  t.row_tiles[half] = static_cast<int>(there < 0 ? 0 : there > 4 ? 4 : there);
  t.data[half] = w.data + (tile * w.columns + from) * (w.form == WeightForm::kBf16 ? 32 : 8);
  t.scales[half] = w.form == WeightForm::kBf16 ? nullptr : w.block_scale + tile * w.columns + from;
}

// ---- those who fill -------------------------------------------------------------------------------------------------
__device__ inline void fill_tile(GroupShared& shared, RingPlace& place, const FilledTile& t) {
  constexpr int kRows = kFillingThreads / 8, kPieces = kGroupColumns / kRows;  // of sixteen bytes, a thread
  const int thread = static_cast<int>(threadIdx.x) - kAddingThreads, piece = thread % 8, row = thread / 8;
  static_assert(kRows % 8 == 0);
  const uint16_t* rows[kPieces];
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    const int column = row + i * kRows;
    rows[i] = nullptr;
    if (column < t.order.count)
      rows[i] = t.x + (t.source == nullptr ? column : t.source[column]) * t.x_stride + piece * 8;
  }
  // A step of a row tile: 2,048 bytes of BF16, a piece for each thread; 512 bytes of codes, for each of 32, and 64 of
  // scales, for each of 4.
  const bool wide = t.order.form == WeightForm::kBf16;
  const int64_t pitch = t.columns * (wide ? 32 : 8);
  const int at = wide ? thread * 16 : thread % 32 * 16;
  const uint8_t* data[2] = {t.data[0] + at, t.data[1] + at};
  const uint8_t* scales = nullptr;
  if (!wide) {
    const int tile = thread / 32;
    for (int half = 0; half < 2; ++half) data[half] = tile < t.row_tiles[half] ? data[half] + tile * pitch : nullptr;
    if (thread < 16 && thread / 4 < t.row_tiles[0])
      scales = t.scales[0] + thread / 4 * t.columns + thread % 4 * 16;
    else if (thread >= 16 && thread < 32 && thread / 4 - 4 < t.row_tiles[1])
      scales = t.scales[1] + (thread / 4 - 4) * t.columns + thread % 4 * 16;
  }
  const int all_steps = t.order.steps * t.order.terms;
  for (int any = 0, step = 0; any < all_steps; ++any) {
    ptx::wait_for(&shared.empty[place.slot], place.phase ^ 1);
    GroupShared::Step& to = shared.ring[place.slot];
    if (wide) {
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int tile = 0; tile < 4; ++tile)
          if (tile < t.row_tiles[half])
            ptx::copy_16_bytes(to.weights + (half * 4 + tile) * 2048 + at, data[half] + tile * pitch + step * 2048);
    } else {
#pragma unroll
      for (int half = 0; half < 2; ++half)
        if (data[half] != nullptr) ptx::copy_16_bytes(to.weights + half * 2048 + thread * 16, data[half] + step * 512);
      if (scales != nullptr) ptx::copy_16_bytes(to.weights + 8 * 512 + thread * 16, scales + step * 64);
    }
#pragma unroll
    for (int i = 0; i < kPieces; ++i)
      if (rows[i] != nullptr)
        ptx::copy_16_bytes(&to.x[row + i * kRows][(piece ^ row % 8) * 8], rows[i] + step * kGroupStep);
    ptx::arrive_after_copies(&shared.full[place.slot]);
    if (thread == 0) {
      if (any == 0) shared.orders[place.slot] = t.order;
      ptx::arrive(&shared.full[place.slot]);
    }
    place.advance();
    if (++step == t.order.steps) {
      step = 0;
#pragma unroll
      for (int i = 0; i < kPieces; ++i)
        if (rows[i] != nullptr) rows[i] += t.x_term_stride;
    }
  }
}

// The last thing in the ring.
__device__ inline void fill_end(GroupShared& shared, RingPlace& place) {
  ptx::wait_for(&shared.empty[place.slot], place.phase ^ 1);
  if (threadIdx.x == kAddingThreads) {
    shared.orders[place.slot] = TileOrder{};
    ptx::arrive(&shared.full[place.slot]);
  }
  ptx::arrive(&shared.full[place.slot]);
}

// ---- those who add --------------------------------------------------------------------------------------------------
// A row tile's 64 inputs of a step.
__device__ inline void take_weights(const uint8_t* weights, int tile, int lane, Stage<WeightForm::kBf16, 4>& to) {
#pragma unroll
  for (int i = 0; i < 4; ++i)
    to.tiles[i] = *reinterpret_cast<const uint4*>(weights + tile * 2048 + i * 512 + lane * 16);
}
__device__ inline void take_weights(const uint8_t* weights, int tile, int lane, Stage<WeightForm::kNvfp4, 4>& to) {
  to.codes[0] = *reinterpret_cast<const uint4*>(weights + tile * 512 + lane * 16);
  to.scales[0] = *reinterpret_cast<const uint2*>(weights + 8 * 512 + tile * 64 + lane / 4 * 8);
}

// totals: this thread's sums of a tile of kN columns, those of wgmma: of rows lane / 4 and + 8 of the warp's sixteen
// outputs two columns for each eight.
template <WeightForm kForm, int kN>
__device__ void add_steps(GroupShared& shared, RingPlace& place, int steps, float (&totals)[kN / 2]) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const auto fetch = [&](uint32_t(&to)[4][4]) {
    ptx::wait_for(&shared.full[place.slot], place.phase);
    // Copies are ordinary writes and wgmma's reads are not. A warp of its own for these fences, or one fence for all
    // the steps that are there, was slower.
    ptx::fence_async();
    Stage<kForm, 4> tiles;
    take_weights(shared.ring[place.slot].weights, warp, lane, tiles);
#pragma unroll
    for (int i = 0; i < 4; ++i) tiles.operand(i, to[i]);
  };
  const auto release = [&](int slot) { ptx::arrive_warp(&shared.empty[slot], lane); };
  float sums[kN / 2] = {};
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) totals[i] = -0.0f;  // -0 + a is a
  uint32_t a[2][4][4];
  fetch(a[0]);
  int before = 0;
  for (int first = 0; first < steps; first += 4) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (first + j >= steps) break;
      const uint64_t b = ptx::rows_of_64(shared.ring[place.slot].x);
      const int slot = place.slot;
      ptx::wgmma_fence();
#pragma unroll
      for (int i = 0; i < 4; ++i) ptx::wgmma(sums, a[j % 2][i], b + 2 * i, j + i);
      ptx::wgmma_commit();
      place.advance();
      ptx::wgmma_wait<1>();
      if (j > 0) release(before);
      if (first + j + 1 < steps) fetch(a[(j + 1) % 2]);
      before = slot;
    }
    ptx::wgmma_wait<0>();
    ptx::hold(sums);
    release(before);
#pragma unroll
    for (int i = 0; i < kN / 2; ++i) totals[i] = totals[i] + sums[i];
  }
}

// Sums of 32 columns from `chunk` * 32 on to `staged`[column][output].
template <int kCount>
__device__ inline void stage_sums(const float (&totals)[kCount], int chunk, float scale,
                                  float (&staged)[kStagedColumns][kStagedPitch]) {
  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
#pragma unroll
  for (int block = 0; block < 4; ++block)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      staged[block * 8 + lane % 4 * 2 + i % 2][warp * 16 + lane / 4 + i / 2 * 8] =
          totals[(chunk * 4 + block) * 4 + i] * scale;
}

// Waits for one's warpgroup of the two that add.
__device__ inline void synchronise_warpgroup() {
  if (threadIdx.x < 128)
    ptx::synchronise_some<1, 128>();
  else
    ptx::synchronise_some<2, 128>();
}

// Sums to rows of floats, whose column 0 and first output is order.to; the halves are outputs in a row.
template <int kN>
__device__ void store_sums(GroupShared& shared, const TileOrder& order, const float (&totals)[kN / 2]) {
  const int half = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  float* to = static_cast<float*>(order.to) + half * 64;
  const int left = order.outputs - half * 64;
  const bool whole = left >= 64 && order.stride % 4 == 0 && reinterpret_cast<uintptr_t>(to) % 16 == 0;
#pragma unroll
  for (int chunk = 0; chunk < kN / kStagedColumns; ++chunk) {
    synchronise_warpgroup();
    stage_sums(totals, chunk, half == 0 ? order.scale[0] : order.scale[1], shared.staged[half]);
    synchronise_warpgroup();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int column = warp * 8 + i * 2 + lane / 16, output = lane % 16 * 4;
      if (chunk * kStagedColumns + column >= order.count) continue;
      const float4 four = *reinterpret_cast<const float4*>(&shared.staged[half][column][output]);
      float* at = to + (chunk * kStagedColumns + column) * order.stride + output;
      if (whole) {
        *reinterpret_cast<float4*>(at) = four;
      } else {
        if (output < left) at[0] = four.x;
        if (output + 1 < left) at[1] = four.y;
        if (output + 2 < left) at[2] = four.z;
        if (output + 3 < left) at[3] = four.w;
      }
    }
  }
}

// ---- a block --------------------------------------------------------------------------------------------------------
// Tiles blockIdx.x, + gridDim.x, ... below `tiles`. locate(index, FilledTile&) says what a tile is, or false: nothing.
// finish.operator()<kN>(shared, order, totals) is called by those who add. kAddsTerms: columns are at most 64.
template <bool kAddsTerms, class Locate, class Finish>
__device__ void run_tiles(std::byte* memory, uint32_t tiles, const Locate& locate, const Finish& finish) {
  auto& shared = *reinterpret_cast<GroupShared*>(
      memory + (kGroupAlignment - ptx::shared_address(memory) % kGroupAlignment) % kGroupAlignment);
  if (threadIdx.x == 0) {
    for (int i = 0; i < kGroupRing; ++i) {
      ptx::make_barrier(&shared.full[i], kFillingThreads + 1);
      ptx::make_barrier(&shared.empty[i], kAddingThreads / 32 * ptx::kWarpArrivals);
    }
    ptx::fence_barriers();
  }
  __syncthreads();
  RingPlace place;
  if (threadIdx.x >= kAddingThreads) {
    ptx::give_registers<88>();
    for (uint32_t index = blockIdx.x; index < tiles; index += gridDim.x) {
      FilledTile tile;
      if (locate(index, tile)) fill_tile(shared, place, tile);
    }
    fill_end(shared, place);
  } else {
    ptx::take_registers<208>();
    while (true) {
      ptx::wait_for(&shared.full[place.slot], place.phase);
      const TileOrder order = shared.orders[place.slot];
      if (order.steps == 0) break;
      const auto add = [&]<WeightForm kForm, int kN>() {
        float totals[kN / 2];
        if constexpr (kAddsTerms) {
          const float scale = threadIdx.x < 128 ? order.scale[0] : order.scale[1];
          float sums[kN / 2];
          for (int term = 0; term < order.terms; ++term) {
            add_steps<kForm, kN>(shared, place, order.steps, totals);
#pragma unroll
            for (int i = 0; i < kN / 2; ++i) sums[i] = term == 0 ? totals[i] * scale : sums[i] + totals[i] * scale;
          }
          TileOrder scaled = order;
          scaled.scale[0] = scaled.scale[1] = 1.0f;
          finish.template operator()<kN>(shared, scaled, sums);
        } else {
          add_steps<kForm, kN>(shared, place, order.steps, totals);
          finish.template operator()<kN>(shared, order, totals);
        }
      };
      const auto add_columns = [&]<WeightForm kForm>() {
        if (order.count <= 32) return add.template operator()<kForm, 32>();
        if (kAddsTerms || order.count <= 64) return add.template operator()<kForm, 64>();
        if constexpr (!kAddsTerms) {
          if (order.count <= 96) return add.template operator()<kForm, 96>();
          return add.template operator()<kForm, 128>();
        }
      };
      if (order.form == WeightForm::kBf16)
        add_columns.template operator()<WeightForm::kBf16>();
      else
        add_columns.template operator()<WeightForm::kNvfp4>();
    }
  }
}

}  // namespace verbatim::ops::cuda
