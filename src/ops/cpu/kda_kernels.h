// Linear attention (KDA) inside one head, over rows of one chunk. The order of sums is that of Ops::kda in ops.h.
// Widths are multiples of 16. Pointers of rows are to this head's `width` channels.
#pragma once

#include <cstdint>

namespace verbatim::ops::cpu {

inline constexpr int64_t kKdaChunk = 16;

// Rows begin .. end - 1 of a chunk, the rows before them being known.
struct KdaBlock {
  int64_t width = 0, begin = 0, end = 0;
  const float* state = nullptr;         // S [width (key), width (value)] at the chunk's start
  const float* keys[kKdaChunk] = {};    // normalised, rows 0 .. end - 1
  const float* decays[kKdaChunk] = {};  // G, rows 0 .. end - 1
  float* values[kKdaChunk] = {};        // v_new: rows 0 .. begin - 1 are read, the others written
  const float* q = nullptr;             // [end - begin, width], normalised, times width^-0.5
  const float* v = nullptr;             // [end - begin, width], after convolution
  const float* beta_logit = nullptr;    // of row begin; beta_stride to the next row's
  const float* gate = nullptr;          // of row begin; stride to the next row's
  const float* o_norm = nullptr;        // [width]
  float* out = nullptr;                 // of row begin; stride to the next row's
  int64_t beta_stride = 0, stride = 0;  // in floats
  float norm_epsilon = 0.0f;
  float* scratch = nullptr;  // kKdaBlockScratchRows * width floats
};

inline constexpr int64_t kKdaBlockScratchRows = 4 * kKdaChunk;

struct KdaKernels {
  // out[i] = silu(chain over j of taps[j] * inputs[i + j]), inputs[i + 3] being the row's own; taps [4, width].
  void (*convolve)(const float* taps, const float* const* inputs, int64_t rows, int64_t width, float* const* out);
  // x *= factor / sqrt(dot16(x, x) + 1e-6)
  void (*normalise)(float* x, int64_t width, float factor);
  // sum = previous + g (g alone without previous); g = lower * sigmoid(exp(a_log) (f + bias)), or with lower = 0
  // -exp(a_log) * softplus(f + bias).
  void (*decay)(const float* f, const float* bias, float a_log, float lower, const float* previous, int64_t width,
                float* sum);
  // The row rule, the output norm and the gate.
  void (*rows)(const KdaBlock& block);
  // next = exp(G_15) S + sum_s (k_s exp(G_15 - G_s)) v_s over the 16 rows of a chunk; next may be `state`. `scratch`
  // has (kKdaChunk + 1) * width floats.
  void (*advance)(const float* state, const float* const* keys, const float* const* values, const float* const* decays,
                  int64_t width, float* scratch, float* next);
};

}  // namespace verbatim::ops::cpu
