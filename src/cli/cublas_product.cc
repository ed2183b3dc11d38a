// cuBLASLt is no part of what computes, so it is opened when it is asked for: the program starts without it.
#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <memory>

#include "base/synthetic.h"
#include "cli/library_product.h"

namespace verbatim::cli {

namespace {

constexpr int64_t kSide = 8192;
constexpr int kWarm = 3, kTimed = 10;
constexpr size_t kWorkingBytes = size_t{64} << 20;

struct Close {
  void operator()(void* library) const { dlclose(library); }
};

class Functions {
 public:
  explicit Functions(void* library) : library_(library) {}
  template <typename Function>
  Function* find(const char* name) const {
    return reinterpret_cast<Function*>(dlsym(library_, name));
  }

 private:
  void* library_;
};

class Timer {
 public:
  Timer() : made_(cudaEventCreate(&begin_) == cudaSuccess && cudaEventCreate(&end_) == cudaSuccess) {}
  ~Timer() {
    if (begin_ != nullptr) cudaEventDestroy(begin_);
    if (end_ != nullptr) cudaEventDestroy(end_);
  }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;
  // Seconds of what `work` queues on the default stream; nothing if it or the device failed.
  template <typename Work>
  std::optional<double> time(const Work& work) {
    float ms = 0;
    if (!made_ || cudaEventRecord(begin_, nullptr) != cudaSuccess || !work() ||
        cudaEventRecord(end_, nullptr) != cudaSuccess || cudaEventSynchronize(end_) != cudaSuccess ||
        cudaEventElapsedTime(&ms, begin_, end_) != cudaSuccess)
      return {};
    return ms * 1e-3;
  }

 private:
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  bool made_;
};

}  // namespace

std::optional<double> library_product_flops_per_s(ops::Ops& ops) {
  const auto synthesise = [&](const char* name) {
    return ops.synthesise({ops::WeightForm::kBf16, kSide, kSide, synthetic_key(1, name), 0.0f, 1.0f}, {});
  };
  std::unique_ptr<void, Close> library;
  for (const char* name : {"libcublasLt.so.13", "libcublasLt.so"})
    if (library == nullptr) library.reset(dlopen(name, RTLD_NOW | RTLD_LOCAL));
  if (library == nullptr) return {};
  const Functions lt(library.get());
  const auto create = lt.find<decltype(cublasLtCreate)>("cublasLtCreate");
  const auto destroy = lt.find<decltype(cublasLtDestroy)>("cublasLtDestroy");
  const auto describe = lt.find<decltype(cublasLtMatmulDescCreate)>("cublasLtMatmulDescCreate");
  const auto set = lt.find<decltype(cublasLtMatmulDescSetAttribute)>("cublasLtMatmulDescSetAttribute");
  const auto lay_out = lt.find<decltype(cublasLtMatrixLayoutCreate)>("cublasLtMatrixLayoutCreate");
  const auto prefer = lt.find<decltype(cublasLtMatmulPreferenceCreate)>("cublasLtMatmulPreferenceCreate");
  const auto set_preference =
      lt.find<decltype(cublasLtMatmulPreferenceSetAttribute)>("cublasLtMatmulPreferenceSetAttribute");
  const auto choose = lt.find<decltype(cublasLtMatmulAlgoGetHeuristic)>("cublasLtMatmulAlgoGetHeuristic");
  const auto multiply = lt.find<decltype(cublasLtMatmul)>("cublasLtMatmul");
  if (create == nullptr || destroy == nullptr || describe == nullptr || set == nullptr || lay_out == nullptr ||
      prefer == nullptr || set_preference == nullptr || choose == nullptr || multiply == nullptr)
    return {};
  const std::optional<ops::Matrix> a = synthesise("library a"), b = synthesise("library b");
  if (!a || !b) return {};
  const ops::Buffer result(ops, size_t{2} * kSide * kSide), working(ops, kWorkingBytes);
  ops.synchronise();

  cublasLtHandle_t handle = nullptr;
  cublasLtMatmulDesc_t product = nullptr;
  cublasLtMatrixLayout_t square = nullptr;
  cublasLtMatmulPreference_t preference = nullptr;
  cublasLtMatmulHeuristicResult_t chosen{};
  int found = 0;
  // Rows of A and columns of B are contiguous: the order of a weight and an activation. The few descriptors stay.
  const cublasOperation_t transposed = CUBLAS_OP_T;
  if (create(&handle) != CUBLAS_STATUS_SUCCESS) return {};
  std::optional<double> flops_per_s;
  if (describe(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS &&
      set(product, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed)) == CUBLAS_STATUS_SUCCESS &&
      lay_out(&square, CUDA_R_16BF, kSide, kSide, kSide) == CUBLAS_STATUS_SUCCESS &&
      prefer(&preference) == CUBLAS_STATUS_SUCCESS &&
      set_preference(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &kWorkingBytes, sizeof(kWorkingBytes)) ==
          CUBLAS_STATUS_SUCCESS &&
      choose(handle, product, square, square, square, square, preference, 1, &chosen, &found) ==
          CUBLAS_STATUS_SUCCESS &&
      found == 1) {
    Timer timer;
    std::array<double, kTimed> seconds{};
    bool right = true;
    for (int i = -kWarm; i < kTimed && right; ++i) {
      const float one = 1.0f, zero = 0.0f;
      const std::optional<double> own = timer.time([&] {
        return multiply(handle, product, &one, a->data, square, b->data, square, &zero, result.floats(), square,
                        result.floats(), square, &chosen.algo, working.floats(), kWorkingBytes,
                        nullptr) == CUBLAS_STATUS_SUCCESS;
      });
      right = own.has_value();
      if (right && i >= 0) seconds[static_cast<size_t>(i)] = *own;
    }
    std::sort(seconds.begin(), seconds.end());
    if (right) flops_per_s = 2.0 * kSide * kSide * kSide / seconds[kTimed / 2];
  }
  destroy(handle);
  return flops_per_s;
}

}  // namespace verbatim::cli
