// The CUDA backend, without CUDA's headers.
#pragma once

#include <memory>

#include "ops/ops.h"

namespace verbatim::ops {

enum class Activations {
  kBf16,    // what ships: a product's activations are rounded to bfloat16, but for Matrix::float_input
  kSplit3,  // to test by: each activation as three bfloat16 terms through the same kernels, results added
};

struct CudaOptions {
  int device = 0;
  Activations activations = Activations::kBf16;
  bool records_steps = false;  // Ops::step records and replays; else every step is launched anew
};

// For who divides device memory: bytes of an element of latents and pool keys (with kSplit3: of a float32), and the
// most that kernels take for themselves.
inline constexpr int64_t kCudaCacheElementBytes = 2;
// What it holds beside weights, states and what its operators take for themselves (cuda_working.h): arguments, spans,
// tables of experts and recorded steps.
inline constexpr int64_t kCudaFixedBytes = int64_t{256} << 20;

// Throws Error(kUnsupported) if this build has no CUDA, the machine no such device, or the device is older than what
// the kernels were built for.
std::unique_ptr<Ops> make_cuda_ops(const CudaOptions& options);

// Of a backend that make_cuda_ops() gave: bytes a second that a plain read kernel reaches now, and free device memory.
double cuda_read_bandwidth(Ops& ops);
int64_t cuda_free_bytes(Ops& ops);

// Of such a backend: takes working memory for its operators now, so that no step has to (cuda_working.h says how much),
// and what it holds of it. It grows where an operator needs more.
void cuda_reserve_working(Ops& ops, int64_t bytes);
int64_t cuda_working_held(Ops& ops);

}  // namespace verbatim::ops
