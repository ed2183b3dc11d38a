// exp of what is not positive.
#pragma once

#include "ops/cuda/math.cuh"

namespace verbatim::ops::cuda {

// exp_of(x), x <= 0 or NaN, in the same bits: what cannot happen there is left out, and rounding to an integer is the
// addition of 1.5 * 2^23, whose low bits are that integer.
__device__ inline float fade_of(float x) {
  const float lowest = -0x1.5d589ep+6f, shift = 0x1.8p+23f;
  const float clamped = max_of(lowest, x);
  const float shifted = clamped * 0x1.715476p+0f + shift;
  const float n = shifted - shift;
  const float r = fmaf(-n, -0x1.05c610p-29f, fmaf(-n, 0x1.62e430p-1f, clamped));
  const float p = exp_near_zero(r);
  const float scaled = p * __int_as_float((__float_as_int(shifted) << 23) + 0x3f800000);
  return x < lowest ? 0.0f : scaled;
}

}  // namespace verbatim::ops::cuda
