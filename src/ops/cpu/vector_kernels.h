// Inner loops over rows of floats: norms, activations, hyper-connections, selection of the largest.
#pragma once

#include <cstdint>

namespace verbatim::ops::cpu {

struct VectorKernels {
  // Sum of x[k] * y[k] in one part (dot16 of ops.h); any n.
  float (*dot16)(const float* x, const float* y, int64_t n);
  // y = weight * (x * (1 / sqrt(dot16(x, x) / n + epsilon))).
  void (*rms_norm)(const float* x, const float* weight, float epsilon, int64_t n, float* y);
  // y = d * (1 / sqrt(dot16(d, d) / n + epsilon)) * weight + bias with d = x - dot16(x, 1) / n. y may be x.
  void (*layer_norm)(const float* x, const float* weight, const float* bias, float epsilon, int64_t n, float* y);
  // y += x.
  void (*add)(const float* x, int64_t n, float* y);
  // h = silu(min(gate, limit)) * clamp(up, -limit, limit). h may be gate or up.
  void (*swiglu)(const float* gate, const float* up, float limit, int64_t n, float* h);
  void (*exp)(const float* x, int64_t n, float* y);
  void (*sigmoid)(const float* x, int64_t n, float* y);
  // y = weights[0] * terms[0], then fused multiply-adds in order, then + last (if given). With no terms y = last.
  void (*weighted_sum)(const float* const* terms, const float* weights, int64_t count, const float* last, int64_t n,
                       float* y);
  // X[j] = post[j] * y + sum_i comb[i, j] * X[i] over S = `streams` <= kMostStreams streams of `width`.
  void (*hyper_leave)(const float* post, const float* comb, int64_t streams, int64_t width, const float* y, float* x);
  // h = (X[0] + X[1] + ...) / streams.
  void (*hyper_mean)(const float* x, int64_t streams, int64_t width, float* h);
  // The largest of x[0 .. n), ignoring NaN; -infinity if there is none.
  float (*largest)(const float* x, int64_t n);
};

inline constexpr int64_t kMostStreams = 16;

}  // namespace verbatim::ops::cpu
