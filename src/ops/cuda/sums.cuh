// dot16 of ops.h on sixteen neighbouring threads: slices of 256, lane l takes k = l, l + 16, ... by fused multiply-add
// from 0, then the lane tree, slices left to right. The bits are the CPU backend's.
#pragma once

#include <cstdint>

namespace verbatim::ops::cuda {

inline constexpr int64_t kSumSlice = 256;

// Sum of the lanes of a group of sixteen threads, in all of them. All 32 threads of the warp must call it.
__device__ inline float lane_tree(float lane) {
  lane = lane + __shfl_xor_sync(0xffffffffu, lane, 8);
  lane = lane + __shfl_xor_sync(0xffffffffu, lane, 4);
  lane = lane + __shfl_xor_sync(0xffffffffu, lane, 2);
  return lane + __shfl_xor_sync(0xffffffffu, lane, 1);
}

// sum over k < n of a(k) * b(k), by the sixteen threads that the caller is one of, in all of them.
template <class A, class B>
__device__ inline float group_dot16(int64_t n, const A& a, const B& b) {
  const int lane = threadIdx.x % 16;
  float sum = 0.0f;
  for (int64_t begin = 0; begin < n; begin += kSumSlice) {
    const int64_t end = begin + kSumSlice < n ? begin + kSumSlice : n;
    float part = 0.0f;
    for (int64_t k = begin + lane; k < end; k += 16) part = fmaf(a(k), b(k), part);
    part = lane_tree(part);
    sum = begin == 0 ? part : sum + part;
  }
  return sum;
}

inline constexpr int kBlockDotThreads = 256;

// The same by a whole block of kBlockDotThreads, sixteen slices at a time. `shared` has 16 floats; the block is
// synchronised before and after they are used. In all threads.
template <class A, class B>
__device__ inline float block_dot16(int64_t n, const A& a, const B& b, float* shared) {
  const int group = threadIdx.x / 16, lane = threadIdx.x % 16;
  float sum = 0.0f;
  for (int64_t first = 0; first < n; first += 16 * kSumSlice) {
    const int64_t begin = first + group * kSumSlice;
    const int64_t end = begin + kSumSlice < n ? begin + kSumSlice : n;
    float part = 0.0f;
    for (int64_t k = begin + lane; k < end; k += 16) part = fmaf(a(k), b(k), part);
    part = lane_tree(part);
    __syncthreads();
    if (lane == 0) shared[group] = part;
    __syncthreads();
    for (int i = 0; i < 16 && first + i * kSumSlice < n; ++i) sum = first == 0 && i == 0 ? shared[0] : sum + shared[i];
  }
  return sum;
}

}  // namespace verbatim::ops::cuda
