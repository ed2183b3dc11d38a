#include "tests/cuda/host_ops.h"

#include <cuda_runtime_api.h>

#include <cstring>

#include "base/error.h"

namespace verbatim::ops {

namespace {

constexpr int64_t kStagedBytes = int64_t{1} << 30;

bool is_plain_host_memory(const void* data) {
  cudaPointerAttributes attributes{};
  cuda::check(cudaPointerGetAttributes(&attributes, data), "cudaPointerGetAttributes");
  return attributes.type == cudaMemoryTypeUnregistered;
}

}  // namespace

HostOps::HostOps(Ops& inner) : inner_(inner), memory_(kStagedBytes) {}

void* HostOps::allocate(size_t bytes) {
  void* data = nullptr;
  if (bytes > (size_t{1} << 40) || cudaHostAlloc(&data, bytes + 1, cudaHostAllocMapped) != cudaSuccess)
    fail(ErrorKind::kCapacity, "page-locked memory", "{} bytes could not be allocated; ask for less", bytes);
  std::memset(data, 0, bytes);
  return data;
}
void HostOps::release(void* data) { cudaFreeHost(data); }
void HostOps::copy_in(void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); }
void HostOps::copy_out(void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); }

void* HostOps::stage(const void* host, size_t bytes) {
  const int64_t size = (static_cast<int64_t>(bytes) + 255) / 256 * 256;
  if (used_ + size > memory_.bytes()) fail(ErrorKind::kCapacity, "host ops", "{} bytes are too many to stage", bytes);
  std::byte* device = memory_.data() + used_;
  used_ += size;
  inner_.copy_in(device, host, bytes);
  return device;
}

const float* HostOps::in(const float* x, int64_t count) {
  if (x == nullptr || count <= 0 || !is_plain_host_memory(x)) return x;
  return static_cast<const float*>(stage(x, static_cast<size_t>(count) * sizeof(float)));
}

// What lies between rows is copied in too, so that it comes back as it was.
template <typename T>
T* HostOps::out(T* x, int64_t count) {
  if (x == nullptr || count <= 0 || !is_plain_host_memory(x)) return x;
  const size_t bytes = static_cast<size_t>(count) * sizeof(T);
  void* device = stage(x, bytes);
  outputs_.push_back({x, device, bytes});
  return static_cast<T*>(device);
}

void HostOps::finish() {
  for (const Staged& each : outputs_) inner_.copy_out(each.host, each.device, each.bytes);
  outputs_.clear();
  used_ = 0;
  std::byte last{};
  inner_.copy_out(&last, memory_.data(), 1);  // waits for the stream
}

// Uploaded once, and again when its bytes have changed.
Matrix HostOps::matrix(const Matrix& w, const WeightUse& use) {
  if (w.data == nullptr || !is_plain_host_memory(w.data)) return w;
  const int64_t bytes = w.form == WeightForm::kBf16    ? 2 * w.columns
                        : w.form == WeightForm::kF32   ? 4 * w.columns
                        : w.form == WeightForm::kNvfp4 ? (w.columns + 1) / 2
                                                       : w.columns;
  std::vector<std::byte> content;
  const auto append = [&](const void* from, int64_t count) {
    const auto* begin = static_cast<const std::byte*>(from);
    content.insert(content.end(), begin, begin + count);
  };
  for (int64_t r = 0; r < w.rows; ++r) {
    append(w.data + r * w.row_bytes, bytes);
    if (w.block_scale != nullptr)
      append(w.block_scale + r * w.block_scale_stride, (w.first_column_in_block + w.columns + 15) / 16);
    if (w.grid_scale != nullptr && (r == 0 || (w.grid_row + r) % 128 == 0))
      append(w.grid_scale + (w.grid_row + r) / 128 * w.grid_stride, 4 * ((w.grid_column + w.columns + 127) / 128));
  }
  const Key key{w.data,      w.rows,     w.columns,     static_cast<int>(w.form),
                w.row_bytes, w.grid_row, w.grid_column, use.only_products,
                use.parts};
  StoredCopy& copy = matrices_[key];
  if (copy.bytes != content || copy.matrix.first_column_in_block != w.first_column_in_block) {
    copy.matrix = inner_.upload(w, use);
    copy.bytes = std::move(content);
  }
  Matrix found = copy.matrix;
  found.matrix_scale = w.matrix_scale;
  found.input_scale = w.input_scale;
  found.float_input = w.float_input;
  return found;
}

void HostOps::embed(const Matrix& table, const StepIds& ids, int64_t streams, float* y) {
  inner_.embed(matrix(table), ids, streams, out(y, ids.count * streams * table.columns));
  finish();
}
void HostOps::rms_norm(const float* x, int64_t x_stride, const float* weight, float epsilon, int64_t rows,
                       int64_t width, float* y, int64_t y_stride) {
  inner_.rms_norm(in(x, (rows - 1) * x_stride + width), x_stride, in(weight, width), epsilon, rows, width,
                  out(y, (rows - 1) * y_stride + width), y_stride);
  finish();
}
void HostOps::layer_norm(const float* x, const float* weight, const float* bias, float epsilon, int64_t rows,
                         int64_t width, float* y) {
  inner_.layer_norm(in(x, rows * width), in(weight, width), in(bias, width), epsilon, rows, width,
                    out(y, rows * width));
  finish();
}
void HostOps::add(const float* x, int64_t count, float* y) {
  inner_.add(in(x, count), count, out(y, count));
  finish();
}
void HostOps::clear(float* x, int64_t count) {
  inner_.clear(out(x, count), count);
  finish();
}
void HostOps::swiglu(const float* gate, const float* up, float limit, int64_t count, float* h) {
  inner_.swiglu(in(gate, count), in(up, count), limit, count, out(h, count));
  finish();
}
void HostOps::hyper_enter(const HyperShape& shape, const HyperWeights& weights, const float* norm, const float* streams,
                          int64_t rows, float* maps, float* h) {
  const int64_t count = (2 + shape.streams) * shape.streams;
  const HyperWeights staged{matrix(weights.fn), in(weights.base, count), in(weights.scale, 3)};
  inner_.hyper_enter(shape, staged, in(norm, shape.width), in(streams, rows * shape.streams * shape.width), rows,
                     out(maps, rows * count), out(h, rows * shape.width));
  finish();
}
void HostOps::hyper_leave(const HyperShape& shape, const float* maps, const float* y, int64_t rows, float* streams) {
  inner_.hyper_leave(shape, in(maps, rows * (2 + shape.streams) * shape.streams), in(y, rows * shape.width), rows,
                     out(streams, rows * shape.streams * shape.width));
  finish();
}
void HostOps::hyper_mean(const HyperShape& shape, const float* streams, int64_t rows, float* h) {
  inner_.hyper_mean(shape, in(streams, rows * shape.streams * shape.width), rows, out(h, rows * shape.width));
  finish();
}
void HostOps::route(const float* logits, const float* bias, int64_t rows, int64_t experts, int64_t top, float scale,
                    int32_t* chosen, float* weights) {
  inner_.route(in(logits, rows * experts), in(bias, experts), rows, experts, top, scale, out(chosen, rows * top),
               out(weights, rows * top));
  finish();
}
void HostOps::argmax(const float* logits, int64_t rows, int64_t stride, int64_t limit, int32_t* ids) {
  inner_.argmax(in(logits, (rows - 1) * stride + limit), rows, stride, limit, out(ids, rows));
  finish();
}
void HostOps::matmul(const Matrix& w, const float* x, int64_t x_stride, int64_t rows, int parts, float* y,
                     int64_t y_stride) {
  inner_.matmul(matrix(w, {true, parts}), in(x, (rows - 1) * x_stride + w.columns), x_stride, rows, parts,
                out(y, (rows - 1) * y_stride + w.rows), y_stride);
  finish();
}
void HostOps::matmul_group(std::span<const Product> products, const float* x, int64_t x_stride, int64_t rows) {
  std::vector<Matrix> matrices;
  for (const Product& each : products) matrices.push_back(matrix(*each.weight, {true, 1}));
  std::vector<Product> staged;
  for (size_t i = 0; i < products.size(); ++i)
    staged.push_back(
        {&matrices[i], out(products[i].y, (rows - 1) * products[i].y_stride + matrices[i].rows), products[i].y_stride});
  if (!products.empty())
    inner_.matmul_group(staged, in(x, (rows - 1) * x_stride + matrices.front().columns), x_stride, rows);
  finish();
}
void HostOps::experts(std::span<const ExpertWeights> experts, const ExpertWeights& shared, float limit, const float* x,
                      int64_t rows, int64_t top, const int32_t* chosen, const float* weights, int parts, float* y) {
  std::vector<ExpertWeights> staged;
  for (const ExpertWeights& e : experts) staged.push_back(expert(e, parts));
  const ExpertWeights& any = experts.empty() ? shared : experts.front();
  // Ids are not written; what out() copies back is what it copied in.
  inner_.experts(staged, expert(shared, parts), limit, in(x, rows * any.gate.columns), rows, top,
                 out(const_cast<int32_t*>(chosen), rows * top), in(weights, rows * top), parts,
                 out(y, rows * any.down.rows));
  finish();
}
void HostOps::kda(const KdaShape& shape, const KdaWeights& weights, const KdaInputs& inputs, const KdaState& state,
                  std::span<const Span> spans, int64_t rows, float* y) {
  const int64_t channels = shape.heads * shape.width, count = rows * channels;
  const KdaWeights w{in(weights.conv_q, 4 * channels), in(weights.conv_k, 4 * channels),
                     in(weights.conv_v, 4 * channels), in(weights.a_log, shape.heads),
                     in(weights.dt_bias, channels),    in(weights.o_norm, shape.width)};
  const KdaInputs i{in(inputs.q, count), in(inputs.k, count),    in(inputs.v, count),
                    in(inputs.f, count), in(inputs.gate, count), in(inputs.beta_logit, rows * shape.heads)};
  inner_.kda(shape, w, i, state, spans, rows, out(y, count));
  finish();
}
void HostOps::append_latents(const IndexShape& shape, int64_t latent_width, const float* latents, const float* keys,
                             const float* gates, const float* ape, std::span<const Span> spans,
                             const LatentCache& cache) {
  inner_.append_latents(shape, latent_width, latents, keys, gates, in(ape, shape.pool * shape.width), spans, cache);
  finish();
}
void HostOps::select_pools(const IndexShape& shape, const float* q, const float* head_weights,
                           std::span<const Span> spans, const LatentCache& cache, const Selection& selection) {
  inner_.select_pools(shape, q, head_weights, spans, cache, selection);
  finish();
}
void HostOps::absorb_queries(const Matrix& kv_b, int64_t heads, int64_t key_width, int64_t value_width, const float* q,
                             int64_t rows, float* y) {
  inner_.absorb_queries(matrix(kv_b), heads, key_width, value_width, in(q, rows * heads * key_width), rows,
                        out(y, rows * heads * kv_b.columns));
  finish();
}
void HostOps::sparse_attention(const IndexShape& shape, int64_t heads, int64_t latent_width, float scale,
                               const float* q, std::span<const Span> spans, const LatentCache& cache,
                               const Selection& selection, float* y) {
  inner_.sparse_attention(shape, heads, latent_width, scale, q, spans, cache, selection, y);
  finish();
}
void HostOps::absorb_values(const Matrix& kv_b, int64_t heads, int64_t key_width, int64_t value_width,
                            const float* attended, int64_t rows, float* y) {
  inner_.absorb_values(matrix(kv_b), heads, key_width, value_width, in(attended, rows * heads * kv_b.columns), rows,
                       out(y, rows * heads * value_width));
  finish();
}

}  // namespace verbatim::ops
