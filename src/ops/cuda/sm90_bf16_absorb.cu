// The products with kv_b around sparse attention on the matrix units (mma.sync), weights in plain BF16 as the 16-row
// operand. A block takes 128 columns (queries) or 64 rows (values) of a head's part of kv_b, which it reads once, for
// tiles of rows one after the other; slices of 256 are one accumulation chain each, as ops.h orders. Bytes: 8.4 MB of
// kv_b a product at the released shape, once for all rows of a step up to 32; x 4 times from the second-level cache.
// Operations: 2 * heads * inner * outputs a row.
#include "ops/cuda/attention.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/ptx/async_copy.cuh"
#include "ops/cuda/ptx/dependency.cuh"
#include "ops/cuda/ptx/mma.cuh"
#include "ops/cuda/shapes.h"
#include "ops/cuda/swizzle.cuh"

namespace verbatim::ops::cuda {

namespace {

constexpr int kThreads = 256, kSlice = 256;
constexpr int kOutputColumns = 128;  // of a block of queries
constexpr int kOutputRows = 64;      // of a block of values
constexpr int kRowTilesABlock = 16;

// Rows k0 .. k0 + steps * 16 - 1, pieces of sixteen bytes from `from` on.
__device__ void copy_rows(uint8_t* to, int row_bytes, const uint8_t* from, int64_t from_stride, int rows, int valid,
                          int pieces) {
  for (int i = threadIdx.x; i < rows * pieces; i += kThreads) {
    const int row = i / pieces, piece = i % pieces;
    ptx::copy_16_bytes(swizzled(to, row, piece, row_bytes),
                       from + (row < valid ? row : valid - 1) * from_stride + piece * 16);
  }
  ptx::close_copy_group();
}

// sums += weights x of the k steps [begin, end): a(step) loads the sixteen outputs' operand, x stands in swizzled rows.
template <int kTiles, class A>
__device__ void multiply(float (&sums)[kTiles][4], const uint8_t* x, int row_bytes, int begin, int end, const A& a_at) {
  const int lane = threadIdx.x % 32, flip = lane % 8;
#pragma unroll 4
  for (int step = begin; step < end; ++step) {
    uint32_t a[4];
    a_at(a, step);
    if constexpr (kTiles == 1) {
      uint32_t b[2];
      ptx::ldmatrix_x2(b, x + lane % 8 * row_bytes + (((2 * step + lane / 8 % 2) ^ flip) << 4));
      ptx::mma_m16n8k16_bf16(sums[0], a, b);
    } else {
#pragma unroll
      for (int t = 0; t < kTiles; t += 2) {
        uint32_t b[4];
        ptx::ldmatrix_x4(
            b, x + (t * 8 + lane % 8 + lane / 16 * 8) * row_bytes + (((2 * step + lane / 8 % 2) ^ flip) << 4));
        ptx::mma_m16n8k16_bf16(sums[t], a, make_uint2(b[0], b[1]));
        ptx::mma_m16n8k16_bf16(sums[t + 1], a, make_uint2(b[2], b[3]));
      }
    }
  }
}

// y[row, head, output] of a warp's sixteen outputs.
template <int kTiles>
__device__ void store(const AbsorbProduct& p, const float (&sums)[kTiles][4], int64_t first_row, int64_t head,
                      int64_t first_output) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int t = 0; t < kTiles; ++t)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t row = first_row + t * 8 + lane % 4 * 2 + i % 2, output = first_output + lane / 4 + i / 2 * 8;
      if (row < p.rows && output < p.outputs) p.y[(row * p.heads + head) * p.outputs + output] = sums[t][i];
    }
}

// kTiles tiles of eight rows.
template <int kTiles>
__global__ void __launch_bounds__(kThreads, 2) queries_kernel(const __grid_constant__ AbsorbProduct p) {
  extern __shared__ __align__(128) uint8_t memory[];
  constexpr int kRows = 8 * kTiles, kWeightBytes = kOutputColumns * 2;
  uint8_t* x = memory + kSlice * kWeightBytes;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t chunks = (p.outputs + kOutputColumns - 1) / kOutputColumns;
  const int64_t head = blockIdx.x / chunks, first_output = blockIdx.x % chunks * kOutputColumns;
  const auto pieces =
      static_cast<int>((p.outputs - first_output < kOutputColumns ? p.outputs - first_output : kOutputColumns) / 8);
  const uint8_t* weights = p.kv_b.data + (head * p.head_rows + p.first_row) * p.kv_b.row_bytes + first_output * 2;
  const auto inner = static_cast<int>(p.inner);
  const auto load = [&](int from) {
    const int left = inner - from, valid = left < kSlice ? left : kSlice;
    copy_rows(memory, kWeightBytes, weights + from * p.kv_b.row_bytes, p.kv_b.row_bytes, (valid + 15) / 16 * 16, valid,
              pieces);
  };
  ptx::let_next_start();
  load(0);
  ptx::wait_for_previous();
  const auto piece_of_x = [&](int row, int piece) { return swizzled(x, row, piece, kSlice * 2); };
  const bool keeps = inner <= kSlice;
  const int64_t tiles = (p.rows + kRows - 1) / kRows;
  for (int64_t tile = blockIdx.y; tile < tiles; tile += gridDim.y) {
    const int64_t first_row = tile * kRows;
    float total[kTiles][4];
    for (int from = 0; from < inner; from += kSlice) {
      const int length = inner - from < kSlice ? inner - from : kSlice;
      if (from > 0 || tile != blockIdx.y) {
        __syncthreads();
        if (!keeps) load(from);
      }
      round_rows<kThreads / 32>(piece_of_x, kRows, static_cast<int>(p.rows - first_row), length,
                                [&](int row) { return p.x + ((first_row + row) * p.heads + head) * p.inner + from; });
      ptx::wait_for_copies<0>();
      __syncthreads();
      float sums[kTiles][4] = {};
      const uint8_t* a_row = memory + (lane % 8 + lane / 16 * 8) * kWeightBytes;
      const int piece = warp * 2 + lane / 8 % 2, flipped = (piece ^ (lane % 8)) << 4;
      if (warp * 2 < pieces)
        multiply<kTiles>(sums, x, kSlice * 2, 0, length / 16, [&](uint32_t(&a)[4], int step) {
          ptx::ldmatrix_x4_transposed(a, a_row + step * 16 * kWeightBytes + flipped);
        });
#pragma unroll
      for (int t = 0; t < kTiles; ++t)
#pragma unroll
        for (int i = 0; i < 4; ++i) total[t][i] = from == 0 ? sums[t][i] : total[t][i] + sums[t][i];
    }
    if (warp * 2 < pieces) store<kTiles>(p, total, first_row, head, first_output + warp * 16);
  }
}

template <int kTiles>
__global__ void __launch_bounds__(kThreads, 2) values_kernel(const __grid_constant__ AbsorbProduct p) {
  extern __shared__ __align__(128) uint8_t memory[];
  constexpr int kRows = 8 * kTiles, kBoth = 2 * kSlice, kRowBytes = kBoth * 2;
  uint8_t* x = memory + kOutputRows * kRowBytes;
  auto* second = reinterpret_cast<float*>(x + kRows * kRowBytes);  // [4 warps][kTiles][32 lanes][4]
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, slice = warp / 4;
  const int64_t chunks = (p.outputs + kOutputRows - 1) / kOutputRows;
  const int64_t head = blockIdx.x / chunks, first_output = blockIdx.x % chunks * kOutputRows;
  const auto outputs =
      static_cast<int>(p.outputs - first_output < kOutputRows ? p.outputs - first_output : kOutputRows);
  const uint8_t* weights = p.kv_b.data + (head * p.head_rows + p.first_row + first_output) * p.kv_b.row_bytes;
  const auto inner = static_cast<int>(p.inner);
  const auto load = [&](int from) {
    const int left = inner - from;
    copy_rows(memory, kRowBytes, weights + from * 2, p.kv_b.row_bytes, (outputs + 15) / 16 * 16, outputs,
              (left < kBoth ? left : kBoth) / 8);
  };
  ptx::let_next_start();
  load(0);
  ptx::wait_for_previous();
  const auto piece_of_x = [&](int row, int piece) { return swizzled(x, row, piece, kRowBytes); };
  const bool keeps = inner <= kBoth;
  const int64_t tiles = (p.rows + kRows - 1) / kRows;
  const uint8_t* a_row = memory + (warp % 4 * 16 + lane % 16) * kRowBytes;
  for (int64_t tile = blockIdx.y; tile < tiles; tile += gridDim.y) {
    const int64_t first_row = tile * kRows;
    float total[kTiles][4];
    for (int from = 0; from < inner; from += kBoth) {
      const int length = inner - from < kBoth ? inner - from : kBoth;
      if (from > 0 || tile != blockIdx.y) {
        __syncthreads();
        if (!keeps) load(from);
      }
      round_rows<kThreads / 32>(piece_of_x, kRows, static_cast<int>(p.rows - first_row), length,
                                [&](int row) { return p.x + ((first_row + row) * p.heads + head) * p.inner + from; });
      ptx::wait_for_copies<0>();
      __syncthreads();
      // Warps 0 to 3 take the first slice, 4 to 7 the second.
      float sums[kTiles][4] = {};
      const int end = (length < (slice + 1) * kSlice ? length : (slice + 1) * kSlice) / 16;
      if (warp % 4 * 16 < outputs)
        multiply<kTiles>(sums, x, kRowBytes, slice * (kSlice / 16), end, [&](uint32_t(&a)[4], int step) {
          ptx::ldmatrix_x4(a, a_row + (((2 * step + lane / 16) ^ (lane % 8)) << 4));
        });
      auto* to = reinterpret_cast<float4*>(second) + warp % 4 * kTiles * 32 + lane;
      if (slice == 1) {
#pragma unroll
        for (int t = 0; t < kTiles; ++t) to[t * 32] = make_float4(sums[t][0], sums[t][1], sums[t][2], sums[t][3]);
      }
      __syncthreads();
      if (slice == 0) {
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          const float4 other = to[t * 32];
          const float others[4] = {other.x, other.y, other.z, other.w};
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            total[t][i] = from == 0 ? sums[t][i] : total[t][i] + sums[t][i];
            if (length > kSlice) total[t][i] = total[t][i] + others[i];
          }
        }
      }
    }
    if (slice == 0 && warp % 4 * 16 < outputs) store<kTiles>(p, total, first_row, head, first_output + warp % 4 * 16);
  }
}

// Tiles of eight rows a block takes at a time, and blocks that share a part of kv_b.
int row_tiles(int64_t rows, int64_t shared_bytes) {
  if (rows <= 8) return 1;
  return rows <= 16 || shared_bytes < absorb_shared_bytes(4) ? 2 : 4;
}

dim3 grid_of(const AbsorbProduct& p, int64_t chunks, int tiles) {
  const int64_t all = (p.rows + 8 * tiles - 1) / (8 * tiles);
  return {static_cast<unsigned>(p.heads * chunks),
          static_cast<unsigned>((all + kRowTilesABlock - 1) / kRowTilesABlock)};
}

template <class Kernel>
cudaError_t launch_absorb(cudaStream_t stream, Kernel* one, Kernel* two, Kernel* four, const AbsorbProduct& p,
                          int64_t chunks, int64_t shared_bytes) {
  if (p.rows == 0 || p.heads == 0) return cudaSuccess;
  const int tiles = row_tiles(p.rows, shared_bytes);
  return launch(tiles == 1   ? one
                : tiles == 2 ? two
                             : four,
                grid_of(p, chunks, tiles), kThreads, static_cast<size_t>(absorb_shared_bytes(tiles)), stream, p);
}

}  // namespace

bool absorbs_in_tiles(const AbsorbProduct& p) {
  return p.kv_b.form == WeightForm::kBf16 && !p.kv_b.packed && p.inner % 16 == 0 && p.outputs % 16 == 0 &&
         reinterpret_cast<uintptr_t>(p.kv_b.data) % 16 == 0 && p.kv_b.row_bytes % 16 == 0;
}

cudaError_t absorb_queries_in_tiles(cudaStream_t stream, const AbsorbProduct& p, int64_t shared_bytes) {
  return launch_absorb(stream, queries_kernel<1>, queries_kernel<2>, queries_kernel<4>, p,
                       (p.outputs + kOutputColumns - 1) / kOutputColumns, shared_bytes);
}

cudaError_t absorb_values_in_tiles(cudaStream_t stream, const AbsorbProduct& p, int64_t shared_bytes) {
  return launch_absorb(stream, values_kernel<1>, values_kernel<2>, values_kernel<4>, p,
                       (p.outputs + kOutputRows - 1) / kOutputRows, shared_bytes);
}

}  // namespace verbatim::ops::cuda
