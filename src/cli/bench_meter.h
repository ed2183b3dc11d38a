// Ops that counts what a step asks of each operator, can let one operator at a time through to time it alone, and can
// time every call of a step between two waits.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "ops/ops.h"

namespace verbatim::cli {

// What calls of an operator must do, however they do it: products in three terms count once, work is counted as the
// formulas of ops.h have it.
struct OperatorCount {
  int64_t calls = 0, bytes = 0;  // bytes of weights, states and caches that the calls must read
  int64_t row_bytes = 0;         // and of rows that they read and write
  int64_t flops = 0;             // multiplications and additions; 0 for operators that memory alone bounds
};

class OperatorMeter final : public ops::Ops {
 public:
  explicit OperatorMeter(ops::Ops& inner) : inner_(inner) {}

  // Counts until the next call; bytes of experts are those of the experts chosen, read back from the backend.
  void start_counting();
  const std::map<std::string, OperatorCount>& counts() const { return counts_; }
  const std::vector<int64_t>& distinct_experts() const { return distinct_; }  // by call of experts()
  void stop_counting() { counting_ = false; }
  // From now on every call begins and ends with nothing queued; microseconds of all calls by label.
  void start_timing();
  const std::map<std::string, double>& microseconds() const { return microseconds_; }
  // Lets only operators of these labels through; none: all.
  void let_through(std::set<std::string> labels) { only_ = std::move(labels); }

  const char* name() const override { return inner_.name(); }
  void* allocate(size_t bytes) override { return inner_.allocate(bytes); }
  void release(void* data) override { inner_.release(data); }
  void copy_in(void* to, const void* from, size_t bytes) override { inner_.copy_in(to, from, bytes); }
  void copy_out(void* to, const void* from, size_t bytes) override { inner_.copy_out(to, from, bytes); }
  void embed(const ops::Matrix& table, const ops::StepIds& ids, int64_t streams, float* out) override;
  void rms_norm(const float* x, int64_t x_stride, const float* weight, float epsilon, int64_t rows, int64_t width,
                float* y, int64_t y_stride) override;
  void layer_norm(const float* x, const float* weight, const float* bias, float epsilon, int64_t rows, int64_t width,
                  float* y) override;
  void norms(std::span<const Norm> norms, int64_t rows) override;
  void add(const float* x, int64_t count, float* y) override;
  void clear(float* x, int64_t count) override;
  void matmul(const ops::Matrix& w, const float* x, int64_t x_stride, int64_t rows, int parts, float* y,
              int64_t y_stride) override;
  void matmul_group(std::span<const Product> products, const float* x, int64_t x_stride, int64_t rows) override;
  void matmul_each(std::span<const OwnProduct> products, int64_t rows) override;
  void swiglu(const float* gate, const float* up, float limit, int64_t count, float* h) override;
  void hyper_enter(const ops::HyperShape& shape, const ops::HyperWeights& weights, const float* norm,
                   const float* streams, int64_t rows, float* maps, float* h) override;
  void hyper_leave(const ops::HyperShape& shape, const float* maps, const float* y, int64_t rows,
                   float* streams) override;
  void hyper_mean(const ops::HyperShape& shape, const float* streams, int64_t rows, float* h) override;
  void kda(const ops::KdaShape& shape, const ops::KdaWeights& weights, const ops::KdaInputs& inputs,
           const ops::KdaState& state, std::span<const ops::Span> spans, int64_t rows, float* out) override;
  void append_latents(const ops::IndexShape& shape, int64_t latent_width, const float* latents, const float* keys,
                      const float* gates, const float* ape, std::span<const ops::Span> spans,
                      const ops::LatentCache& cache) override;
  void select_pools(const ops::IndexShape& shape, const float* q, const float* head_weights,
                    std::span<const ops::Span> spans, const ops::LatentCache& cache,
                    const ops::Selection& selection) override;
  void absorb_queries(const ops::Matrix& kv_b, int64_t heads, int64_t key_width, int64_t value_width, const float* q,
                      int64_t rows, float* out) override;
  void sparse_attention(const ops::IndexShape& shape, int64_t heads, int64_t latent_width, float scale, const float* q,
                        std::span<const ops::Span> spans, const ops::LatentCache& cache,
                        const ops::Selection& selection, float* out) override;
  void absorb_values(const ops::Matrix& kv_b, int64_t heads, int64_t key_width, int64_t value_width,
                     const float* attended, int64_t rows, float* out) override;
  void route(const float* logits, const float* bias, int64_t rows, int64_t experts, int64_t top, float scale,
             int32_t* chosen, float* weights) override;
  void experts(std::span<const ops::ExpertWeights> experts, const ops::ExpertWeights& shared, float limit,
               const float* x, int64_t rows, int64_t top, const int32_t* chosen, const float* weights, int parts,
               float* y) override;
  void argmax(const float* logits, int64_t rows, int64_t stride, int64_t limit, int32_t* ids) override;

 private:
  // Counts a call that does `work` (whose calls are 1), and makes it if it is let through.
  void meter(const std::string& label, const OperatorCount& work, const std::function<void()>& call);

  ops::Ops& inner_;
  bool counting_ = false, timing_ = false;
  std::set<std::string> only_;
  std::map<std::string, double> microseconds_;
  std::map<std::string, OperatorCount> counts_;
  std::vector<int64_t> distinct_;
};

}  // namespace verbatim::cli
