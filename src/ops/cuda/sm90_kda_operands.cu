// What chunks of linear attention are made into before they are taken in order (kda_chunks.h), a block a chunk and
// head: convolutions and SiLU, norms, decays, keys and queries times their decays, the dots of a chunk's rows. And what
// comes after: norm and gate of the outputs, and the rings. Shared memory (static): 29 KB. Operations a chunk and head:
// 136 * 128 exps and twice as many multiply-adds for the dots, 16 * 128 * (3 SiLU, 1 sigmoid, 2 exps). Bytes: 7 * 8 KB
// read and 35 KB written.
#include "ops/cuda/fade.cuh"
#include "ops/cuda/kda_chunks.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/math.cuh"
#include "ops/cuda/ptx/dependency.cuh"
#include "ops/cuda/sums.cuh"

namespace verbatim::ops::cuda {

namespace {

constexpr int kThreads = 256, kRows = kKdaRows, kWidth = kKdaWidth, kHalf = kRows / 2;
// Sixteen threads each of a warp's halves read two rows of unlike parity, or one.
constexpr int kPitch = kWidth + 16;

struct Shared {
  float q[kRows][kPitch], k[kRows][kPitch], decay[kRows][kPitch];
  float key_dots[kRows][kRows], query_dots[kRows][kRows + 4];
};

// Sums of sixteen lanes of two values at once, in the order of lane_tree: of a in the lower eight, of b in the upper.
__device__ float two_lane_trees(float a, float b) {
  const bool upper = threadIdx.x % 16 >= 8;
  float sum = upper ? b : a;
  sum = sum + __shfl_xor_sync(0xffffffffu, upper ? a : b, 8);
  sum = sum + __shfl_xor_sync(0xffffffffu, sum, 4);
  sum = sum + __shfl_xor_sync(0xffffffffu, sum, 2);
  return sum + __shfl_xor_sync(0xffffffffu, sum, 1);
}

__global__ void __launch_bounds__(kThreads, 3) operands_kernel(const __grid_constant__ KdaProblem p, int64_t first) {
  __shared__ __align__(16) Shared shared;
  const auto thread = static_cast<int>(threadIdx.x);
  const int64_t heads = p.shape.heads, channels = heads * kWidth, head = blockIdx.x % heads;
  const int64_t in_segment = blockIdx.x / heads, chunk = first + in_segment;
  const int c = thread % kWidth, begin = thread / kWidth * kHalf;
  const int64_t channel = head * kWidth + c;
  KdaChunk& made = chunks_from(p, first)[in_segment * heads + head];
  const DeviceSpan& span = *p.span;
  ptx::let_next_start();
  const float* all_taps[3] = {p.weights.conv_q, p.weights.conv_k, p.weights.conv_v};
  float4 taps[3];
#pragma unroll
  for (int i = 0; i < 3; ++i) taps[i] = reinterpret_cast<const float4*>(all_taps[i])[channel];
  const float rate = exp_of(p.weights.a_log[head]), bias = p.weights.dt_bias[channel], lower = p.shape.lower_bound;
  // Later launches run beside the sequence in front of them, which reads other chunks (kda_chunks()).
  if (first == 0) ptx::wait_for_previous();
  const int64_t row = span.first_row + chunk * kRows + begin, position = span.position + chunk * kRows + begin;
  const float* inputs[3] = {p.inputs.q, p.inputs.k, p.inputs.v};
#pragma unroll
  for (int which = 0; which < 3; ++which) {
    const float* input = inputs[which] + row * channels + channel;
    float x[kHalf + 3];
#pragma unroll
    for (int j = 0; j < 3; ++j) {
      const int64_t at = position - 3 + j;
      x[j] = at >= span.position ? input[(j - 3) * channels]
             : at < 0            ? 0.0f
                      : p.state.conv[((span.sequence * kConvRing + at % kConvRing) * 3 + which) * channels + channel];
    }
#pragma unroll
    for (int t = 0; t < kHalf; ++t) x[3 + t] = input[t * channels];
#pragma unroll
    for (int t = 0; t < kHalf; ++t) {
      float sum = taps[which].x * x[t];
      sum = fmaf(taps[which].y, x[t + 1], sum);
      sum = fmaf(taps[which].z, x[t + 2], sum);
      sum = fmaf(taps[which].w, x[t + 3], sum);
      const float taken = silu_of(sum);
      if (which == 0) shared.q[begin + t][c] = taken;
      if (which == 1) shared.k[begin + t][c] = taken;
      if (which == 2) made.values[c / kKdaColumns][begin + t][c % kKdaColumns] = taken;
    }
  }
#pragma unroll
  for (int t = 0; t < kHalf; ++t) {
    const float x = p.inputs.f[(row + t) * channels + channel] + bias;
    shared.decay[begin + t][c] = lower != 0.0f ? lower * sigmoid_of(rate * x) : 0.0f - rate * softplus_of(x);
  }
  if (thread < kRows) made.operands.beta[thread] = sigmoid_of(p.inputs.beta_logit[(row + thread) * heads + head]);
  __syncthreads();
  const int lane = thread % 16, group = thread / 16;
  if (thread < kWidth) {
    float g[kRows];
#pragma unroll
    for (int t = 0; t < kRows; ++t) g[t] = shared.decay[t][thread];
#pragma unroll
    for (int t = 1; t < kRows; ++t) shared.decay[t][thread] = g[t] = g[t - 1] + g[t];
  } else {
    // Eight groups of sixteen threads, four rows each: two of q, two of k.
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float* x = j < 2 ? shared.q[group - 8 + 8 * j] : shared.k[group - 8 + 8 * (j - 2)];
      float own[kWidth / 16], sum = 0.0f;
#pragma unroll
      for (int i = 0; i < kWidth / 16; ++i) {
        own[i] = x[i * 16 + lane];
        sum = fmaf(own[i], own[i], sum);
      }
      const float factor = j < 2 ? 1.0f / sqrtf(static_cast<float>(kWidth)) : 1.0f;
      const float scale = factor * (1.0f / sqrtf(lane_tree(sum) + 1e-6f));
#pragma unroll
      for (int i = 0; i < kWidth / 16; ++i) x[i * 16 + lane] = own[i] * scale;
    }
  }
  __syncthreads();
  const float last = shared.decay[kRows - 1][c];
#pragma unroll
  for (int t = 0; t < kHalf; t += 2) {
    float4 both;
    float* faded = &both.x;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int at = begin + t + j;
      const float decay = shared.decay[at][c], key = shared.k[at][c], fade = fade_of(decay);
      faded[j] = key * fade;
      faded[2 + j] = shared.q[at][c] * fade;
      made.operands.fades[at][c] = key * fade_of(last - decay);
      if (chunk + 1 == p.chunks) {
        p.last[(head * kRows + at) * kWidth + c] = key;
        p.last[((heads + head) * kRows + at) * kWidth + c] = decay;
      }
    }
    reinterpret_cast<float4*>(made.operands.faded[c])[(begin + t) / 2] = both;
  }
  if (begin == 0) made.operands.total[c] = fade_of(last);
  // Dots of the 136 pairs s <= t. Rows t = j and 15 - j together have 17: a group takes nine of row 15 - j, another the
  // rest.
  const int j = group % 8, turn = group < 8 ? 9 : 7 - j;  // rounds of row 15 - j
  float key[kWidth / 16], query[kWidth / 16], decay[kWidth / 16];
#pragma unroll 1
  for (int round = 0; round < 9; ++round) {
    const int t = round < turn ? 15 - j : j;
    const bool wanted = group < 8 || round < 8;
    const int s = !wanted ? 0 : group < 8 ? round : round < turn ? 9 + round : round - turn;
    if (round == 0 || round == turn) {
#pragma unroll
      for (int i = 0; i < kWidth / 16; ++i) {
        const int k = i * 16 + lane;
        key[i] = shared.k[t][k], query[i] = shared.q[t][k], decay[i] = shared.decay[t][k];
      }
    }
    float sums[2] = {0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < kWidth / 16; ++i) {
      const int k = i * 16 + lane;
      const float fade = fade_of(decay[i] - shared.decay[s][k]), earlier = shared.k[s][k];
      sums[0] = fmaf(key[i] * fade, earlier, sums[0]);
      sums[1] = fmaf(query[i] * fade, earlier, sums[1]);
    }
    const float sum = two_lane_trees(sums[0], sums[1]);
    if (wanted && lane == 0) shared.key_dots[s][t] = sum;
    if (wanted && lane == 8) shared.query_dots[t][s] = sum;
  }
  __syncthreads();
  // What is not made above is not read.
  made.operands.key_dots[group][lane] = shared.key_dots[group][lane];
  made.operands.query_dots[group][lane] = shared.query_dots[group][lane];
  // So that this launch ends after the sequence in front of it.
  if (first > 0 && blockIdx.x == 0) ptx::wait_for_previous();
}

// Sixteen threads a row and head; behind the rows, a block a head for the rings.
__global__ void __launch_bounds__(kThreads) finish_kernel(const __grid_constant__ KdaProblem p, int64_t row_blocks) {
  const int64_t heads = p.shape.heads, channels = heads * kWidth;
  const DeviceSpan& span = *p.span;
  ptx::let_next_start();
  ptx::wait_for_previous();
  if (blockIdx.x < row_blocks) {
    const int lane = threadIdx.x % 16;
    const int64_t item = int64_t{blockIdx.x} * (kThreads / 16) + threadIdx.x / 16;
    const bool live = item < p.chunks * kRows * heads;
    const int64_t at = live ? (span.first_row + item / heads) * channels + item % heads * kWidth + lane : 0;
    float x[kWidth / 16], gate[kWidth / 16], sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kWidth / 16; ++i) {
      x[i] = live ? p.out[at + i * 16] : 0.0f;
      gate[i] = live ? p.inputs.gate[at + i * 16] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kWidth / 16; ++i) sum = fmaf(x[i], x[i], sum);
    const float scale = 1.0f / sqrtf(lane_tree(sum) / static_cast<float>(kWidth) + p.shape.norm_epsilon);
    if (live)
#pragma unroll
      for (int i = 0; i < kWidth / 16; ++i)
        p.out[at + i * 16] = p.weights.o_norm[i * 16 + lane] * (x[i] * scale) * sigmoid_of(gate[i]);
    return;
  }
  const int64_t head = blockIdx.x - row_blocks, slot = span.sequence, end = span.position + p.chunks * kRows;
  for (int i = threadIdx.x; i < kRows * kWidth; i += kThreads) {
    const int64_t at = end - kRows + i / kWidth;
    const int64_t to = (slot * kKdaRing + at % kKdaRing) * channels + head * kWidth + i % kWidth;
    p.state.key[to] = p.last[head * kRows * kWidth + i];
    p.state.decay[to] = p.last[(heads + head) * kRows * kWidth + i];
  }
  const float* inputs[3] = {p.inputs.q, p.inputs.k, p.inputs.v};
  const int64_t kept = end - kConvRing;  // a chunk is longer
  for (int i = threadIdx.x; i < static_cast<int>(kConvRing) * 3 * kWidth; i += kThreads) {
    const int64_t channel = head * kWidth + i % kWidth, at = kept + i / kWidth / 3;
    const int which = i / kWidth % 3;
    p.state.conv[((slot * kConvRing + at % kConvRing) * 3 + which) * channels + channel] =
        inputs[which][(span.first_row + at - span.position) * channels + channel];
  }
}
static_assert(kConvRing <= kChunkRows);

}  // namespace

cudaError_t kda_operands(cudaStream_t stream, const KdaProblem& problem, int64_t first, int64_t count) {
  return launch(operands_kernel, static_cast<unsigned>(count * problem.shape.heads), kThreads, 0, stream, problem,
                first);
}

cudaError_t kda_finish(cudaStream_t stream, const KdaProblem& problem) {
  constexpr int64_t kItems = kThreads / 16;
  const int64_t row_blocks = (problem.chunks * kRows * problem.shape.heads + kItems - 1) / kItems;
  return launch(finish_kernel, static_cast<unsigned>(row_blocks + problem.shape.heads), kThreads, 0, stream, problem,
                row_blocks);
}

// Operands and sequences of segments in turn, o0 s0 o1 s1 ...: s lets the next launch start once its own wait is over,
// and o (but the first) waits for s in front of it only before it ends. So o1 runs beside s0, s1 finds both complete,
// and when o2 starts s0 is complete, whose memory it takes.
cudaError_t kda_chunks(cudaStream_t stream, const KdaShape& shape, const KdaWeights& weights, const KdaInputs& inputs,
                       const KdaState& state, const DeviceSpan* span, int64_t chunks, void* working, float* out) {
  KdaProblem problem{shape, weights, inputs, state, span, chunks, static_cast<KdaChunk*>(working), nullptr, out};
  problem.last = reinterpret_cast<float*>(problem.made + kda_chunks_kept(chunks) * shape.heads);
  for (int64_t first = 0; first < chunks; first += kKdaSegment) {
    const int64_t count = chunks - first < kKdaSegment ? chunks - first : kKdaSegment;
    cudaError_t error = kda_operands(stream, problem, first, count);
    if (error == cudaSuccess) error = kda_sequence(stream, problem, first, count);
    if (error != cudaSuccess) return error;
  }
  return kda_finish(stream, problem);
}

}  // namespace verbatim::ops::cuda
