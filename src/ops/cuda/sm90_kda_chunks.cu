// Chunks of a head in order: a block takes 32 value columns of a head, whose S stays in shared memory. What a chunk
// needs comes by bulk copies, one chunk ahead. A chunk: products of faded keys and queries with S (a thread two rows of
// each and two columns), forward substitution (a warp, a thread a column), then S's next and the outputs, which go to
// `out` before norm and gate. Shared memory: 79 KB. Bytes a chunk and head: 4 * 27 KB of operands, 8 KB of values, 8 KB
// out. Operations: 0.82 million multiply-adds.
#include "ops/cuda/fade.cuh"
#include "ops/cuda/kda_chunks.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/ptx/bulk_copy.cuh"
#include "ops/cuda/ptx/dependency.cuh"
#include "ops/cuda/shapes.h"

namespace verbatim::ops::cuda {

namespace {

constexpr int kThreads = 64, kRows = kKdaRows, kColumns = kKdaColumns, kWidth = kKdaWidth;
// Rows of S and of products, so that the four rows of one thread and those of the next stand in other banks.
constexpr int kPitch = kColumns + 4;

struct Shared {
  KdaOperands operands[2];
  float values[2][kRows][kColumns];
  float state[kWidth][kPitch];
  float products[kRows][kPitch];  // of the keys
  float made[kRows][kColumns];    // v_new
  uint64_t there[2];
};
static_assert(sizeof(Shared) <= kda_chunks_shared_bytes());

// Four neighbours of a row in shared memory.
__device__ float4 four_of(const float* row, int four) { return reinterpret_cast<const float4*>(row)[four]; }

// Loads of 16 bytes take half the time where lanes that differ in one of their lowest two bits read the same. So one
// coordinate of a thread's tile is in bits 1, 3 and 4 of its lane, the other in bits 0 and 2.
__device__ int high_bits() { return static_cast<int>((threadIdx.x >> 1 & 1) | (threadIdx.x >> 2 & 6)); }
__device__ int low_bits() { return static_cast<int>((threadIdx.x & 1) | (threadIdx.x >> 1 & 2)); }

__device__ void add_product(float4& sums, float factor, const float4& own) {
  sums.x = fmaf(factor, own.x, sums.x);
  sums.y = fmaf(factor, own.y, sums.y);
  sums.z = fmaf(factor, own.z, sums.z);
  sums.w = fmaf(factor, own.w, sums.w);
}

// S at the chunk's end: a thread twice four key channels, 64 apart, and twice four columns, 16 apart.
__device__ void advance(Shared& shared, const KdaOperands& operands) {
  const int quad = high_bits() + static_cast<int>(threadIdx.x / 32) * 8, four = low_bits();
  const auto channel = [&](int i) { return quad * 4 + i % 4 + i / 4 * 64; };
  float4 sums[8][2];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float total = operands.total[channel(i)];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float4 old = four_of(shared.state[channel(i)], four + 4 * j);
      sums[i][j] = {total * old.x, total * old.y, total * old.z, total * old.w};
    }
  }
#pragma unroll
  for (int s = 0; s < kRows; ++s) {
    const float4 low = four_of(operands.fades[s], quad), high = four_of(operands.fades[s], quad + 16);
    const float fades[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float4 own = four_of(shared.made[s], four + 4 * j);
#pragma unroll
      for (int i = 0; i < 8; ++i) add_product(sums[i][j], fades[i], own);
    }
  }
#pragma unroll
  for (int i = 0; i < 8; ++i)
#pragma unroll
    for (int j = 0; j < 2; ++j) reinterpret_cast<float4*>(shared.state[channel(i)])[four + 4 * j] = sums[i][j];
}

// v_new of a column, by one warp.
__device__ void substitute(Shared& shared, const KdaOperands& operands, const float (&values)[kRows][kColumns]) {
  const int c = threadIdx.x;
  float rest[kRows];
#pragma unroll
  for (int t = 0; t < kRows; ++t) rest[t] = values[t][c] - shared.products[t][c];
#pragma unroll
  for (int s = 0; s < kRows; ++s) {
    const float made = operands.beta[s] * rest[s];
    shared.made[s][c] = made;
#pragma unroll
    for (int four = (s + 1) / 4; four < kRows / 4; ++four) {
      const float4 dots = four_of(operands.key_dots[s], four);
      const float own[4] = {dots.x, dots.y, dots.z, dots.w};
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (4 * four + i > s) rest[4 * four + i] = fmaf(-own[i], made, rest[4 * four + i]);
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    sequence_kernel(const __grid_constant__ KdaProblem p, int64_t first, int64_t count) {
  extern __shared__ __align__(16) uint8_t memory[];
  auto& shared = *reinterpret_cast<Shared*>(memory);
  const auto thread = static_cast<int>(threadIdx.x);
  const int64_t heads = p.shape.heads, channels = heads * kWidth;
  const int64_t head = blockIdx.x / kKdaSlices, slice = blockIdx.x % kKdaSlices;
  const int64_t channel = head * kWidth + slice * kColumns;
  if (thread == 0) {
    ptx::make_barrier(&shared.there[0], 1);
    ptx::make_barrier(&shared.there[1], 1);
    ptx::fence_barriers();
  }
  const DeviceSpan& span = *p.span;
  const int64_t slot = span.sequence, position = span.position;
  ptx::wait_for_previous();
  ptx::let_next_start();  // only now: see kda_chunks()
  float* stored = p.state.state + (slot * heads + head) * kWidth * kWidth + slice * kColumns;
  const bool starts = first == 0, ends = first + count == p.chunks, fresh = starts && position == 0;
  for (int i = thread; i < kWidth * kColumns / 4; i += kThreads) {
    const int k = i / (kColumns / 4), quarter = i % (kColumns / 4);
    reinterpret_cast<float4*>(shared.state[k])[quarter] =
        fresh ? float4{0.0f, 0.0f, 0.0f, 0.0f} : __ldcg(reinterpret_cast<const float4*>(stored + k * kWidth) + quarter);
  }
  if (starts) {
    // Chunks that were complete before this span.
    const auto ring = [&](const float* base, int64_t row) {
      return base + (slot * kKdaRing + row % kKdaRing) * channels;
    };
    KdaOperands& operands = shared.operands[0];
    for (int64_t chunk = span.state_position; chunk + kRows <= position; chunk += kRows) {
      const float* last = ring(p.state.decay, chunk + kRows - 1) + head * kWidth;
      for (int i = thread; i < kRows * kWidth; i += kThreads) {
        const int s = i / kWidth, k = i % kWidth;
        const int64_t at = head * kWidth + k;
        operands.fades[s][k] = ring(p.state.key, chunk + s)[at] * fade_of(last[k] - ring(p.state.decay, chunk + s)[at]);
        if (s == 0) operands.total[k] = fade_of(last[k]);
      }
      for (int i = thread; i < kRows * kColumns; i += kThreads)
        shared.made[i / kColumns][i % kColumns] = ring(p.state.value, chunk + i / kColumns)[channel + i % kColumns];
      __syncthreads();
      advance(shared, operands);
      __syncthreads();
    }
    ptx::fence_async();
  }
  __syncthreads();
  const auto fetch = [&](int64_t i) {
    const KdaChunk& from = chunks_from(p, first)[i * heads + head];
    const auto buffer = static_cast<int>(i % 2);
    ptx::arrive_expecting(&shared.there[buffer], sizeof(KdaOperands) + sizeof(shared.values[0]));
    ptx::copy_bulk(&shared.operands[buffer], &from.operands, sizeof(KdaOperands), &shared.there[buffer]);
    ptx::copy_bulk(shared.values[buffer], from.values[slice], sizeof(shared.values[0]), &shared.there[buffer]);
  };
  if (thread == 0)
    for (int64_t i = 0; i < 2 && i < count; ++i) fetch(i);

  // Rows 2 * pair and the next, columns 4 * four to 4 * four + 3.
  const int pair = high_bits(), four = low_bits() + thread / 32 * 4;
  for (int64_t i = 0; i < count; ++i) {
    const auto buffer = static_cast<int>(i % 2);
    const KdaOperands& operands = shared.operands[buffer];
    ptx::wait_for(&shared.there[buffer], static_cast<uint32_t>(i / 2 % 2));
    float4 sums[4] = {};
#pragma unroll 16
    for (int k = 0; k < kWidth; ++k) {
      const float4 rows = four_of(operands.faded[k], pair), own = four_of(shared.state[k], four);
      add_product(sums[0], rows.x, own);
      add_product(sums[1], rows.y, own);
      add_product(sums[2], rows.z, own);
      add_product(sums[3], rows.w, own);
    }
    reinterpret_cast<float4*>(shared.products[2 * pair])[four] = sums[0];
    reinterpret_cast<float4*>(shared.products[2 * pair + 1])[four] = sums[1];
    __syncthreads();
    if (thread < 32) substitute(shared, operands, shared.values[buffer]);
    __syncthreads();
    const bool last = ends && i + 1 == count;
    // A chunk that the span's last row completes waits for the next step.
    if (!last) advance(shared, operands);
    const int64_t row = span.first_row + (first + i) * kRows + 2 * pair;
#pragma unroll
    for (int begin = 0; begin < kRows; begin += 4) {
      const float4 even = four_of(operands.query_dots[2 * pair], begin / 4);
      const float4 odd = four_of(operands.query_dots[2 * pair + 1], begin / 4);
      const float dots[2][4] = {{even.x, even.y, even.z, even.w}, {odd.x, odd.y, odd.z, odd.w}};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int s = begin + j;
        const float4 made = four_of(shared.made[s], four);
        if (s <= 2 * pair) add_product(sums[2], dots[0][j], made);
        if (s <= 2 * pair + 1) add_product(sums[3], dots[1][j], made);
      }
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) reinterpret_cast<float4*>(p.out + (row + j) * channels + channel)[four] = sums[2 + j];
    if (last)
      for (int j = thread; j < kRows * kColumns; j += kThreads) {
        const int64_t at = position + (first + i) * kRows + j / kColumns;
        p.state.value[(slot * kKdaRing + at % kKdaRing) * channels + channel + j % kColumns] =
            shared.made[j / kColumns][j % kColumns];
      }
    __syncthreads();
    if (thread == 0 && i + 2 < count) fetch(i + 2);
  }
  for (int i = thread; i < kWidth * kColumns / 4; i += kThreads) {
    const int k = i / (kColumns / 4), quarter = i % (kColumns / 4);
    reinterpret_cast<float4*>(stored + int64_t{k} * kWidth)[quarter] = four_of(shared.state[k], quarter);
  }
}

}  // namespace

cudaError_t kda_sequence(cudaStream_t stream, const KdaProblem& problem, int64_t first, int64_t count) {
  return launch(sequence_kernel, static_cast<unsigned>(problem.shape.heads * kKdaSlices), kThreads,
                static_cast<size_t>(kda_chunks_shared_bytes()), stream, problem, first, count);
}

}  // namespace verbatim::ops::cuda
