// Linear attention over whole chunks of a span, for prompts: what a chunk's rows are made into, for all chunks at once
// (sm90_kda_operands.cu), then the chunks of a head in order, value columns apart (sm90_kda_chunks.cu). Orders of sums
// are those of Ops::kda in ops.h, the bits are those of kda.cu. Heads are 128 wide.
#pragma once

#include "ops/cuda/kda_split.h"
#include "ops/cuda/kernels.h"

namespace verbatim::ops::cuda {

inline constexpr int kKdaSlices = 4, kKdaColumns = kKdaWidth / kKdaSlices;

// What all value columns of a chunk and head read. G is the log decay summed from the chunk's start.
struct KdaOperands {
  float faded[kKdaWidth][2 * kKdaRows];      // rows by twos: k of both, then q of both, times exp(G)
  float fades[kKdaRows][kKdaWidth];          // k times exp(G of the last row - G)
  float key_dots[kKdaRows][kKdaRows];        // [s][t], s < t
  float query_dots[kKdaRows][kKdaRows + 4];  // [t][s], s <= t
  float total[kKdaWidth];                    // exp(G of the last row)
  float beta[kKdaRows];
};
struct KdaChunk {
  KdaOperands operands;
  float values[kKdaSlices][kKdaRows][kKdaColumns];  // v after convolution
};
static_assert(sizeof(KdaOperands) % 16 == 0 && sizeof(KdaChunk) == kKdaChunkBytes && kKdaChunkBytes % 16 == 0);

struct KdaProblem {
  KdaShape shape;
  KdaWeights weights;
  KdaInputs inputs;
  KdaState state;
  const DeviceSpan* span = nullptr;  // at a multiple of kChunkRows; rows 16 * chunks, all certain
  int64_t chunks = 0;
  KdaChunk* made = nullptr;  // [up to 2 * kKdaSegment, heads]
  float* last = nullptr;     // keys, then G, of the last chunk: [2, heads, 16, 128]
  float* out = nullptr;
};

// Where chunks from `first` on are kept.
constexpr KdaChunk* chunks_from(const KdaProblem& problem, int64_t first) {
  return problem.made + first / kKdaSegment % 2 * kKdaSegment * problem.shape.heads;
}

cudaError_t kda_chunks(cudaStream_t stream, const KdaShape& shape, const KdaWeights& weights, const KdaInputs& inputs,
                       const KdaState& state, const DeviceSpan* span, int64_t chunks, void* working, float* out);

// The steps of kda_chunks: chunks first .. first + count - 1; then the norms and gates of all rows, and the rings.
cudaError_t kda_operands(cudaStream_t stream, const KdaProblem& problem, int64_t first, int64_t count);
cudaError_t kda_sequence(cudaStream_t stream, const KdaProblem& problem, int64_t first, int64_t count);
cudaError_t kda_finish(cudaStream_t stream, const KdaProblem& problem);

}  // namespace verbatim::ops::cuda
