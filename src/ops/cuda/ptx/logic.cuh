// Raw instructions of logic, from sm_80 on.
#pragma once

#include <cstdint>

namespace verbatim::ops::cuda::ptx {

// (word & kMask) | kBits as one instruction; of the expression compilers make two.
template <uint32_t kMask, uint32_t kBits>
__device__ inline uint32_t and_or(uint32_t word) {
  uint32_t result;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(result) : "r"(word), "n"(kMask), "n"(kBits));
  return result;
}

}  // namespace verbatim::ops::cuda::ptx
