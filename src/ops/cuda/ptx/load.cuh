// Raw loads of weights: read once, past the first-level cache, issued where they are written.
#pragma once

#include <cstdint>

namespace verbatim::ops::cuda::ptx {

__device__ inline uint4 load_weights_16(const void* from) {
  uint4 r;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
               : "l"(from));
  return r;
}

__device__ inline uint2 load_weights_8(const void* from) {
  uint2 r;
  asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(r.x), "=r"(r.y) : "l"(from));
  return r;
}

}  // namespace verbatim::ops::cuda::ptx
