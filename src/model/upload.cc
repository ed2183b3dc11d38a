// From weights where they are mapped to weights where a backend computes.
#include "model/upload.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/progress.h"
#include "base/read_ahead.h"

namespace verbatim::model {

namespace {

// Of files, read before the backend asks for them: enough for the disk to work while a piece is packed.
constexpr uint64_t kAheadBytes = 256 << 20;

using UseMatrix = std::function<void(Matrix& m, ops::WeightUse use)>;
using UseVector = std::function<void(const float*& values, int64_t count)>;

// Every weight of a model in one order, and how it will be read.
class Walk {
 public:
  Walk(const Config& config, int sum_parts, const UseMatrix& use_matrix, const UseVector& use_vector)
      : c(config), parts_(sum_parts), use_matrix_(use_matrix), use_vector_(use_vector) {}

  // Read by products alone.
  void matrices(std::initializer_list<Matrix*> all) {
    for (Matrix* m : all) use_matrix_(*m, {.only_products = true, .parts = 1});
  }
  // The same, in the parts that ranks cut.
  void cut_matrix(Matrix& m) { use_matrix_(m, {.only_products = true, .parts = parts_}); }
  // Read by rows.
  void row_matrix(Matrix& m) { use_matrix_(m, {}); }
  void vector(const float*& values, int64_t count) { use_vector_(values, count); }

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
  const Config& c;
  int parts_;
  const UseMatrix& use_matrix_;
  const UseVector& use_vector_;
};

void walk(Model& model, const UseMatrix& use_matrix, const UseVector& use_vector) {
  Weights& weights = model.weights;
  Walk all(model.config, model.sum_parts, use_matrix, use_vector);
  all.row_matrix(weights.embedding);
  all.matrices({&weights.head});
  all.vector(weights.norm, model.config.hidden);
  for (Layer& layer : weights.layers) all.layer(layer);
  if (weights.next_n) all.next_n(*weights.next_n);
}

void upload_all(ops::Ops& ops, Model& model, const UseMatrix& upload_matrix) {
  const float* norm = model.weights.norm;
  walk(model, upload_matrix, [&](const float*& values, int64_t count) { values = ops.upload(values, count); });
  if (model.weights.norm != norm) model.weights.vectors.clear();
}

// Matrices where they are stored: read ahead in the order in which they will be asked for, and dropped behind.
class StoredMatrices {
 public:
  explicit StoredMatrices(const checkpoint::Checkpoint& stored) : stored_(stored) {
    for (const checkpoint::TensorView& view : stored.tensors()) by_address_[stored.data(view).data()] = &view;
  }
  // Before any is uploaded, all of them in order. What stands in no file (packed for drafting) is passed over here and
  // below.
  void expect(const Matrix& m) {
    for (const void* data : {static_cast<const void*>(m.data), static_cast<const void*>(m.block_scale)})
      if (const checkpoint::TensorView* view = find(data)) order_.push_back(stored_.file_range(*view));
  }
  void upload(ops::Ops& ops, Matrix& m, ops::WeightUse use) {
    Taken data{find(m.data), m.row_bytes}, scales{find(m.block_scale), m.block_scale_stride};
    use.rows_taken = [&](int64_t rows) {
      for (Taken* each : {&data, &scales}) take(*each, static_cast<uint64_t>(rows * each->row_bytes));
    };
    const Matrix stored = std::exchange(m, ops.upload(m, use));
    if (stored.data == m.data) return;
    for (Taken* each : {&data, &scales})
      if (each->view != nullptr) take(*each, each->view->bytes);
  }
  uint64_t done() const { return done_; }

 private:
  // A tensor of which the backend has the first `bytes`.
  struct Taken {
    const checkpoint::TensorView* view = nullptr;
    int64_t row_bytes = 0;
    uint64_t bytes = 0;
  };

  const checkpoint::TensorView* find(const void* data) const {
    const auto found = by_address_.find(data);
    return data == nullptr || found == by_address_.end() ? nullptr : found->second;
  }
  void take(Taken& tensor, uint64_t bytes) {
    if (tensor.view == nullptr) return;
    bytes = std::min(bytes, tensor.view->bytes);
    if (bytes <= tensor.bytes) return;
    stored_.release(*tensor.view, bytes);
    done_ += bytes - std::exchange(tensor.bytes, bytes);
    // Only a backend that copies comes here.
    if (!progress_) {
      progress_.emplace("uploading weights", stored_.payload_bytes() >> 20, "MiB");
      ahead_.emplace(std::move(order_), kAheadBytes);
    }
    progress_->advance(done_ >> 20);
    ahead_->passed(done_);
  }

  const checkpoint::Checkpoint& stored_;
  std::unordered_map<const void*, const checkpoint::TensorView*> by_address_;
  std::vector<ReadAhead::Range> order_;
  std::optional<Progress> progress_;
  std::optional<ReadAhead> ahead_;
  uint64_t done_ = 0;
};

}  // namespace

void upload_weights(ops::Ops& ops, Model& model) {
  upload_all(ops, model, [&](Matrix& m, const ops::WeightUse& use) { m = ops.upload(m, use); });
}

uint64_t upload_weights(ops::Ops& ops, Model& model, const checkpoint::Checkpoint& stored) {
  StoredMatrices matrices(stored);
  walk(
      model, [&](Matrix& m, const ops::WeightUse&) { matrices.expect(m); }, [](const float*&, int64_t) {});
  upload_all(ops, model, [&](Matrix& m, ops::WeightUse use) { matrices.upload(ops, m, std::move(use)); });
  return matrices.done();
}

}  // namespace verbatim::model
