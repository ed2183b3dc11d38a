// The sums of ops.h over float32 operands, as register tiles: dots of a few vectors with a few others, and column
// products of a few vectors with a matrix walked by rows. The size of a tile changes no bit: every result has its own
// accumulators, and these take their terms in the stated order.
#pragma once

#include <cstdint>

#include "ops/cpu/weight_tables.h"

namespace verbatim::ops::cpu {

inline constexpr int64_t kSumSlice = 256;

struct Avx512Lanes;

// Accumulators of sixteen lanes that the instruction set's registers hold beside the operands.
template <class L>
inline constexpr int kAccumulators = 4;
template <>
inline constexpr int kAccumulators<Avx512Lanes> = 16;

// A tile of dots: kDotRows rows with kDotRows vectors.
template <class L>
inline constexpr int kDotRows = kAccumulators<L> == 16 ? 4 : 2;

// dots[i * dots_stride + j] = dot(a row i, b(j)) for kA rows of stride a_stride and kB vectors b(0), b(1), ...; n must
// be a multiple of 16.
template <class L, int kA, int kB, class B>
[[gnu::always_inline]] inline void dot_tile(const float* a, int64_t a_stride, const B& b, int64_t n, float* dots,
                                            int64_t dots_stride) {
  for (int64_t begin = 0; begin < n; begin += kSumSlice) {
    const int64_t end = begin + kSumSlice < n ? begin + kSumSlice : n;
    L sums[kA * kB];
    for (L& sum : sums) sum = L::zero();
    for (int64_t k = begin; k < end; k += 16) {
      L right[kB];
      for (int j = 0; j < kB; ++j) right[j] = L::load(b(j) + k);
      for (int i = 0; i < kA; ++i) {
        const L left = L::load(a + i * a_stride + k);
        for (int j = 0; j < kB; ++j) sums[i * kB + j] = L::fma(left, right[j], sums[i * kB + j]);
      }
    }
    const auto take = [&](int index, float sum) {
      float& dot = dots[index / kB * dots_stride + index % kB];
      dot = begin == 0 ? sum : dot + sum;
    };
    int done = 0;
    for (; done + 4 <= kA * kB; done += 4) {
      float totals[4];
      WeightLanes<L>::sum4(sums[done], sums[done + 1], sums[done + 2], sums[done + 3]).get(totals);
      for (int j = 0; j < 4; ++j) take(done + j, totals[j]);
    }
    for (; done < kA * kB; ++done) take(done, L::sum(sums[done]));
  }
}

// The dot of two vectors, n a multiple of 16.
template <class L>
inline float dot16(const float* a, const float* b, int64_t n) {
  float dot = 0.0f;
  dot_tile<L, 1, 1>(
      a, 0, [b](int) { return b; }, n, &dot, 1);
  return dot;
}

// One slice of a column product: sums[i][j] over begin <= k < end of x[i, k] and load(k, j), a group of sixteen
// columns.
template <class L, int kX, int kV, class Load>
[[gnu::always_inline]] inline void column_slice(const float* x, int64_t x_stride, int64_t begin, int64_t end,
                                                const Load& load, L (&sums)[kX][kV]) {
  for (auto& row : sums)
    for (L& sum : row) sum = L::zero();
  for (int64_t k = begin; k < end; ++k) {
    L right[kV];
    for (int j = 0; j < kV; ++j) right[j] = load(k, j);
    for (int i = 0; i < kX; ++i) {
      const L left = L::set1(x[i * x_stride + k]);
      for (int j = 0; j < kV; ++j) sums[i][j] = L::fma(left, right[j], sums[i][j]);
    }
  }
}

// The whole column product, 0 <= k < count.
template <class L, int kX, int kV, class Load>
[[gnu::always_inline]] inline void column_tile(const float* x, int64_t x_stride, int64_t count, const Load& load,
                                               L (&y)[kX][kV]) {
  column_slice<L, kX, kV>(x, x_stride, 0, count < kSumSlice ? count : kSumSlice, load, y);
  for (int64_t begin = kSumSlice; begin < count; begin += kSumSlice) {
    const int64_t end = begin + kSumSlice < count ? begin + kSumSlice : count;
    L sums[kX][kV];
    column_slice<L, kX, kV>(x, x_stride, begin, end, load, sums);
    for (int i = 0; i < kX; ++i)
      for (int j = 0; j < kV; ++j) y[i][j] = y[i][j] + sums[i][j];
  }
}

// Walks tiles over `rows` vectors x and `vectors` groups of sixteen columns: columns outside, so that a strip of the
// matrix stays in the nearest cache for all rows. load(k, v) gives vector v of row k; store(i, v, sum) takes a result.
template <class L, int kX, int kV, class Load, class Store>
[[gnu::always_inline]] inline void column_strip(const float* x, int64_t x_stride, int64_t rows, int64_t count,
                                                int64_t vector, const Load& load, const Store& store, int64_t& row) {
  for (; row + kX <= rows; row += kX) {
    L y[kX][kV];
    column_tile<L, kX, kV>(
        x + row * x_stride, x_stride, count, [&](int64_t k, int j) { return load(k, vector + j); }, y);
    for (int i = 0; i < kX; ++i)
      for (int j = 0; j < kV; ++j) store(row + i, vector + j, y[i][j]);
  }
}

template <class L, class Load, class Store>
[[gnu::always_inline]] inline void column_product(const float* x, int64_t x_stride, int64_t rows, int64_t count,
                                                  int64_t vectors, const Load& load, const Store& store) {
  constexpr int kWide = kAccumulators<L> / 4;
  int64_t vector = 0;
  if (rows >= 4) {
    for (; vector + kWide <= vectors; vector += kWide) {
      int64_t row = 0;
      column_strip<L, 4, kWide>(x, x_stride, rows, count, vector, load, store, row);
      column_strip<L, 1, kWide>(x, x_stride, rows, count, vector, load, store, row);
    }
  } else {
    for (; vector + 2 * kWide <= vectors; vector += 2 * kWide) {
      int64_t row = 0;
      column_strip<L, 2, 2 * kWide>(x, x_stride, rows, count, vector, load, store, row);
      column_strip<L, 1, 2 * kWide>(x, x_stride, rows, count, vector, load, store, row);
    }
  }
  for (; vector < vectors; ++vector) {
    int64_t row = 0;
    column_strip<L, 4, 1>(x, x_stride, rows, count, vector, load, store, row);
    column_strip<L, 1, 1>(x, x_stride, rows, count, vector, load, store, row);
  }
}

}  // namespace verbatim::ops::cpu
