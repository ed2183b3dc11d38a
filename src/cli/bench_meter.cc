#include "cli/bench_meter.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>

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

constexpr int64_t kFloat = sizeof(float);

int64_t product_flops(const ops::Matrix& w, int64_t rows) { return 2 * rows * w.rows * w.columns; }

int64_t product_flops(const ops::ExpertWeights& e, int64_t rows) {
  return product_flops(e.gate, rows) + product_flops(e.up, rows) + product_flops(e.down, rows);
}

// A product's weights and arithmetic.
void add_product(const ops::Matrix& w, int64_t rows, OperatorCount& work, int64_t& outputs) {
  outputs += w.rows;
  work.bytes += stored_bytes(w);
  work.flops += product_flops(w, rows);
}

// Work that rows of floats alone make, read and written.
OperatorCount rows_alone(int64_t floats) { return {1, 0, floats * kFloat, 0}; }

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

void OperatorMeter::start_timing() {
  microseconds_.clear();
  timing_ = true;
}

void OperatorMeter::meter(const std::string& label, const OperatorCount& work, const std::function<void()>& call) {
  if (counting_) {
    OperatorCount& count = counts_[label];
    count.calls += work.calls;
    count.bytes += work.bytes;
    count.row_bytes += work.row_bytes;
    count.flops += work.flops;
  }
  if (!only_.empty() && !only_.contains(label)) return;
  if (!timing_) {
    call();
    return;
  }
  inner_.synchronise();
  const auto start = std::chrono::steady_clock::now();
  call();
  inner_.synchronise();
  microseconds_[label] += std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
}

void OperatorMeter::embed(const ops::Matrix& table, const ops::StepIds& ids, int64_t streams, float* out) {
  meter("embed", {1, 2 * ids.count * table.columns, ids.count * streams * table.columns * kFloat, 0},
        [&] { inner_.embed(table, ids, streams, out); });
}
void OperatorMeter::rms_norm(const float* x, int64_t x_stride, const float* weight, float epsilon, int64_t rows,
                             int64_t width, float* y, int64_t y_stride) {
  meter("rms_norm", rows_alone(2 * rows * width),
        [&] { inner_.rms_norm(x, x_stride, weight, epsilon, rows, width, y, y_stride); });
}
void OperatorMeter::layer_norm(const float* x, const float* weight, const float* bias, float epsilon, int64_t rows,
                               int64_t width, float* y) {
  meter("layer_norm", rows_alone(2 * rows * width),
        [&] { inner_.layer_norm(x, weight, bias, epsilon, rows, width, y); });
}
void OperatorMeter::norms(std::span<const Norm> norms, int64_t rows) {
  int64_t width = 0;
  for (const Norm& each : norms) width += each.width;
  meter("norms", rows_alone(2 * rows * width), [&] { inner_.norms(norms, rows); });
}
void OperatorMeter::add(const float* x, int64_t count, float* y) {
  meter("add", rows_alone(3 * count), [&] { inner_.add(x, count, y); });
}
void OperatorMeter::clear(float* x, int64_t count) {
  meter("clear", rows_alone(count), [&] { inner_.clear(x, count); });
}
void OperatorMeter::matmul(const ops::Matrix& w, const float* x, int64_t x_stride, int64_t rows, int parts, float* y,
                           int64_t y_stride) {
  meter(product_label(w.rows, w), {1, stored_bytes(w), rows * (w.rows + w.columns) * kFloat, product_flops(w, rows)},
        [&] { inner_.matmul(w, x, x_stride, rows, parts, y, y_stride); });
}
void OperatorMeter::matmul_group(std::span<const Product> products, const float* x, int64_t x_stride, int64_t rows) {
  int64_t outputs = 0;
  OperatorCount work{1};
  for (const Product& each : products) add_product(*each.weight, rows, work, outputs);
  const ops::Matrix& any = *products.front().weight;
  work.row_bytes = rows * (outputs + any.columns) * kFloat;
  meter(product_label(outputs, any), work, [&] { inner_.matmul_group(products, x, x_stride, rows); });
}
void OperatorMeter::matmul_each(std::span<const OwnProduct> products, int64_t rows) {
  int64_t outputs = 0;
  OperatorCount work{1};
  for (const OwnProduct& each : products) {
    add_product(*each.weight, rows, work, outputs);
    work.row_bytes += rows * (each.weight->rows + each.weight->columns) * kFloat;
  }
  meter(product_label(outputs, *products.front().weight), work, [&] { inner_.matmul_each(products, rows); });
}
void OperatorMeter::swiglu(const float* gate, const float* up, float limit, int64_t count, float* h) {
  meter("swiglu", rows_alone(3 * count), [&] { inner_.swiglu(gate, up, limit, count, h); });
}
void OperatorMeter::hyper_enter(const ops::HyperShape& shape, const ops::HyperWeights& weights, const float* norm,
                                const float* streams, int64_t rows, float* maps, float* h) {
  meter(
      "hyper_enter",
      {1, stored_bytes(weights.fn), rows * (shape.streams + 1) * shape.width * kFloat, product_flops(weights.fn, rows)},
      [&] { inner_.hyper_enter(shape, weights, norm, streams, rows, maps, h); });
}
void OperatorMeter::hyper_leave(const ops::HyperShape& shape, const float* maps, const float* y, int64_t rows,
                                float* streams) {
  meter("hyper_leave", rows_alone(rows * (2 * shape.streams + 1) * shape.width),
        [&] { inner_.hyper_leave(shape, maps, y, rows, streams); });
}
void OperatorMeter::hyper_mean(const ops::HyperShape& shape, const float* streams, int64_t rows, float* h) {
  meter("hyper_mean", rows_alone(rows * (shape.streams + 1) * shape.width),
        [&] { inner_.hyper_mean(shape, streams, rows, h); });
}
void OperatorMeter::kda(const ops::KdaShape& shape, const ops::KdaWeights& weights, const ops::KdaInputs& inputs,
                        const ops::KdaState& state, std::span<const ops::Span> spans, int64_t rows, float* out) {
  // S once a span, the rows since, and S read and written again by the steps that advance it.
  const int64_t state_bytes = shape.heads * shape.width * shape.width * kFloat;
  OperatorCount work{1};
  for (const ops::Span& span : spans) {
    const int64_t since = span.position - span.state_position;
    work.bytes += state_bytes + shape.heads * shape.width * kFloat * 3 * since;
    if (since >= ops::kChunkRows) work.bytes += 2 * state_bytes;
  }
  // A row: k S, q S and its part of the next S; two dots with, and two sums over, the half chunk before it in the mean.
  work.row_bytes = 6 * rows * shape.heads * shape.width * kFloat;
  work.flops = 2 * rows * shape.heads * shape.width * (3 * shape.width + 4 * ops::kChunkRows / 2);
  meter("kda", work, [&] { inner_.kda(shape, weights, inputs, state, spans, rows, out); });
}
void OperatorMeter::append_latents(const ops::IndexShape& shape, int64_t latent_width, const float* latents,
                                   const float* keys, const float* gates, const float* ape,
                                   std::span<const ops::Span> spans, const ops::LatentCache& cache) {
  int64_t rows = 0;
  for (const ops::Span& span : spans) rows += span.rows;
  meter("append_latents", rows_alone(rows * 2 * (latent_width + 2 * shape.width)),
        [&] { inner_.append_latents(shape, latent_width, latents, keys, gates, ape, spans, cache); });
}
void OperatorMeter::select_pools(const ops::IndexShape& shape, const float* q, const float* head_weights,
                                 std::span<const ops::Span> spans, const ops::LatentCache& cache,
                                 const ops::Selection& selection) {
  OperatorCount work{1};
  for (const ops::Span& span : spans) {
    const int64_t pools = (span.position + span.rows) / shape.pool;
    if (pools > shape.budget_pools()) work.bytes += pools * shape.width * inner_.cache_element_bytes();
    for (int64_t row = 0; row < span.rows; ++row) {
      const int64_t own = (span.position + row + 1) / shape.pool;
      work.row_bytes += std::min(own, shape.budget_pools()) * static_cast<int64_t>(sizeof(int32_t));
      if (own <= shape.budget_pools()) continue;
      work.flops += 2 * own * shape.heads * (shape.width + 1);
      work.row_bytes += shape.heads * (shape.width + 1) * kFloat;
    }
  }
  meter("select_pools", work, [&] { inner_.select_pools(shape, q, head_weights, spans, cache, selection); });
}
void OperatorMeter::absorb_queries(const ops::Matrix& kv_b, int64_t heads, int64_t key_width, int64_t value_width,
                                   const float* q, int64_t rows, float* out) {
  meter("absorb_queries",
        {1, stored_bytes(kv_b) * key_width / (key_width + value_width),
         rows * heads * (key_width + kv_b.columns) * kFloat, 2 * rows * heads * key_width * kv_b.columns},
        [&] { inner_.absorb_queries(kv_b, heads, key_width, value_width, q, rows, out); });
}
void OperatorMeter::sparse_attention(const ops::IndexShape& shape, int64_t heads, int64_t latent_width, float scale,
                                     const float* q, std::span<const ops::Span> spans, const ops::LatentCache& cache,
                                     const ops::Selection& selection, float* out) {
  // Each token that a row sees is a score and a weighted latent of each head.
  OperatorCount work{1};
  int64_t tokens = 0;
  for (const ops::Span& span : spans)
    for (int64_t row = 0; row < span.rows; ++row)
      tokens += std::min(span.position + row + 1, shape.top + shape.pool - 1);
  for (const ops::Span& span : spans) {
    // Rows of a prompt share tokens, those of decode do not count on it.
    const int64_t most = std::min(span.position + span.rows, shape.top + shape.pool - 1);
    work.bytes += (span.rows > ops::kWindowRows ? span.position + span.rows : span.rows * most) * latent_width *
                  inner_.cache_element_bytes();
    work.row_bytes += 2 * span.rows * heads * latent_width * kFloat;
  }
  work.flops = 4 * tokens * heads * latent_width;
  meter("sparse_attention", work,
        [&] { inner_.sparse_attention(shape, heads, latent_width, scale, q, spans, cache, selection, out); });
}
void OperatorMeter::absorb_values(const ops::Matrix& kv_b, int64_t heads, int64_t key_width, int64_t value_width,
                                  const float* attended, int64_t rows, float* out) {
  meter("absorb_values",
        {1, stored_bytes(kv_b) * value_width / (key_width + value_width),
         rows * heads * (value_width + kv_b.columns) * kFloat, 2 * rows * heads * value_width * kv_b.columns},
        [&] { inner_.absorb_values(kv_b, heads, key_width, value_width, attended, rows, out); });
}
void OperatorMeter::route(const float* logits, const float* bias, int64_t rows, int64_t experts, int64_t top,
                          float scale, int32_t* chosen, float* weights) {
  meter("route", rows_alone(rows * (experts + 2 * top)),
        [&] { inner_.route(logits, bias, rows, experts, top, scale, chosen, weights); });
}
void OperatorMeter::experts(std::span<const ops::ExpertWeights> experts, const ops::ExpertWeights& shared, float limit,
                            const float* x, int64_t rows, int64_t top, const int32_t* chosen, const float* weights,
                            int parts, float* y) {
  OperatorCount work{1};
  if (counting_) {
    std::vector<int32_t> ids(static_cast<size_t>(rows * top));
    inner_.copy_out(ids.data(), chosen, ids.size() * sizeof(int32_t));
    const std::set<int32_t> distinct(ids.begin(), ids.end());
    for (const int32_t id : distinct) work.bytes += stored_bytes(experts[static_cast<size_t>(id)]);
    work.bytes += stored_bytes(shared);
    work.flops = product_flops(experts.front(), rows * top) + product_flops(shared, rows);
    work.row_bytes = rows * (experts.front().gate.columns + experts.front().down.rows) * kFloat;
    distinct_.push_back(std::ssize(distinct));
  }
  meter("experts", work, [&] { inner_.experts(experts, shared, limit, x, rows, top, chosen, weights, parts, y); });
}
void OperatorMeter::argmax(const float* logits, int64_t rows, int64_t stride, int64_t limit, int32_t* ids) {
  meter("argmax", rows_alone(rows * limit), [&] { inner_.argmax(logits, rows, stride, limit, ids); });
}

}  // namespace verbatim::cli
