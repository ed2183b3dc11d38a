// How much device memory the CUDA backend's operators take for themselves: an Ops that computes nothing and keeps the
// most that any call would take. Operators share one block, so that is what a step needs. It knows shapes alone and
// needs no device; where launches depend on the device, it counts the one that takes the most.
#pragma once

#include "ops/ops.h"

namespace verbatim::ops {

class CudaWorking final : public Ops {
 public:
  int64_t bytes() const { return bytes_; }

  const char* name() const override { return "cuda, counted"; }
  // Memory that must not be touched: its address is all that operators are given here.
  void* allocate(size_t bytes) override;
  void release(void*) override {}
  void copy_in(void*, const void*, size_t) override {}
  void copy_out(void*, const void*, size_t) override {}
  using Ops::upload;
  // As the backend would keep it.
  Matrix upload(const Matrix& stored, const WeightUse& use) override;
  void gather(const float*, const int32_t*, int64_t, int64_t, float*) override {}

  void copy(void*, const void*, size_t) override {}
  void embed(const Matrix&, const StepIds&, int64_t, float*) override {}
  void rms_norm(const float*, int64_t, const float*, float, int64_t, int64_t, float*, int64_t) override {}
  void layer_norm(const float*, const float*, const float*, float, int64_t, int64_t, float*) override {}
  void add(const float*, int64_t, float*) override {}
  void clear(float*, int64_t) override {}
  void swiglu(const float*, const float*, float, int64_t, float*) override {}
  void hyper_leave(const HyperShape&, const float*, const float*, int64_t, float*) override {}
  void hyper_mean(const HyperShape&, const float*, int64_t, float*) override {}
  void append_latents(const IndexShape&, int64_t, const float*, const float*, const float*, const float*,
                      std::span<const Span>, const LatentCache&) override {}
  void absorb_queries(const Matrix&, int64_t, int64_t, int64_t, const float*, int64_t, float*) override {}
  void absorb_values(const Matrix&, int64_t, int64_t, int64_t, const float*, int64_t, float*) override {}
  void route(const float*, const float*, int64_t, int64_t, int64_t, float, int32_t*, float*) override {}

  void matmul(const Matrix& w, const float* x, int64_t x_stride, int64_t rows, int parts, float* y,
              int64_t y_stride) override;
  void matmul_group(std::span<const Product> products, const float* x, int64_t x_stride, int64_t rows) override;
  void hyper_enter(const HyperShape& shape, const HyperWeights& weights, const float* norm, const float* streams,
                   int64_t rows, float* maps, float* h) override;
  void kda(const KdaShape& shape, const KdaWeights& weights, const KdaInputs& inputs, const KdaState& state,
           std::span<const Span> spans, int64_t rows, float* out) override;
  void select_pools(const IndexShape& shape, const float* q, const float* head_weights, std::span<const Span> spans,
                    const LatentCache& cache, const Selection& selection) override;
  void sparse_attention(const IndexShape& shape, int64_t heads, int64_t latent_width, float scale, const float* q,
                        std::span<const Span> spans, const LatentCache& cache, const Selection& selection,
                        float* out) override;
  void experts(std::span<const ExpertWeights> experts, const ExpertWeights& shared, float limit, const float* x,
               int64_t rows, int64_t top, const int32_t* chosen, const float* weights, int parts, float* y) override;
  void argmax(const float* logits, int64_t rows, int64_t stride, int64_t limit, int32_t* ids) override;
  void sample(float* logits, int64_t rows, int64_t stride, int64_t limit, std::span<const SampleRow> how,
              std::span<const LogitAdjustment> adjustments, int32_t* ids) override;

 private:
  void take(int64_t bytes) { bytes_ = bytes > bytes_ ? bytes : bytes_; }
  void multiply(std::span<const Product> products, int64_t rows, int parts);
  int64_t bytes_ = 0;
};

}  // namespace verbatim::ops
