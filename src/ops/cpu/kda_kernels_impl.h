// Bodies of kda_kernels.h over the lanes L.
#pragma once

#include "ops/cpu/kda_kernels.h"
#include "ops/cpu/lane_sums.h"
#include "ops/cpu/math.h"

namespace verbatim::ops::cpu {

template <class L>
void kda_convolve(const float* taps, const float* const* inputs, int64_t rows, int64_t width, float* const* out) {
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t c = 0; c < width; c += 16) {
      L sum = L::load(taps + c) * L::load(inputs[i] + c);
      for (int j = 1; j < 4; ++j) sum = L::fma(L::load(taps + j * width + c), L::load(inputs[i + j] + c), sum);
      silu<L>(sum).store(out[i] + c);
    }
  }
}

template <class L>
void kda_normalise(float* x, int64_t width, float factor) {
  const L scale = L::set1(factor * (1.0f / __builtin_sqrtf(dot16<L>(x, x, width) + 1e-6f)));
  for (int64_t c = 0; c < width; c += 16) (L::load(x + c) * scale).store(x + c);
}

template <class L>
void kda_decay(const float* f, const float* bias, float a_log, float lower, const float* previous, int64_t width,
               float* sum) {
  const L rate = exp<L>(L::set1(a_log));
  for (int64_t c = 0; c < width; c += 16) {
    const L x = L::load(f + c) + L::load(bias + c);
    L g = lower != 0.0f ? L::set1(lower) * sigmoid<L>(rate * x) : L::zero() - rate * softplus<L>(x);
    if (previous != nullptr) g = L::load(previous + c) + g;
    g.store(sum + c);
  }
}

// Dots of row t, kRows rows s at a time: dots[s][0] = sum_d k_t k_s exp(G_t - G_s), dots[s][1] likewise with q_t.
template <class L, int kRows>
inline void kda_row_dots(const KdaBlock& block, int64_t t, const float* q, int64_t s, float (*dots)[2]) {
  const float* key = block.keys[t];
  const float* decay = block.decays[t];
  for (int64_t begin = 0; begin < block.width; begin += kSumSlice) {
    const int64_t end = begin + kSumSlice < block.width ? begin + kSumSlice : block.width;
    L sums[kRows][2];
    for (auto& row : sums) row[0] = row[1] = L::zero();
    for (int64_t c = begin; c < end; c += 16) {
      const L own = L::load(decay + c), k = L::load(key + c), asked = L::load(q + c);
      for (int i = 0; i < kRows; ++i) {
        const L fade = exp<L>(own - L::load(block.decays[s + i] + c));
        const L earlier = L::load(block.keys[s + i] + c);
        sums[i][0] = L::fma(k * fade, earlier, sums[i][0]);
        sums[i][1] = L::fma(asked * fade, earlier, sums[i][1]);
      }
    }
    float totals[4];
    WeightLanes<L>::sum4(sums[0][0], sums[0][1], sums[kRows - 1][0], sums[kRows - 1][1]).get(totals);
    for (int i = 0; i < kRows; ++i)
      for (int j = 0; j < 2; ++j) dots[s + i][j] = begin == 0 ? totals[2 * i + j] : dots[s + i][j] + totals[2 * i + j];
  }
}

template <class L>
void kda_rows(const KdaBlock& block) {
  const int64_t width = block.width, count = block.end - block.begin;
  float* faded = block.scratch;                     // k exp(G) of all rows, then q exp(G) of all rows
  float* products = faded + 2 * kKdaChunk * width;  // each times S
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t c = 0; c < width; c += 16) {
      const L fade = exp<L>(L::load(block.decays[block.begin + i] + c));
      (L::load(block.keys[block.begin + i] + c) * fade).store(faded + i * width + c);
      (L::load(block.q + i * width + c) * fade).store(faded + (count + i) * width + c);
    }
  }
  column_product<L>(
      faded, width, 2 * count, width, width / 16,
      [&](int64_t k, int64_t v) { return L::load(block.state + k * width + v * 16); },
      [&](int64_t i, int64_t v, L sum) { sum.store(products + i * width + v * 16); });

  for (int64_t i = 0; i < count; ++i) {
    const int64_t t = block.begin + i;
    float dots[kKdaChunk][2];  // of s <= t (exp(0) is 1 exactly)
    for (int64_t s = 0; s + 2 <= t + 1; s += 2) kda_row_dots<L, 2>(block, t, block.q + i * width, s, dots);
    if (t % 2 == 0) kda_row_dots<L, 1>(block, t, block.q + i * width, t, dots);
    const L beta = sigmoid<L>(L::set1(block.beta_logit[i * block.beta_stride]));
    float* out = block.out + i * block.stride;
    for (int64_t c = 0; c < width; c += 16) {
      L rest = L::load(block.v + i * width + c) - L::load(products + i * width + c);
      L sum = L::load(products + (count + i) * width + c);
      for (int64_t s = 0; s < t; ++s) {
        const L value = L::load(block.values[s] + c);
        rest = L::fnma(L::set1(dots[s][0]), value, rest);
        sum = L::fma(L::set1(dots[s][1]), value, sum);
      }
      const L value = beta * rest;
      value.store(block.values[t] + c);
      L::fma(L::set1(dots[t][1]), value, sum).store(out + c);
    }
    const float mean = dot16<L>(out, out, width) / static_cast<float>(width);
    const L scale = L::set1(1.0f / __builtin_sqrtf(mean + block.norm_epsilon));
    for (int64_t c = 0; c < width; c += 16) {
      const L gate = sigmoid<L>(L::load(block.gate + i * block.stride + c));
      (L::load(block.o_norm + c) * (L::load(out + c) * scale) * gate).store(out + c);
    }
  }
}

template <class L>
void kda_advance(const float* state, const float* const* keys, const float* const* values, const float* const* decays,
                 int64_t width, float* scratch, float* next) {
  float* kept = scratch + kKdaChunk * width;  // exp(G_15)
  const float* last = decays[kKdaChunk - 1];
  for (int64_t c = 0; c < width; c += 16) {
    const L total = L::load(last + c);
    exp<L>(total).store(kept + c);
    for (int64_t s = 0; s < kKdaChunk; ++s)
      (L::load(keys[s] + c) * exp<L>(total - L::load(decays[s] + c))).store(scratch + s * width + c);
  }
  constexpr int kWide = kAccumulators<L> == 16 ? 8 : 4;
  for (int64_t k = 0; k < width; ++k) {
    const L keep = L::set1(kept[k]);
    int64_t c = 0;
    for (; c + 16 * kWide <= width; c += 16 * kWide) {
      L sums[kWide];
      for (int j = 0; j < kWide; ++j) sums[j] = keep * L::load(state + k * width + c + 16 * j);
      for (int64_t s = 0; s < kKdaChunk; ++s) {
        const L key = L::set1(scratch[s * width + k]);
        for (int j = 0; j < kWide; ++j) sums[j] = L::fma(key, L::load(values[s] + c + 16 * j), sums[j]);
      }
      for (int j = 0; j < kWide; ++j) sums[j].store(next + k * width + c + 16 * j);
    }
    for (; c < width; c += 16) {
      L sum = keep * L::load(state + k * width + c);
      for (int64_t s = 0; s < kKdaChunk; ++s)
        sum = L::fma(L::set1(scratch[s * width + k]), L::load(values[s] + c), sum);
      sum.store(next + k * width + c);
    }
  }
}

template <class L>
constexpr KdaKernels make_kda_kernels() {
  return {kda_convolve<L>, kda_normalise<L>, kda_decay<L>, kda_rows<L>, kda_advance<L>};
}

}  // namespace verbatim::ops::cpu
