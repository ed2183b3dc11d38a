// Products by fused multiply-adds in float32, in the CPU backend's order and with its bits: weights of float32, the
// maps of hyper-connections, and the two products with kv_b around sparse attention.
#include "ops/cuda/kernels.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/ptx/dependency.cuh"
#include "ops/cuda/sums.cuh"
#include "ops/cuda/weights.cuh"

namespace verbatim::ops::cuda {

namespace {

constexpr int kThreads = 256, kOutputs = kThreads / 16, kRows = 4;

// A block takes kOutputs outputs, sixteen threads each, and kRows rows.
template <WeightForm kForm>
__device__ void fma_tile(const FmaProduct& p, int64_t batch, int64_t first_output, int64_t first_row) {
  const int lane = threadIdx.x % 16;
  const int64_t output = first_output + threadIdx.x / 16;
  const int64_t weight_row = batch * p.batch_rows + (output < p.outputs ? output : p.outputs - 1);
  const int64_t length = p.weights.columns / p.parts;
  const float* x[kRows];
  for (int r = 0; r < kRows; ++r) {
    const int64_t row = first_row + r < p.rows ? first_row + r : p.rows - 1;
    x[r] = p.x + batch * p.batch_x + row * p.x_stride;
  }
  // The tree over parts as a stack of finished subtrees; parts is a power of two or not, at most 2^16.
  float stack[16][kRows];
  int depth = 0;
  for (int part = 0; part < p.parts; ++part) {
    float sums[kRows] = {};
    const int64_t from = part * length;
    for (int64_t begin = from; begin < from + length; begin += kSumSlice) {
      const int64_t end = begin + kSumSlice < from + length ? begin + kSumSlice : from + length;
      float lanes[kRows] = {};
      if (end - begin == kSumSlice && kForm != WeightForm::kNvfp4) {
        // A whole slice: all its weights are asked for before the first is used.
        float weights[kSumSlice / 16];
#pragma unroll
        for (int i = 0; i < kSumSlice / 16; ++i)
          weights[i] = weight_value<kForm>(p.weights, weight_row, begin + lane + i * 16);
#pragma unroll
        for (int i = 0; i < kSumSlice / 16; ++i)
#pragma unroll
          for (int r = 0; r < kRows; ++r) lanes[r] = fmaf(weights[i], x[r][begin + lane + i * 16], lanes[r]);
      } else {
        for (int64_t k = begin + lane; k < end; k += 16) {
          const float weight = weight_value<kForm>(p.weights, weight_row, k);
          for (int r = 0; r < kRows; ++r) lanes[r] = fmaf(weight, x[r][k], lanes[r]);
        }
      }
      for (int r = 0; r < kRows; ++r) {
        const float slice = lane_tree(lanes[r]);
        sums[r] = begin == from ? slice : sums[r] + slice;
      }
    }
    for (int r = 0; r < kRows; ++r) stack[depth][r] = sums[r] * p.scale;
    ++depth;
    for (int done = part + 1; done % 2 == 0; done /= 2) {
      --depth;
      for (int r = 0; r < kRows; ++r) stack[depth - 1][r] = stack[depth - 1][r] + stack[depth][r];
    }
  }
  // Parts left over where their number is no power of two: what add_tree gives.
  for (; depth > 1; --depth)
    for (int r = 0; r < kRows; ++r) stack[depth - 2][r] = stack[depth - 2][r] + stack[depth - 1][r];
  if (lane != 0 || output >= p.outputs) return;
  for (int r = 0; r < kRows && first_row + r < p.rows; ++r)
    p.y[batch * p.batch_y + (first_row + r) * p.y_stride + output] = stack[0][r];
}

__global__ void fma_kernel(FmaProduct p, int64_t output_tiles, int64_t row_tiles) {
  ptx::let_next_start();
  ptx::wait_for_previous();
  int64_t tile = blockIdx.x;
  const int64_t output = tile % output_tiles * kOutputs;
  tile /= output_tiles;
  const int64_t row = tile % row_tiles * kRows, batch = tile / row_tiles;
  with_form(p.weights.form, [&]<WeightForm kForm>() { fma_tile<kForm>(p, batch, output, row); });
}

constexpr int kColumnThreads = 128, kColumnRows = 8;

// A thread owns a column for kColumnRows rows of q.
template <WeightForm kForm>
__device__ void column_tile(const Weights& kv_b, int64_t heads, int64_t head_rows, int64_t key_width, const float* q,
                            int64_t rows, float scale, float* y, int64_t head, int64_t column, int64_t first_row) {
  if (column >= kv_b.columns) return;
  float total[kColumnRows] = {};
  const float* x[kColumnRows];
  for (int r = 0; r < kColumnRows; ++r) {
    const int64_t row = first_row + r < rows ? first_row + r : rows - 1;
    x[r] = q + (row * heads + head) * key_width;
  }
  for (int64_t begin = 0; begin < key_width; begin += kSumSlice) {
    const int64_t end = begin + kSumSlice < key_width ? begin + kSumSlice : key_width;
    float sums[kColumnRows] = {};
    for (int64_t k = begin; k < end; ++k) {
      const float weight = weight_value<kForm>(kv_b, head * head_rows + k, column);
      for (int r = 0; r < kColumnRows; ++r) sums[r] = fmaf(x[r][k], weight, sums[r]);
    }
    for (int r = 0; r < kColumnRows; ++r) total[r] = begin == 0 ? sums[r] : total[r] + sums[r];
  }
  for (int r = 0; r < kColumnRows && first_row + r < rows; ++r)
    y[((first_row + r) * heads + head) * kv_b.columns + column] = total[r] * scale;
}

__global__ void column_kernel(Weights kv_b, int64_t heads, int64_t head_rows, int64_t key_width, const float* q,
                              int64_t rows, float scale, float* y, int64_t column_tiles) {
  ptx::let_next_start();
  ptx::wait_for_previous();
  int64_t tile = blockIdx.x;
  const int64_t column = tile % column_tiles * kColumnThreads + threadIdx.x;
  tile /= column_tiles;
  const int64_t head = tile % heads, row = tile / heads * kColumnRows;
  with_form(kv_b.form, [&]<WeightForm kForm>() {
    column_tile<kForm>(kv_b, heads, head_rows, key_width, q, rows, scale, y, head, column, row);
  });
}

// The same for plain BF16: a thread owns two columns, and asks for 32 rows of them before it uses the first.
template <int kRowsHere>
__global__ void __launch_bounds__(kColumnThreads)
    bf16_column_kernel(Weights kv_b, int64_t heads, int64_t head_rows, int64_t key_width, const float* q, int64_t rows,
                       float scale, float* y, int64_t column_tiles) {
  constexpr int kAhead = 32;
  ptx::let_next_start();
  int64_t tile = blockIdx.x;
  const int64_t column = (tile % column_tiles * kColumnThreads + threadIdx.x) * 2;
  tile /= column_tiles;
  const int64_t head = tile % heads, first_row = tile / heads * kRowsHere;
  const bool mine = column < kv_b.columns;
  const uint8_t* from = kv_b.data + head * head_rows * kv_b.row_bytes + 2 * column;
  uint32_t pairs[kAhead];
  const auto load = [&](int64_t begin) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
      pairs[i] = mine && begin + i < key_width
                     ? __ldcs(reinterpret_cast<const uint32_t*>(from + (begin + i) * kv_b.row_bytes))
                     : 0u;
  };
  load(0);
  ptx::wait_for_previous();
  const float* x[kRowsHere];
#pragma unroll
  for (int r = 0; r < kRowsHere; ++r)
    x[r] = q + ((first_row + r < rows ? first_row + r : rows - 1) * heads + head) * key_width;
  float2 total[kRowsHere] = {}, sums[kRowsHere] = {};
  for (int64_t begin = 0; begin < key_width; begin += kAhead) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (begin + i >= key_width) break;
      const float low = bf16_value(pairs[i] & 0xffff), high = __uint_as_float(pairs[i] & 0xffff0000u);
#pragma unroll
      for (int r = 0; r < kRowsHere; ++r) {
        const float value = x[r][begin + i];
        sums[r].x = fmaf(value, low, sums[r].x);
        sums[r].y = fmaf(value, high, sums[r].y);
      }
    }
    const int64_t end = begin + kAhead;
    if (end < key_width) load(end);
    if (end % kSumSlice != 0 && end < key_width) continue;
#pragma unroll
    for (int r = 0; r < kRowsHere; ++r) {
      const bool first = end <= kSumSlice;
      total[r].x = first ? sums[r].x : total[r].x + sums[r].x;
      total[r].y = first ? sums[r].y : total[r].y + sums[r].y;
      sums[r] = make_float2(0.0f, 0.0f);
    }
  }
  if (!mine) return;
#pragma unroll
  for (int r = 0; r < kRowsHere; ++r)
    if (first_row + r < rows)
      *reinterpret_cast<float2*>(y + ((first_row + r) * heads + head) * kv_b.columns + column) =
          make_float2(total[r].x * scale, total[r].y * scale);
}

int64_t tiles(int64_t count, int64_t size) { return (count + size - 1) / size; }

template <int kRowsHere>
cudaError_t launch_bf16_columns(cudaStream_t stream, const Weights& kv_b, int64_t heads, int64_t head_rows,
                                int64_t key_width, const float* q, int64_t rows, float scale, float* y) {
  const int64_t column_tiles = tiles(kv_b.columns, 2 * kColumnThreads);
  return launch(bf16_column_kernel<kRowsHere>, static_cast<unsigned>(column_tiles * heads * tiles(rows, kRowsHere)),
                kColumnThreads, 0, stream, kv_b, heads, head_rows, key_width, q, rows, scale, y, column_tiles);
}

}  // namespace

cudaError_t fma_product(cudaStream_t stream, const FmaProduct& p) {
  if (p.rows == 0 || p.outputs == 0) return cudaSuccess;
  const int64_t output_tiles = tiles(p.outputs, kOutputs), row_tiles = tiles(p.rows, kRows);
  return launch(fma_kernel, static_cast<unsigned>(output_tiles * row_tiles * p.batches), kThreads, 0, stream, p,
                output_tiles, row_tiles);
}

cudaError_t column_product(cudaStream_t stream, const Weights& kv_b, int64_t heads, int64_t head_rows,
                           int64_t key_width, const float* q, int64_t rows, float scale, float* y) {
  if (rows == 0 || heads == 0) return cudaSuccess;
  if (kv_b.form == WeightForm::kBf16 && !kv_b.packed && kv_b.columns % 2 == 0 &&
      reinterpret_cast<uintptr_t>(kv_b.data) % 4 == 0 && kv_b.row_bytes % 4 == 0 &&
      reinterpret_cast<uintptr_t>(y) % 8 == 0)
    return rows == 1 ? launch_bf16_columns<1>(stream, kv_b, heads, head_rows, key_width, q, rows, scale, y)
                     : launch_bf16_columns<4>(stream, kv_b, heads, head_rows, key_width, q, rows, scale, y);
  const int64_t column_tiles = tiles(kv_b.columns, kColumnThreads);
  return launch(column_kernel, static_cast<unsigned>(column_tiles * heads * tiles(rows, kColumnRows)), kColumnThreads,
                0, stream, kv_b, heads, head_rows, key_width, q, rows, scale, y, column_tiles);
}

}  // namespace verbatim::ops::cuda
