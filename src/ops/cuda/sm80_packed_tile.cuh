// A tile of a product of packed weights for many rows: 128 outputs times kN columns, which are rows of prepared
// activations; mma.sync m16n8k16 from sm_80 on. 256 threads, four warps across outputs and two across columns. Weights
// go from memory straight to registers, 64 columns of a row tile ahead; activations through a ring in shared memory,
// kTileRing * kN * 144 bytes. The order of sums is that of sm80_bf16_tile.cuh, so the bits are.
#pragma once

#include "ops/cuda/packed.cuh"
#include "ops/cuda/ptx/async_copy.cuh"
#include "ops/cuda/shapes.h"
#include "ops/cuda/sm80_bf16_tile.cuh"

namespace verbatim::ops::cuda {

inline constexpr int kWideOutputs = 128, kWideThreads = 256, kTileRing = 3;

template <int kN>
struct WideShared {
  uint16_t x[kTileRing][kN][kTilePitch];
};
static_assert(sizeof(WideShared<128>) == packed_tile_shared_bytes(128));

// Sums of outputs first_output .. + 127 and columns first_column .. + kN - 1 of one part, times `scale`, to c.raw's
// [parts][terms][rows][outputs].
template <WeightForm kForm, int kN>
__device__ void packed_tile(const Weights& w, const TileColumns& c, int64_t first_output, int64_t first_column,
                            int parts, int part, float scale, WideShared<kN>& shared) {
  constexpr int kTiles = kN / 16, kPieces = kN * 8 / kWideThreads;  // of eight columns, a warp; of 16 bytes, a thread
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const auto length = static_cast<int>(w.columns / parts);
  const int64_t from = static_cast<int64_t>(part) * length, columns = c.count * c.terms;
  const int steps = (length + kTileStep - 1) / kTileStep;

  const uint16_t* x[kPieces];
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    const int64_t column = first_column + (i * kWideThreads + thread) / 8;
    x[i] = nullptr;
    if (column < columns) {
      const int64_t term = column / c.count, place = c.first + column % c.count;
      x[i] = c.x + (term * c.x_term_rows + (c.source == nullptr ? place : c.source[place])) * c.x_stride + from +
             thread % 8 * 8;
    }
  }
  const auto copy = [&](int step) {
    if (step < steps && step * kTileStep + thread % 8 * 8 < length) {
#pragma unroll
      for (int i = 0; i < kPieces; ++i)
        if (x[i] != nullptr)
          ptx::copy_16_bytes(&shared.x[step % kTileRing][(i * kWideThreads + thread) / 8][thread % 8 * 8],
                             x[i] + step * kTileStep);
    }
    ptx::close_copy_group();
  };
  const int64_t tile = first_output / kPackedRows + warp % 4 * 2, all_tiles = (w.rows + kPackedRows - 1) / kPackedRows;
  Stage<kForm, 4> stages[2][2];
  const auto load = [&](int to, int step) {
    const int left = (length - step * kTileStep) / 16;
    if (left <= 0) return;
#pragma unroll
    for (int r = 0; r < 2; ++r)
      if (tile + r < all_tiles) stages[to][r].load(w, tile + r, from + step * kTileStep, left, lane);
  };

  float totals[2][kTiles][4], sums[2][kTiles][4];
#pragma unroll
  for (int r = 0; r < 2; ++r)
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
      for (int j = 0; j < 4; ++j) totals[r][i][j] = -0.0f, sums[r][i][j] = 0.0f;  // -0 + a is a
  load(0, 0);
#pragma unroll
  for (int step = 0; step < kTileRing - 1; ++step) copy(step);
  for (int first = 0; first < steps; first += 2) {
#pragma unroll
    for (int parity = 0; parity < 2; ++parity) {
      const int step = first + parity;
      if (step >= steps) break;
      ptx::wait_for_copies<kTileRing - 2>();
      __syncthreads();
      copy(step + kTileRing - 1);
      load(parity ^ 1, step + 1);
      const uint16_t(&here)[kN][kTilePitch] = shared.x[step % kTileRing];
      const int tiles = (length - step * kTileStep) / 16;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (i >= tiles) break;
        uint32_t a[2][4];
        stages[parity][0].operand(i, a[0]);
        stages[parity][1].operand(i, a[1]);
#pragma unroll
        for (int n = 0; n < kTiles; n += 2) {
          uint32_t b[4];
          ptx::ldmatrix_x4(b, &here[warp / 4 * (kN / 2) + n * 8 + lane / 16 * 8 + lane % 8][i * 16 + lane / 8 % 2 * 8]);
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            ptx::mma_m16n8k16_bf16(sums[r][n], a[r], make_uint2(b[0], b[1]));
            ptx::mma_m16n8k16_bf16(sums[r][n + 1], a[r], make_uint2(b[2], b[3]));
          }
        }
      }
      if (step % 4 == 3 || step + 1 == steps) {
#pragma unroll
        for (int r = 0; r < 2; ++r)
#pragma unroll
          for (int i = 0; i < kTiles; ++i)
#pragma unroll
            for (int j = 0; j < 4; ++j) {
              totals[r][i][j] = totals[r][i][j] + sums[r][i][j];
              sums[r][i][j] = 0.0f;
            }
      }
    }
  }
  ptx::wait_for_copies<0>();
  float* raw = c.raw + part * c.terms * c.raw_term_rows * c.raw_stride;
#pragma unroll
  for (int i = 0; i < kTiles; ++i)
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int64_t column = first_column + warp / 4 * (kN / 2) + i * 8 + lane % 4 * 2 + j;
      if (column >= columns) continue;
      const int64_t term = column / c.count, place = c.first + column % c.count;
      float* to = raw + (term * c.raw_term_rows + place) * c.raw_stride;
#pragma unroll
      for (int r = 0; r < 2; ++r)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int64_t output = (tile + r) * kPackedRows + lane / 4 + half * 8;
          if (output < w.rows) to[output] = totals[r][i][half * 2 + j] * scale;
        }
    }
}

}  // namespace verbatim::ops::cuda
