// Forwards every operator to another backend, for whoever overrides a few: calibration listens, tests change one.
#pragma once

#include "ops/ops.h"

namespace verbatim::ops {

class OpsProxy : public Ops {
 public:
  explicit OpsProxy(Ops& inner) : inner_(inner) {}

  const char* name() const override { return inner_.name(); }
  int64_t cache_element_bytes() const override { return inner_.cache_element_bytes(); }
  void* allocate(size_t bytes) override { return inner_.allocate(bytes); }
  void release(void* data) override { inner_.release(data); }
  void copy_in(void* to, const void* from, size_t bytes) override { inner_.copy_in(to, from, bytes); }
  void copy_out(void* to, const void* from, size_t bytes) override { inner_.copy_out(to, from, bytes); }
  void copy(void* to, const void* from, size_t bytes) override { inner_.copy(to, from, bytes); }
  void gather(const float* from, const int32_t* rows, int64_t count, int64_t width, float* to) override {
    inner_.gather(from, rows, count, width, to);
  }
  void embed(const Matrix& table, const StepIds& ids, int64_t streams, float* out) override {
    inner_.embed(table, ids, streams, out);
  }
  void rms_norm(const float* x, int64_t x_stride, const float* weight, float epsilon, int64_t rows, int64_t width,
                float* y, int64_t y_stride) override {
    inner_.rms_norm(x, x_stride, weight, epsilon, rows, width, y, y_stride);
  }
  void layer_norm(const float* x, const float* weight, const float* bias, float epsilon, int64_t rows, int64_t width,
                  float* y) override {
    inner_.layer_norm(x, weight, bias, epsilon, rows, width, y);
  }
  void add(const float* x, int64_t count, float* y) override { inner_.add(x, count, y); }
  void clear(float* x, int64_t count) override { inner_.clear(x, count); }
  void matmul(const Matrix& w, const float* x, int64_t x_stride, int64_t rows, int parts, float* y,
              int64_t y_stride) override {
    inner_.matmul(w, x, x_stride, rows, parts, y, y_stride);
  }
  void matmul_group(std::span<const Product> products, const float* x, int64_t x_stride, int64_t rows) override {
    inner_.matmul_group(products, x, x_stride, rows);
  }
  void swiglu(const float* gate, const float* up, float limit, int64_t count, float* h) override {
    inner_.swiglu(gate, up, limit, count, h);
  }
  void hyper_enter(const HyperShape& shape, const HyperWeights& weights, const float* norm, const float* streams,
                   int64_t rows, float* maps, float* h) override {
    inner_.hyper_enter(shape, weights, norm, streams, rows, maps, h);
  }
  void hyper_leave(const HyperShape& shape, const float* maps, const float* y, int64_t rows, float* streams) override {
    inner_.hyper_leave(shape, maps, y, rows, streams);
  }
  void hyper_mean(const HyperShape& shape, const float* streams, int64_t rows, float* h) override {
    inner_.hyper_mean(shape, streams, rows, h);
  }
  void kda(const KdaShape& shape, const KdaWeights& weights, const KdaInputs& inputs, const KdaState& state,
           std::span<const Span> spans, int64_t rows, float* out) override {
    inner_.kda(shape, weights, inputs, state, spans, rows, out);
  }
  void append_latents(const IndexShape& shape, int64_t latent_width, const float* latents, const float* keys,
                      const float* gates, const float* ape, std::span<const Span> spans,
                      const LatentCache& cache) override {
    inner_.append_latents(shape, latent_width, latents, keys, gates, ape, spans, cache);
  }
  void select_pools(const IndexShape& shape, const float* q, const float* head_weights, std::span<const Span> spans,
                    const LatentCache& cache, const Selection& selection) override {
    inner_.select_pools(shape, q, head_weights, spans, cache, selection);
  }
  void absorb_queries(const Matrix& kv_b, int64_t heads, int64_t key_width, int64_t value_width, const float* q,
                      int64_t rows, float* out) override {
    inner_.absorb_queries(kv_b, heads, key_width, value_width, q, rows, out);
  }
  void sparse_attention(const IndexShape& shape, int64_t heads, int64_t latent_width, float scale, const float* q,
                        std::span<const Span> spans, const LatentCache& cache, const Selection& selection,
                        float* out) override {
    inner_.sparse_attention(shape, heads, latent_width, scale, q, spans, cache, selection, out);
  }
  void absorb_values(const Matrix& kv_b, int64_t heads, int64_t key_width, int64_t value_width, const float* attended,
                     int64_t rows, float* out) override {
    inner_.absorb_values(kv_b, heads, key_width, value_width, attended, rows, out);
  }
  void route(const float* logits, const float* bias, int64_t rows, int64_t experts, int64_t top, float scale,
             int32_t* chosen, float* weights) override {
    inner_.route(logits, bias, rows, experts, top, scale, chosen, weights);
  }
  void experts(std::span<const ExpertWeights> experts, const ExpertWeights& shared, float limit, const float* x,
               int64_t rows, int64_t top, const int32_t* chosen, const float* weights, int parts, float* y) override {
    inner_.experts(experts, shared, limit, x, rows, top, chosen, weights, parts, y);
  }
  void argmax(const float* logits, int64_t rows, int64_t stride, int64_t limit, int32_t* ids) override {
    inner_.argmax(logits, rows, stride, limit, ids);
  }
  void sample(float* logits, int64_t rows, int64_t stride, int64_t limit, std::span<const SampleRow> how,
              std::span<const LogitAdjustment> adjustments, int32_t* ids) override {
    inner_.sample(logits, rows, stride, limit, how, adjustments, ids);
  }

 protected:
  Ops& inner_;
};

}  // namespace verbatim::ops
