#include "cli/bench_meter.h"

#include <fmt/format.h>

#include <algorithm>

namespace verbatim::cli {

namespace {

int64_t stored_bytes(const ops::Matrix& m) {
  const int64_t elements = m.rows * m.columns;
  switch (m.form) {
    case ops::WeightForm::kBf16: return 2 * elements;
    case ops::WeightForm::kF32: return 4 * elements;
    case ops::WeightForm::kNvfp4: return elements / 2 + elements / 16;
    case ops::WeightForm::kFp8Block: return elements + elements / 128 / 128 * 4;
  }
  return 0;
}

int64_t stored_bytes(const ops::ExpertWeights& e) {
  return stored_bytes(e.gate) + stored_bytes(e.up) + stored_bytes(e.down);
}

const char* form_name(ops::WeightForm form) {
  switch (form) {
    case ops::WeightForm::kBf16: return "bf16";
    case ops::WeightForm::kF32: return "f32";
    case ops::WeightForm::kNvfp4: return "nvfp4";
    case ops::WeightForm::kFp8Block: return "fp8";
  }
  return "";
}

std::string product_label(int64_t rows, const ops::Matrix& any) {
  return fmt::format("product {}x{} {}", rows, any.columns, form_name(any.form));
}

}  // namespace

void OperatorMeter::start_counting() {
  counts_.clear();
  distinct_.clear();
  counting_ = true;
}

bool OperatorMeter::passes(const std::string& label, int64_t bytes) {
  if (counting_) {
    OperatorCount& count = counts_[label];
    ++count.calls;
    count.bytes += bytes;
  }
  return only_.empty() || only_.contains(label);
}

void OperatorMeter::embed(const ops::Matrix& table, const int32_t* ids, int64_t rows, int64_t streams, float* out) {
  if (passes("embed", 2 * rows * table.columns)) inner_.embed(table, ids, rows, streams, out);
}
void OperatorMeter::rms_norm(const float* x, int64_t x_stride, const float* weight, float epsilon, int64_t rows,
                             int64_t width, float* y, int64_t y_stride) {
  if (passes("rms_norm", 0)) inner_.rms_norm(x, x_stride, weight, epsilon, rows, width, y, y_stride);
}
void OperatorMeter::layer_norm(const float* x, const float* weight, const float* bias, float epsilon, int64_t rows,
                               int64_t width, float* y) {
  if (passes("layer_norm", 0)) inner_.layer_norm(x, weight, bias, epsilon, rows, width, y);
}
void OperatorMeter::add(const float* x, int64_t count, float* y) {
  if (passes("add", 0)) inner_.add(x, count, y);
}
void OperatorMeter::clear(float* x, int64_t count) {
  if (passes("clear", 0)) inner_.clear(x, count);
}
void OperatorMeter::matmul(const ops::Matrix& w, const float* x, int64_t x_stride, int64_t rows, int parts, float* y,
                           int64_t y_stride) {
  if (passes(product_label(w.rows, w), stored_bytes(w))) inner_.matmul(w, x, x_stride, rows, parts, y, y_stride);
}
void OperatorMeter::matmul_group(std::span<const Product> products, const float* x, int64_t x_stride, int64_t rows) {
  int64_t outputs = 0, bytes = 0;
  for (const Product& each : products) {
    outputs += each.weight->rows;
    bytes += stored_bytes(*each.weight);
  }
  if (passes(product_label(outputs, *products.front().weight), bytes)) inner_.matmul_group(products, x, x_stride, rows);
}
void OperatorMeter::swiglu(const float* gate, const float* up, float limit, int64_t count, float* h) {
  if (passes("swiglu", 0)) inner_.swiglu(gate, up, limit, count, h);
}
void OperatorMeter::hyper_enter(const ops::HyperShape& shape, const ops::HyperWeights& weights, const float* norm,
                                const float* streams, int64_t rows, float* maps, float* h) {
  if (passes("hyper_enter", stored_bytes(weights.fn))) inner_.hyper_enter(shape, weights, norm, streams, rows, maps, h);
}
void OperatorMeter::hyper_leave(const ops::HyperShape& shape, const float* maps, const float* y, int64_t rows,
                                float* streams) {
  if (passes("hyper_leave", 0)) inner_.hyper_leave(shape, maps, y, rows, streams);
}
void OperatorMeter::hyper_mean(const ops::HyperShape& shape, const float* streams, int64_t rows, float* h) {
  if (passes("hyper_mean", 0)) inner_.hyper_mean(shape, streams, rows, h);
}
void OperatorMeter::kda(const ops::KdaShape& shape, const ops::KdaWeights& weights, const ops::KdaInputs& inputs,
                        const ops::KdaState& state, std::span<const ops::Span> spans, int64_t rows, float* out) {
  // S once a span, the rows since, and S read and written again by the steps that advance it.
  int64_t bytes = 0;
  for (const ops::Span& span : spans) {
    const int64_t since = span.position - span.state_position;
    bytes += shape.heads * shape.width * 4 * (shape.width + 3 * since);
    if (since >= ops::kChunkRows) bytes += 2 * shape.heads * shape.width * shape.width * 4;
  }
  if (passes("kda", bytes)) inner_.kda(shape, weights, inputs, state, spans, rows, out);
}
void OperatorMeter::append_latents(const ops::IndexShape& shape, int64_t latent_width, const float* latents,
                                   const float* keys, const float* gates, const float* ape,
                                   std::span<const ops::Span> spans, const ops::LatentCache& cache) {
  if (passes("append_latents", 0)) inner_.append_latents(shape, latent_width, latents, keys, gates, ape, spans, cache);
}
void OperatorMeter::select_pools(const ops::IndexShape& shape, const float* q, const float* head_weights,
                                 std::span<const ops::Span> spans, const ops::LatentCache& cache,
                                 const ops::Selection& selection) {
  int64_t bytes = 0;
  for (const ops::Span& span : spans) {
    const int64_t pools = (span.position + span.rows) / shape.pool;
    if (pools > shape.budget_pools()) bytes += pools * shape.width * inner_.cache_element_bytes();
  }
  if (passes("select_pools", bytes)) inner_.select_pools(shape, q, head_weights, spans, cache, selection);
}
void OperatorMeter::absorb_queries(const ops::Matrix& kv_b, int64_t heads, int64_t key_width, int64_t value_width,
                                   const float* q, int64_t rows, float* out) {
  if (passes("absorb_queries", stored_bytes(kv_b) * key_width / (key_width + value_width)))
    inner_.absorb_queries(kv_b, heads, key_width, value_width, q, rows, out);
}
void OperatorMeter::sparse_attention(const ops::IndexShape& shape, int64_t heads, int64_t latent_width, float scale,
                                     const float* q, std::span<const ops::Span> spans, const ops::LatentCache& cache,
                                     const ops::Selection& selection, float* out) {
  int64_t bytes = 0;
  for (const ops::Span& span : spans)
    bytes += span.rows * std::min(span.position + span.rows, shape.top + shape.pool - 1) * latent_width *
             inner_.cache_element_bytes();
  if (passes("sparse_attention", bytes))
    inner_.sparse_attention(shape, heads, latent_width, scale, q, spans, cache, selection, out);
}
void OperatorMeter::absorb_values(const ops::Matrix& kv_b, int64_t heads, int64_t key_width, int64_t value_width,
                                  const float* attended, int64_t rows, float* out) {
  if (passes("absorb_values", stored_bytes(kv_b) * value_width / (key_width + value_width)))
    inner_.absorb_values(kv_b, heads, key_width, value_width, attended, rows, out);
}
void OperatorMeter::route(const float* logits, const float* bias, int64_t rows, int64_t experts, int64_t top,
                          float scale, int32_t* chosen, float* weights) {
  if (passes("route", 0)) inner_.route(logits, bias, rows, experts, top, scale, chosen, weights);
}
void OperatorMeter::experts(std::span<const ops::ExpertWeights> experts, const ops::ExpertWeights& shared, float limit,
                            const float* x, int64_t rows, int64_t top, const int32_t* chosen, const float* weights,
                            int parts, float* y) {
  int64_t bytes = 0;
  if (counting_) {
    std::vector<int32_t> ids(static_cast<size_t>(rows * top));
    inner_.copy_out(ids.data(), chosen, ids.size() * sizeof(int32_t));
    const std::set<int32_t> distinct(ids.begin(), ids.end());
    for (const int32_t id : distinct) bytes += stored_bytes(experts[static_cast<size_t>(id)]);
    bytes += stored_bytes(shared);
    distinct_.push_back(std::ssize(distinct));
  }
  if (passes("experts", bytes)) inner_.experts(experts, shared, limit, x, rows, top, chosen, weights, parts, y);
}
void OperatorMeter::argmax(const float* logits, int64_t rows, int64_t stride, int64_t limit, int32_t* ids) {
  if (passes("argmax", 0)) inner_.argmax(logits, rows, stride, limit, ids);
}

}  // namespace verbatim::cli
