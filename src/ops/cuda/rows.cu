// Norms, activations, hyper-connections, router and argmax: one block a row, or one thread an element. The order of
// sums and so the bits are the CPU backend's. All of them are bound by the bytes of their rows.
#include "ops/cuda/kernels.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/math.cuh"
#include "ops/cuda/ptx/dependency.cuh"
#include "ops/cuda/sums.cuh"
#include "ops/cuda/weights.cuh"

namespace verbatim::ops::cuda {

namespace {

constexpr int kThreads = kBlockDotThreads;

unsigned blocks_for(int64_t count) { return static_cast<unsigned>((count + kThreads - 1) / kThreads); }

__device__ int64_t thread_index() { return int64_t{blockIdx.x} * kThreads + threadIdx.x; }

__device__ float inverse_root(float sum_of_squares, int64_t n, float epsilon) {
  return 1.0f / sqrtf(sum_of_squares / static_cast<float>(n) + epsilon);
}

__global__ void embed_kernel(Weights table, const int32_t* ids, int64_t rows, int64_t streams, float* out) {
  ptx::let_next_start();
  ptx::wait_for_previous();
  const int64_t i = thread_index();
  if (i >= rows * table.columns) return;
  const int64_t row = i / table.columns, k = i % table.columns;
  with_form(table.form, [&]<WeightForm kForm>() {
    float value = weight_value<kForm>(table, ids[row], k);
    if (kForm == WeightForm::kNvfp4) value = value * table.matrix_scale;
    for (int64_t s = 0; s < streams; ++s) out[(row * streams + s) * table.columns + k] = value;
  });
}

__global__ void gather_kernel(const float* from, const int32_t* rows, int64_t width, float* to) {
  ptx::let_next_start();
  ptx::wait_for_previous();
  from += int64_t{rows[blockIdx.x]} * width;
  to += int64_t{blockIdx.x} * width;
  for (int64_t k = threadIdx.x; k < width; k += kThreads) to[k] = from[k];
}

struct Norms {
  Ops::Norm each[kMostNorms];
  int count;
};

// Elements of a row that a thread holds, its lane's of a slice; as many slices as groups of sixteen threads.
constexpr int kHeld = static_cast<int>(kSumSlice) / 16;
constexpr int64_t kHeldWidth = kSumSlice * (kThreads / 16);

// A block a norm and row. Rows up to kHeldWidth are read once.
__global__ void __launch_bounds__(kThreads) norms_kernel(const __grid_constant__ Norms p) {
  __shared__ float shared[2][16];
  ptx::let_next_start();
  const auto count = static_cast<unsigned>(p.count);
  const Ops::Norm& n = p.each[blockIdx.x % count];
  const int64_t row = blockIdx.x / count, width = n.width;
  const float* x = n.x + row * n.x_stride;
  float* y = n.y + row * n.y_stride;
  if (width > kHeldWidth) {
    ptx::wait_for_previous();
    const auto one = [](int64_t) { return 1.0f; };
    const auto value = [&](int64_t k) { return x[k]; };
    const float mean = n.bias == nullptr ? 0.0f : block_dot16(width, value, one, shared[0]) / static_cast<float>(width);
    const auto off = [&](int64_t k) { return n.bias == nullptr ? x[k] : x[k] - mean; };
    const float inverse = inverse_root(block_dot16(width, off, off, shared[1]), width, n.epsilon);
    for (int64_t k = threadIdx.x; k < width; k += kThreads)
      y[k] = n.bias == nullptr ? n.weight[k] * (x[k] * inverse) : off(k) * inverse * n.weight[k] + n.bias[k];
    return;
  }
  // block_dot16 of what threads hold.
  const int group = static_cast<int>(threadIdx.x) / 16, lane = static_cast<int>(threadIdx.x) % 16;
  const int first = group * static_cast<int>(kSumSlice) + lane, left = static_cast<int>(width) - first;
  const auto slices = static_cast<int>((width + kSumSlice - 1) / kSumSlice);
  const auto total = [&](float part, float* sums) {
    part = lane_tree(part);
    if (lane == 0) sums[group] = part;
    __syncthreads();
    float sum = sums[0];
    for (int i = 1; i < slices; ++i) sum = sum + sums[i];
    return sum;
  };
  // Weights stand there since before the kernel in front (launch.h).
  float own[kHeld], weight[kHeld];
#pragma unroll
  for (int i = 0; i < kHeld; ++i) weight[i] = i * 16 < left ? n.weight[first + i * 16] : 0.0f;
  ptx::wait_for_previous();
#pragma unroll
  for (int i = 0; i < kHeld; ++i) own[i] = i * 16 < left ? x[first + i * 16] : 0.0f;
  if (n.bias != nullptr) {
    float part = 0.0f;
#pragma unroll
    for (int i = 0; i < kHeld; ++i)
      if (i * 16 < left) part = part + own[i];
    const float mean = total(part, shared[0]) / static_cast<float>(width);
#pragma unroll
    for (int i = 0; i < kHeld; ++i) own[i] = own[i] - mean;
  }
  float part = 0.0f;
#pragma unroll
  for (int i = 0; i < kHeld; ++i)
    if (i * 16 < left) part = fmaf(own[i], own[i], part);
  const float inverse = inverse_root(total(part, shared[1]), width, n.epsilon);
#pragma unroll
  for (int i = 0; i < kHeld; ++i)
    if (i * 16 < left)
      y[first + i * 16] =
          n.bias == nullptr ? weight[i] * (own[i] * inverse) : own[i] * inverse * weight[i] + n.bias[first + i * 16];
}

__global__ void add_kernel(const float* x, int64_t count, float* y) {
  ptx::let_next_start();
  ptx::wait_for_previous();
  const int64_t i = thread_index();
  if (i < count) y[i] = y[i] + x[i];
}

__global__ void swiglu_kernel(const float* gate, const float* up, float limit, int64_t count, float* h) {
  ptx::let_next_start();
  ptx::wait_for_previous();
  const int64_t i = thread_index();
  if (i < count) h[i] = swiglu_of(gate[i], up[i], limit);
}

constexpr int64_t kMostStreams = 16;

__global__ void hyper_maps_kernel(HyperShape shape, const float* base, const float* scale, const float* norm,
                                  const float* streams, float* maps, float* h) {
  __shared__ float shared[16], map[(2 + kMostStreams) * kMostStreams];
  const int64_t count = shape.streams, width = shape.width, flat = count * width;
  const auto map_width = static_cast<int>((2 + count) * count), edge = static_cast<int>(count);
  const int thread = threadIdx.x;
  streams += blockIdx.x * flat;
  maps += int64_t{blockIdx.x} * map_width;
  h += blockIdx.x * width;
  const auto stream_value = [&](int64_t k) { return streams[k]; };
  const float inverse = inverse_root(block_dot16(flat, stream_value, stream_value, shared), flat, shape.norm_epsilon);
  for (int i = thread; i < map_width; i += kThreads) {
    const int group = i / edge < 2 ? i / edge : 2;
    float value = maps[i] * inverse * scale[group] + base[i];
    if (group < 2) value = sigmoid_of(value);
    if (group == 0) value = value + shape.epsilon;
    if (group == 1) value = value * 2.0f;
    map[i] = value;
  }
  float* comb = map + 2 * edge;
  const bool mine = thread < edge * edge;
  const int row = thread / edge, column = thread % edge;
  __syncthreads();
  // Each thread owns one element of comb and sums its row or column itself, left to right.
  const auto replace = [&](float value) {
    __syncthreads();
    if (mine) comb[thread] = value;
    __syncthreads();
  };
  float value = 0.0f;
  if (mine) {
    float most = comb[row * edge];
    for (int j = 1; j < edge; ++j) most = most < comb[row * edge + j] ? comb[row * edge + j] : most;
    value = exp_of(comb[thread] - most);
  }
  replace(value);
  const auto divide = [&](bool by_rows, float epsilon, float added) {
    if (mine) {
      float sum = by_rows ? comb[row * edge] : comb[column];
      for (int j = 1; j < edge; ++j) sum = sum + (by_rows ? comb[row * edge + j] : comb[j * edge + column]);
      value = value / (sum + epsilon);
      value = value + added;
    }
    replace(value);
  };
  divide(true, 0.0f, shape.epsilon);
  divide(false, shape.epsilon, 0.0f);
  for (int i = 1; i < shape.sinkhorn_iterations; ++i) {
    divide(true, shape.epsilon, 0.0f);
    divide(false, shape.epsilon, 0.0f);
  }
  for (int i = thread; i < map_width; i += kThreads) maps[i] = map[i];

  for (int64_t k = thread; k < width; k += kThreads) {
    float sum = map[0] * streams[k];
    for (int s = 1; s < edge; ++s) sum = fmaf(map[s], streams[s * width + k], sum);
    h[k] = sum;
  }
  __syncthreads();
  const auto collapsed = [&](int64_t k) { return h[k]; };
  const float factor = inverse_root(block_dot16(width, collapsed, collapsed, shared), width, shape.norm_epsilon);
  __syncthreads();
  for (int64_t k = thread; k < width; k += kThreads) h[k] = norm[k] * (h[k] * factor);
}

template <int kStreams>
__global__ void hyper_leave_kernel(HyperShape shape, const float* maps, const float* y, int64_t rows, float* streams) {
  ptx::let_next_start();
  ptx::wait_for_previous();
  const int64_t i = thread_index(), width = shape.width;
  if (i >= rows * width) return;
  const int64_t row = i / width, k = i % width;
  const int count = kStreams > 0 ? kStreams : static_cast<int>(shape.streams);
  const float* post = maps + row * (2 + count) * count + count;
  const float* comb = post + count;
  float* x = streams + row * count * width + k;
  float old[kStreams > 0 ? kStreams : kMostStreams];
  for (int s = 0; s < count; ++s) old[s] = x[s * width];
  const float added = y[i];
  for (int j = 0; j < count; ++j) {
    float mixed = comb[j] * old[0];
    for (int s = 1; s < count; ++s) mixed = fmaf(comb[s * count + j], old[s], mixed);
    x[j * width] = fmaf(post[j], added, mixed);
  }
}

__global__ void hyper_mean_kernel(HyperShape shape, const float* streams, int64_t rows, float* h) {
  ptx::let_next_start();
  ptx::wait_for_previous();
  const int64_t i = thread_index(), width = shape.width;
  if (i >= rows * width) return;
  const float* x = streams + i / width * shape.streams * width + i % width;
  float sum = x[0];
  for (int64_t s = 1; s < shape.streams; ++s) sum = sum + x[s * width];
  h[i] = sum / static_cast<float>(shape.streams);
}

// What a selection compares: a number beats a NaN, the larger the smaller, the lower index among equals.
struct Candidate {
  float key;
  int64_t index;
  __device__ bool beats(const Candidate& other) const {
    if (other.index < 0) return index >= 0;
    if (index < 0) return false;
    if (isnan(key) || isnan(other.key)) return isnan(key) == isnan(other.key) ? index < other.index : !isnan(key);
    return key > other.key || (key == other.key && index < other.index);
  }
};

// The winner of a block, in all threads. `shared` has a place a warp.
__device__ Candidate block_winner(Candidate own, Candidate* shared) {
  for (int step = 16; step > 0; step /= 2) {
    const Candidate other{__shfl_xor_sync(0xffffffffu, own.key, step), __shfl_xor_sync(0xffffffffu, own.index, step)};
    if (other.beats(own)) own = other;
  }
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = own;
  __syncthreads();
  own = shared[0];
  for (int warp = 1; warp < kThreads / 32; ++warp)
    if (shared[warp].beats(own)) own = shared[warp];
  return own;
}

__global__ void route_kernel(const float* logits, const float* bias, int64_t experts, int64_t top, float scale,
                             int32_t* chosen, float* weights) {
  extern __shared__ float scores[];  // [experts], then keys [experts]
  __shared__ Candidate shared[kThreads / 32];
  float* keys = scores + experts;
  logits += blockIdx.x * experts;
  chosen += blockIdx.x * top;
  weights += blockIdx.x * top;
  for (int64_t e = threadIdx.x; e < experts; e += kThreads) {
    scores[e] = sigmoid_of(logits[e]);
    keys[e] = bias == nullptr ? scores[e] : scores[e] + bias[e];
  }
  float sum = 0.0f;
  uint64_t taken = 0;  // of this thread's experts, in order
  for (int64_t slot = 0; slot < top; ++slot) {
    Candidate best{0.0f, -1};
    for (int64_t e = threadIdx.x, i = 0; e < experts; e += kThreads, ++i) {
      const Candidate candidate{keys[e], e};
      if ((taken >> i & 1) == 0 && candidate.beats(best)) best = candidate;
    }
    best = block_winner(best, shared);
    if (best.index % kThreads == threadIdx.x) taken |= uint64_t{1} << (best.index / kThreads);
    const float score = scores[best.index];
    if (threadIdx.x == 0) {
      chosen[slot] = static_cast<int32_t>(best.index);
      weights[slot] = score;
    }
    sum = slot == 0 ? score : sum + score;
  }
  sum = sum + 1e-20f;
  __syncthreads();
  for (int64_t slot = threadIdx.x; slot < top; slot += kThreads) weights[slot] = weights[slot] / sum * scale;
}

// A float as an integer of the same order: both zeros one, NaN least, never 0.
__device__ uint32_t order_of(float key) {
  const uint32_t bits = __float_as_uint(key == 0.0f ? 0.0f : key);
  return isnan(key) ? 1 : (bits & 0x80000000u) ? ~bits : bits | 0x80000000u;
}

// That over the index turned round: the larger wins.
__device__ uint64_t ranked(float key, uint32_t index) { return uint64_t{order_of(key)} << 32 | (0xffffffffu - index); }

__device__ uint64_t warp_largest(uint64_t own) {
  for (int step = 16; step > 0; step /= 2) {
    const uint64_t other = __shfl_xor_sync(0xffffffffu, own, step);
    own = other > own ? other : own;
  }
  return own;
}

// A block a row, a thread an expert; the first warp chooses, kWarps experts a lane in registers, at most 32.
template <int kWarps>
__global__ void __launch_bounds__(32 * kWarps) route_few_kernel(const float* logits, const float* bias, int experts,
                                                                int top, float scale, int32_t* chosen, float* weights) {
  __shared__ float scores[32 * kWarps];
  __shared__ uint32_t orders[32 * kWarps];
  const auto thread = static_cast<int>(threadIdx.x);
  const bool biased = bias != nullptr && thread < experts;
  const float added = biased ? bias[thread] : 0.0f;
  ptx::let_next_start();
  ptx::wait_for_previous();
  float score = 0.0f;
  if (thread < experts) score = sigmoid_of(logits[int64_t{blockIdx.x} * experts + thread]);
  scores[thread] = score;
  orders[thread] = thread < experts ? order_of(biased ? score + added : score) : 0;
  __syncthreads();
  if (thread >= 32) return;
  uint32_t left[kWarps];
#pragma unroll
  for (int i = 0; i < kWarps; ++i) left[i] = orders[i * 32 + thread];
  int own = 0;
  for (int slot = 0; slot < top; ++slot) {
    uint32_t best = left[0];
#pragma unroll
    for (int i = 1; i < kWarps; ++i) best = left[i] > best ? left[i] : best;
    uint32_t where = 0;
#pragma unroll
    for (int i = kWarps - 1; i >= 0; --i)
      if (left[i] == best) where = static_cast<uint32_t>(i * 32 + thread);
    const uint32_t most = __reduce_max_sync(0xffffffffu, best);
    const auto winner = static_cast<int>(__reduce_min_sync(0xffffffffu, best == most ? where : 0xffffffffu));
#pragma unroll
    for (int i = 0; i < kWarps; ++i)
      if (winner == i * 32 + thread) left[i] = 0;
    if (thread == slot) own = winner;
  }
  score = scores[own];
  float sum = __shfl_sync(0xffffffffu, score, 0);
  for (int slot = 1; slot < top; ++slot) sum = sum + __shfl_sync(0xffffffffu, score, slot);
  sum = sum + 1e-20f;
  if (thread < top) {
    chosen[int64_t{blockIdx.x} * top + thread] = own;
    weights[int64_t{blockIdx.x} * top + thread] = score / sum * scale;
  }
}

constexpr int kArgmaxBlocks = 32;

// best [rows][kArgmaxBlocks]
__global__ void argmax_part_kernel(const float* logits, int64_t stride, int64_t limit, uint64_t* best) {
  __shared__ uint64_t warps[kThreads / 32];
  ptx::let_next_start();
  ptx::wait_for_previous();
  const int64_t row = blockIdx.x / kArgmaxBlocks, block = blockIdx.x % kArgmaxBlocks;
  logits += row * stride;
  uint64_t own = 0;
  for (int64_t i = block * kThreads + threadIdx.x; i < limit; i += kArgmaxBlocks * kThreads) {
    const uint64_t candidate = ranked(logits[i], static_cast<uint32_t>(i));
    own = candidate > own ? candidate : own;
  }
  own = warp_largest(own);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = own;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int warp = 1; warp < kThreads / 32; ++warp) own = warps[warp] > own ? warps[warp] : own;
  best[blockIdx.x] = own;
}

__global__ void argmax_kernel(const uint64_t* best, int32_t* ids) {
  ptx::let_next_start();
  ptx::wait_for_previous();
  static_assert(kArgmaxBlocks == 32);
  const uint64_t own = warp_largest(best[blockIdx.x * kArgmaxBlocks + threadIdx.x]);
  // NaN never wins: 0 where there is nothing else.
  if (threadIdx.x == 0)
    ids[blockIdx.x] = own >> 32 <= 1 ? 0 : static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(own));
}

}  // namespace

bool kernels_run_on(int device) {
  int now = 0;
  cudaFuncAttributes attributes{};
  if (cudaGetDevice(&now) != cudaSuccess || cudaSetDevice(device) != cudaSuccess) return false;
  const bool runs = cudaFuncGetAttributes(&attributes, add_kernel) == cudaSuccess;
  cudaGetLastError();
  return cudaSetDevice(now) == cudaSuccess && runs;
}

cudaError_t embed(cudaStream_t stream, const Weights& table, const int32_t* ids, int64_t rows, int64_t streams,
                  float* out) {
  if (rows == 0) return cudaSuccess;
  return launch(embed_kernel, blocks_for(rows * table.columns), kThreads, 0, stream, table, ids, rows, streams, out);
}

cudaError_t gather(cudaStream_t stream, const float* from, const int32_t* rows, int64_t count, int64_t width,
                   float* to) {
  if (count == 0) return cudaSuccess;
  return launch(gather_kernel, static_cast<unsigned>(count), kThreads, 0, stream, from, rows, width, to);
}

cudaError_t norms(cudaStream_t stream, const Ops::Norm* norms, int64_t count, int64_t rows) {
  if (rows == 0 || count == 0) return cudaSuccess;
  Norms p{};
  p.count = static_cast<int>(count);
  for (int64_t i = 0; i < count; ++i) p.each[i] = norms[i];
  return launch(norms_kernel, static_cast<unsigned>(rows * count), kThreads, 0, stream, p);
}

cudaError_t add(cudaStream_t stream, const float* x, int64_t count, float* y) {
  if (count == 0) return cudaSuccess;
  return launch(add_kernel, blocks_for(count), kThreads, 0, stream, x, count, y);
}

cudaError_t swiglu(cudaStream_t stream, const float* gate, const float* up, float limit, int64_t count, float* h) {
  if (count == 0) return cudaSuccess;
  return launch(swiglu_kernel, blocks_for(count), kThreads, 0, stream, gate, up, limit, count, h);
}

cudaError_t hyper_maps(cudaStream_t stream, const HyperShape& shape, const float* base, const float* scale,
                       const float* norm, const float* streams, int64_t rows, float* maps, float* h) {
  if (rows == 0) return cudaSuccess;
  if (shape.streams > kMostStreams) return cudaErrorInvalidValue;
  hyper_maps_kernel<<<static_cast<unsigned>(rows), kThreads, 0, stream>>>(shape, base, scale, norm, streams, maps, h);
  return cudaGetLastError();
}

cudaError_t hyper_leave(cudaStream_t stream, const HyperShape& shape, const float* maps, const float* y, int64_t rows,
                        float* streams) {
  if (rows == 0) return cudaSuccess;
  const unsigned blocks = blocks_for(rows * shape.width);
  if (shape.streams == 4)
    return launch(hyper_leave_kernel<4>, blocks, kThreads, 0, stream, shape, maps, y, rows, streams);
  return launch(hyper_leave_kernel<0>, blocks, kThreads, 0, stream, shape, maps, y, rows, streams);
}

cudaError_t hyper_mean(cudaStream_t stream, const HyperShape& shape, const float* streams, int64_t rows, float* h) {
  if (rows == 0) return cudaSuccess;
  return launch(hyper_mean_kernel, blocks_for(rows * shape.width), kThreads, 0, stream, shape, streams, rows, h);
}

cudaError_t route(cudaStream_t stream, const float* logits, const float* bias, int64_t rows, int64_t experts,
                  int64_t top, float scale, int32_t* chosen, float* weights) {
  if (rows == 0) return cudaSuccess;
  if (experts <= 32 * 12 && top <= 32 && top <= experts) {
    const auto few = [&](auto kernel, int warps) {
      return launch(kernel, static_cast<unsigned>(rows), 32 * warps, 0, stream, logits, bias, static_cast<int>(experts),
                    static_cast<int>(top), scale, chosen, weights);
    };
    if (experts <= 32 * 6) return few(route_few_kernel<6>, 6);
    if (experts <= 32 * 9) return few(route_few_kernel<9>, 9);
    return few(route_few_kernel<12>, 12);
  }
  // 64 experts a thread and 48 KiB of shared memory.
  if (experts > 6000) return cudaErrorInvalidValue;
  route_kernel<<<static_cast<unsigned>(rows), kThreads, static_cast<size_t>(experts) * 8, stream>>>(
      logits, bias, experts, top, scale, chosen, weights);
  return cudaGetLastError();
}

int64_t argmax_working_bytes(int64_t rows) { return rows * kArgmaxBlocks * static_cast<int64_t>(sizeof(uint64_t)); }

cudaError_t argmax(cudaStream_t stream, const float* logits, int64_t rows, int64_t stride, int64_t limit, void* working,
                   int32_t* ids) {
  if (rows == 0) return cudaSuccess;
  auto* best = static_cast<uint64_t*>(working);
  const cudaError_t error = launch(argmax_part_kernel, static_cast<unsigned>(rows * kArgmaxBlocks), kThreads, 0, stream,
                                   logits, stride, limit, best);
  if (error != cudaSuccess) return error;
  return launch(argmax_kernel, static_cast<unsigned>(rows), 32, 0, stream, static_cast<const uint64_t*>(best), ids);
}

}  // namespace verbatim::ops::cuda
