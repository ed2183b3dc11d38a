// Kernels of sparse attention, its indexer and the products with kv_b around it, as host functions like those of
// kernels.h. `element_bytes` is that of the caches' elements: 4 (float32) or 2 (bfloat16).
#pragma once

#include "ops/cuda/kernels.h"

namespace verbatim::ops::cuda {

// ---- indexer.cu -----------------------------------------------------------------------------------------------------
cudaError_t append_latents(cudaStream_t stream, const IndexShape& shape, int64_t latent_width, const float* latents,
                           const float* keys, const float* gates, const float* ape, const SpanTable& spans,
                           const LatentCache& cache, int64_t element_bytes);
// Of rows first .. first + count - 1; scores [count, stride] where more than budget pools are complete. `most_pools` is
// the most complete pools of these rows. score_pools takes float32 multiply-adds in the CPU's order.
struct PoolScores {
  IndexShape shape;
  const float* q = nullptr;
  const float* head_weights = nullptr;
  SpanTable spans;
  int64_t first = 0, count = 0, most_pools = 0;
  LatentCache cache;
  float* scores = nullptr;
  int64_t stride = 0;
};
cudaError_t score_pools(cudaStream_t stream, const PoolScores& problem, int64_t element_bytes);
cudaError_t select_best(cudaStream_t stream, const PoolScores& problem, const Selection& selection);

// ---- sm90_bf16_indexer.cu: scores by the matrix units, bfloat16 keys ------------------------------------------------
bool scores_fit_tiles(const IndexShape& shape);
cudaError_t score_pools_in_tiles(cudaStream_t stream, const PoolScores& problem);

// ---- sparse attention -----------------------------------------------------------------------------------------------
struct AttentionProblem {
  IndexShape shape;
  int64_t heads = 0, width = 0;  // width of latents
  float scale = 1.0f;
  const float* q = nullptr;
  SpanTable spans;
  LatentCache cache;
  Selection selection;
  float* out = nullptr;
  // Of rows whose groups of tokens stand in blocks of their own, in working memory (place_groups).
  int64_t groups = 0;
  float* sums = nullptr;   // [rows][groups][heads][width]: products of weights and latents
  float* stats = nullptr;  // [rows][groups][heads][2]: maximum, sum of weights
  // attention_split.cuh
  uint16_t* weights = nullptr;  // [rows][groups][heads][64]: bfloat16
  int32_t* tokens = nullptr;    // [rows][groups][64]: where latents stand, in tokens of the cache
};
inline constexpr int64_t kMostAttentionGroups = 1024;
// The most groups that a row can have.
int64_t attention_groups(const IndexShape& shape);
// Floats that `problem`'s groups take, and where they are put.
int64_t attention_group_floats(const AttentionProblem& problem);
void place_groups(AttentionProblem& problem, float* working);

// attention.cu: float32 multiply-adds in the CPU's order, any shape.
cudaError_t attend_rows(cudaStream_t stream, const AttentionProblem& problem, int64_t element_bytes);
// sm90_attention_groups.cu: the same for few rows and float32 caches, with working memory; and the second launch of it,
// which merges groups.
bool attends_by_groups(const AttentionProblem& problem);
cudaError_t attend_groups(cudaStream_t stream, const AttentionProblem& problem);
cudaError_t merge_groups(cudaStream_t stream, const AttentionProblem& problem);

// sm90_bf16_attention.cu: the matrix units, bfloat16 caches. How a launch cuts its work, which changes no bit: heads a
// block takes, groups of latents that it holds, and whether it takes one group or walks all of them.
struct AttentionCut {
  int heads = 16, stages = 1;
  bool walks = false;
};
bool attention_fits_tiles(const AttentionProblem& problem);
AttentionCut attention_cut(const AttentionProblem& problem, int multiprocessors, int64_t shared_bytes);
cudaError_t attend_in_tiles(cudaStream_t stream, const AttentionProblem& problem, const AttentionCut& cut);

// attention_split.cuh: the same for few rows of latents 512 wide, with working memory.
inline constexpr int64_t kMostSplitRows = 64;
bool attention_splits(const AttentionProblem& problem, int64_t shared_bytes);
int64_t attention_split_bytes(const AttentionProblem& problem);
cudaError_t attend_split(cudaStream_t stream, const AttentionProblem& problem, std::byte* working, int multiprocessors);

// ---- sm90_bf16_absorb.cu: the products with kv_b by the matrix units ------------------------------------------------
// For each head n and row r: y[r, n, :] = product of x[r, n, :], rounded to bfloat16, with rows n * head_rows +
// first_row .. of kv_b (plain BF16). Queries: `inner` rows are summed over, columns are outputs; values: the other way.
struct AbsorbProduct {
  Weights kv_b;
  int64_t heads = 0, head_rows = 0, first_row = 0;
  int64_t inner = 0, outputs = 0;
  const float* x = nullptr;  // [rows, heads, inner]
  int64_t rows = 0;
  float* y = nullptr;  // [rows, heads, outputs]
};
bool absorbs_in_tiles(const AbsorbProduct& product);
cudaError_t absorb_queries_in_tiles(cudaStream_t stream, const AbsorbProduct& product, int64_t shared_bytes);
cudaError_t absorb_values_in_tiles(cudaStream_t stream, const AbsorbProduct& product, int64_t shared_bytes);

}  // namespace verbatim::ops::cuda
