// Barriers of some of a block's warps.
#pragma once

namespace verbatim::ops::cuda::ptx {

// Barrier `kName` (1 to 15) of `kThreads` threads, whole warps.
template <int kName, int kThreads>
__device__ inline void synchronise_some() {
  asm volatile("bar.sync %0, %1;" ::"n"(kName), "n"(kThreads) : "memory");
}

}  // namespace verbatim::ops::cuda::ptx
