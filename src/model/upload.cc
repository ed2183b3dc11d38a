// From weights where they are mapped to weights where a backend computes.
#include "model/upload.h"

#include <functional>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/progress.h"

namespace verbatim::model {

namespace {

// What is done with a matrix's stored bytes once the backend has a copy of them.
using Uploaded = std::function<void(const Matrix& stored)>;

class Uploader {
 public:
  Uploader(ops::Ops& ops, const Config& config, int sum_parts, Uploaded uploaded)
      : ops_(ops), c(config), parts_(sum_parts), uploaded_(std::move(uploaded)) {}

  // Read by products alone.
  void matrices(std::initializer_list<Matrix*> all) {
    for (Matrix* m : all) upload(*m, {.only_products = true, .parts = 1});
  }
  // The same, in the parts that ranks cut.
  void cut_matrix(Matrix& m) { upload(m, {.only_products = true, .parts = parts_}); }
  // Read by rows.
  void row_matrix(Matrix& m) { upload(m, {}); }
  void vector(const float*& values, int64_t count) { values = ops_.upload(values, count); }

  void expert(ops::ExpertWeights& e) {
    matrices({&e.gate, &e.up});
    cut_matrix(e.down);
  }

  void site(Site& s) {
    row_matrix(s.hyper.fn);
    vector(s.hyper.base, c.maps_width());
    vector(s.hyper.scale, 3);
    vector(s.norm, c.hidden);
  }
  void linear(LinearAttention& a) {
    matrices({&a.q, &a.k, &a.v, &a.f_a, &a.g_a, &a.f_b, &a.g_b, &a.b});
    cut_matrix(a.o);
    for (const float** taps : {&a.vectors.conv_q, &a.vectors.conv_k, &a.vectors.conv_v})
      vector(*taps, c.linear_width() * c.conv_taps);
    vector(a.vectors.a_log, c.linear_heads);
    vector(a.vectors.dt_bias, c.linear_width());
    vector(a.vectors.o_norm, c.linear_head_width);
  }
  void sparse(SparseAttention& a) {
    matrices({&a.q_a, &a.q_b, &a.kv_a, &a.index_q, &a.index_k, &a.index_gate, &a.index_weights});
    row_matrix(a.kv_b);
    cut_matrix(a.o);
    vector(a.q_norm, c.query_rank);
    vector(a.kv_norm, c.latent);
    vector(a.index_norm, c.index_width);
    vector(a.index_norm_bias, c.index_width);
    vector(a.pool_position, c.index_pool * c.index_width);
  }
  void moe(Moe& m) {
    matrices({&m.router});
    vector(m.bias, c.experts);
    for (ops::ExpertWeights& each : m.experts) expert(each);
    expert(m.shared);
  }
  void layer(Layer& l) {
    site(l.attention_site);
    site(l.ffn_site);
    if (l.mixer == MixerKind::kLinear)
      linear(l.linear);
    else
      sparse(l.sparse);
    if (l.ffn == FfnKind::kDense) {
      matrices({&l.mlp.gate, &l.mlp.up});
      cut_matrix(l.mlp.down);
    } else {
      moe(l.moe);
    }
  }
  void next_n(NextN& n) {
    matrices({&n.project});
    for (const float** norm : {&n.embedding_norm, &n.hidden_norm, &n.attention_norm, &n.ffn_norm, &n.head_norm})
      vector(*norm, c.hidden);
    sparse(n.sparse);
    moe(n.moe);
  }

 private:
  void upload(Matrix& m, const ops::WeightUse& use) {
    const Matrix stored = std::exchange(m, ops_.upload(m, use));
    if (uploaded_ && stored.data != m.data) uploaded_(stored);
  }

  ops::Ops& ops_;
  const Config& c;
  int parts_;
  Uploaded uploaded_;
};

void upload_all(ops::Ops& ops, Model& model, Uploaded uploaded) {
  Weights& weights = model.weights;
  const float* norm = weights.norm;
  Uploader upload(ops, model.config, model.sum_parts, std::move(uploaded));
  upload.row_matrix(weights.embedding);
  upload.matrices({&weights.head});
  upload.vector(weights.norm, model.config.hidden);
  for (Layer& layer : weights.layers) upload.layer(layer);
  if (weights.next_n) upload.next_n(*weights.next_n);
  if (weights.norm != norm) weights.vectors.clear();
}

}  // namespace

void upload_weights(ops::Ops& ops, Model& model) { upload_all(ops, model, {}); }

uint64_t upload_weights(ops::Ops& ops, Model& model, const checkpoint::Checkpoint& stored) {
  // Matrices that do not stand in a file (packed for drafting) are not found here and stay as they are.
  std::unordered_map<const void*, const checkpoint::TensorView*> by_address;
  for (const checkpoint::TensorView& view : stored.tensors()) by_address[stored.data(view).data()] = &view;
  std::optional<Progress> progress;
  uint64_t done = 0;
  upload_all(ops, model, [&](const Matrix& matrix) {
    if (!progress) progress.emplace("uploading weights", stored.payload_bytes() >> 20, "MiB");
    for (const void* data : {static_cast<const void*>(matrix.data), static_cast<const void*>(matrix.block_scale)}) {
      const auto found = by_address.find(data);
      if (data == nullptr || found == by_address.end()) continue;
      stored.release(*found->second);
      done += found->second->bytes;
    }
    progress->advance(done >> 20);
  });
  return done;
}

}  // namespace verbatim::model
