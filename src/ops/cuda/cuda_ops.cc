#include "ops/cuda/cuda_ops.h"

#include <fmt/format.h>

#include "base/error.h"

namespace verbatim::ops {

namespace cuda {

namespace {

// The stream that everything runs on belongs to the device that is current when it is made.
Activations select_device(const CudaOptions& options) {
  check(cudaSetDevice(options.device), "cudaSetDevice");
  return options.activations;
}

std::string device_name(const CudaOptions& options) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, options.device), "cudaGetDeviceProperties");
  return fmt::format("cuda ({}{})", properties.name,
                     options.activations == Activations::kSplit3 ? ", activations in three terms" : "");
}

int64_t rounded_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

Weights weights_of(const Matrix& m) {
  Weights w;
  w.data = reinterpret_cast<const uint8_t*>(m.data);
  w.row_bytes = m.row_bytes;
  w.block_scale = m.block_scale;
  w.block_scale_stride = m.block_scale_stride;
  w.grid_scale = m.grid_scale;
  w.grid_stride = m.grid_stride;
  w.grid_row = m.grid_row;
  w.grid_column = m.grid_column;
  w.rows = m.rows;
  w.columns = m.columns;
  w.first_column_in_block = static_cast<int32_t>(m.first_column_in_block);
  w.form = m.form;
  w.matrix_scale = m.matrix_scale;
  w.input_scale = m.input_scale;
  return w;
}

CudaOps::CudaOps(const CudaOptions& options)
    : activations_(select_device(options)),
      name_(device_name(options)),
      arguments_(stream_),
      spans_(stream_),
      weights_(stream_),
      ids_(stream_) {}

CudaOps::~CudaOps() {
  cudaStreamSynchronize(stream_.get());
  for (const auto& [key, recording] : recordings_)
    if (recording.graph != nullptr) cudaGraphExecDestroy(recording.graph);
}

const char* CudaOps::name() const { return name_.c_str(); }

void* CudaOps::allocate(size_t bytes) {
  void* data = nullptr;
  const cudaError_t error = cudaMalloc(&data, bytes == 0 ? 1 : bytes);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // this error does not last
    fail(ErrorKind::kCapacity, "cuda memory", "{} bytes could not be allocated; free some or ask for less", bytes);
  }
  check(error, "cudaMalloc");
  check(cudaMemsetAsync(data, 0, bytes, stream_.get()), "cudaMemsetAsync");
  return data;
}

void CudaOps::release(void* data) {
  // What is queued may still use it; cudaFree waits for that.
  if (data != nullptr) cudaFree(data);
}

void CudaOps::copy_in(void* to, const void* from, size_t bytes) {
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_.get()), "cudaMemcpyAsync to the device");
  stream_.synchronise();
}

void CudaOps::copy_out(void* to, const void* from, size_t bytes) {
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_.get()), "cudaMemcpyAsync from the device");
  stream_.synchronise();
}

// Rows begin at multiples of 16 bytes; a view brings its own cells of the grid.
Matrix CudaOps::upload(const Matrix& stored, const WeightUse& /*use*/) {
  if (stored.data == nullptr) return stored;
  Matrix m = stored;
  const int64_t columns = m.columns;
  const int64_t bytes = m.form == WeightForm::kBf16    ? 2 * columns
                        : m.form == WeightForm::kF32   ? 4 * columns
                        : m.form == WeightForm::kNvfp4 ? (columns + 1) / 2
                                                       : columns;
  m.row_bytes = rounded_up(bytes, 16);
  m.data = weights_.copy(stored.data, m.rows, bytes, stored.row_bytes, m.row_bytes);
  if (m.form == WeightForm::kNvfp4) {
    const int64_t blocks = (m.first_column_in_block + columns + 15) / 16;
    m.block_scale_stride = rounded_up(blocks, 2);
    m.block_scale =
        reinterpret_cast<const uint8_t*>(weights_.copy(reinterpret_cast<const std::byte*>(stored.block_scale), m.rows,
                                                       blocks, stored.block_scale_stride, m.block_scale_stride));
  }
  if (m.form == WeightForm::kFp8Block) {
    const int64_t first_row = m.grid_row / 128, first_column = m.grid_column / 128;
    const int64_t rows = (m.grid_row + m.rows + 127) / 128 - first_row;
    m.grid_stride = (m.grid_column + columns + 127) / 128 - first_column;
    m.grid_row -= first_row * 128;
    m.grid_column -= first_column * 128;
    const float* first = stored.grid_scale + first_row * stored.grid_stride + first_column;
    m.grid_scale = reinterpret_cast<const float*>(weights_.copy(
        reinterpret_cast<const std::byte*>(first), rows, 4 * m.grid_stride, 4 * stored.grid_stride, 4 * m.grid_stride));
  }
  return m;
}

const float* CudaOps::upload(const float* values, int64_t count) {
  if (values == nullptr) return nullptr;
  return reinterpret_cast<const float*>(
      weights_.copy(reinterpret_cast<const std::byte*>(values), 1, 4 * count, 4 * count, 4 * count));
}

std::optional<Matrix> CudaOps::synthesise(const SyntheticMatrix& wanted, const WeightUse& /*use*/) {
  Matrix m;
  m.form = wanted.form;
  m.rows = wanted.rows;
  m.columns = wanted.columns;
  if (m.form == WeightForm::kBf16) {
    m.row_bytes = rounded_up(2 * m.columns, 16);
    std::byte* data = weights_.take(m.rows * m.row_bytes);
    check(synthesise_bf16(stream_.get(), wanted, data, m.row_bytes), "synthesise");
    m.data = data;
    return m;
  }
  if (m.form != WeightForm::kNvfp4 || m.columns % 16 != 0) return {};
  m.row_bytes = rounded_up(m.columns / 2, 16);
  m.block_scale_stride = rounded_up(m.columns / 16, 2);
  std::byte* data = weights_.take(m.rows * m.row_bytes);
  std::byte* scales = weights_.take(m.rows * m.block_scale_stride);
  auto* largest = reinterpret_cast<uint32_t*>(scratch_.take(sizeof(uint32_t), stream_));
  check(cudaMemsetAsync(largest, 0, sizeof(uint32_t), stream_.get()), "cudaMemsetAsync");
  check(synthesise_nvfp4(stream_.get(), wanted, largest, data, m.row_bytes, scales, m.block_scale_stride),
        "synthesise");
  float most = 0.0f;
  copy_out(&most, largest, sizeof(most));
  m.data = data;
  m.block_scale = reinterpret_cast<const uint8_t*>(scales);
  m.matrix_scale = most / (6.0f * 448.0f);
  return m;
}

void CudaOps::gather(const float* from, const int32_t* rows, int64_t count, int64_t width, float* to) {
  check(cuda::gather(stream_.get(), from, device_ids(rows, count), count, width, to), "gather");
}

// ---- rows -----------------------------------------------------------------------------------------------------------
void CudaOps::embed(const Matrix& table, const int32_t* ids, int64_t rows, int64_t streams, float* out) {
  check(cuda::embed(stream_.get(), weights_of(table), device_ids(ids, rows), rows, streams, out), "embed");
}

void CudaOps::rms_norm(const float* x, int64_t x_stride, const float* weight, float epsilon, int64_t rows,
                       int64_t width, float* y, int64_t y_stride) {
  check(cuda::rms_norm(stream_.get(), x, x_stride, weight, epsilon, rows, width, y, y_stride), "rms_norm");
}

void CudaOps::layer_norm(const float* x, const float* weight, const float* bias, float epsilon, int64_t rows,
                         int64_t width, float* y) {
  check(cuda::layer_norm(stream_.get(), x, weight, bias, epsilon, rows, width, y), "layer_norm");
}

void CudaOps::add(const float* x, int64_t count, float* y) { check(cuda::add(stream_.get(), x, count, y), "add"); }

void CudaOps::clear(float* x, int64_t count) {
  check(cudaMemsetAsync(x, 0, static_cast<size_t>(count) * sizeof(float), stream_.get()), "clear");
}

void CudaOps::swiglu(const float* gate, const float* up, float limit, int64_t count, float* h) {
  check(cuda::swiglu(stream_.get(), gate, up, limit, count, h), "swiglu");
}

void CudaOps::hyper_enter(const HyperShape& shape, const HyperWeights& weights, const float* norm, const float* streams,
                          int64_t rows, float* maps, float* h) {
  FmaProduct p;
  p.weights = weights_of(weights.fn);
  p.outputs = weights.fn.rows;
  p.x = streams;
  p.x_stride = shape.streams * shape.width;
  p.rows = rows;
  p.y = maps;
  p.y_stride = weights.fn.rows;
  check(fma_product(stream_.get(), p), "hyper_enter");
  check(hyper_maps(stream_.get(), shape, weights.base, weights.scale, norm, streams, rows, maps, h), "hyper_enter");
}

void CudaOps::hyper_leave(const HyperShape& shape, const float* maps, const float* y, int64_t rows, float* streams) {
  check(cuda::hyper_leave(stream_.get(), shape, maps, y, rows, streams), "hyper_leave");
}

void CudaOps::hyper_mean(const HyperShape& shape, const float* streams, int64_t rows, float* h) {
  check(cuda::hyper_mean(stream_.get(), shape, streams, rows, h), "hyper_mean");
}

void CudaOps::route(const float* logits, const float* bias, int64_t rows, int64_t experts, int64_t top, float scale,
                    int32_t* chosen, float* weights) {
  check(cuda::route(stream_.get(), logits, bias, rows, experts, top, scale, chosen, weights), "route");
}

void CudaOps::argmax(const float* logits, int64_t rows, int64_t stride, int64_t limit, int32_t* ids) {
  check(cuda::argmax(stream_.get(), logits, rows, stride, limit, ids), "argmax");
}

}  // namespace cuda

std::unique_ptr<Ops> make_cuda_ops(const CudaOptions& options) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || options.device < 0 || options.device >= count)
    fail(ErrorKind::kUnsupported, "cuda",
         "device {} of {} is not there ({}); expected a CUDA device; use --backend cpu", options.device,
         error == cudaSuccess ? count : 0, cudaGetErrorString(error));
  cudaDeviceProp properties{};
  cuda::check(cudaGetDeviceProperties(&properties, options.device), "cudaGetDeviceProperties");
  if (!cuda::kernels_run_on(options.device))
    fail(ErrorKind::kUnsupported, "cuda",
         "device {} ({}, compute capability {}.{}) is none that this program's kernels were built for; rebuild with "
         "CMAKE_CUDA_ARCHITECTURES naming it",
         options.device, properties.name, properties.major, properties.minor);
  return std::make_unique<cuda::CudaOps>(options);
}

}  // namespace verbatim::ops
