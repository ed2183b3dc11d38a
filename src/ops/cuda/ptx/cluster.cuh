// Raw instructions of clusters: blocks that run at the same time and reach each other's shared memory, from sm_90 on.
#pragma once

#include <cstdint>

namespace verbatim::ops::cuda::ptx {

// This block's place in its cluster.
__device__ inline uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// All threads of all blocks of the cluster; what they wrote before is visible after.
__device__ inline void synchronise_cluster() {
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
}

// Where block `rank` of the cluster has what this block has at `shared`.
__device__ inline uint32_t address_in_block(const void* shared, uint32_t rank) {
  uint32_t address;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(address)
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(shared))), "r"(rank));
  return address;
}

// Writes to another block's shared memory (addresses of address_in_block) and counts the bytes at a barrier there. That
// block must live until they have come.
__device__ inline void store_counted(uint32_t address, float value, uint32_t barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(address),
               "r"(__float_as_uint(value)), "r"(barrier)
               : "memory");
}
__device__ inline void store_counted(uint32_t address, float4 value, uint32_t barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(address),
      "r"(__float_as_uint(value.x)), "r"(__float_as_uint(value.y)), "r"(__float_as_uint(value.z)),
      "r"(__float_as_uint(value.w)), "r"(barrier)
      : "memory");
}

// wait_for of bulk_copy.cuh, for what other blocks of the cluster wrote.
__device__ inline void wait_for_cluster(uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again%=:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1, 0x989680;\n"
      "@!done bra again%=;\n"
      "}" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(barrier))),
      "r"(parity)
      : "memory");
}

}  // namespace verbatim::ops::cuda::ptx
