// A synthetic model made where a backend computes, without files: the weights that synthesise() would write.
#include <map>

#include "base/error.h"
#include "base/formats.h"
#include "base/synthetic.h"
#include "base/thread_pool.h"
#include "model/binder.h"
#include "model/synth_parts.h"
#include "quantize/nvfp4.h"

namespace verbatim::model {

namespace {

class SyntheticBinder final : public Binder {
 public:
  SyntheticBinder(ops::Ops& ops, const Config& config, const SynthOptions& options, int sum_parts, ThreadPool& pool,
                  Weights& weights)
      : ops_(ops), options_(options), parts_(sum_parts), pool_(pool), weights_(weights) {
    for_each_expected(config, [&](const Expected& expected) { expected_.emplace(expected.name, expected); });
  }

  Matrix matrix(const std::string& name, int64_t rows, int64_t columns) override { return make(name, rows, columns); }
  Matrix plain_matrix(const std::string& name, int64_t rows, int64_t columns) override {
    return make(name, rows, columns);
  }
  const float* vector(const std::string& name) override {
    const Expected& expected = find(name);
    std::vector<float>& values = weights_.vectors.emplace_back();
    fill(expected, values);
    if (stored_dtype(expected, options_.form) == checkpoint::DType::kBF16)
      for (float& value : values) value = bf16_to_float(float_to_bf16(value));
    const float* kept = ops_.upload(values.data(), std::ssize(values));
    if (kept != values.data()) weights_.vectors.pop_back();
    return kept;
  }

 private:
  const Expected& find(const std::string& name) const {
    const auto found = expected_.find(prefix_ + name);
    if (found == expected_.end()) fail(ErrorKind::kFormat, "synth", "{} is not in the table", prefix_ + name);
    return found->second;
  }

  void fill(const Expected& expected, std::vector<float>& values) const {
    const uint64_t key = synthetic_key(options_.seed, expected.name);
    const Distribution distribution = distribution_of(expected);
    values.resize(static_cast<size_t>(expected.shape.elements()));
    pool_.for_each(std::ssize(values), 1 << 16, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        values[static_cast<size_t>(i)] = distribution.mean + distribution.spread * synthetic_number(key, i);
    });
  }

  // As upload_weights() would have it.
  ops::WeightUse use_of(const std::string& name) const {
    if (name.ends_with("embed_tokens") || name.ends_with("kv_b_proj") || name.starts_with("hc_")) return {};
    return {.only_products = true, .parts = name.ends_with("o_proj") || name.ends_with("down_proj") ? parts_ : 1};
  }

  Matrix make(const std::string& name, int64_t rows, int64_t columns) {
    const Expected& expected = find(name);
    const Distribution distribution = distribution_of(expected);
    ops::SyntheticMatrix wanted;
    wanted.form = is_quantised(expected, options_.form) ? ops::WeightForm::kNvfp4 : ops::WeightForm::kBf16;
    wanted.rows = rows;
    wanted.columns = columns;
    wanted.key = synthetic_key(options_.seed, expected.name);
    wanted.mean = distribution.mean;
    wanted.spread = distribution.spread;
    const ops::WeightUse use = use_of(name);
    if (const std::optional<Matrix> made = ops_.synthesise(wanted, use)) return *made;

    Matrix m;
    m.form = wanted.form;
    m.rows = rows;
    m.columns = columns;
    std::vector<float> values;
    fill(expected, values);
    const size_t before = weights_.packed.size();
    if (m.form == ops::WeightForm::kNvfp4) {
      quantize::Nvfp4Matrix packed = quantize::quantise_nvfp4(values, rows, columns, pool_);
      m.row_bytes = columns / 2;
      m.block_scale_stride = columns / 16;
      m.matrix_scale = packed.matrix_scale;
      m.data = reinterpret_cast<const std::byte*>(weights_.packed.emplace_back(std::move(packed.codes)).data());
      m.block_scale = weights_.packed.emplace_back(std::move(packed.block_scales)).data();
    } else {
      m.row_bytes = 2 * columns;
      std::vector<uint8_t>& halves = weights_.packed.emplace_back(2 * values.size());
      for (size_t i = 0; i < values.size(); ++i) {
        const uint16_t half = float_to_bf16(values[i]);
        halves[2 * i] = static_cast<uint8_t>(half);
        halves[2 * i + 1] = static_cast<uint8_t>(half >> 8);
      }
      m.data = reinterpret_cast<const std::byte*>(halves.data());
    }
    const Matrix kept = ops_.upload(m, use);
    if (kept.data != m.data) weights_.packed.resize(before);
    return kept;
  }

  ops::Ops& ops_;
  const SynthOptions& options_;
  int parts_;
  ThreadPool& pool_;
  Weights& weights_;
  std::map<std::string, Expected> expected_;
};

}  // namespace

Model synthetic_model(ops::Ops& ops, const SynthOptions& options, bool with_next_n, int sum_parts, ThreadPool& pool) {
  Model model;
  model.config = parse_config(synth_config(options), "synth");
  if (!with_next_n) model.config.next_n_layers = 0;
  check_sum_parts(model.config, sum_parts);
  model.sum_parts = sum_parts;
  SyntheticBinder bind(ops, model.config, options, sum_parts, pool, model.weights);
  bind_weights(bind, model.config, model.weights);
  return model;
}

}  // namespace verbatim::model
