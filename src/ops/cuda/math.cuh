// exp, sigmoid, silu and softplus of one float32: the operations of cpu/math.h in the same order, so that both backends
// give the same bits (error bounds there and in docs/numerics.md). Compiled with -fmad=false: what is fused is written.
#pragma once

#include <cstdint>

namespace verbatim::ops::cuda {

// The second operand where either is NaN or both are zeros.
__device__ inline float min_of(float a, float b) { return a < b ? a : b; }
__device__ inline float max_of(float a, float b) { return a > b ? a : b; }

// exp(r) for |r| up to half the logarithm of 2.
__device__ inline float exp_near_zero(float r) {
  float q = 0x1.6a2402p-10f;
  q = fmaf(q, r, 0x1.123a1ep-7f);
  q = fmaf(q, r, 0x1.5558f2p-5f);
  q = fmaf(q, r, 0x1.555492p-3f);
  q = fmaf(q, r, 0x1.fffffcp-2f);
  return 1.0f + fmaf(r * r, q, r);
}

__device__ inline float exp_of(float x) {
  const float lowest = -0x1.5d589ep+6f;
  const float clamped = min_of(89.0f, max_of(lowest, x));
  const float n = rintf(clamped * 0x1.715476p+0f);
  const float r = fmaf(-n, -0x1.05c610p-29f, fmaf(-n, 0x1.62e430p-1f, clamped));
  const float p = exp_near_zero(r);
  const float m = min_of(n, 127.0f);
  const float scaled = p * __int_as_float((static_cast<int32_t>(m) + 127) << 23);
  const float result = fmaf(scaled, n - m, scaled);
  return x < lowest ? 0.0f : result;
}

__device__ inline float sigmoid_of(float x) { return 1.0f / (1.0f + exp_of(0.0f - x)); }

__device__ inline float silu_of(float x) { return x * sigmoid_of(x); }

__device__ inline float softplus_of(float x) {
  const float t = exp_of(0.0f - fabsf(x));
  const float s = t / (2.0f + t);
  const float z = s * s;
  float q = 0x1.f1af08p-3f;
  q = fmaf(q, z, 0x1.b6d698p-3f);
  q = fmaf(q, z, 0x1.250972p-2f);
  q = fmaf(q, z, 0x1.9996a8p-2f);
  q = fmaf(q, z, 0x1.555558p-1f);
  const float logarithm = fmaf(-s, fmaf(-q, z, t), t);
  return max_of(0.0f, x) + logarithm;
}

// silu(min(gate, limit)) * clamp(up, -limit, limit); a NaN is passed on.
__device__ inline float swiglu_of(float gate, float up, float limit) {
  const float a = min_of(limit, gate);
  const float b = max_of(-limit, min_of(limit, up));
  return silu_of(a) * b;
}

}  // namespace verbatim::ops::cuda
