// The CUDA backend for tests that know only host memory: what it allocates is page-locked host memory that the device
// addresses too, arrays that are plain host memory are copied there and back, and every operator has finished when it
// returns. States, caches and selections are never copied: they must come from allocate().
#pragma once

#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "ops/cuda/device_memory.h"
#include "ops/cuda_backend.h"
#include "ops/ops.h"

namespace verbatim::ops {

class HostOps final : public Ops {
 public:
  // `inner` must outlive it.
  explicit HostOps(Ops& inner);

  const char* name() const override { return inner_.name(); }
  int64_t cache_element_bytes() const override { return inner_.cache_element_bytes(); }
  void* allocate(size_t bytes) override;
  void release(void* data) override;
  void copy_in(void* to, const void* from, size_t bytes) override;
  void copy_out(void* to, const void* from, size_t bytes) override;

  void embed(const Matrix& table, const StepIds& ids, int64_t streams, float* out) override;
  void rms_norm(const float* x, int64_t x_stride, const float* weight, float epsilon, int64_t rows, int64_t width,
                float* y, int64_t y_stride) override;
  void layer_norm(const float* x, const float* weight, const float* bias, float epsilon, int64_t rows, int64_t width,
                  float* y) override;
  void add(const float* x, int64_t count, float* y) override;
  void clear(float* x, int64_t count) override;
  void swiglu(const float* gate, const float* up, float limit, int64_t count, float* h) override;
  void hyper_enter(const HyperShape& shape, const HyperWeights& weights, const float* norm, const float* streams,
                   int64_t rows, float* maps, float* h) override;
  void hyper_leave(const HyperShape& shape, const float* maps, const float* y, int64_t rows, float* streams) override;
  void hyper_mean(const HyperShape& shape, const float* streams, int64_t rows, float* h) override;
  void route(const float* logits, const float* bias, int64_t rows, int64_t experts, int64_t top, float scale,
             int32_t* chosen, float* weights) override;
  void argmax(const float* logits, int64_t rows, int64_t stride, int64_t limit, int32_t* ids) override;
  void matmul(const Matrix& w, const float* x, int64_t x_stride, int64_t rows, int parts, float* y,
              int64_t y_stride) override;
  void matmul_group(std::span<const Product> products, const float* x, int64_t x_stride, int64_t rows) override;
  void experts(std::span<const ExpertWeights> experts, const ExpertWeights& shared, float limit, const float* x,
               int64_t rows, int64_t top, const int32_t* chosen, const float* weights, int parts, float* y) override;
  void kda(const KdaShape& shape, const KdaWeights& weights, const KdaInputs& inputs, const KdaState& state,
           std::span<const Span> spans, int64_t rows, float* out) override;
  void append_latents(const IndexShape& shape, int64_t latent_width, const float* latents, const float* keys,
                      const float* gates, const float* ape, std::span<const Span> spans,
                      const LatentCache& cache) override;
  void select_pools(const IndexShape& shape, const float* q, const float* head_weights, std::span<const Span> spans,
                    const LatentCache& cache, const Selection& selection) override;
  void absorb_queries(const Matrix& kv_b, int64_t heads, int64_t key_width, int64_t value_width, const float* q,
                      int64_t rows, float* out) override;
  void sparse_attention(const IndexShape& shape, int64_t heads, int64_t latent_width, float scale, const float* q,
                        std::span<const Span> spans, const LatentCache& cache, const Selection& selection,
                        float* out) override;
  void absorb_values(const Matrix& kv_b, int64_t heads, int64_t key_width, int64_t value_width, const float* attended,
                     int64_t rows, float* out) override;

 private:
  struct Staged {
    void* host;
    void* device;
    size_t bytes;
  };
  struct StoredCopy {
    std::vector<std::byte> bytes;
    Matrix matrix;
  };
  using Key = std::tuple<const std::byte*, int64_t, int64_t, int, int64_t, int64_t, int64_t, bool, int>;

  void* stage(const void* host, size_t bytes);
  const float* in(const float* x, int64_t count);
  template <typename T>
  T* out(T* x, int64_t count);
  Matrix matrix(const Matrix& w, const WeightUse& use = {});
  ExpertWeights expert(const ExpertWeights& e, int parts) {
    return {matrix(e.gate, {true, 1}), matrix(e.up, {true, 1}), matrix(e.down, {true, parts})};
  }
  void finish();

  Ops& inner_;
  cuda::DeviceMemory memory_;
  int64_t used_ = 0;
  std::vector<Staged> outputs_;
  std::map<Key, StoredCopy> matrices_;
};

}  // namespace verbatim::ops
