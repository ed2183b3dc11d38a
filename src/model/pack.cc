// NVFP4 copies of the next-n layer's experts. They only draft, so they may differ from what is stored.
#include "base/thread_pool.h"
#include "checkpoint/stored_matrix.h"
#include "model/glm.h"
#include "model/tensors.h"
#include "quantize/nvfp4.h"

namespace verbatim::model {

void pack_next_n_experts(Model& model, const checkpoint::Checkpoint& stored, ThreadPool& pool) {
  if (!model.weights.next_n) return;
  const Config& c = model.config;
  std::vector<float> values;
  auto pack = [&](Matrix& matrix, const char* pattern, int64_t expert) {
    if (matrix.form == ops::WeightForm::kNvfp4) return;
    const std::string name = tensor_name(pattern, c.layers, expert);
    values.resize(static_cast<size_t>(matrix.rows * matrix.columns));
    checkpoint::dequantise(stored, checkpoint::resolve_matrix(stored, name, matrix.rows, matrix.columns), values);
    quantize::Nvfp4Matrix packed = quantize::quantise_nvfp4(values, matrix.rows, matrix.columns, pool);
    Matrix copy;
    copy.form = ops::WeightForm::kNvfp4;
    copy.rows = matrix.rows;
    copy.columns = matrix.columns;
    copy.row_bytes = matrix.columns / 2;
    copy.block_scale_stride = matrix.columns / checkpoint::kNvfp4BlockColumns;
    copy.matrix_scale = packed.matrix_scale;
    copy.data = reinterpret_cast<const std::byte*>(model.weights.packed.emplace_back(std::move(packed.codes)).data());
    copy.block_scale = model.weights.packed.emplace_back(std::move(packed.block_scales)).data();
    matrix = copy;
  };
  std::vector<ops::ExpertWeights>& experts = model.weights.next_n->moe.experts;
  for (int64_t e = 0; e < c.experts; ++e) {
    ops::ExpertWeights& expert = experts[static_cast<size_t>(e)];
    pack(expert.gate, "model.language_model.layers.{L}.mlp.experts.{E}.gate_proj", e);
    pack(expert.up, "model.language_model.layers.{L}.mlp.experts.{E}.up_proj", e);
    pack(expert.down, "model.language_model.layers.{L}.mlp.experts.{E}.down_proj", e);
  }
}

}  // namespace verbatim::model
