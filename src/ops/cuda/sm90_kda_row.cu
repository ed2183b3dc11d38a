// Linear attention where every span has one row, as replies do: one block takes one head of a sequence, one thread a
// value column. S goes from memory through registers into the row's products, a quarter of it on its way at a time; of
// few sequences it is asked into the second-level cache before the launch in front has ended. The order of sums is that
// of Ops::kda in ops.h, the bits are those of kda.cu. Shared memory: the rows since S, 3 * 24 * width floats, and 11 *
// width more, 42 KB at width 128. Bytes: S of a head (64 KB), the rows since (1.5 KB each); S twice more when it
// advances.
#include "ops/cuda/fade.cuh"
#include "ops/cuda/kernels.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/math.cuh"
#include "ops/cuda/ptx/async_copy.cuh"
#include "ops/cuda/ptx/bulk_copy.cuh"
#include "ops/cuda/ptx/dependency.cuh"
#include "ops/cuda/shapes.h"
#include "ops/cuda/sums.cuh"

namespace verbatim::ops::cuda {

namespace {

constexpr int kChunk = static_cast<int>(kChunkRows);
// More blocks than these ask for more of S than the second-level cache keeps until it is used.
constexpr unsigned kPrefetchingBlocks = 256;

struct Problem {
  KdaShape shape;
  KdaWeights weights;
  KdaInputs inputs;
  KdaState state;
  SpanTable spans;
  float* out;
};

template <int kWidth>
struct Shared {
  // Rows from Span::state_position to the one before this.
  float keys[kKdaRing][kWidth], decays[kKdaRing][kWidth], values[kKdaRing][kWidth];
  // Where the keys of a chunk that S advances over stood.
  __device__ float* fades(int k) { return keys[0] + k * kChunk; }
  float total[kWidth];
  alignas(16) float faded[kWidth][2];  // k and q, times exp(G)
  float taken[2][kWidth];              // q and k after convolution
  float query[kWidth], key[kWidth], decay[kWidth];
  // What is read again at the end: v after convolution, sigmoid(gate), the norm's weight, beta.
  float value[kWidth], gate[kWidth], norm[kWidth], beta;
  float dots[kChunk][2];
};
static_assert(sizeof(Shared<128>) <= kda_row_shared_bytes(128) && sizeof(Shared<16>) <= kda_row_shared_bytes(16));

template <int kWidth>
constexpr int threads_of() {
  return kWidth < 32 ? 32 : kWidth;
}

template <int kWidth>
__global__ void __launch_bounds__(threads_of<kWidth>(), 4) row_kernel(const __grid_constant__ Problem p) {
  extern __shared__ __align__(16) uint8_t memory[];
  auto& shared = *reinterpret_cast<Shared<kWidth>*>(memory);
  constexpr int kThreads = threads_of<kWidth>(), kHeld = kWidth < 32 ? kWidth : 32;
  const auto thread = static_cast<int>(threadIdx.x);
  // Threads past the width repeat the last column and write nothing.
  const int c = thread < kWidth ? thread : kWidth - 1, lane = thread % 16, group = thread / 16;
  const bool owns = thread < kWidth;
  const auto heads = static_cast<uint32_t>(p.shape.heads);
  const uint32_t head = blockIdx.x % heads, channels = heads * kWidth, channel = head * kWidth + c;
  // Spans and weights were there before the kernel in front began.
  const DeviceSpan span = p.spans.spans[blockIdx.x / heads];
  const int64_t slot = span.sequence, position = span.position;
  const int64_t at = span.first_row * channels + channel;
  float* stored = p.state.state + (slot * heads + head) * kWidth * kWidth;
  if (thread == 0 && position > 0 && gridDim.x <= kPrefetchingBlocks) ptx::prefetch_bulk(stored, kWidth * kWidth * 4);
  // Rings by slots of this and earlier positions.
  constexpr uint32_t kRing = kKdaRing, kConv = kConvRing;
  const auto own_place = static_cast<uint32_t>(position) % kRing, conv_place = static_cast<uint32_t>(position) % kConv;
  const auto t = static_cast<int>(position % kChunk), since = static_cast<int>(position - span.state_position);
  const bool advances = since >= kChunk;
  const int64_t ring_row = slot * kRing * channels + head * kWidth;
  const auto place_before = [](uint32_t place, uint32_t rows, uint32_t ring) {
    return place >= rows ? place - rows : place + ring - rows;
  };
  const auto ring = [&](float* base, uint32_t place) -> float& { return (base + ring_row + c)[place * channels]; };
  float* conv = p.state.conv + slot * kConv * 3 * channels + channel;
  const float* all_taps[3] = {p.weights.conv_q, p.weights.conv_k, p.weights.conv_v};
  float4 taps[3];
#pragma unroll
  for (int i = 0; i < 3; ++i) taps[i] = reinterpret_cast<const float4*>(all_taps[i])[channel];
  const float rate = exp_of(p.weights.a_log[head]), bias = p.weights.dt_bias[channel];
  if (owns) shared.norm[c] = p.weights.o_norm[c];
  ptx::let_next_start();
  ptx::wait_for_previous();

  const float* inputs[3] = {p.inputs.q, p.inputs.k, p.inputs.v};
  float newest[3], earlier[3][3];
#pragma unroll
  for (uint32_t j = 0; j < 3; ++j) {
    const float* from = conv + place_before(conv_place, 3 - j, kConv) * 3 * channels;
#pragma unroll
    for (uint32_t which = 0; which < 3; ++which)
      earlier[which][j] = position < 3 - static_cast<int>(j) ? 0.0f : from[which * channels];
  }
#pragma unroll
  for (int which = 0; which < 3; ++which) newest[which] = inputs[which][at];
  const float f = p.inputs.f[at], gate = p.inputs.gate[at];
  const float beta_logit = thread == 0 ? p.inputs.beta_logit[span.first_row * heads + head] : 0.0f;
  const float before = t > 0 ? ring(p.state.decay, place_before(own_place, 1, kRing)) : 0.0f;
  const uint32_t first_place = place_before(own_place, static_cast<uint32_t>(since), kRing);
#pragma unroll 1
  for (int i = thread; i < since * (kWidth / 4); i += kThreads) {
    const int s = i / (kWidth / 4), four = i % (kWidth / 4) * 4;
    const uint32_t place = first_place + static_cast<uint32_t>(s);
    const int64_t from = ring_row + (place < kRing ? place : place - kRing) * channels + four;
    ptx::copy_16_bytes(&shared.keys[s][four], p.state.key + from);
    ptx::copy_16_bytes(&shared.decays[s][four], p.state.decay + from);
    ptx::copy_16_bytes(&shared.values[s][four], p.state.value + from);
  }
  ptx::close_copy_group();

  float taken[3];
#pragma unroll
  for (int which = 0; which < 3; ++which) {
    float sum = taps[which].x * earlier[which][0];
    sum = fmaf(taps[which].y, earlier[which][1], sum);
    sum = fmaf(taps[which].z, earlier[which][2], sum);
    sum = fmaf(taps[which].w, newest[which], sum);
    taken[which] = silu_of(sum);
    if (owns) conv[(conv_place * 3 + which) * channels] = newest[which];
  }
  const float lower = p.shape.lower_bound, x = f + bias;
  const float g = lower != 0.0f ? lower * sigmoid_of(rate * x) : 0.0f - rate * softplus_of(x);
  const float decay = t == 0 ? g : before + g;
  if (owns) {
    shared.taken[0][c] = taken[0];
    shared.taken[1][c] = taken[1];
    shared.value[c] = taken[2];
    shared.gate[c] = sigmoid_of(gate);
  }
  if (thread == 0) shared.beta = sigmoid_of(beta_logit);
  __syncthreads();
  // Of many sequences the first of S is on its way while rows are taken; of few it is in the second-level cache by
  // then.
  float* column = stored + c;
  const bool reads_early = position > 0 && !advances && gridDim.x > kPrefetchingBlocks;
  float held[kHeld];
  const auto ask = [&] {
#pragma unroll
    for (int k = 0; k < kHeld; ++k) held[k] = column[k * kWidth];
  };
  if (reads_early) ask();
  {
    // Half a warp for q, the other for k, in every warp.
    const int which = thread % 32 / 16;
    const auto element = [&](int64_t k) { return shared.taken[which][k]; };
    const float factor = which == 0 ? 1.0f / sqrtf(static_cast<float>(kWidth)) : 1.0f;
    const float scale = factor * (1.0f / sqrtf(group_dot16(kWidth, element, element) + 1e-6f));
    const float q = taken[0] * __shfl_sync(0xffffffffu, scale, 0), k = taken[1] * __shfl_sync(0xffffffffu, scale, 16);
    const float fade = fade_of(decay);
    if (owns) {
      shared.faded[c][0] = k * fade;
      shared.faded[c][1] = q * fade;
      shared.query[c] = q;
      shared.key[c] = k;
      shared.decay[c] = decay;
      ring(p.state.key, own_place) = k;
      ring(p.state.decay, own_place) = decay;
    }
  }
  ptx::wait_for_copies<0>();
  __syncthreads();
  // Threads of half a warp take a row each.
  const int first = since - t;  // where the row's own chunk begins in shared memory
#pragma unroll 1
  for (int round = 0; round <= t / (kThreads / 16); ++round) {
    const int s = group + round * (kThreads / 16), row = first + (s < t ? s : 0);
    const float *key = s < t ? shared.keys[row] : shared.key, *other = s < t ? shared.decays[row] : shared.decay;
    float sums[2] = {0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < kWidth / 16; ++i) {
      const int k = i * 16 + lane;
      const float fade = fade_of(shared.decay[k] - other[k]);
      sums[0] = fmaf(shared.key[k] * fade, key[k], sums[0]);
      sums[1] = fmaf(shared.query[k] * fade, key[k], sums[1]);
    }
    sums[0] = lane_tree(sums[0]);
    sums[1] = lane_tree(sums[1]);
    if (lane == 0 && s <= t) shared.dots[s][0] = sums[0], shared.dots[s][1] = sums[1];
  }
  if (position == 0 && owns)
#pragma unroll 1
    for (int k = 0; k < kWidth; ++k) column[k * kWidth] = 0.0f;
  __syncthreads();

  if (advances) {
    float own[kChunk];
    const float total = shared.decays[kChunk - 1][c];
#pragma unroll
    for (int s = 0; s < kChunk; ++s) own[s] = shared.keys[s][c] * fade_of(total - shared.decays[s][c]);
    __syncthreads();
    if (owns) {
      shared.total[c] = fade_of(total);
#pragma unroll
      for (int s = 0; s < kChunk; s += 4)
        *reinterpret_cast<float4*>(shared.fades(c) + s) = {own[s], own[s + 1], own[s + 2], own[s + 3]};
    }
    __syncthreads();
#pragma unroll
    for (int s = 0; s < kChunk; ++s) own[s] = shared.values[s][c];
#pragma unroll 1
    for (int begin = 0; begin < kWidth; begin += 16) {
      float some[16];
#pragma unroll
      for (int i = 0; i < 16; ++i) some[i] = column[(begin + i) * kWidth];
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        float value = shared.total[begin + i] * some[i];
        const auto* fades = reinterpret_cast<const float4*>(shared.fades(begin + i));
#pragma unroll
        for (int s = 0; s < kChunk / 4; ++s) {
          const float4 four = fades[s];
          value = fmaf(four.x, own[4 * s], value);
          value = fmaf(four.y, own[4 * s + 1], value);
          value = fmaf(four.z, own[4 * s + 2], value);
          value = fmaf(four.w, own[4 * s + 3], value);
        }
        if (owns) column[(begin + i) * kWidth] = value;
      }
    }
    // Threads past the width read what the last column's wrote.
    if constexpr (kThreads > kWidth) __syncthreads();
  }
  if (!reads_early) ask();
  float rest = 0.0f, sum = 0.0f;
#pragma unroll
  for (int k = 0; k < kWidth; k += 2) {
    const float4 both = *reinterpret_cast<const float4*>(shared.faded[k]);
    const float even = held[k % kHeld], odd = held[(k + 1) % kHeld];
    if (k + kHeld < kWidth) {
      held[k % kHeld] = column[(k + kHeld) * kWidth];
      held[(k + 1) % kHeld] = column[(k + 1 + kHeld) * kWidth];
    }
    rest = fmaf(both.x, even, rest);
    sum = fmaf(both.y, even, sum);
    rest = fmaf(both.z, odd, rest);
    sum = fmaf(both.w, odd, sum);
  }
  rest = shared.value[c] - rest;
#pragma unroll
  for (int s = 0; s < kChunk - 1; ++s) {
    if (s >= t) break;
    const float value = shared.values[first + s][c];
    rest = fmaf(-shared.dots[s][0], value, rest);
    sum = fmaf(shared.dots[s][1], value, sum);
  }
  const float made = shared.beta * rest;
  const float result = fmaf(shared.dots[t][1], made, sum);
  // `taken` was last read two barriers ago.
  if (owns) {
    ring(p.state.value, own_place) = made;
    shared.taken[0][c] = result;
  }
  __syncthreads();
  const auto element = [&](int64_t k) { return shared.taken[0][k]; };
  const float mean = group_dot16(kWidth, element, element) / static_cast<float>(kWidth);
  const float scale = 1.0f / sqrtf(mean + p.shape.norm_epsilon);
  if (owns) p.out[at] = shared.norm[c] * (result * scale) * shared.gate[c];
}

template <int kWidth>
cudaError_t launch_rows(cudaStream_t stream, const Problem& problem) {
  return launch_caching(row_kernel<kWidth>, static_cast<unsigned>(problem.spans.count * problem.shape.heads),
                        threads_of<kWidth>(), static_cast<size_t>(kda_row_shared_bytes(kWidth)), stream, problem);
}

}  // namespace

bool kda_takes_rows(const KdaShape& shape, const Span* spans, int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    if (spans[i].rows != 1) return false;
  if (shape.lower_bound > 0.0f) return false;
  return shape.width == 16 || shape.width == 32 || shape.width == 64 || shape.width == 128;
}

cudaError_t kda_rows(cudaStream_t stream, const KdaShape& shape, const KdaWeights& weights, const KdaInputs& inputs,
                     const KdaState& state, const SpanTable& spans, float* out) {
  if (spans.count == 0) return cudaSuccess;
  const Problem problem{shape, weights, inputs, state, spans, out};
  switch (shape.width) {
    case 16: return launch_rows<16>(stream, problem);
    case 32: return launch_rows<32>(stream, problem);
    case 64: return launch_rows<64>(stream, problem);
    case 128: return launch_rows<128>(stream, problem);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace verbatim::ops::cuda
