// Barriers of some of a block's warps.
#pragma once

namespace verbatim::ops::cuda::ptx {

// Barrier `kName` (1 to 15) of `kThreads` threads, whole warps.
template <int kName, int kThreads>
__device__ inline void synchronise_some() {
  asm volatile("bar.sync %0, %1;" ::"n"(kName), "n"(kThreads) : "memory");
}

// Arrives there without waiting, as one of the kThreads.
template <int kName, int kThreads>
__device__ inline void arrive_at_some() {
  asm volatile("bar.arrive %0, %1;" ::"n"(kName), "n"(kThreads) : "memory");
}

}  // namespace verbatim::ops::cuda::ptx
