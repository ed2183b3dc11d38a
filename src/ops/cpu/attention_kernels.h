// Sparse attention and its pooled indexer: the inner loops. The order of sums is that of the operators in ops.h.
// Widths of latents and of index keys are multiples of 16.
#pragma once

#include <cstdint>

namespace verbatim::ops::cpu {

inline constexpr int64_t kAttentionGroup = 64;

// y[i, :] = scale * column product of x[i, :] with a matrix [count, columns] of float32 or bfloat16 walked by rows.
struct ColumnProduct {
  const float* x = nullptr;
  int64_t x_stride = 0, rows = 0;
  const void* weights = nullptr;
  int64_t row_bytes = 0, count = 0, columns = 0;
  float scale = 1.0f;
  float* y = nullptr;
  int64_t y_stride = 0;
};

// One query over its visible tokens, for heads that all see the same ones.
struct Attend {
  const float* const* latents = nullptr;  // [tokens], ascending by position
  int64_t tokens = 0, latent_width = 0, heads = 0;
  float scale = 1.0f;
  const float* q = nullptr;  // [heads, latent_width]
  float* out = nullptr;      // [heads, latent_width]
  float* scratch = nullptr;  // attend_scratch(heads) floats
};

inline constexpr int64_t attend_scratch(int64_t heads) { return (heads + 15) / 16 * 16 * (kAttentionGroup + 4); }

struct AttentionKernels {
  // Per channel: softmax over the pool's tokens of gate + ape, then the weighted sum of the keys. keys, gates: one
  // pointer a token; ape [pool, width].
  void (*pool_key)(const float* const* keys, const float* const* gates, const float* ape, int64_t pool, int64_t width,
                   float* key);
  // scores[j] of the query q [heads, width] for `count` pools [count, width] that lie one after the other.
  void (*score_pools)(const float* q, const float* head_weights, int64_t heads, int64_t width, const float* pools,
                      int64_t count, float* scores);
  void (*columns_f32)(const ColumnProduct& product);
  void (*columns_bf16)(const ColumnProduct& product);
  void (*attend)(const Attend& attend);
};

}  // namespace verbatim::ops::cpu
