// The maps of a hyper-connection site of four streams from its dots, by one warp, in the CPU's order and bits.
#pragma once

#include "ops/cuda/kernels.h"
#include "ops/cuda/math.cuh"
#include "ops/cuda/ptx/reciprocal.cuh"

namespace verbatim::ops::cuda::hyper {

inline constexpr int kStreams = 4, kMaps = (2 + kStreams) * kStreams, kDots = kMaps + 1;

// Lane l < 24 makes map l (before the 4 x 4 normalisation), from dot l and the sum of squares, which is dot 24.
class MapLane {
 public:
  __device__ MapLane(const HyperShape& shape, const float* base, const float* scale, int lane)
      : epsilon_(shape.epsilon), norm_epsilon_(shape.norm_epsilon), count_(static_cast<float>(kStreams * shape.width)) {
    const int own = lane < kMaps ? lane : 0;
    group_ = own / kStreams < 2 ? own / kStreams : 2;
    scale_ = scale[group_];
    base_ = base[own];
  }
  // `dot` of this lane; lane 24 has the squares.
  __device__ float value(float dot) const {
    const float squares = __shfl_sync(0xffffffffu, dot, kMaps);
    const float inverse = 1.0f / sqrtf(squares / count_ + norm_epsilon_);
    float value = dot * inverse * scale_ + base_;
    if (group_ < 2) value = sigmoid_of(value);
    if (group_ == 0) value = value + epsilon_;
    if (group_ == 1) value = value * 2.0f;
    return value;
  }

 private:
  float epsilon_, norm_epsilon_, count_, scale_, base_;
  int group_;
};

// a / b, rounded to nearest, of numbers far from the ends of float32's range: the reciprocal, one step of Newton's, and
// two corrections of the quotient by its remainder, as the compiler's own division has it behind its range checks.
__device__ inline float usual_quotient(float a, float b) {
  const float guess = ptx::reciprocal(b);
  const float error = fmaf(-b, guess, 1.0f);
  const float inverse = fmaf(guess, error, guess);
  float q = a * guess;
  q = fmaf(q, error, q);
  q = fmaf(fmaf(-b, q, a), inverse, q);
  return fmaf(fmaf(-b, q, a), inverse, q);
}

// Lane l of sixteen gives element (l / 4, l % 4) before, and has it after the softmax of rows and the iterations; the
// upper half of the warp repeats the lower.
__device__ inline float normalised(const HyperShape& shape, float value) {
  const int i = threadIdx.x % 16, at = i / 4 * 4;
  const auto row_of = [&](int j) { return __shfl_sync(0xffffffffu, value, at + j); };
  const auto column_of = [&](int j) { return __shfl_sync(0xffffffffu, value, j * 4 + i % 4); };
  const auto row_sum = [&] { return row_of(0) + row_of(1) + row_of(2) + row_of(3); };
  const auto column_sum = [&] { return column_of(0) + column_of(1) + column_of(2) + column_of(3); };
  float most = row_of(0);
#pragma unroll
  for (int j = 1; j < kStreams; ++j) {
    const float other = row_of(j);
    most = most < other ? other : most;
  }
  value = exp_of(value - most);
  value = value / row_sum() + shape.epsilon;
  const float start = value;
  // Elements are positive, so a sum is no less than any of its own.
  bool unusual = false;
  const auto divide = [&](float sum) {
    unusual = unusual || !(value > 0x1p-60f) || !(sum < 0x1p60f);
    value = usual_quotient(value, sum);
  };
  divide(column_sum() + shape.epsilon);
  for (int round = 1; round < shape.sinkhorn_iterations; ++round) {
    divide(row_sum() + shape.epsilon);
    divide(column_sum() + shape.epsilon);
  }
  if (!__any_sync(0xffffffffu, unusual)) return value;
  value = start;
  value = value / (column_sum() + shape.epsilon);
  for (int round = 1; round < shape.sinkhorn_iterations; ++round) {
    value = value / (row_sum() + shape.epsilon);
    value = value / (column_sum() + shape.epsilon);
  }
  return value;
}

}  // namespace verbatim::ops::cuda::hyper
