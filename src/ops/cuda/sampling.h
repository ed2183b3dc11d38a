// Choosing tokens on the device (sampling.cu): the integers of ops/sampling.h, so the tokens of sample_row().
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/working_bounds.h"
#include "ops/sampling.h"

namespace verbatim::ops::cuda {

struct SampleProblem {
  float* logits = nullptr;  // [rows, stride], adjusted in place
  int64_t rows = 0, stride = 0, limit = 0;
  const SampleRow* how = nullptr;  // [rows], on the device like `adjustments`
  const LogitAdjustment* adjustments = nullptr;
  int64_t adjustment_count = 0;
  int32_t* ids = nullptr;  // [rows]
};

// limit <= kMostSampledIds; `working` is sample_working_bytes() (working_bounds.h). Of each row the logits are read
// twice and 8 bytes an id written and read up to five times: all of it in the L2.
cudaError_t sample(cudaStream_t stream, const SampleProblem& problem, void* working);

}  // namespace verbatim::ops::cuda
