// Sparse attention of few rows over bfloat16 caches, in two launches that spread each row over the device. The first
// (sm90_bf16_attention_weights.cu) leaves each group's rounded weights, maximum and sum, and where its latents stand.
// The second (sm90_bf16_attention_sums.cu) sums latents: a block has some columns of a row and walks all groups. The
// order of sums is that of ops.h, the bits are those of sm90_bf16_attention.cu. Latents are 512 wide.
#pragma once

#include "ops/cuda/attention.h"
#include "ops/cuda/attention_tiles.cuh"

namespace verbatim::ops::cuda::attention_split {

using namespace attention_tiles;

inline constexpr int kWidth = kSplitWidth;

// Tokens that a row at `position` sees, where it has chosen so many pools, and where they stand.
struct Visible {
  int in_pools, tokens, groups;
};
__device__ inline Visible visible(const AttentionProblem& p, int64_t position, int pools) {
  const auto pool = static_cast<int>(p.shape.pool), seen = static_cast<int>(position + 1);
  Visible v{};
  v.in_pools = pools * pool;
  v.tokens = v.in_pools + (p.shape.always_select_tail ? seen - seen / pool * pool : 0);
  v.groups = (v.tokens + kTokens - 1) / kTokens;
  return v;
}

// The first launch.
cudaError_t launch_weights(cudaStream_t stream, const AttentionProblem& p, int multiprocessors);

}  // namespace verbatim::ops::cuda::attention_split
