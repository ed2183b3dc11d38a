#include "ops/cuda/cuda_ops.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "ops/cuda/hyper_cluster.h"
#include "ops/cuda/sampling.h"

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

DeviceLimits limits_of(const CudaOptions& options) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, options.device), "cudaGetDeviceProperties");
  return {properties.multiProcessorCount, static_cast<int64_t>(properties.sharedMemPerBlockOptin)};
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
  w.packed = m.is_packed;
  return w;
}

CudaOps::CudaOps(const CudaOptions& options)
    : activations_(select_device(options)),
      records_steps_(options.records_steps),
      name_(device_name(options)),
      limits_(limits_of(options)),
      arguments_(stream_),
      spans_(stream_),
      weights_(stream_),
      expert_counters_(kStreamCounterBytes),
      ids_(stream_) {
  check(cudaMemsetAsync(expert_counters_.data(), 0, kStreamCounterBytes, stream_.get()), "cudaMemsetAsync");
}

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
  finish_leave();
  // Recordings that work on it must not run again. What is queued may still use it; cudaFree waits for that.
  ++released_;
  if (data != nullptr) cudaFree(data);
}

void CudaOps::copy_in(void* to, const void* from, size_t bytes) {
  finish_leave();
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_.get()), "cudaMemcpyAsync to the device");
  stream_.synchronise();
}

void CudaOps::copy_out(void* to, const void* from, size_t bytes) {
  finish_leave();
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_.get()), "cudaMemcpyAsync from the device");
  stream_.synchronise();
}

void CudaOps::copy(void* to, const void* from, size_t bytes) {
  finish_leave();
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_.get()), "cudaMemcpyAsync on the device");
}

namespace {

constexpr int64_t kPackedChunkBytes = int64_t{64} << 20;

// Rows of a packed matrix that are made at a time.
int64_t chunk_rows(int64_t row_bytes) { return std::max<int64_t>(16, kPackedChunkBytes / row_bytes / 16 * 16); }

// A negative block scale, or NaN: the packed order's way to bfloat16 knows neither.
bool has_unusual_scale(const Matrix& m) {
  bool unusual = false;
  for (int64_t r = 0; r < m.rows; ++r)
    for (int64_t i = 0; i < m.columns / 16; ++i)
      unusual = unusual || m.block_scale[r * m.block_scale_stride + i] >= 0x7f;
  return unusual;
}

}  // namespace

// Places `rows` plain rows from `first` on where the packed matrix has them.
void CudaOps::pack_rows(const Weights& plain, int64_t first, const Matrix& packed) {
  auto* to = const_cast<std::byte*>(packed.data) + packed_bytes(packed.form, first, packed.columns);
  auto* scales = const_cast<uint8_t*>(packed.block_scale);
  if (scales != nullptr) scales += first * (packed.columns / 16);
  check(pack(stream_.get(), plain, to, scales), "pack");
}

Matrix CudaOps::take_packed(WeightForm form, int64_t rows, int64_t columns) {
  Matrix m;
  m.form = form;
  m.rows = rows;
  m.columns = columns;
  m.is_packed = true;
  m.row_bytes = form == WeightForm::kBf16 ? 2 * columns : columns / 2;
  m.data = weights_.take(packed_bytes(form, rows, columns));
  if (form == WeightForm::kNvfp4) {
    m.block_scale_stride = columns / 16;
    m.block_scale = reinterpret_cast<const uint8_t*>(weights_.take(rounded_up(rows, 16) * m.block_scale_stride));
  }
  return m;
}

Matrix CudaOps::upload_packed(const Matrix& stored, const WeightUse& use) {
  Matrix m = take_packed(stored.form, stored.rows, stored.columns);
  m.matrix_scale = stored.matrix_scale;
  m.input_scale = stored.input_scale;
  m.float_input = stored.float_input;
  const int64_t chunk = chunk_rows(m.row_bytes), scale_bytes = m.block_scale_stride;
  std::byte* plain = scratch_.take(std::min(chunk, m.rows) * (m.row_bytes + scale_bytes), stream_);
  for (int64_t first = 0; first < m.rows; first += chunk) {
    const int64_t rows = std::min(chunk, m.rows - first);
    Weights w = weights_of(stored);
    w.rows = rows;
    w.row_bytes = m.row_bytes;
    w.data = reinterpret_cast<const uint8_t*>(plain);
    weights_.fill(plain, stored.data + first * stored.row_bytes, rows, m.row_bytes, stored.row_bytes, m.row_bytes);
    if (scale_bytes > 0) {
      std::byte* scales = plain + rows * m.row_bytes;
      w.block_scale = reinterpret_cast<const uint8_t*>(scales);
      w.block_scale_stride = scale_bytes;
      weights_.fill(scales, reinterpret_cast<const std::byte*>(stored.block_scale + first * stored.block_scale_stride),
                    rows, scale_bytes, stored.block_scale_stride, scale_bytes);
    }
    pack_rows(w, first, m);
    if (use.rows_taken) use.rows_taken(first + rows);
  }
  return m;
}

// Packed if only products will read it; else rows begin at multiples of 16 bytes. A view brings its own cells of the
// grid.
Matrix CudaOps::upload(const Matrix& stored, const WeightUse& use) {
  if (stored.data == nullptr) return stored;
  if (use.only_products && can_pack(stored.form, stored.columns, use.parts) && stored.first_column_in_block == 0 &&
      !(stored.form == WeightForm::kNvfp4 && has_unusual_scale(stored)))
    return upload_packed(stored, use);
  Matrix m = stored;
  const int64_t columns = m.columns;
  const int64_t bytes = m.form == WeightForm::kBf16    ? 2 * columns
                        : m.form == WeightForm::kF32   ? 4 * columns
                        : m.form == WeightForm::kNvfp4 ? (columns + 1) / 2
                                                       : columns;
  m.row_bytes = rounded_up(bytes, 16);
  std::byte* to = weights_.take(m.rows * m.row_bytes);
  const int64_t chunk = chunk_rows(m.row_bytes);
  for (int64_t first = 0; first < m.rows; first += chunk) {
    const int64_t rows = std::min(chunk, m.rows - first);
    weights_.fill(to + first * m.row_bytes, stored.data + first * stored.row_bytes, rows, bytes, stored.row_bytes,
                  m.row_bytes);
    if (use.rows_taken && m.block_scale == nullptr) use.rows_taken(first + rows);
  }
  m.data = to;
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

std::optional<Matrix> CudaOps::synthesise(const SyntheticMatrix& wanted, const WeightUse& use) {
  if (wanted.form != WeightForm::kBf16 && (wanted.form != WeightForm::kNvfp4 || wanted.columns % 16 != 0)) return {};
  const bool packs = use.only_products && can_pack(wanted.form, wanted.columns, use.parts);
  Matrix m;
  if (packs) {
    m = take_packed(wanted.form, wanted.rows, wanted.columns);
  } else {
    m.form = wanted.form;
    m.rows = wanted.rows;
    m.columns = wanted.columns;
    m.row_bytes = rounded_up(m.form == WeightForm::kBf16 ? 2 * m.columns : m.columns / 2, 16);
    m.data = weights_.take(m.rows * m.row_bytes);
    if (m.form == WeightForm::kNvfp4) {
      m.block_scale_stride = rounded_up(m.columns / 16, 2);
      m.block_scale = reinterpret_cast<const uint8_t*>(weights_.take(m.rows * m.block_scale_stride));
    }
  }
  Weights plain = weights_of(m);
  plain.packed = false;
  if (m.form == WeightForm::kBf16) {
    const int64_t chunk = packs ? chunk_rows(m.row_bytes) : m.rows;
    void* to = packs ? scratch_.take(std::min(chunk, m.rows) * m.row_bytes, stream_) : const_cast<std::byte*>(m.data);
    plain.data = static_cast<const uint8_t*>(to);
    for (int64_t first = 0; first < m.rows; first += chunk) {
      plain.rows = std::min(chunk, m.rows - first);
      check(synthesise_bf16(stream_.get(), wanted, first, plain.rows, to, m.row_bytes), "synthesise");
      if (packs) pack_rows(plain, first, m);
    }
    return m;
  }
  constexpr int64_t kHeader = 256;
  const int64_t code_bytes = rounded_up(m.rows * m.row_bytes, 256);
  std::byte* base = scratch_.take(kHeader + (packs ? code_bytes + m.rows * m.block_scale_stride : 0), stream_);
  auto* largest = reinterpret_cast<uint32_t*>(base);
  void* codes = packs ? base + kHeader : const_cast<std::byte*>(m.data);
  void* scales =
      packs ? base + kHeader + code_bytes : reinterpret_cast<std::byte*>(const_cast<uint8_t*>(m.block_scale));
  check(cudaMemsetAsync(largest, 0, sizeof(uint32_t), stream_.get()), "cudaMemsetAsync");
  check(synthesise_nvfp4(stream_.get(), wanted, largest, codes, m.row_bytes, scales, m.block_scale_stride),
        "synthesise");
  if (packs) {
    plain.data = static_cast<const uint8_t*>(codes);
    plain.block_scale = static_cast<const uint8_t*>(scales);
    pack_rows(plain, 0, m);
  }
  float most = 0.0f;
  copy_out(&most, largest, sizeof(most));
  m.matrix_scale = most / (6.0f * 448.0f);
  return m;
}

void CudaOps::gather(const float* from, const int32_t* rows, int64_t count, int64_t width, float* to) {
  finish_leave();
  const int32_t* there = device_ids(std::span(rows, static_cast<size_t>(count)));
  check(cuda::gather(stream_.get(), from, there, count, width, to), "gather");
}

// ---- rows -----------------------------------------------------------------------------------------------------------
void CudaOps::embed(const Matrix& table, const StepIds& ids, int64_t streams, float* out) {
  finish_leave();
  check(cuda::embed(stream_.get(), weights_of(table), device_ids(ids), ids.count, streams, out), "embed");
}

void CudaOps::rms_norm(const float* x, int64_t x_stride, const float* weight, float epsilon, int64_t rows,
                       int64_t width, float* y, int64_t y_stride) {
  const Norm norm{x, x_stride, weight, nullptr, epsilon, width, y, y_stride};
  norms({&norm, 1}, rows);
}

void CudaOps::layer_norm(const float* x, const float* weight, const float* bias, float epsilon, int64_t rows,
                         int64_t width, float* y) {
  const Norm norm{x, width, weight, bias, epsilon, width, y, width};
  norms({&norm, 1}, rows);
}

void CudaOps::norms(std::span<const Norm> norms, int64_t rows) {
  finish_leave();
  for (size_t first = 0; first < norms.size(); first += kMostNorms)
    check(cuda::norms(stream_.get(), norms.data() + first,
                      std::min(kMostNorms, static_cast<int64_t>(norms.size() - first)), rows),
          "norms");
}

void CudaOps::add(const float* x, int64_t count, float* y) {
  finish_leave();
  check(cuda::add(stream_.get(), x, count, y), "add");
}

void CudaOps::clear(float* x, int64_t count) {
  finish_leave();
  check(cudaMemsetAsync(x, 0, static_cast<size_t>(count) * sizeof(float), stream_.get()), "clear");
}

void CudaOps::swiglu(const float* gate, const float* up, float limit, int64_t count, float* h) {
  finish_leave();
  check(cuda::swiglu(stream_.get(), gate, up, limit, count, h), "swiglu");
}

void CudaOps::hyper_enter(const HyperShape& shape, const HyperWeights& weights, const float* norm, const float* streams,
                          int64_t rows, float* maps, float* h) {
  const Weights fn = weights_of(weights.fn);
  settled_input_ = nullptr;
  if (hyper_fits(shape, fn)) {
    Leave leave = leave_;
    if (leave.streams != streams || leave.rows != rows || leave.shape.width != shape.width) {
      finish_leave();
      leave = Leave();
    }
    leave_ = Leave();
    // The streams are written only where there is something to leave.
    if (hyper_fits_cluster(shape, fn)) {
      check(hyper_cluster_site(stream_.get(), shape, fn, weights.base, weights.scale, norm, leave.maps, leave.y, rows,
                               const_cast<float*>(streams), maps, h),
            "hyper_enter");
      return;
    }
    const int64_t floats = hyper_partial_floats(shape, rows);
    auto* partials = reinterpret_cast<float*>(scratch_.take(floats * static_cast<int64_t>(sizeof(float)), stream_));
    check(hyper_site(stream_.get(), shape, fn, weights.base, weights.scale, norm, leave.maps, leave.y, rows,
                     const_cast<float*>(streams), partials, maps, h),
          "hyper_enter");
    return;
  }
  finish_leave();
  FmaProduct p;
  p.weights = fn;
  p.outputs = weights.fn.rows;
  p.x = streams;
  p.x_stride = shape.streams * shape.width;
  p.rows = rows;
  p.y = maps;
  p.y_stride = weights.fn.rows;
  check(fma_product(stream_.get(), p), "hyper_enter");
  check(hyper_maps(stream_.get(), shape, weights.base, weights.scale, norm, streams, rows, maps, h), "hyper_enter");
}

// Waits for the next operator: entering the next site leaves this one on the way.
void CudaOps::hyper_leave(const HyperShape& shape, const float* maps, const float* y, int64_t rows, float* streams) {
  finish_leave();
  leave_ = {shape, maps, y, rows, streams};
}

void CudaOps::finish_leave() {
  settled_input_ = nullptr;
  if (leave_.streams == nullptr) return;
  const Leave leave = std::exchange(leave_, Leave());
  check(cuda::hyper_leave(stream_.get(), leave.shape, leave.maps, leave.y, leave.rows, leave.streams), "hyper_leave");
}

void CudaOps::hyper_mean(const HyperShape& shape, const float* streams, int64_t rows, float* h) {
  finish_leave();
  check(cuda::hyper_mean(stream_.get(), shape, streams, rows, h), "hyper_mean");
}

void CudaOps::route(const float* logits, const float* bias, int64_t rows, int64_t experts, int64_t top, float scale,
                    int32_t* chosen, float* weights) {
  const float* settled = settled_input_;
  finish_leave();
  settled_input_ = settled;  // written by nobody in between
  check(cuda::route(stream_.get(), logits, bias, rows, experts, top, scale, chosen, weights), "route");
}

void CudaOps::argmax(const float* logits, int64_t rows, int64_t stride, int64_t limit, int32_t* ids) {
  finish_leave();
  void* working = scratch_.take(argmax_working_bytes(rows), stream_);
  check(cuda::argmax(stream_.get(), logits, rows, stride, limit, working, ids), "argmax");
}

void CudaOps::sample(float* logits, int64_t rows, int64_t stride, int64_t limit, std::span<const SampleRow> how,
                     std::span<const LogitAdjustment> adjustments, int32_t* ids) {
  finish_leave();
  if (recording_) fail(ErrorKind::kUsage, "sample", "inside a step; expected a call behind it");
  if (rows == 0) return;
  if (limit > kMostSampledIds) {
    Ops::sample(logits, rows, stride, limit, how, adjustments, ids);
    return;
  }
  SampleProblem p;
  p.logits = logits;
  p.rows = rows;
  p.stride = stride;
  p.limit = limit;
  std::vector<std::byte> arguments(how.size_bytes() + adjustments.size_bytes());
  std::memcpy(arguments.data(), how.data(), how.size_bytes());
  if (!adjustments.empty())
    std::memcpy(arguments.data() + how.size_bytes(), adjustments.data(), adjustments.size_bytes());
  const auto* there = static_cast<const std::byte*>(arguments_.put(arguments.data(), arguments.size()));
  p.how = reinterpret_cast<const SampleRow*>(there);
  p.adjustments = reinterpret_cast<const LogitAdjustment*>(there + how.size_bytes());
  p.adjustment_count = std::ssize(adjustments);
  p.ids = ids;
  check(cuda::sample(stream_.get(), p, scratch_.take(sample_working_bytes(rows, limit), stream_)), "sample");
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
