// Linear attention where every span has one row, as replies do: one block takes one head of a sequence. S is asked for
// at once and comes into shared memory while the row's convolutions, norms and decay are made. The order of sums is
// that of Ops::kda in ops.h, the bits are those of kda.cu. Shared memory: (width + 16) width floats and little more, 75
// KB at width 128. Bytes: S of a head (64 KB), the rows since (1.5 KB each); S again when a chunk is complete.
#include "ops/cuda/kernels.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/math.cuh"
#include "ops/cuda/ptx/async_copy.cuh"
#include "ops/cuda/ptx/dependency.cuh"
#include "ops/cuda/shapes.h"
#include "ops/cuda/sums.cuh"

namespace verbatim::ops::cuda {

namespace {

constexpr int kThreads = 256, kChunk = static_cast<int>(kChunkRows), kMostWidth = 128;

struct Problem {
  KdaShape shape;
  KdaWeights weights;
  KdaInputs inputs;
  KdaState state;
  SpanTable spans;
  float* out;
};

__global__ void __launch_bounds__(kThreads) row_kernel(const __grid_constant__ Problem p) {
  extern __shared__ __align__(16) float memory[];
  __shared__ float taken[3][kMostWidth];  // q, k, v after convolution
  __shared__ float decay[kMostWidth], faded[2][kMostWidth], products[2][kMostWidth], made_row[kMostWidth];
  __shared__ float dots[kChunk][2];
  const auto width = static_cast<int>(p.shape.width), thread = static_cast<int>(threadIdx.x);
  float* state = memory;                  // [width][width]
  float* fades = memory + width * width;  // [16][width], while S advances
  const int64_t heads = p.shape.heads, channels = heads * width, head = blockIdx.x % heads, offset = head * width;
  ptx::let_next_start();
  ptx::wait_for_previous();
  const DeviceSpan& span = p.spans.spans[blockIdx.x / heads];
  const int64_t slot = span.sequence, position = span.position, row = span.first_row;
  float* stored = p.state.state + (slot * heads + head) * width * width;
  const auto ring = [&](float* base, int64_t at) {
    return base + (slot * kKdaRing + at % kKdaRing) * channels + offset;
  };
  const auto conv_row = [&](int64_t at, int which) {
    return p.state.conv + ((slot * kConvRing + at % kConvRing) * 3 + which) * channels + offset;
  };
  if (position == 0) {
    for (int i = thread; i < width * width; i += kThreads) state[i] = stored[i] = 0.0f;
  } else {
    for (int i = 4 * thread; i < width * width; i += 4 * kThreads) ptx::copy_16_bytes(state + i, stored + i);
  }
  ptx::close_copy_group();

  // Rows since the chunk's start, s < t: keys and decays by sixteen threads a row, values by column.
  const int64_t chunk = position / kChunk * kChunk;
  const auto t = static_cast<int>(position - chunk);
  const int group = thread / 16, lane = thread % 16;
  float keys[kMostWidth / 16], decays[kMostWidth / 16], values[kChunk - 1];
  if (group < t) {
    const float *key = ring(p.state.key, chunk + group), *other = ring(p.state.decay, chunk + group);
#pragma unroll
    for (int i = 0; i < kMostWidth / 16; ++i)
      if (i * 16 < width) keys[i] = key[i * 16 + lane], decays[i] = other[i * 16 + lane];
  }
  if (thread < width)
#pragma unroll
    for (int s = 0; s < kChunk - 1; ++s)
      if (s < t) values[s] = ring(p.state.value, chunk + s)[thread];

  const float* inputs[3] = {p.inputs.q, p.inputs.k, p.inputs.v};
  const float* all_taps[3] = {p.weights.conv_q, p.weights.conv_k, p.weights.conv_v};
  for (int i = thread; i < 3 * width; i += kThreads) {
    const int which = i / width, c = i % width;
    const float newest = inputs[which][row * channels + offset + c];
    const float* taps = all_taps[which] + (offset + c) * kConvTaps;
    float sum = taps[0] * (position < 3 ? 0.0f : conv_row(position - 3, which)[c]);
    sum = fmaf(taps[1], position < 2 ? 0.0f : conv_row(position - 2, which)[c], sum);
    sum = fmaf(taps[2], position < 1 ? 0.0f : conv_row(position - 1, which)[c], sum);
    sum = fmaf(taps[3], newest, sum);
    taken[which][c] = silu_of(sum);
    conv_row(position, which)[c] = newest;
  }
  if (thread < width) {
    const float rate = exp_of(p.weights.a_log[head]), lower = p.shape.lower_bound;
    const float x = p.inputs.f[row * channels + offset + thread] + p.weights.dt_bias[offset + thread];
    const float g = lower != 0.0f ? lower * sigmoid_of(rate * x) : 0.0f - rate * softplus_of(x);
    decay[thread] = t == 0 ? g : ring(p.state.decay, position - 1)[thread] + g;
  }
  __syncthreads();
  if (group < 2) {
    float* own = taken[group];
    const auto element = [&](int64_t c) { return own[c]; };
    const float factor = group == 0 ? 1.0f / sqrtf(static_cast<float>(width)) : 1.0f;
    const float scale = factor * (1.0f / sqrtf(group_dot16(width, element, element) + 1e-6f));
    for (int c = lane; c < width; c += 16) own[c] = own[c] * scale;
  }
  __syncthreads();
  if (thread < width) {
    const float fade = exp_of(decay[thread]);
    faded[0][thread] = taken[1][thread] * fade;
    faded[1][thread] = taken[0][thread] * fade;
    ring(p.state.key, position)[thread] = taken[1][thread];
    ring(p.state.decay, position)[thread] = decay[thread];
  }
  {
    float sums[2] = {0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < kMostWidth / 16; ++i) {
      if (i * 16 >= width) break;
      const int c = i * 16 + lane;
      const float own = decay[c], other = group < t ? decays[i] : own, earlier = group < t ? keys[i] : taken[1][c];
      const float fade = exp_of(own - other);
      sums[0] = fmaf(taken[1][c] * fade, earlier, sums[0]);
      sums[1] = fmaf(taken[0][c] * fade, earlier, sums[1]);
    }
    sums[0] = lane_tree(sums[0]);
    sums[1] = lane_tree(sums[1]);
    if (lane == 0 && group <= t) dots[group][0] = sums[0], dots[group][1] = sums[1];
  }
  ptx::wait_for_copies<0>();
  __syncthreads();
  // S at the ends of the chunks that are complete.
  for (int64_t begin = span.state_position; begin + kChunk <= position; begin += kChunk) {
    const float* last = ring(p.state.decay, begin + kChunk - 1);
    for (int i = thread; i < kChunk * width; i += kThreads) {
      const int s = i / width, c = i % width;
      fades[i] = ring(p.state.key, begin + s)[c] * exp_of(last[c] - ring(p.state.decay, begin + s)[c]);
    }
    __syncthreads();
    const int groups = kThreads / width;
    if (thread < groups * width) {
      const int c = thread % width;
      float own[kChunk];
#pragma unroll
      for (int s = 0; s < kChunk; ++s) own[s] = ring(p.state.value, begin + s)[c];
#pragma unroll 4
      for (int k = thread / width; k < width; k += groups) {
        float sum = exp_of(last[k]) * state[k * width + c];
#pragma unroll
        for (int s = 0; s < kChunk; ++s) sum = fmaf(fades[s * width + k], own[s], sum);
        state[k * width + c] = sum;
        stored[k * width + c] = sum;
      }
    }
    __syncthreads();
  }
  for (int item = thread; item < 2 * width; item += kThreads) {
    const int which = item / width, c = item % width;
    float sum = 0.0f;
#pragma unroll 16
    for (int k = 0; k < width; ++k) sum = fmaf(faded[which][k], state[k * width + c], sum);
    products[which][c] = sum;
  }
  __syncthreads();
  if (thread < width) {
    const float beta = sigmoid_of(p.inputs.beta_logit[row * heads + head]);
    float rest = taken[2][thread] - products[0][thread], sum = products[1][thread];
#pragma unroll
    for (int s = 0; s < kChunk - 1; ++s) {
      if (s >= t) break;
      rest = fmaf(-dots[s][0], values[s], rest);
      sum = fmaf(dots[s][1], values[s], sum);
    }
    const float made = beta * rest;
    ring(p.state.value, position)[thread] = made;
    made_row[thread] = fmaf(dots[t][1], made, sum);
  }
  __syncthreads();
  if (group != 0 && group != 1) return;
  // Both halves of a warp take part in the sum; the first writes.
  const auto element = [&](int64_t c) { return made_row[c]; };
  const float mean = group_dot16(width, element, element) / static_cast<float>(width);
  const float scale = 1.0f / sqrtf(mean + p.shape.norm_epsilon);
  const int64_t at = row * channels + offset;
  for (int c = thread; c < width; c += 32)
    p.out[at + c] = p.weights.o_norm[c] * (made_row[c] * scale) * sigmoid_of(p.inputs.gate[at + c]);
}

}  // namespace

bool kda_takes_rows(const KdaShape& shape, const Span* spans, int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    if (spans[i].rows != 1) return false;
  return shape.width <= kMostWidth && kThreads % shape.width == 0;
}

cudaError_t kda_rows(cudaStream_t stream, const KdaShape& shape, const KdaWeights& weights, const KdaInputs& inputs,
                     const KdaState& state, const SpanTable& spans, float* out) {
  if (spans.count == 0) return cudaSuccess;
  const auto bytes = static_cast<size_t>(kda_row_shared_bytes(shape.width));
  const Problem problem{shape, weights, inputs, state, spans, out};
  return launch(row_kernel, static_cast<unsigned>(spans.count * shape.heads), kThreads, bytes, stream, problem);
}

}  // namespace verbatim::ops::cuda
