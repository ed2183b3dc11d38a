#include "quantize/calibrate.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <unordered_map>

#include "base/error.h"
#include "base/progress.h"
#include "base/sha256.h"
#include "model/glm.h"
#include "ops/ops_proxy.h"
#include "state/storage.h"

namespace verbatim::quantize {

namespace {

using model::Group;

// A backend that notes what enters the matrices of one layer at a time, and computes what the one below computes.
class Recorder final : public ops::OpsProxy {
 public:
  Recorder(ops::Ops& inner, Calibration& calibration, const CalibrateOptions& options)
      : OpsProxy(inner), calibration_(calibration), every_expert_(options.every_expert) {}

  void enter_layer(const model::Layer& layer, int64_t index) {
    layer_ = index;
    dense_.clear();
    if (layer.ffn == model::FfnKind::kDense)
      dense_ = {{layer.mlp.gate.data, Site::kW13}, {layer.mlp.down.data, Site::kW2}};
  }

  void matmul(const ops::Matrix& w, const float* x, int64_t x_stride, int64_t rows, int parts, float* y,
              int64_t y_stride) override {
    note_dense(w, x, x_stride, rows);
    inner_.matmul(w, x, x_stride, rows, parts, y, y_stride);
  }

  void matmul_group(std::span<const Product> products, const float* x, int64_t x_stride, int64_t rows) override {
    for (const Product& product : products) note_dense(*product.weight, x, x_stride, rows);
    inner_.matmul_group(products, x, x_stride, rows);
  }

  void experts(std::span<const ops::ExpertWeights> experts, const ops::ExpertWeights& shared, float limit,
               const float* x, int64_t rows, int64_t top, const int32_t* chosen, const float* weights, int parts,
               float* y) override {
    std::vector<int32_t> choices(static_cast<size_t>(rows * top));
    inner_.copy_out(choices.data(), chosen, choices.size() * sizeof(int32_t));
    std::vector<std::vector<int64_t>> routed(experts.size());
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t slot = 0; slot < top; ++slot)
        routed[static_cast<size_t>(choices[static_cast<size_t>(row * top + slot)])].push_back(row);
    std::vector<int64_t> all(static_cast<size_t>(rows));
    std::iota(all.begin(), all.end(), 0);
    for (size_t e = 0; e < experts.size(); ++e) {
      calibration_.routed.at(layer_)[e] += static_cast<int64_t>(routed[e].size());
      note_expert(Group::kRoutedExperts, static_cast<int64_t>(e), experts[e], limit, x,
                  every_expert_ ? all : routed[e]);
    }
    note_expert(Group::kSharedExperts, 0, shared, limit, x, all);
    inner_.experts(experts, shared, limit, x, rows, top, chosen, weights, parts, y);
  }

 private:
  void note_dense(const ops::Matrix& w, const float* x, int64_t x_stride, int64_t rows) {
    const auto it = dense_.find(w.data);
    if (it == dense_.end()) return;
    host_.resize(static_cast<size_t>(rows * w.columns));
    for (int64_t row = 0; row < rows; ++row)
      inner_.copy_out(host_.data() + row * w.columns, x + row * x_stride,
                      static_cast<size_t>(w.columns) * sizeof(float));
    note(Group::kDenseMlp, it->second, 0, host_.data(), rows, w.columns);
  }

  // What an expert reads on `rows` of x, and what its own gate and up make of it for the down projection.
  void note_expert(Group group, int64_t expert, const ops::ExpertWeights& weights, float limit, const float* x,
                   const std::vector<int64_t>& rows) {
    if (rows.empty()) return;
    const auto count = static_cast<int64_t>(rows.size());
    const int64_t width = weights.gate.columns, inner = weights.gate.rows;
    const auto row_bytes = static_cast<size_t>(width) * sizeof(float);
    const size_t needed = static_cast<size_t>(count * (width + 2 * inner)) * sizeof(float);
    if (scratch_.bytes() < needed) scratch_ = ops::Buffer(inner_, needed);
    float* input = scratch_.floats();
    float* gate = input + count * width;
    float* up = gate + count * inner;
    host_.resize(static_cast<size_t>(count * std::max(width, inner)));
    for (int64_t i = 0; i < count; ++i)
      inner_.copy_out(host_.data() + i * width, x + rows[static_cast<size_t>(i)] * width, row_bytes);
    inner_.copy_in(input, host_.data(), static_cast<size_t>(count) * row_bytes);
    note(group, Site::kW13, expert, host_.data(), count, width);
    const Product products[] = {{&weights.gate, gate, inner}, {&weights.up, up, inner}};
    inner_.matmul_group(products, input, width, count);
    inner_.swiglu(gate, up, limit, count * inner, gate);
    inner_.copy_out(host_.data(), gate, static_cast<size_t>(count * inner) * sizeof(float));
    note(group, Site::kW2, expert, host_.data(), count, inner);
  }

  void note(Group group, Site site, int64_t expert, const float* rows, int64_t count, int64_t width) {
    const SiteKey key{group, layer_, site};
    SiteRecord& record = calibration_.sites.at(key);
    for (int64_t row = 0; row < count; ++row) record.add(expert, {rows + row * width, static_cast<size_t>(width)});
    if (!std::isfinite(record.largest[static_cast<size_t>(expert)]))
      fail(ErrorKind::kFormat, site_text(key),
           "an activation of expert {} is NaN or infinite; expected finite ones; is the "
           "source damaged?",
           expert);
  }

  Calibration& calibration_;
  bool every_expert_;
  int64_t layer_ = 0;
  std::unordered_map<const std::byte*, Site> dense_;
  ops::Buffer scratch_;
  std::vector<float> host_;
};

std::string hash_of(std::span<const std::vector<int32_t>> sequences) {
  Sha256 digest;
  for (const std::vector<int32_t>& ids : sequences) {
    const auto length = static_cast<int64_t>(ids.size());
    digest.update(std::as_bytes(std::span(&length, 1)));
    digest.update(std::as_bytes(std::span(ids)));
  }
  return to_hex(digest.finish());
}

int64_t check_sequences(std::span<const std::vector<int32_t>> sequences, const model::Config& config) {
  int64_t tokens = 0;
  for (const std::vector<int32_t>& ids : sequences) {
    tokens += static_cast<int64_t>(ids.size());
    for (const int32_t id : ids)
      if (id < 0 || id >= config.vocabulary)
        fail(ErrorKind::kUsage, "calibrate", "token id {}; expected 0 to {}", id, config.vocabulary - 1);
    if (static_cast<int64_t>(ids.size()) > config.max_positions)
      fail(ErrorKind::kUsage, "calibrate", "a prompt of {} tokens; expected at most {}", ids.size(),
           config.max_positions);
  }
  if (tokens == 0) fail(ErrorKind::kUsage, "calibrate", "no tokens; expected prompts");
  return tokens;
}

}  // namespace

Calibration calibrate(const checkpoint::Checkpoint& source, const model::Config& config,
                      std::span<const std::vector<int32_t>> sequences, const CalibrateOptions& options, ops::Ops& ops) {
  Calibration out = empty_calibration(config);
  out.tokens = check_sequences(sequences, config);
  out.sequences = static_cast<int64_t>(sequences.size());
  out.every_expert = options.every_expert;
  out.model_sha256 = model_identity(source);
  out.runs = {hash_of(sequences)};

  const model::Model model = model::load_model(source, config, model::Precision::kFull, 1);
  int64_t longest = 0;
  for (const std::vector<int32_t>& ids : sequences) longest = std::max(longest, static_cast<int64_t>(ids.size()));
  const int64_t chunk = std::min(options.chunk_rows, longest);
  Recorder recorder(ops, out, options);
  const state::Storage storage(ops, config, 1, state::pages_for(longest));
  model::Workspace space(ops, config, chunk);
  std::vector<int32_t> pages(static_cast<size_t>(state::pages_for(longest)));
  std::iota(pages.begin(), pages.end(), 0);

  const int64_t width = config.streams * config.hidden;
  std::vector<float> streams(static_cast<size_t>(out.tokens * width));
  // Calls step(ids, first token, span) chunk by chunk through every sequence.
  auto for_each_chunk = [&](const auto& step) {
    int64_t first = 0;
    for (const std::vector<int32_t>& ids : sequences) {
      state::Sequence sequence(0, pages);
      for (std::span<const int32_t> left(ids); !left.empty();) {
        const auto rows = std::min(chunk, static_cast<int64_t>(left.size()));
        const ops::Span span = sequence.next(0, rows, rows);
        step(left.first(static_cast<size_t>(rows)), first, span);
        sequence.accept(span, rows);
        left = left.subspan(static_cast<size_t>(rows));
        first += rows;
      }
    }
  };
  auto bytes_of = [&](int64_t rows) { return static_cast<size_t>(rows * width) * sizeof(float); };
  for_each_chunk([&](std::span<const int32_t> ids, int64_t first, const ops::Span& span) {
    model::embed_tokens(ops, model, ids, space);
    ops.copy_out(streams.data() + first * width, space.streams, bytes_of(span.rows));
  });
  auto release = [&](const std::string& prefix) {
    for (const checkpoint::TensorView& tensor : source.with_prefix(prefix)) source.release(tensor);
  };
  release("model.language_model.embed_tokens.");
  Progress progress("calibrating", static_cast<uint64_t>(config.layers * out.tokens), "tokens x layers");
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    recorder.enter_layer(model.weights.layers[static_cast<size_t>(layer)], layer);
    for_each_chunk([&](std::span<const int32_t>, int64_t first, const ops::Span& span) {
      ops.copy_in(space.streams, streams.data() + first * width, bytes_of(span.rows));
      model::run_layer(recorder, model, storage.state(), {&span, 1}, span.rows, layer, space);
      ops.copy_out(streams.data() + first * width, space.streams, bytes_of(span.rows));
      progress.advance(static_cast<uint64_t>(layer * out.tokens + first + span.rows));
    });
    release(model::tensor_name("model.language_model.layers.{L}.", layer, 0));
  }
  return out;
}

}  // namespace verbatim::quantize
