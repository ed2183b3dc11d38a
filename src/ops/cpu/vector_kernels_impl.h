// Templates behind VectorKernels, instantiated once per instruction set (isa_*.cc).
#pragma once

#include <cstdint>

#include "ops/cpu/math.h"
#include "ops/cpu/vector_kernels.h"

namespace verbatim::ops::cpu {

template <class L>
struct VectorLoops {
  static constexpr int64_t kSlice = 256;

  static L load(const float* p, int64_t left) { return left >= 16 ? L::load(p) : L::load_first(p, left); }
  static void store(L v, float* p, int64_t left) {
    if (left >= 16)
      v.store(p);
    else
      v.store_first(p, left);
  }

  static float dot16(const float* x, const float* y, int64_t n) {
    float sum = 0.0f;
    for (int64_t begin = 0; begin < n; begin += kSlice) {
      const int64_t end = begin + kSlice < n ? begin + kSlice : n;
      L lanes = L::zero();
      for (int64_t k = begin; k < end; k += 16) lanes = L::fma(load(x + k, end - k), load(y + k, end - k), lanes);
      sum = begin == 0 ? L::sum(lanes) : sum + L::sum(lanes);
    }
    return sum;
  }
  // The dot with ones.
  static float sum16(const float* x, int64_t n) {
    float sum = 0.0f;
    const L one = L::set1(1.0f);
    for (int64_t begin = 0; begin < n; begin += kSlice) {
      const int64_t end = begin + kSlice < n ? begin + kSlice : n;
      L lanes = L::zero();
      for (int64_t k = begin; k < end; k += 16) lanes = L::fma(load(x + k, end - k), one, lanes);
      sum = begin == 0 ? L::sum(lanes) : sum + L::sum(lanes);
    }
    return sum;
  }
  static float inverse_root(float sum_of_squares, int64_t n, float epsilon) {
    return 1.0f / __builtin_sqrtf(sum_of_squares / static_cast<float>(n) + epsilon);
  }

  static void rms_norm(const float* x, const float* weight, float epsilon, int64_t n, float* y) {
    const L inverse = L::set1(inverse_root(dot16(x, x, n), n, epsilon));
    for (int64_t k = 0; k < n; k += 16) store(load(weight + k, n - k) * (load(x + k, n - k) * inverse), y + k, n - k);
  }

  static void layer_norm(const float* x, const float* weight, const float* bias, float epsilon, int64_t n, float* y) {
    const L mean = L::set1(sum16(x, n) / static_cast<float>(n));
    for (int64_t k = 0; k < n; k += 16) store(load(x + k, n - k) - mean, y + k, n - k);
    const L inverse = L::set1(inverse_root(dot16(y, y, n), n, epsilon));
    for (int64_t k = 0; k < n; k += 16) {
      const L scaled = (load(y + k, n - k) * inverse) * load(weight + k, n - k);
      store(scaled + load(bias + k, n - k), y + k, n - k);
    }
  }

  static void add(const float* x, int64_t n, float* y) {
    for (int64_t k = 0; k < n; k += 16) store(load(y + k, n - k) + load(x + k, n - k), y + k, n - k);
  }

  // Limits come first in min and max, so that a NaN is passed on.
  static void swiglu(const float* gate, const float* up, float limit, int64_t n, float* h) {
    const L most = L::set1(limit), least = L::set1(-limit);
    for (int64_t k = 0; k < n; k += 16) {
      const L a = L::min(most, load(gate + k, n - k));
      const L b = L::max(least, L::min(most, load(up + k, n - k)));
      store(silu<L>(a) * b, h + k, n - k);
    }
  }

  static void exp_of(const float* x, int64_t n, float* y) {
    for (int64_t k = 0; k < n; k += 16) store(cpu::exp<L>(load(x + k, n - k)), y + k, n - k);
  }
  static void sigmoid_of(const float* x, int64_t n, float* y) {
    for (int64_t k = 0; k < n; k += 16) store(cpu::sigmoid<L>(load(x + k, n - k)), y + k, n - k);
  }

  static void weighted_sum(const float* const* terms, const float* weights, int64_t count, const float* last, int64_t n,
                           float* y) {
    for (int64_t k = 0; k < n; k += 16) {
      const int64_t left = n - k;
      L sum = L::zero();
      for (int64_t i = 0; i < count; ++i) {
        const L term = load(terms[i] + k, left), weight = L::set1(weights[i]);
        sum = i == 0 ? weight * term : L::fma(weight, term, sum);
      }
      if (last != nullptr) sum = count == 0 ? load(last + k, left) : sum + load(last + k, left);
      store(sum, y + k, left);
    }
  }

  template <int kStreams>
  static void leave(const float* post, const float* comb, int64_t streams, int64_t width, const float* y, float* x) {
    const int64_t count = kStreams > 0 ? kStreams : streams;
    for (int64_t k = 0; k < width; k += 16) {
      const int64_t left = width - k;
      L old[kStreams > 0 ? kStreams : kMostStreams];
      for (int64_t i = 0; i < count; ++i) old[i] = load(x + i * width + k, left);
      const L added = load(y + k, left);
      for (int64_t j = 0; j < count; ++j) {
        L mixed = L::set1(comb[j]) * old[0];
        for (int64_t i = 1; i < count; ++i) mixed = L::fma(L::set1(comb[i * count + j]), old[i], mixed);
        store(L::fma(L::set1(post[j]), added, mixed), x + j * width + k, left);
      }
    }
  }
  static void hyper_leave(const float* post, const float* comb, int64_t streams, int64_t width, const float* y,
                          float* x) {
    if (streams == 4)
      leave<4>(post, comb, streams, width, y, x);
    else
      leave<0>(post, comb, streams, width, y, x);
  }

  static void hyper_mean(const float* x, int64_t streams, int64_t width, float* h) {
    const L count = L::set1(static_cast<float>(streams));
    for (int64_t k = 0; k < width; k += 16) {
      L sum = load(x + k, width - k);
      for (int64_t s = 1; s < streams; ++s) sum = sum + load(x + s * width + k, width - k);
      store(sum / count, h + k, width - k);
    }
  }

  static float largest(const float* x, int64_t n) {
    const L least = L::set1(-__builtin_inff());
    L most = least;
    int64_t k = 0;
    for (; k + 16 <= n; k += 16) most = L::max(L::load(x + k), most);  // a NaN loses against the second operand
    float lanes[16];
    most.store(lanes);
    float result = lanes[0];
    for (int l = 1; l < 16; ++l) result = lanes[l] > result ? lanes[l] : result;
    for (; k < n; ++k) result = x[k] > result ? x[k] : result;
    return result;
  }
};

template <class L>
constexpr VectorKernels make_vector_kernels() {
  using V = VectorLoops<L>;
  return {V::dot16,      V::rms_norm,     V::layer_norm,  V::add,        V::swiglu, V::exp_of,
          V::sigmoid_of, V::weighted_sum, V::hyper_leave, V::hyper_mean, V::largest};
}

}  // namespace verbatim::ops::cpu
