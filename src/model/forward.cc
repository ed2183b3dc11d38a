// The pass, readable like the paper (MODEL.md sections 2 to 6). One routine for prompts, decode and verification.
#include <algorithm>

#include "base/error.h"
#include "model/forward_parts.h"
#include "model/glm.h"

namespace verbatim::model {

namespace {

// Linear attention (KDA): input [T, D] -> output [T, D].
void linear_attention(const Pass& pass, const LinearAttention& w, const ops::KdaState& state) {
  auto& [ops, model, spans, rows, space] = pass;
  const Config& c = model.config;
  const int64_t Nd = c.linear_width(), d = c.linear_head_width;
  auto& s = space.linear;
  const ops::Ops::Product products[] = {{&w.q, s.q, Nd},      {&w.k, s.k, Nd},      {&w.v, s.v, Nd},
                                        {&w.f_a, s.f_low, d}, {&w.g_a, s.g_low, d}, {&w.b, s.beta, c.linear_heads}};
  ops.matmul_group(products, space.input, c.hidden, rows);
  const ops::Ops::OwnProduct from_low[] = {{&w.f_b, s.f_low, d, s.f, Nd}, {&w.g_b, s.g_low, d, s.gate, Nd}};
  ops.matmul_each(from_low, rows);
  ops.kda(kda_shape(c), w.vectors, {s.q, s.k, s.v, s.f, s.gate, s.beta}, state, spans, rows, s.out);
  ops.matmul(w.o, s.out, Nd, rows, model.sum_parts, space.output, c.hidden);
}

// Dense feed-forward: input [T, D] -> output [T, D].
void mlp(const Pass& pass, const Mlp& w) {
  auto& [ops, model, spans, rows, space] = pass;
  const Config& c = model.config;
  const int64_t width = c.dense_intermediate;
  const ops::Ops::Product products[] = {{&w.gate, space.ffn.gate, width}, {&w.up, space.ffn.up, width}};
  ops.matmul_group(products, space.input, c.hidden, rows);
  ops.swiglu(space.ffn.gate, space.ffn.up, c.swiglu_limit, rows * width, space.ffn.gate);
  ops.matmul(w.down, space.ffn.gate, width, rows, model.sum_parts, space.output, c.hidden);
}

}  // namespace

// Sparse attention (NoPE MLA with pooled indexer): input [T, D] -> output [T, D].
void sparse_attention(const Pass& pass, const SparseAttention& w, const ops::LatentCache& cache, ops::IndexShape index,
                      bool keep_selection) {
  auto& [ops, model, spans, rows, space] = pass;
  const Config& c = model.config;
  const int64_t queries = c.heads * c.key_width, values = c.heads * c.value_width;
  const int64_t index_queries = c.index_heads * c.index_width;
  auto& s = space.sparse;

  const ops::Ops::Product products[] = {{&w.q_a, s.query_latent, c.query_rank},
                                        {&w.kv_a, s.latent, c.latent},
                                        {&w.index_k, s.index_key, c.index_width},
                                        {&w.index_gate, s.index_gate, c.index_width},
                                        {&w.index_weights, s.index_weights, c.index_heads}};
  ops.matmul_group(products, space.input, c.hidden, rows);
  const ops::Ops::Norm norms[] = {
      {s.query_latent, c.query_rank, w.q_norm, nullptr, c.norm_epsilon, c.query_rank, s.query_latent, c.query_rank},
      {s.latent, c.latent, w.kv_norm, nullptr, c.norm_epsilon, c.latent, s.latent, c.latent},
      {s.index_key, c.index_width, w.index_norm, w.index_norm_bias, kIndexNormEpsilon, c.index_width, s.index_key,
       c.index_width}};
  ops.norms(norms, rows);
  const ops::Ops::Product from_latent[] = {{&w.q_b, s.query, queries}, {&w.index_q, s.index_query, index_queries}};
  ops.matmul_group(from_latent, s.query_latent, c.query_rank, rows);

  ops.append_latents(index, c.latent, s.latent, s.index_key, s.index_gate, w.pool_position, spans, cache);
  if (!keep_selection) ops.select_pools(index, s.index_query, s.index_weights, spans, cache, s.selection);
  ops.absorb_queries(w.kv_b, c.heads, c.key_width, c.value_width, s.query, rows, s.absorbed);
  ops.sparse_attention(index, c.heads, c.latent, attention_scale(c), s.absorbed, spans, cache, s.selection, s.attended);
  ops.absorb_values(w.kv_b, c.heads, c.key_width, c.value_width, s.attended, rows, s.values);
  ops.matmul(w.o, s.values, values, rows, model.sum_parts, space.output, c.hidden);
}

// Routed and shared experts: input [T, D] -> output [T, D].
void moe(const Pass& pass, const Moe& w) {
  auto& [ops, model, spans, rows, space] = pass;
  const Config& c = model.config;
  auto& s = space.ffn;
  ops.matmul(w.router, space.input, c.hidden, rows, 1, s.router_logits, c.experts);
  ops.route(s.router_logits, w.bias, rows, c.experts, c.experts_per_token, c.routed_scale, s.chosen, s.weights);
  ops.experts(w.experts, w.shared, c.swiglu_limit, space.input, rows, c.experts_per_token, s.chosen, s.weights,
              model.sum_parts, space.output);
}

void check_step(const Model& model, std::span<const ops::Span> spans, const ops::StepIds& ids,
                const Workspace& workspace) {
  const int64_t rows = ids.count;
  if (rows == 0 || rows > workspace.rows())
    fail(ErrorKind::kUsage, "forward", "{} rows; expected 1 to {}", rows, workspace.rows());
  for (const int32_t id : std::span(ids.data, ids.is_on_backend ? 0 : static_cast<size_t>(rows)))
    if (id < 0 || id >= model.config.vocabulary)
      fail(ErrorKind::kUsage, "forward", "token id {}; expected 0 to {}", id, model.config.vocabulary - 1);
  int64_t next = 0;
  for (const ops::Span& span : spans) {
    if (span.first_row != next || span.rows < 1 || span.certain < 1 || span.certain > span.rows || span.position < 0)
      fail(ErrorKind::kUsage, "forward", "span of {} rows at row {}; expected adjoining spans with 1 to rows certain",
           span.rows, span.first_row);
    if (span.rows - span.certain > ops::kWindowRows - 1)
      fail(ErrorKind::kUsage, "forward", "{} uncertain rows; expected at most {}", span.rows - span.certain,
           ops::kWindowRows - 1);
    next += span.rows;
  }
  if (next != rows) fail(ErrorKind::kUsage, "forward", "spans cover {} rows; expected {}", next, rows);
}

void embed_tokens(ops::Ops& ops, const Model& model, std::span<const int32_t> ids, Workspace& space) {
  ops.embed(model.weights.embedding, ids, model.config.streams, space.streams);
}

void run_layer(ops::Ops& ops, const Model& model, const State& state, std::span<const ops::Span> spans, int64_t rows,
               int64_t index, Workspace& space) {
  const Config& c = model.config;
  const Layer& layer = model.weights.layers[static_cast<size_t>(index)];
  const ops::HyperShape hyper = hyper_shape(c);
  const Pass pass{ops, model, spans, rows, space};
  // Its place among the layers of its kind.
  const auto place = static_cast<size_t>(std::count(c.mixers.begin(), c.mixers.begin() + index, layer.mixer));

  ops.hyper_enter(hyper, layer.attention_site.hyper, layer.attention_site.norm, space.streams, rows, space.maps,
                  space.input);
  if (layer.mixer == MixerKind::kLinear)
    linear_attention(pass, layer.linear, state.linear[place]);
  else
    sparse_attention(pass, layer.sparse, state.sparse[place], index_shape(c), false);
  ops.hyper_leave(hyper, space.maps, space.output, rows, space.streams);

  ops.hyper_enter(hyper, layer.ffn_site.hyper, layer.ffn_site.norm, space.streams, rows, space.maps, space.input);
  if (layer.ffn == FfnKind::kDense)
    mlp(pass, layer.mlp);
  else
    moe(pass, layer.moe);
  ops.hyper_leave(hyper, space.maps, space.output, rows, space.streams);
}

void forward(ops::Ops& ops, const Model& model, const State& state, std::span<const ops::Span> spans,
             std::span<const int32_t> ids, Workspace& space, const LayerHook& hook) {
  check_step(model, spans, ids, space);
  const Config& c = model.config;
  const auto rows = static_cast<int64_t>(ids.size());
  embed_tokens(ops, model, ids, space);
  for (int64_t layer = 0; layer < c.layers; ++layer) {
    run_layer(ops, model, state, spans, rows, layer, space);
    if (hook) hook(layer, space.streams);
  }
  ops.hyper_mean(hyper_shape(c), space.streams, rows, space.hidden);
  ops.rms_norm(space.hidden, c.hidden, model.weights.norm, c.norm_epsilon, rows, c.hidden, space.hidden, c.hidden);
}

void head(ops::Ops& ops, const Model& model, const float* hidden, int64_t rows, float* logits) {
  ops.matmul(model.weights.head, hidden, model.config.hidden, rows, 1, logits, model.config.vocabulary);
}

}  // namespace verbatim::model
