// Raw arithmetic.
#pragma once

namespace verbatim::ops::cuda::ptx {

// 1 / value within an ulp; numbers below the normal range count as 0.
__device__ inline float reciprocal(float value) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
  return result;
}

}  // namespace verbatim::ops::cuda::ptx
