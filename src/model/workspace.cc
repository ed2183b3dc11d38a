// Sizes that follow from the config: operator shapes, state, workspace, a rank's share.
#include <algorithm>

#include "base/error.h"
#include "model/glm.h"

namespace verbatim::model {

ops::HyperShape hyper_shape(const Config& c) {
  return {c.streams, c.hidden, c.sinkhorn_iterations, c.hyper_epsilon, c.norm_epsilon};
}

ops::KdaShape kda_shape(const Config& c) {
  return {c.linear_heads, c.linear_head_width, c.linear_lower_bound, c.norm_epsilon};
}

ops::IndexShape index_shape(const Config& c) {
  return {c.index_heads, c.index_width, c.index_pool, c.index_top, c.index_select_tail};
}

StateSizes state_sizes(const Config& c, int64_t cache_element_bytes) {
  constexpr int64_t kFloat = sizeof(float);
  const int64_t linear = c.count(MixerKind::kLinear);
  const int64_t sparse = c.count(MixerKind::kSparse) + c.next_n_layers;
  const int64_t state = c.linear_heads * c.linear_head_width * c.linear_head_width * kFloat;
  const int64_t rows = ops::kKdaRing * 3 * c.linear_width() * kFloat;
  const int64_t conv_row = 3 * c.linear_width() * kFloat;
  const int64_t tails = index_shape(c).tail_ring() * 2 * c.index_width * kFloat;
  StateSizes sizes;
  sizes.sequence_bytes = linear * (state + rows + ops::kConvRing * conv_row) + sparse * tails;
  sizes.page_bytes =
      sparse * (ops::kPageTokens * c.latent + ops::kPageTokens / c.index_pool * c.index_width) * cache_element_bytes;
  sizes.snapshot_bytes =
      linear * (state + (ops::kConvTaps - 1) * conv_row) + c.next_n_layers * tails + c.hidden * kFloat;
  return sizes;
}

Config rank_share(const Config& config, int ranks) {
  Config share = config;
  auto divide = [&](int64_t& size, const char* name) {
    if (size % ranks != 0)
      fail(ErrorKind::kUnsupported, "ranks", "{} {} do not divide by {} ranks; choose a divisor", size, name, ranks);
    size /= ranks;
  };
  divide(share.linear_heads, "linear attention heads");
  divide(share.heads, "attention heads");
  divide(share.dense_intermediate, "features of intermediate_size");
  divide(share.expert_intermediate, "features of moe_intermediate_size");
  if (config.vocabulary % ranks != 0)
    fail(ErrorKind::kUnsupported, "ranks", "{} entries of the vocabulary do not divide by {} ranks; choose a divisor",
         config.vocabulary, ranks);
  return share;
}

int64_t Workspace::lay_out(const Config& c, int64_t rows, std::byte* base) {
  int64_t used = 0;
  auto take = [&]<typename T>(T*& pointer, int64_t columns) {
    // Without a base only the sizes count; adding to a null pointer is not allowed.
    pointer = base == nullptr ? nullptr : reinterpret_cast<T*>(base + used);
    used += (rows * columns * static_cast<int64_t>(sizeof(T)) + 63) / 64 * 64;
  };
  take(streams, c.streams * c.hidden);
  take(maps, c.maps_width());
  take(input, c.hidden);
  take(output, c.hidden);
  take(hidden, c.hidden);
  const int64_t common = used;

  for (float** wide : {&linear.q, &linear.k, &linear.v, &linear.f, &linear.gate, &linear.out})
    take(*wide, c.linear_width());
  take(linear.f_low, c.linear_head_width);
  take(linear.g_low, c.linear_head_width);
  take(linear.beta, c.linear_heads);
  int64_t most = used;

  // The next-n layer uses `joined` together with sparse attention and experts.
  used = common;
  take(joined, c.next_n_layers > 0 ? 2 * c.hidden : 0);
  take(sparse.selection.pools, index_shape(c).budget_pools());
  take(sparse.selection.counts, 1);
  const int64_t kept = used;
  take(sparse.query_latent, c.query_rank);
  take(sparse.latent, c.latent);
  take(sparse.query, c.heads * c.key_width);
  take(sparse.absorbed, c.heads * c.latent);
  take(sparse.attended, c.heads * c.latent);
  take(sparse.values, c.heads * c.value_width);
  take(sparse.index_query, c.index_heads * c.index_width);
  take(sparse.index_key, c.index_width);
  take(sparse.index_gate, c.index_width);
  take(sparse.index_weights, c.index_heads);
  most = std::max(most, used);

  used = kept;
  take(ffn.gate, c.dense_intermediate);
  take(ffn.up, c.dense_intermediate);
  take(ffn.router_logits, c.experts);
  take(ffn.chosen, c.experts_per_token);
  take(ffn.weights, c.experts_per_token);
  return std::max(most, used);
}

int64_t Workspace::bytes(const Config& config, int64_t rows) { return Workspace().lay_out(config, rows, nullptr); }

Workspace::Workspace(ops::Ops& ops, const Config& config, int64_t rows)
    : block_(ops, static_cast<size_t>(bytes(config, rows))), rows_(rows) {
  lay_out(config, rows, reinterpret_cast<std::byte*>(block_.floats()));
}

}  // namespace verbatim::model
