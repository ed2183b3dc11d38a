// A layer alone, fed streams and, on CUDA, the CPU's choices, and what it chose and made.
#pragma once

#include <functional>

#include "base/formats.h"
#include "tests/model/ops_proxy.h"
#include "tests/model/tiny_models.h"

namespace verbatim::model {

// What a layer's pass chose and made.
struct Record {
  std::vector<int32_t> chosen, pools, counts;
  std::vector<float> weights;
  std::vector<std::vector<float>> outputs;         // of the two sublayers
  std::vector<float> router_input, router_logits;  // [T, D], [T, E]
  std::vector<float> index_query, index_weights;   // [T, index heads * width], [T, index heads]
  std::vector<std::vector<float>> pool_keys;       // by pool of the sequence [width], where select_pools read them
};

// A layer on given streams. On the CPU it fills `record`; with `given` it replaces the choices by those recorded there.
class OneLayer : public OpsProxy {
 public:
  OneLayer(ops::Ops& inner, const Model& one, std::span<const float> streams, const Record* given)
      : OpsProxy(inner), router_(&one.weights.layers.front().moe.router), streams_(streams), given_(given) {}

  int64_t cache_element_bytes() const override { return inner_.cache_element_bytes(); }
  void embed(const Matrix&, const ops::StepIds&, int64_t, float* out) override {
    std::copy(streams_.begin(), streams_.end(), out);
  }
  void matmul(const Matrix& w, const float* x, int64_t x_stride, int64_t rows, int parts, float* y,
              int64_t y_stride) override {
    inner_.matmul(w, x, x_stride, rows, parts, y, y_stride);
    if (&w != router_) return;
    record.router_input.assign(x, x + rows * x_stride);
    record.router_logits.assign(y, y + rows * y_stride);
  }
  void select_pools(const ops::IndexShape& shape, const float* q, const float* head_weights,
                    std::span<const ops::Span> spans, const ops::LatentCache& cache,
                    const ops::Selection& selection) override {
    inner_.select_pools(shape, q, head_weights, spans, cache, selection);
    const ops::Span& span = spans[0];
    const int64_t rows = span.rows, budget = shape.budget_pools();
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t i = 0; i < budget; ++i)
        record.pools.push_back(i < selection.counts[r] ? selection.pools[r * budget + i] : -1);
    record.counts.assign(selection.counts, selection.counts + rows);
    record.index_query.assign(q, q + rows * shape.heads * shape.width);
    record.index_weights.assign(head_weights, head_weights + rows * shape.heads);
    const int64_t in_page = ops::kPageTokens / shape.pool;
    for (int64_t pool = 0; pool < (span.position + rows) / shape.pool; ++pool) {
      const int64_t at = (span.pages[pool / in_page] * in_page + pool % in_page) * shape.width;
      std::vector<float>& key = record.pool_keys.emplace_back(static_cast<size_t>(shape.width));
      for (int64_t i = 0; i < shape.width; ++i)
        key[static_cast<size_t>(i)] =
            cache_element_bytes() == 2
                ? bf16_to_float(static_cast<const uint16_t*>(static_cast<const void*>(cache.pools))[at + i])
                : static_cast<const float*>(static_cast<const void*>(cache.pools))[at + i];
    }
    if (given_ == nullptr) return;
    std::copy(given_->pools.begin(), given_->pools.end(), selection.pools);
    std::copy(given_->counts.begin(), given_->counts.end(), selection.counts);
  }
  void route(const float* logits, const float* bias, int64_t rows, int64_t experts, int64_t top, float scale,
             int32_t* chosen, float* weights) override {
    inner_.route(logits, bias, rows, experts, top, scale, chosen, weights);
    record.chosen.assign(chosen, chosen + rows * top);
    record.weights.assign(weights, weights + rows * top);
    if (given_ == nullptr) return;
    std::copy(given_->chosen.begin(), given_->chosen.end(), chosen);
    std::copy(given_->weights.begin(), given_->weights.end(), weights);
  }
  void hyper_leave(const ops::HyperShape& shape, const float* maps, const float* y, int64_t rows,
                   float* streams) override {
    record.outputs.emplace_back(y, y + rows * shape.width);
    inner_.hyper_leave(shape, maps, y, rows, streams);
  }

  Record record;

 private:
  const Matrix* router_;
  std::span<const float> streams_;
  const Record* given_;
};

struct Layered {
  std::vector<float> streams;
  Record record;
};

// One layer of a model: its weights and config.
inline Model layer_of(const Model& model, int64_t layer) {
  Model one;
  one.config = model.config;
  one.config.layers = 1;
  one.config.next_n_layers = 0;
  one.config.mixers = {model.config.mixer(layer)};
  one.config.ffns = {model.config.ffn(layer)};
  one.precision = model.precision;
  one.weights.layers = {model.weights.layers[static_cast<size_t>(layer)]};
  one.weights.norm = model.weights.norm;
  return one;
}

// Runs rows of `one` behind `position` tokens (a multiple of kPageTokens) whose states and caches `fill` makes. What
// `ops` allocates is host memory.
inline Layered run_layer(ops::Ops& ops, const Model& one, std::span<const float> streams, const Record* given,
                         int64_t position = 0,
                         const std::function<void(const state::Storage&, int64_t cache_element_bytes)>& fill = {}) {
  const int64_t row_floats = one.config.streams * one.config.hidden;
  const int64_t rows = static_cast<int64_t>(streams.size()) / row_floats;
  OneLayer proxy(ops, one, streams, given);
  state::Storage storage(proxy, one.config, 1, state::pages_for(position + rows));
  if (fill) fill(storage, proxy.cache_element_bytes());
  std::vector<int32_t> pages, ids(static_cast<size_t>(rows), 0);
  for (int64_t i = 0; i < storage.pages(); ++i) pages.push_back(static_cast<int32_t>(i));
  const state::Sequence sequence(0, pages, position);
  Workspace workspace(proxy, one.config, rows);
  const ops::Span span = sequence.next(0, rows, rows);
  Layered result;
  forward(proxy, one, storage.state(), {&span, 1}, ids, workspace,
          [&](int64_t, const float* x) { result.streams.assign(x, x + rows * row_floats); });
  result.record = std::move(proxy.record);
  return result;
}

// Element [row, column] of a stored BF16, float32 or NVFP4 matrix; NaN of others.
inline double weight_value(const Matrix& m, size_t row, size_t column) {
  const auto* data = reinterpret_cast<const uint8_t*>(m.data) + row * static_cast<size_t>(m.row_bytes);
  if (m.form == ops::WeightForm::kBf16) {
    uint16_t half = 0;
    std::memcpy(&half, data + 2 * column, 2);
    return bf16_to_float(half);
  }
  if (m.form == ops::WeightForm::kF32) {
    float value = 0;
    std::memcpy(&value, data + 4 * column, 4);
    return value;
  }
  if (m.form != ops::WeightForm::kNvfp4) return std::nan("");
  const auto code = static_cast<uint8_t>(column % 2 == 0 ? data[column / 2] & 15 : data[column / 2] >> 4);
  const uint8_t scale = m.block_scale[row * static_cast<size_t>(m.block_scale_stride) + column / 16];
  return static_cast<double>(e2m1_to_float(code)) * static_cast<double>(e4m3_to_float(scale)) *
         static_cast<double>(m.matrix_scale);
}

}  // namespace verbatim::model
