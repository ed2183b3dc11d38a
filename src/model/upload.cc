// From weights where they are mapped to weights where a backend computes.
#include "model/glm.h"

namespace verbatim::model {

namespace {

class Uploader {
 public:
  Uploader(ops::Ops& ops, const Config& config, int sum_parts) : ops_(ops), c(config), parts_(sum_parts) {}

  // Read by products alone.
  void matrices(std::initializer_list<Matrix*> all) {
    for (Matrix* m : all) *m = ops_.upload(*m, {.only_products = true, .parts = 1});
  }
  // The same, in the parts that ranks cut.
  void cut_matrix(Matrix& m) { m = ops_.upload(m, {.only_products = true, .parts = parts_}); }
  // Read by rows.
  void row_matrix(Matrix& m) { m = ops_.upload(m); }
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
  ops::Ops& ops_;
  const Config& c;
  int parts_;
};

}  // namespace

void upload_weights(ops::Ops& ops, Model& model) {
  Weights& weights = model.weights;
  const float* norm = weights.norm;
  Uploader upload(ops, model.config, model.sum_parts);
  upload.row_matrix(weights.embedding);
  upload.matrices({&weights.head});
  upload.vector(weights.norm, model.config.hidden);
  for (Layer& layer : weights.layers) upload.layer(layer);
  if (weights.next_n) upload.next_n(*weights.next_n);
  if (weights.norm != norm) weights.vectors.clear();
}

}  // namespace verbatim::model
