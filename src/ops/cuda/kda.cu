// Linear attention (KDA): one block takes one head of one span and walks its rows, a chunk of up to 16 at a time. The
// order of sums is that of Ops::kda in ops.h and the bits are the CPU backend's. Shared memory: (4 * 16 + 32 + 36 + 20)
// * width floats, 77 KB at the released width of 128. Bytes: S of a head once a chunk and product (64 KB at width 128).
#include "ops/cuda/kernels.h"
#include "ops/cuda/math.cuh"
#include "ops/cuda/shapes.h"
#include "ops/cuda/sums.cuh"

namespace verbatim::ops::cuda {

namespace {

constexpr int kThreads = 256, kChunk = static_cast<int>(kChunkRows);
constexpr int kFadedPitch = 2 * kChunk + 4, kFadePitch = kChunk + 4;

struct Problem {
  KdaShape shape;
  KdaWeights weights;
  KdaInputs inputs;
  KdaState state;
  SpanTable spans;
  float* side;
  float* out;
};

// kRows columns of faded times S: the thread owns value column c.
template <int kRows>
__device__ void column_products(const float* state, const float* faded, int64_t width, int64_t c, float* products,
                                int64_t stride, int count) {
  float total[kRows];
  for (int64_t begin = 0; begin < width; begin += kSumSlice) {
    const int64_t end = begin + kSumSlice < width ? begin + kSumSlice : width;
    float sums[kRows];
    for (int i = 0; i < kRows; ++i) sums[i] = 0.0f;
#pragma unroll 8
    for (int64_t k = begin; k < end; ++k) {
      const float value = state[k * width + c];
      const float* row = faded + k * kFadedPitch;
      if constexpr (kRows == 16) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float4 four = reinterpret_cast<const float4*>(row)[i];
          sums[4 * i] = fmaf(four.x, value, sums[4 * i]);
          sums[4 * i + 1] = fmaf(four.y, value, sums[4 * i + 1]);
          sums[4 * i + 2] = fmaf(four.z, value, sums[4 * i + 2]);
          sums[4 * i + 3] = fmaf(four.w, value, sums[4 * i + 3]);
        }
      } else {
        for (int i = 0; i < kRows; ++i) sums[i] = fmaf(row[i], value, sums[i]);
      }
    }
    for (int i = 0; i < kRows; ++i) total[i] = begin == 0 ? sums[i] : total[i] + sums[i];
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i)
    if (i < count) products[i * stride + c] = total[i];
}

struct Head {
  const Problem& p;
  const DeviceSpan& span;
  int64_t width, channels, offset, head;
  float *stored, *conv, *key, *value, *decay, *side;
  const float* current;
  // In shared memory, [16][width] but faded [width][36] and fades [width][20].
  float *keys, *decays, *values, *q, *products, *faded, *fades;
  float (*dots)[kChunk][2];

  __device__ float* ring_row(float* ring, int64_t position) const { return ring + position % kKdaRing * channels; }
  __device__ int64_t row_of(int64_t position) const { return span.first_row + position - span.position; }

  __device__ float conv_input(int which, const float* input, int64_t position, int64_t c) const {
    if (position < 0) return 0.0f;
    if (position < span.position) return conv[(position % kConvRing * 3 + which) * channels + c];
    return input[row_of(position) * channels + offset + c];
  }
  __device__ float convolved(int which, const float* taps, const float* input, int64_t position, int64_t c) const {
    taps += (offset + c) * kConvTaps;
    float sum = taps[0] * conv_input(which, input, position - 3, c);
    for (int j = 1; j < 4; ++j) sum = fmaf(taps[j], conv_input(which, input, position - 3 + j, c), sum);
    return silu_of(sum);
  }

  // S at the chunk's end from S at its start and the rings.
  __device__ void advance(int64_t chunk) {
    __syncthreads();
    for (int64_t i = threadIdx.x; i < kChunk * width; i += kThreads) {
      const int64_t s = i / width, c = i % width;
      values[i] = ring_row(value, chunk + s)[c];
      const float total = ring_row(decay, chunk + kChunk - 1)[c];
      fades[c * kFadePitch + s] = ring_row(key, chunk + s)[c] * exp_of(total - ring_row(decay, chunk + s)[c]);
      if (s == 0) decays[c] = exp_of(total);
    }
    __syncthreads();
    float* next = chunk + kChunk <= span.stored_until ? stored : side;
    const int64_t groups = kThreads > width ? kThreads / width : 1;
    for (int64_t item = threadIdx.x; item < width * groups; item += kThreads) {
      const int64_t c = item % width;
      float own[kChunk];
#pragma unroll
      for (int s = 0; s < kChunk; ++s) own[s] = values[s * width + c];
#pragma unroll 4
      for (int64_t k = item / width; k < width; k += groups) {
        float sum = decays[k] * current[k * width + c];
        const float4* row = reinterpret_cast<const float4*>(fades + k * kFadePitch);
#pragma unroll
        for (int s = 0; s < kChunk / 4; ++s) {
          const float4 four = row[s];
          sum = fmaf(four.x, own[4 * s], sum);
          sum = fmaf(four.y, own[4 * s + 1], sum);
          sum = fmaf(four.z, own[4 * s + 2], sum);
          sum = fmaf(four.w, own[4 * s + 3], sum);
        }
        next[k * width + c] = sum;
      }
    }
    current = next;
    __syncthreads();
  }

  // x *= factor / sqrt(dot16(x, x) + 1e-6) for rows first .. first + count - 1 of x, sixteen threads each.
  __device__ void normalise(float* x, int first, int count, float factor) const {
    const int group = threadIdx.x / 16, lane = threadIdx.x % 16;
    float* row = x + (first + group) * width;
    // Threads without a row take part in the warp's sums alone.
    const auto element = [&](int64_t c) { return group < count ? row[c] : 0.0f; };
    const float scale = factor * (1.0f / sqrtf(group_dot16(width, element, element) + 1e-6f));
    if (group < count)
      for (int64_t c = lane; c < width; c += 16) row[c] = row[c] * scale;
  }

  // Positions begin .. end - 1 of the chunk that starts at `chunk`.
  __device__ void rows(int64_t chunk, int64_t begin, int64_t end) {
    const int first = static_cast<int>(begin - chunk), last = static_cast<int>(end - chunk), count = last - first;
    __syncthreads();
    for (int64_t i = threadIdx.x; i < first * width; i += kThreads) {
      const int64_t s = i / width, c = i % width;
      keys[i] = ring_row(key, chunk + s)[c];
      values[i] = ring_row(value, chunk + s)[c];
      decays[i] = ring_row(decay, chunk + s)[c];
    }
    for (int64_t i = threadIdx.x; i < count * width; i += kThreads) {
      const int64_t t = i / width, c = i % width;
      q[i] = convolved(0, p.weights.conv_q, p.inputs.q, begin + t, c);
      keys[first * width + i] = convolved(1, p.weights.conv_k, p.inputs.k, begin + t, c);
      // v waits where v_new will stand.
      values[first * width + i] = convolved(2, p.weights.conv_v, p.inputs.v, begin + t, c);
    }
    __syncthreads();
    normalise(q, 0, count, 1.0f / sqrtf(static_cast<float>(width)));
    normalise(keys, first, count, 1.0f);
    const float rate = exp_of(p.weights.a_log[head]), lower = p.shape.lower_bound;
    for (int64_t c = threadIdx.x; c < width; c += kThreads) {
      float sum = first > 0 ? decays[(first - 1) * width + c] : 0.0f;
      for (int t = 0; t < count; ++t) {
        const float x = p.inputs.f[row_of(begin + t) * channels + offset + c] + p.weights.dt_bias[offset + c];
        const float g = lower != 0.0f ? lower * sigmoid_of(rate * x) : 0.0f - rate * softplus_of(x);
        sum = first + t == 0 ? g : sum + g;
        decays[(first + t) * width + c] = sum;
      }
    }
    __syncthreads();
    for (int64_t i = threadIdx.x; i < count * width; i += kThreads) {
      const int64_t t = i / width, c = i % width;
      const float fade = exp_of(decays[first * width + i]);
      faded[c * kFadedPitch + t] = keys[first * width + i] * fade;
      faded[c * kFadedPitch + kChunk + t] = q[i] * fade;
    }
    // Dots of all rows s <= t; pairs past t are computed with s = t and not used.
    const int group = threadIdx.x / 16;
    for (int pair = group; pair < (count * kChunk + 15) / 16 * 16; pair += kThreads / 16) {
      const int i = pair / kChunk, t = first + i, s = pair % kChunk < t ? pair % kChunk : t;
      const float *own = decays + t * width, *other = decays + s * width;
      const auto earlier = [&](int64_t c) { return keys[s * width + c]; };
      // exp(G_t - G_s) is computed once for both dots.
      const int lane = threadIdx.x % 16;
      float sums[2] = {0.0f, 0.0f};
      for (int64_t from = 0; from < width; from += kSumSlice) {
        const int64_t to = from + kSumSlice < width ? from + kSumSlice : width;
        float lanes[2] = {0.0f, 0.0f};
        for (int64_t c = from + lane; c < to; c += 16) {
          const float fade = exp_of(own[c] - other[c]);
          lanes[0] = fmaf(keys[t * width + c] * fade, earlier(c), lanes[0]);
          lanes[1] = fmaf(q[i * width + c] * fade, earlier(c), lanes[1]);
        }
        for (int j = 0; j < 2; ++j) {
          const float slice = lane_tree(lanes[j]);
          sums[j] = from == 0 ? slice : sums[j] + slice;
        }
      }
      if (lane == 0 && pair % kChunk <= t) dots[i][s][0] = sums[0], dots[i][s][1] = sums[1];
    }
    __syncthreads();
    for (int64_t item = threadIdx.x; item < 2 * width; item += kThreads) {
      const int64_t c = item % width, which = item / width;
      float* to = products + which * kChunk * width;
      if (count == 1)
        column_products<1>(current, faded + which * kChunk, width, c, to, width, count);
      else
        column_products<16>(current, faded + which * kChunk, width, c, to, width, count);
    }
    __syncthreads();
    for (int64_t c = threadIdx.x; c < width; c += kThreads) {
      for (int i = 0; i < count; ++i) {
        const int t = first + i;
        const float beta = sigmoid_of(p.inputs.beta_logit[row_of(begin + i) * p.shape.heads + head]);
        float rest = values[t * width + c] - products[i * width + c];
        float sum = products[(kChunk + i) * width + c];
        for (int s = 0; s < t; ++s) {
          rest = fmaf(-dots[i][s][0], values[s * width + c], rest);
          sum = fmaf(dots[i][s][1], values[s * width + c], sum);
        }
        const float made = beta * rest;
        values[t * width + c] = made;
        products[(kChunk + i) * width + c] = fmaf(dots[i][t][1], made, sum);
      }
    }
    __syncthreads();
    {
      const int lane = threadIdx.x % 16;
      const float* row = products + (kChunk + (group < count ? group : 0)) * width;
      const auto element = [&](int64_t c) { return row[c]; };
      const float mean = group_dot16(width, element, element) / static_cast<float>(width);
      const float scale = 1.0f / sqrtf(mean + p.shape.norm_epsilon);
      if (group < count) {
        const int64_t at = row_of(begin + group) * channels + offset;
        for (int64_t c = lane; c < width; c += 16)
          p.out[at + c] = p.weights.o_norm[c] * (row[c] * scale) * sigmoid_of(p.inputs.gate[at + c]);
      }
    }
    for (int64_t i = threadIdx.x; i < count * width; i += kThreads) {
      const int64_t t = i / width, c = i % width;
      ring_row(key, begin + t)[c] = keys[first * width + i];
      ring_row(value, begin + t)[c] = values[first * width + i];
      ring_row(decay, begin + t)[c] = decays[first * width + i];
    }
    __syncthreads();
  }

  __device__ void run() {
    if (span.position == 0)
      for (int64_t i = threadIdx.x; i < width * width; i += kThreads) stored[i] = 0.0f;
    __syncthreads();
    const int64_t end = span.position + span.rows;
    current = stored;
    for (int64_t chunk = span.state_position; chunk + kChunk <= span.position; chunk += kChunk) advance(chunk);
    for (int64_t begin = span.position; begin < end;) {
      const int64_t chunk = begin / kChunk * kChunk;
      const int64_t stop = end < chunk + kChunk ? end : chunk + kChunk;
      rows(chunk, begin, stop);
      // A chunk that the span's last row completes waits for the next step: that row may yet be taken back.
      if (stop == chunk + kChunk && stop < end) advance(chunk);
      begin = stop;
    }
    // The convolutions' inputs of the last rows, for later steps.
    const float* inputs[3] = {p.inputs.q, p.inputs.k, p.inputs.v};
    const int64_t kept = span.position > end - kConvRing ? span.position : end - kConvRing;
    for (int64_t i = threadIdx.x; i < (end - kept) * 3 * width; i += kThreads) {
      const int64_t c = i % width, which = i / width % 3, position = kept + i / width / 3;
      conv[(position % kConvRing * 3 + which) * channels + c] = inputs[which][row_of(position) * channels + offset + c];
    }
  }
};

__global__ void __launch_bounds__(kThreads) kda_kernel(const __grid_constant__ Problem p) {
  extern __shared__ __align__(16) float memory[];
  __shared__ float dots[kChunk][kChunk][2];
  const int64_t heads = p.shape.heads, width = p.shape.width, channels = heads * width;
  const int64_t head = blockIdx.x % heads, offset = head * width;
  const DeviceSpan& span = p.spans.spans[blockIdx.x / heads];
  const int64_t slot = span.sequence;
  float* next = memory;
  const auto take = [&](int64_t rows) {
    float* taken = next;
    next += rows * width;
    return taken;
  };
  float* faded = take(kFadedPitch);
  float* fades = take(kFadePitch);
  Head each{p,
            span,
            width,
            channels,
            offset,
            head,
            p.state.state + (slot * heads + head) * width * width,
            p.state.conv + slot * kConvRing * 3 * channels + offset,
            p.state.key + slot * kKdaRing * channels + offset,
            p.state.value + slot * kKdaRing * channels + offset,
            p.state.decay + slot * kKdaRing * channels + offset,
            span.side < 0 ? nullptr : p.side + (span.side * heads + head) * width * width,
            nullptr,
            take(kChunk),
            take(kChunk),
            take(kChunk),
            take(kChunk),
            take(2 * kChunk),
            faded,
            fades,
            dots};
  each.run();
}

}  // namespace

cudaError_t kda(cudaStream_t stream, const KdaShape& shape, const KdaWeights& weights, const KdaInputs& inputs,
                const KdaState& state, const SpanTable& spans, float* side, float* out) {
  if (spans.count == 0) return cudaSuccess;
  const auto bytes = static_cast<int>(kda_shared_bytes(shape.width));
  const cudaError_t error = cudaFuncSetAttribute(kda_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) return error;
  const Problem problem{shape, weights, inputs, state, spans, side, out};
  kda_kernel<<<static_cast<unsigned>(spans.count * shape.heads), kThreads, static_cast<size_t>(bytes), stream>>>(
      problem);
  return cudaGetLastError();
}

}  // namespace verbatim::ops::cuda
