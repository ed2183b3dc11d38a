// Raw instructions of asynchronous copies from device to shared memory, from sm_80 on.
#pragma once

#include <cstdint>

namespace verbatim::ops::cuda::ptx {

// Sixteen bytes, both addresses multiples of 16; past the first-level cache.
__device__ inline void copy_16_bytes(void* shared, const void* global) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(global) : "memory");
}

// The same, or nothing, without a branch.
__device__ inline void copy_16_bytes_if(bool copies, void* shared, const void* global) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile(
      "{\n"
      ".reg .pred copies;\n"
      "setp.ne.b32 copies, %2, 0;\n"
      "@copies cp.async.cg.shared.global [%0], [%1], 16;\n"
      "}" ::"r"(address),
      "l"(global), "r"(static_cast<int>(copies))
      : "memory");
}

// What this thread copied since the last call becomes one group.
__device__ inline void close_copy_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until all but this thread's last kLeft groups are there.
template <int kLeft>
__device__ inline void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

// From sm_90 on: arrives at a barrier in shared memory, whose count of arrivals holds it already, once all that this
// thread has copied so far is there.
__device__ inline void arrive_after_copies(uint64_t* barrier) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(barrier));
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(address) : "memory");
}

}  // namespace verbatim::ops::cuda::ptx
