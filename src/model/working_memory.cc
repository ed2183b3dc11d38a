#include "model/working_memory.h"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <vector>

#include "checkpoint/stored_matrix.h"
#include "model/binder.h"
#include "model/step_buffers.h"
#include "model/tensors.h"
#include "ops/cuda_working.h"

namespace verbatim::model {

namespace {

using checkpoint::Checkpoint;

ops::WeightForm form_of(checkpoint::Form form) {
  switch (form) {
    case checkpoint::Form::kBf16: return ops::WeightForm::kBf16;
    case checkpoint::Form::kF32: return ops::WeightForm::kF32;
    case checkpoint::Form::kNvfp4: return ops::WeightForm::kNvfp4;
    case checkpoint::Form::kFp8Block: return ops::WeightForm::kFp8Block;
  }
  return ops::WeightForm::kBf16;
}

// Matrices of the shapes asked for, in their stored forms, without data; no vectors.
class ShapeBinder final : public Binder {
 public:
  // `whole` is the config of what is stored.
  ShapeBinder(const Checkpoint& stored, const Config& whole, const WorkingOptions& options) {
    for_each_expected(whole, [&](const Expected& expected) {
      if (expected.row->split == Split::kNotResident) return;
      Stored& own = stored_[expected.name];
      if (expected.row->kind == Kind::kTensor) {
        const checkpoint::TensorView* view = stored.find(expected.name);
        if (view != nullptr && view->dtype == checkpoint::DType::kF32) own.form = ops::WeightForm::kF32;
        return;
      }
      const checkpoint::StoredMatrix matrix =
          checkpoint::resolve_matrix(stored, expected.name, expected.shape[0], expected.shape[1]);
      own.form = form_of(matrix.form);
      own.rounds_input = options.activation_scales && matrix.input_scale != nullptr;
      if (options.packed_next_n_experts && expected.group == Group::kNextNExperts) own.form = ops::WeightForm::kNvfp4;
    });
  }

  Matrix matrix(const std::string& name, int64_t rows, int64_t columns) override {
    Matrix m = plain_matrix(name, rows, columns);
    // Absorbed attention has no product whose input it could round.
    if (stored_[prefix_ + name].rounds_input && !name.ends_with("kv_b_proj")) m.input_scale = 1.0f;
    return m;
  }
  Matrix plain_matrix(const std::string& name, int64_t rows, int64_t columns) override {
    Matrix m;
    m.form = stored_[prefix_ + name].form;
    m.rows = rows;
    m.columns = columns;
    return m;
  }
  const float* vector(const std::string&) override { return nullptr; }

 private:
  struct Stored {
    ops::WeightForm form = ops::WeightForm::kBf16;
    bool rounds_input = false;
  };
  std::unordered_map<std::string, Stored> stored_;
};

}  // namespace

int64_t cuda_working_bytes(const Checkpoint& stored, const Config& whole, const Config& config,
                           const WorkingOptions& options) {
  Model model;
  model.config = config;
  model.sum_parts = options.sum_parts;
  ShapeBinder bind(stored, whole, options);
  bind_weights(bind, config, model.weights);
  ops::CudaWorking uploading;
  upload_weights(uploading, model);
  return std::max(uploading.bytes(), cuda_working_bytes(model, options));
}

int64_t cuda_working_bytes(const Model& model, const WorkingOptions& options) {
  const Config& config = model.config;
  ops::CudaWorking working;
  State state;
  state.linear.resize(static_cast<size_t>(config.count(MixerKind::kLinear)));
  state.sparse.resize(static_cast<size_t>(config.count(MixerKind::kSparse) + config.next_n_layers));

  const auto step = [&](int64_t sequences, int64_t rows_each, int64_t certain) {
    const int64_t rows = sequences * rows_each;
    if (rows < 1 || rows > options.rows) return;
    Workspace space(working, config, rows);
    const std::vector<int32_t> ids(static_cast<size_t>(rows), 0);
    std::vector<ops::Span> spans;
    for (int64_t i = 0; i < sequences; ++i) {
      ops::Span span;
      span.first_row = i * rows_each;
      span.rows = rows_each;
      span.certain = certain;
      span.position = std::max<int64_t>(options.positions - rows_each, 0);
      spans.push_back(span);
    }
    forward(working, model, state, spans, ids, space);
    if (config.next_n_layers > 0) next_n(working, model, state, spans, ids, space.hidden, space);
  };
  // Operators change kernels at few rows, where a smaller step may take more.
  for (const int64_t rows : {1, 2, 4, 8, 16, 21, 32, 48, 64, 65, 96, 128, 129, 256}) {
    step(1, rows, rows);
    if (rows <= options.sequences) step(rows, 1, 1);
  }
  step(1, options.rows, options.rows);
  step(options.sequences, 1, 1);
  step(options.sequences, ops::kWindowRows, 1);
  for (const int64_t rows : {int64_t{1}, int64_t{8}, int64_t{16}, int64_t{32}, kHeadRows}) {
    head(working, model, nullptr, rows, nullptr);
    working.argmax(nullptr, rows, config.vocabulary, config.vocabulary, nullptr);
    working.sample(nullptr, rows, config.vocabulary, config.vocabulary, {}, {}, nullptr);
  }
  return working.bytes();
}

}  // namespace verbatim::model
