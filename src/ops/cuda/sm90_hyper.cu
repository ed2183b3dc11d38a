// Hyper-connection sites of four streams, widths a multiple of 256, in float32 and the CPU's order and bits. Two
// launches a site. The first leaves the site before, if there is one, and takes the dots of every slice of 256: a block
// owns 256 columns of all four streams, so that it may write them. The second adds the slices, makes the maps (one warp
// does the 4 x 4 normalisation while the others go on), collapses and norms. Bytes: fn (0.8 MB) and the streams.
#include "ops/cuda/launch.h"
#include "ops/cuda/math.cuh"
#include "ops/cuda/ptx/barrier.cuh"
#include "ops/cuda/ptx/dependency.cuh"
#include "ops/cuda/ptx/reciprocal.cuh"
#include "ops/cuda/shapes.h"
#include "ops/cuda/sums.cuh"
#include "ops/cuda/weights.cuh"

namespace verbatim::ops::cuda {

namespace {

constexpr int kStreams = 4, kMaps = (2 + kStreams) * kStreams, kDots = kMaps + 1, kPitch = 32, kDotThreads = 1024;
constexpr int kEnterThreads = 512, kSinkhornThreads = 32;

struct Leaving {
  const float* maps;  // of the site before; null: nothing to leave
  const float* y;
};

// partials [rows][slices][kPitch]: the 24 dots of fn, and the sum of squares.
template <bool kFloat>
__global__ void __launch_bounds__(kDotThreads)
    dots_kernel(Weights fn, Leaving leaving, int64_t width, float* streams, float* partials) {
  __shared__ float x[kStreams][kSumSlice];
  const auto blocks = static_cast<uint32_t>(width / kSumSlice);
  const int64_t row = blockIdx.x / blocks, first = int64_t{blockIdx.x % blocks} * kSumSlice;
  const int thread = threadIdx.x, group = thread / 16, lane = thread % 16;
  // The weights of this group's first dots, before the launch in front has ended.
  constexpr int kGroups = kDotThreads / 16, kTasks = kStreams * kDots, kRounds = (kTasks + kGroups - 1) / kGroups;
  float weights[kRounds][16];
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const int task = group + round * kGroups, dot = task / kStreams, stream = task % kStreams;
    if (task >= kStreams * kMaps) continue;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const int64_t k = stream * width + first + i * 16 + lane;
      weights[round][i] = kFloat ? reinterpret_cast<const float*>(fn.data + dot * fn.row_bytes)[k]
                                 : bf16_value(reinterpret_cast<const uint16_t*>(fn.data + dot * fn.row_bytes)[k]);
    }
  }
  ptx::let_next_start();
  ptx::wait_for_previous();
  if (thread < kSumSlice) {
    float* own = streams + row * kStreams * width + first + thread;
    float old[kStreams];
#pragma unroll
    for (int s = 0; s < kStreams; ++s) old[s] = own[s * width];
    if (leaving.maps == nullptr) {
#pragma unroll
      for (int s = 0; s < kStreams; ++s) x[s][thread] = old[s];
    } else {
      const float* post = leaving.maps + row * kMaps + kStreams;
      const float* comb = post + kStreams;
      const float added = leaving.y[row * width + first + thread];
#pragma unroll
      for (int j = 0; j < kStreams; ++j) {
        float mixed = comb[j] * old[0];
#pragma unroll
        for (int s = 1; s < kStreams; ++s) mixed = fmaf(comb[s * kStreams + j], old[s], mixed);
        mixed = fmaf(post[j], added, mixed);
        x[j][thread] = mixed;
        own[j * width] = mixed;
      }
    }
  }
  __syncthreads();
  const auto slices = static_cast<int64_t>(kStreams) * blocks;
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const int task = group + round * kGroups, dot = task / kStreams, stream = task % kStreams;
    float sum = 0.0f;
    if (task < kTasks) {
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        const float value = x[stream][i * 16 + lane];
        sum = fmaf(dot < kMaps ? weights[round][i] : value, value, sum);
      }
    }
    sum = lane_tree(sum);
    if (task < kTasks && lane == 0) partials[(row * slices + stream * blocks + first / kSumSlice) * kPitch + dot] = sum;
  }
}

// a / b, rounded to nearest, of numbers far from the ends of float32's range: the reciprocal, one step of Newton's, and
// two corrections of the quotient by its remainder, as the compiler's own division has it behind its range checks.
__device__ float quotient(float a, float b) {
  if (!(fabsf(a) < 0x1p60f && fabsf(b) < 0x1p60f && fabsf(a) > 0x1p-60f && fabsf(b) > 0x1p-60f)) return a / b;
  const float guess = ptx::reciprocal(b);
  const float inverse = fmaf(guess, fmaf(-b, guess, 1.0f), guess);
  float q = a * inverse;
  q = fmaf(fmaf(-b, q, a), inverse, q);
  return fmaf(fmaf(-b, q, a), inverse, q);
}

__global__ void __launch_bounds__(kEnterThreads + kSinkhornThreads)
    maps_kernel(HyperShape shape, const float* base, const float* scale, const float* norm, const float* streams,
                const float* partials, float* maps, float* h) {
  extern __shared__ float parts[];  // [slices][kPitch], then what is collapsed [width]
  __shared__ float dots[kDots], map[kMaps], sums[kEnterThreads / 16];
  const int thread = threadIdx.x, lane = thread % 32;
  const int64_t row = blockIdx.x, width = shape.width;
  const auto slices = static_cast<int>(kStreams * width / kSumSlice);
  ptx::let_next_start();
  ptx::wait_for_previous();
  streams += row * kStreams * width;
  h += row * width;
  for (int i = thread; i < slices * kPitch; i += kEnterThreads + kSinkhornThreads)
    parts[i] = i % kPitch < kDots ? partials[row * slices * kPitch + i] : 0.0f;
  __syncthreads();
  if (thread < kDots) {
    float sum = parts[thread];
#pragma unroll 16
    for (int i = 1; i < slices; ++i) sum = sum + parts[i * kPitch + thread];
    dots[thread] = sum;
  }
  __syncthreads();
  if (thread < kMaps) {
    const float inverse = 1.0f / sqrtf(dots[kMaps] / static_cast<float>(kStreams * width) + shape.norm_epsilon);
    const int group = thread / kStreams < 2 ? thread / kStreams : 2;
    float value = dots[thread] * inverse * scale[group] + base[thread];
    if (group < 2) value = sigmoid_of(value);
    if (group == 0) value = value + shape.epsilon;
    if (group == 1) value = value * 2.0f;
    map[thread] = value;
    if (group < 2) maps[row * kMaps + thread] = value;
  }
  __syncthreads();
  if (thread >= kEnterThreads) {
    // Lane l of sixteen holds element (l / 4, l % 4); the upper half repeats the lower.
    const int i = lane % 16, at = i / 4 * 4;
    float value = map[2 * kStreams + i];
    const auto row_of = [&](int j) { return __shfl_sync(0xffffffffu, value, at + j); };
    const auto column_of = [&](int j) { return __shfl_sync(0xffffffffu, value, j * 4 + i % 4); };
    float most = row_of(0);
#pragma unroll
    for (int j = 1; j < kStreams; ++j) {
      const float other = row_of(j);
      most = most < other ? other : most;
    }
    value = exp_of(value - most);
    const auto divide = [&](float a, float b, float c, float d, float epsilon) {
      value = quotient(value, a + b + c + d + epsilon);
    };
    const auto divide_rows = [&](float epsilon) { divide(row_of(0), row_of(1), row_of(2), row_of(3), epsilon); };
    const auto divide_columns = [&] { divide(column_of(0), column_of(1), column_of(2), column_of(3), shape.epsilon); };
    divide_rows(0.0f);
    value = value + shape.epsilon;
    divide_columns();
    for (int round = 1; round < shape.sinkhorn_iterations; ++round) {
      divide_rows(shape.epsilon);
      divide_columns();
    }
    if (lane < 16) maps[row * kMaps + 2 * kStreams + i] = value;
    return;
  }
  // Collapse, all threads; then the sum of squares by slices, sixteen threads each.
  float* collapsed = parts + slices * kPitch;
#pragma unroll 8
  for (int64_t k = thread; k < width; k += kEnterThreads) {
    float value = map[0] * streams[k];
#pragma unroll
    for (int s = 1; s < kStreams; ++s) value = fmaf(map[s], streams[s * width + k], value);
    collapsed[k] = value;
  }
  const int group = thread / 16, part = thread % 16;
  const auto collapsed_slices = static_cast<int>(width / kSumSlice);
  float total = 0.0f;
  for (int begin = 0; begin < collapsed_slices; begin += kEnterThreads / 16) {
    ptx::synchronise_some<1, kEnterThreads>();
    float sum = 0.0f;
    if (begin + group < collapsed_slices) {
      const float* own = collapsed + (begin + group) * kSumSlice + part;
#pragma unroll
      for (int i = 0; i < 16; ++i) sum = fmaf(own[i * 16], own[i * 16], sum);
    }
    sum = lane_tree(sum);
    if (part == 0) sums[group] = sum;
    ptx::synchronise_some<1, kEnterThreads>();
    for (int i = 0; i < kEnterThreads / 16 && begin + i < collapsed_slices; ++i)
      total = begin + i == 0 ? sums[0] : total + sums[i];
  }
  const float factor = 1.0f / sqrtf(total / static_cast<float>(width) + shape.norm_epsilon);
#pragma unroll 8
  for (int64_t k = thread; k < width; k += kEnterThreads) h[k] = norm[k] * (collapsed[k] * factor);
}

}  // namespace

bool hyper_fits(const HyperShape& shape, const Weights& fn) {
  return shape.streams == kStreams && shape.width % kSumSlice == 0 &&
         (fn.form == WeightForm::kBf16 || fn.form == WeightForm::kF32);
}

int64_t hyper_partial_floats(const HyperShape& shape, int64_t rows) {
  return rows * kPitch * kStreams * shape.width / kSumSlice;
}

cudaError_t hyper_site(cudaStream_t stream, const HyperShape& shape, const Weights& fn, const float* base,
                       const float* scale, const float* norm, const float* leaving_maps, const float* leaving_y,
                       int64_t rows, float* streams, float* partials, float* maps, float* h) {
  if (rows == 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>(rows * (shape.width / kSumSlice));
  const Leaving leaving{leaving_maps, leaving_y};
  const cudaError_t error =
      fn.form == WeightForm::kF32
          ? launch(dots_kernel<true>, blocks, kDotThreads, 0, stream, fn, leaving, shape.width, streams, partials)
          : launch(dots_kernel<false>, blocks, kDotThreads, 0, stream, fn, leaving, shape.width, streams, partials);
  if (error != cudaSuccess) return error;
  return launch(maps_kernel, static_cast<unsigned>(rows), kEnterThreads + kSinkhornThreads,
                static_cast<size_t>(hyper_shared_bytes(shape.width)), stream, shape, base, scale, norm,
                static_cast<const float*>(streams), static_cast<const float*>(partials), maps, h);
}

}  // namespace verbatim::ops::cuda
