// The CUDA backend: Ops over float32 rows, caches and states in device memory and weights in their stored bits, all on
// one stream. Products of stored weights (matmul, matmul_group, experts) run on the matrix units with bfloat16
// operands; everything else is float32 in the CPU backend's order and gives its bits.
#pragma once

#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "ops/cuda/device_memory.h"
#include "ops/cuda/kernels.h"
#include "ops/cuda_backend.h"
#include "ops/ops.h"

namespace verbatim::ops::cuda {

// A bound of the position that a step reaches, coarse enough that steps share their launches: a power of two from 2^14.
int64_t position_bound(int64_t position);

// The device's part of a Matrix that upload() gave.
Weights weights_of(const Matrix& matrix);

class CudaOps final : public Ops {
 public:
  explicit CudaOps(const CudaOptions& options);
  ~CudaOps() override;

  const char* name() const override;
  int64_t cache_element_bytes() const override {
    return activations_ == Activations::kSplit3 ? static_cast<int64_t>(sizeof(float)) : kCudaCacheElementBytes;
  }
  void* allocate(size_t bytes) override;
  void release(void* data) override;
  void copy_in(void* to, const void* from, size_t bytes) override;
  void copy_out(void* to, const void* from, size_t bytes) override;
  void copy(void* to, const void* from, size_t bytes) override;
  using Ops::upload;
  Matrix upload(const Matrix& stored, const WeightUse& use) override;
  const float* upload(const float* values, int64_t count) override;
  std::optional<Matrix> synthesise(const SyntheticMatrix& matrix, const WeightUse& use) override;
  void gather(const float* from, const int32_t* rows, int64_t count, int64_t width, float* to) override;

  // cuda_step.cc
  void step(uint64_t tag, std::span<const Span> spans, const StepIds& ids, const std::function<void()>& body) override;
  int64_t launches() const override { return launches_; }
  void synchronise() override {
    finish_leave();
    stream_.synchronise();
  }
  void reserve_working(int64_t bytes) { scratch_.reserve(bytes, stream_); }
  int64_t working_bytes() const { return scratch_.bytes(); }
  double read_bandwidth();  // bytes a second of a plain read kernel over 4 GiB

  // cuda_ops.cc
  void embed(const Matrix& table, const StepIds& ids, int64_t streams, float* out) override;
  void rms_norm(const float* x, int64_t x_stride, const float* weight, float epsilon, int64_t rows, int64_t width,
                float* y, int64_t y_stride) override;
  void layer_norm(const float* x, const float* weight, const float* bias, float epsilon, int64_t rows, int64_t width,
                  float* y) override;
  void norms(std::span<const Norm> norms, int64_t rows) override;
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
  void sample(float* logits, int64_t rows, int64_t stride, int64_t limit, std::span<const SampleRow> how,
              std::span<const LogitAdjustment> adjustments, int32_t* ids) override;

  // cuda_products.cc
  void matmul(const Matrix& w, const float* x, int64_t x_stride, int64_t rows, int parts, float* y,
              int64_t y_stride) override;
  void matmul_group(std::span<const Product> products, const float* x, int64_t x_stride, int64_t rows) override;
  void matmul_each(std::span<const OwnProduct> products, int64_t rows) override;
  void experts(std::span<const ExpertWeights> experts, const ExpertWeights& shared, float limit, const float* x,
               int64_t rows, int64_t top, const int32_t* chosen, const float* weights, int parts, float* y) override;

  // cuda_sequences.cc
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
  // The experts of a layer on the device, and what they were made from.
  struct ExpertMirror {
    std::vector<std::byte> source;
    DeviceMemory table;
  };

  // A site that is left when the next operator comes.
  struct Leave {
    HyperShape shape;
    const float* maps = nullptr;
    const float* y = nullptr;
    int64_t rows = 0;
    float* streams = nullptr;
  };
  void finish_leave();
  Matrix take_packed(WeightForm form, int64_t rows, int64_t columns);
  Matrix upload_packed(const Matrix& stored, const WeightUse& use);
  void pack_rows(const Weights& plain, int64_t first, const Matrix& packed);
  // Ids on the device: where they lie, those of the step, or a copy.
  const int32_t* device_ids(const StepIds& ids);
  int64_t generation() const {
    return scratch_.generation() + spans_.generation() + ids_.generation() + tables_made_ + released_;
  }
  int terms_of(const Matrix& w) const;
  void multiply(std::span<const OwnProduct> products, int64_t rows, int parts);
  void stream(std::span<const OwnProduct> products, int64_t rows, int parts);
  void multiply_blocks(std::span<const Product> products, const float* x, int64_t x_stride, int64_t rows, int terms,
                       int parts);
  void multiply_block(std::span<const Product> products, const float* x, int64_t x_stride, int64_t rows, int terms,
                      int parts);
  const ExpertTable* expert_table(std::span<const ExpertWeights> experts, const ExpertWeights& shared);
  SpanTable span_table(std::span<const Span> spans, int64_t storage_shift);  // on the device

  Activations activations_;
  bool records_steps_;
  std::string name_;
  DeviceLimits limits_;
  Stream stream_;
  Scratch scratch_;
  Arguments arguments_;
  Mirror spans_;
  WeightMemory weights_;
  std::unordered_map<const ExpertWeights*, ExpertMirror> expert_tables_;
  int64_t tables_made_ = 0, released_ = 0;
  DeviceMemory expert_counters_;  // of stream_experts

  // What a step launched, for its tag and shapes; it holds while nothing that it reads or writes has moved.
  struct Recording {
    int64_t generation = -1, launches = 0, storage_shift = 0;
    cudaGraphExec_t graph = nullptr;
  };
  // The input of a streamed product, if nothing but route() was launched since: it was there when that product's launch
  // let the next one start.
  const float* settled_input_ = nullptr;
  Leave leave_;
  Mirror ids_;
  std::span<const int32_t> step_ids_;  // on the host
  const int32_t* step_ids_on_device_ = nullptr;
  std::map<std::vector<int64_t>, Recording> recordings_;
  bool recording_ = false;
  int64_t launches_ = 0, last_shift_ = 0;
};

}  // namespace verbatim::ops::cuda
