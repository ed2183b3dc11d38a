// Raw instructions of bulk copies from device to shared memory and the barriers that count their bytes, from sm_90 on.
#pragma once

#include <cstdint>

namespace verbatim::ops::cuda::ptx {

__device__ inline uint32_t shared_address(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

// A barrier of `arrivals` a phase, in shared memory, eight bytes. One thread makes it; fence_barriers() and a barrier
// of the block come before anybody uses it.
__device__ inline void make_barrier(uint64_t* barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
__device__ inline void fence_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// What ordinary instructions did to shared memory stands before what bulk copies (or wgmma) do after.
__device__ inline void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Arrives, and makes the phase wait for `bytes` more bytes of copies.
__device__ inline void arrive_expecting(uint64_t* barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}
__device__ inline void arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// Arrivals of a warp at a barrier, and a warp's arriving, by all lanes: what any of them did before is there for who
// waits. One lane arrives for all; race checkers, which see only what the arriving thread itself did, want every lane
// to (VERBATIM_EVERY_LANE_ARRIVES).
#ifdef VERBATIM_EVERY_LANE_ARRIVES
inline constexpr uint32_t kWarpArrivals = 32;
#else
inline constexpr uint32_t kWarpArrivals = 1;
#endif
__device__ inline void arrive_warp(uint64_t* barrier, int lane) {
  __syncwarp();
  if (kWarpArrivals == 32 || lane == 0) arrive(barrier);
}

// Until the phase of parity `parity` has ended: 0 the first, 1 the second, 0 the third, ...
__device__ inline void wait_for(uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again%=:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1, 0x989680;\n"
      "@!done bra again%=;\n"
      "}" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

// `bytes` (a multiple of 16, both addresses too) into shared memory, counted by `barrier`; read once.
__device__ inline void copy_bulk(void* shared, const void* global, uint32_t bytes, uint64_t* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(shared)),
               "l"(global), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}

// Bytes (a multiple of 16) on their way to the second-level cache.
__device__ inline void prefetch_bulk(const void* global, uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(global), "r"(bytes) : "memory");
}

}  // namespace verbatim::ops::cuda::ptx
