// From stored tensors to the weights of glm.h. Matrices stay where they are mapped; vectors are widened to float32.
#include <cstring>

#include "base/error.h"
#include "base/formats.h"
#include "checkpoint/stored_matrix.h"
#include "model/binder.h"
#include "model/glm.h"
#include "model/tensors.h"

namespace verbatim::model {

namespace {

using checkpoint::Checkpoint;
using checkpoint::DType;
using checkpoint::Form;
using checkpoint::StoredMatrix;
using checkpoint::TensorView;

class StoredBinder final : public Binder {
 public:
  StoredBinder(const Checkpoint& stored, Precision precision, Weights& weights)
      : stored_(stored), precision_(precision), weights_(weights) {}

  Matrix matrix(const std::string& name, int64_t rows, int64_t columns) override {
    const std::string module = prefix_ + name;
    const StoredMatrix found = checkpoint::resolve_matrix(stored_, module, rows, columns);
    checkpoint::check_block_scales(stored_, found);
    Matrix m;
    m.rows = rows;
    m.columns = columns;
    m.data = stored_.data(*found.weight).data();
    switch (found.form) {
      case Form::kBf16:
        m.form = ops::WeightForm::kBf16;
        m.row_bytes = 2 * columns;
        break;
      case Form::kF32:
        m.form = ops::WeightForm::kF32;
        m.row_bytes = 4 * columns;
        break;
      case Form::kNvfp4:
        m.form = ops::WeightForm::kNvfp4;
        m.row_bytes = columns / 2;
        m.block_scale = reinterpret_cast<const uint8_t*>(stored_.data(*found.block_scale).data());
        m.block_scale_stride = columns / checkpoint::kNvfp4BlockColumns;
        m.matrix_scale = checkpoint::matrix_scale(stored_, found);
        m.input_scale = activation_scale(module, found);
        break;
      case Form::kFp8Block:
        m.form = ops::WeightForm::kFp8Block;
        m.row_bytes = columns;
        m.grid_scale = widen(*found.block_scale);
        m.grid_stride = (columns + checkpoint::kFp8BlockSize - 1) / checkpoint::kFp8BlockSize;
        break;
    }
    return m;
  }

  Matrix plain_matrix(const std::string& name, int64_t rows, int64_t columns) override {
    const TensorView& view = tensor(name);
    Matrix m;
    m.form = view.dtype == DType::kBF16 ? ops::WeightForm::kBf16 : ops::WeightForm::kF32;
    m.rows = rows;
    m.columns = columns;
    m.data = stored_.data(view).data();
    m.row_bytes = columns * static_cast<int64_t>(checkpoint::dtype_bytes(view.dtype));
    return m;
  }

  const float* vector(const std::string& name) override { return widen(tensor(name)); }

  uint64_t quantised_activations() const { return quantised_activations_; }

 private:
  const TensorView& tensor(const std::string& name) {
    const TensorView* view = stored_.find(prefix_ + name);
    if (view == nullptr) fail(ErrorKind::kFormat, stored_.path().string(), "{} is missing", prefix_ + name);
    return *view;
  }

  const float* widen(const TensorView& view) {
    const auto bytes = stored_.data(view);
    std::vector<float>& values = weights_.vectors.emplace_back(static_cast<size_t>(view.shape.elements()));
    for (size_t i = 0; i < values.size(); ++i) {
      if (view.dtype == DType::kF32) {
        std::memcpy(&values[i], bytes.data() + 4 * i, 4);
      } else {
        uint16_t half;
        std::memcpy(&half, bytes.data() + 2 * i, 2);
        values[i] = bf16_to_float(half);
      }
    }
    return values.data();
  }

  // What rounds this matrix's input: nothing under kFull, its input_scale under kCheckpoint.
  float activation_scale(const std::string& module, const StoredMatrix& found) {
    if (precision_ == Precision::kFull) return 0.0f;
    if (found.input_scale == nullptr)
      fail(ErrorKind::kUnsupported, stored_.path().string(),
           "{} is stored as NVFP4 without input_scale, so the checkpoint's own math (W4A4) is not known; expected "
           "{}.input_scale; use --precision full",
           module, module);
    if (stored_.quantisation().is_weight_only(module)) return 0.0f;
    ++quantised_activations_;
    return checkpoint::input_scale(stored_, found);
  }

  const Checkpoint& stored_;
  Precision precision_;
  Weights& weights_;
  uint64_t quantised_activations_ = 0;
};

Site bind_site(Binder& bind, const Config& c, const std::string& site, const std::string& norm) {
  Site s;
  s.hyper.fn = bind.plain_matrix("hc_" + site + "_fn", c.maps_width(), c.streams * c.hidden);
  s.hyper.base = bind.vector("hc_" + site + "_base");
  s.hyper.scale = bind.vector("hc_" + site + "_scale");
  s.norm = bind.vector(norm + ".weight");
  return s;
}

LinearAttention bind_linear(Binder& bind, const Config& c) {
  const int64_t D = c.hidden, Nd = c.linear_width(), d = c.linear_head_width;
  LinearAttention a;
  a.q = bind.matrix("self_attn.q_proj", Nd, D);
  a.k = bind.matrix("self_attn.k_proj", Nd, D);
  a.v = bind.matrix("self_attn.v_proj", Nd, D);
  a.f_a = bind.matrix("self_attn.f_a_proj", d, D);
  a.g_a = bind.matrix("self_attn.g_a_proj", d, D);
  a.f_b = bind.matrix("self_attn.f_b_proj", Nd, d);
  a.g_b = bind.matrix("self_attn.g_b_proj", Nd, d);
  a.b = bind.matrix("self_attn.b_proj", c.linear_heads, D);
  for (Matrix* decay : {&a.f_a, &a.f_b, &a.b}) decay->float_input = true;
  a.o = bind.matrix("self_attn.o_proj", D, Nd);
  a.vectors.conv_q = bind.vector("self_attn.q_conv1d.weight");
  a.vectors.conv_k = bind.vector("self_attn.k_conv1d.weight");
  a.vectors.conv_v = bind.vector("self_attn.v_conv1d.weight");
  a.vectors.a_log = bind.vector("self_attn.A_log");
  a.vectors.dt_bias = bind.vector("self_attn.dt_bias");
  a.vectors.o_norm = bind.vector("self_attn.o_norm.weight");
  return a;
}

SparseAttention bind_sparse(Binder& bind, const Config& c) {
  const int64_t D = c.hidden;
  SparseAttention a;
  a.q_a = bind.matrix("self_attn.q_a_proj", c.query_rank, D);
  a.q_norm = bind.vector("self_attn.q_a_layernorm.weight");
  a.q_b = bind.matrix("self_attn.q_b_proj", c.heads * c.key_width, c.query_rank);
  a.kv_a = bind.matrix("self_attn.kv_a_proj_with_mqa", c.latent, D);
  a.kv_norm = bind.vector("self_attn.kv_a_layernorm.weight");
  a.kv_b = bind.matrix("self_attn.kv_b_proj", c.heads * (c.key_width + c.value_width), c.latent);
  if (a.kv_b.input_scale > 0)
    fail(ErrorKind::kUnsupported, "load",
         "self_attn.kv_b_proj stores input_scale; absorbed attention has no product whose "
         "input it could round; use --precision full");
  a.o = bind.matrix("self_attn.o_proj", D, c.heads * c.value_width);
  a.index_q = bind.matrix("self_attn.indexer.wq_b", c.index_heads * c.index_width, c.query_rank);
  a.index_k = bind.matrix("self_attn.indexer.wk", c.index_width, D);
  a.index_weights = bind.matrix("self_attn.indexer.weights_proj", c.index_heads, D);
  a.index_gate = bind.plain_matrix("self_attn.indexer.index_kpool_compress_gate", c.index_width, D);
  for (Matrix* indexer : {&a.index_q, &a.index_k, &a.index_weights, &a.index_gate}) indexer->float_input = true;
  a.index_norm = bind.vector("self_attn.indexer.k_norm.weight");
  a.index_norm_bias = bind.vector("self_attn.indexer.k_norm.bias");
  a.pool_position = bind.vector("self_attn.indexer.index_kpool_compress_ape");
  return a;
}

ops::ExpertWeights bind_expert(Binder& bind, const std::string& name, int64_t inner, int64_t D) {
  return {bind.matrix(name + ".gate_proj", inner, D), bind.matrix(name + ".up_proj", inner, D),
          bind.matrix(name + ".down_proj", D, inner)};
}

Moe bind_moe(Binder& bind, const Config& c) {
  Moe moe;
  moe.router = bind.plain_matrix("mlp.gate.weight", c.experts, c.hidden);
  moe.router.float_input = true;
  moe.bias = bind.vector("mlp.gate.e_score_correction_bias");
  moe.shared = bind_expert(bind, "mlp.shared_experts", c.shared_intermediate(), c.hidden);
  for (int64_t e = 0; e < c.experts; ++e)
    moe.experts.push_back(bind_expert(bind, "mlp.experts." + std::to_string(e), c.expert_intermediate, c.hidden));
  return moe;
}

Layer bind_layer(Binder& bind, const Config& c, int64_t index) {
  bind.enter(tensor_name("model.language_model.layers.{L}.", index, 0));
  Layer layer;
  layer.mixer = c.mixer(index);
  layer.ffn = c.ffn(index);
  layer.attention_site = bind_site(bind, c, "attn", "input_layernorm");
  layer.ffn_site = bind_site(bind, c, "ffn", "post_attention_layernorm");
  if (layer.mixer == MixerKind::kLinear)
    layer.linear = bind_linear(bind, c);
  else
    layer.sparse = bind_sparse(bind, c);
  if (layer.ffn == FfnKind::kDense) {
    layer.mlp.gate = bind.matrix("mlp.gate_proj", c.dense_intermediate, c.hidden);
    layer.mlp.up = bind.matrix("mlp.up_proj", c.dense_intermediate, c.hidden);
    layer.mlp.down = bind.matrix("mlp.down_proj", c.hidden, c.dense_intermediate);
  } else {
    layer.moe = bind_moe(bind, c);
  }
  return layer;
}

NextN bind_next_n(Binder& bind, const Config& c) {
  bind.enter(tensor_name("model.language_model.layers.{L}.", c.layers, 0));
  NextN n;
  n.embedding_norm = bind.vector("enorm.weight");
  n.hidden_norm = bind.vector("hnorm.weight");
  n.project = bind.matrix("eh_proj", c.hidden, 2 * c.hidden);
  n.attention_norm = bind.vector("input_layernorm.weight");
  n.sparse = bind_sparse(bind, c);
  n.ffn_norm = bind.vector("post_attention_layernorm.weight");
  n.moe = bind_moe(bind, c);
  n.head_norm = bind.vector("shared_head.norm.weight");
  return n;
}

}  // namespace

void bind_weights(Binder& bind, const Config& config, Weights& weights) {
  bind.enter("");
  weights.embedding = bind.matrix("model.language_model.embed_tokens", config.vocabulary, config.hidden);
  weights.norm = bind.vector("model.language_model.norm.weight");
  weights.head = bind.matrix("lm_head", config.vocabulary, config.hidden);
  for (int64_t layer = 0; layer < config.layers; ++layer) weights.layers.push_back(bind_layer(bind, config, layer));
  if (config.next_n_layers > 0) weights.next_n = bind_next_n(bind, config);
}

void check_sum_parts(const Config& c, int parts) {
  if (parts < 1 || parts > 64 || (parts & (parts - 1)) != 0)
    fail(ErrorKind::kUsage, "sum-parts", "{}; expected a power of two from 1 to 64", parts);
  for (const auto& [size, name] : {std::pair{c.linear_width(), "linear attention's heads x width"},
                                   std::pair{c.heads * c.value_width, "attention heads x value width"},
                                   std::pair{c.dense_intermediate, "intermediate_size"},
                                   std::pair{c.expert_intermediate, "moe_intermediate_size"}})
    if (size % (2 * parts) != 0)
      fail(ErrorKind::kUsage, "sum-parts", "{} parts do not cut {} ({}) in equal even lengths", parts, name, size);
}

Model load_model(const Checkpoint& stored, const Config& config, Precision precision, int sum_parts) {
  check_sum_parts(config, sum_parts);
  require_sound(stored, take_census(stored, config));
  Model model;
  model.config = config;
  model.precision = precision;
  model.sum_parts = sum_parts;
  StoredBinder bind(stored, precision, model.weights);
  bind_weights(bind, config, model.weights);
  if (precision == Precision::kCheckpoint && bind.quantised_activations() == 0)
    fail(ErrorKind::kUnsupported, stored.path().string(),
         "no matrix stores input_scale, so the checkpoint has no activation rounding of its own; use --precision full");
  return model;
}

namespace {

int64_t stored_bytes(const Matrix& m) {
  const int64_t scales = m.block_scale != nullptr  ? m.rows * m.block_scale_stride
                         : m.grid_scale != nullptr ? 4 * m.grid_stride * ((m.rows + 127) / 128)
                                                   : 0;
  return m.rows * m.row_bytes + scales;
}

int64_t stored_bytes(const ops::ExpertWeights& e) {
  return stored_bytes(e.gate) + stored_bytes(e.up) + stored_bytes(e.down);
}

}  // namespace

int64_t weight_bytes_per_token(const Model& model) {
  int64_t bytes = stored_bytes(model.weights.head);
  for (const Layer& layer : model.weights.layers) {
    bytes += stored_bytes(layer.attention_site.hyper.fn) + stored_bytes(layer.ffn_site.hyper.fn);
    const LinearAttention& l = layer.linear;
    for (const Matrix* m : {&l.q, &l.k, &l.v, &l.f_a, &l.f_b, &l.g_a, &l.g_b, &l.b, &l.o}) bytes += stored_bytes(*m);
    const SparseAttention& s = layer.sparse;
    for (const Matrix* m : {&s.q_a, &s.q_b, &s.kv_a, &s.kv_b, &s.o, &s.index_q, &s.index_k, &s.index_gate,
                            &s.index_weights, &layer.mlp.gate, &layer.mlp.up, &layer.mlp.down, &layer.moe.router})
      bytes += stored_bytes(*m);
    if (layer.ffn != FfnKind::kSparse) continue;
    int64_t routed = 0;
    for (const ops::ExpertWeights& expert : layer.moe.experts) routed += stored_bytes(expert);
    bytes += stored_bytes(layer.moe.shared) + routed / model.config.experts * model.config.experts_per_token;
  }
  return bytes;
}

}  // namespace verbatim::model
