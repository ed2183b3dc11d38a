// How a token is chosen from a row of logits: a pure function of the row, what SampleRow says and the adjustments. What
// every backend shares, so that all choose the same token from the same bits: nothing here is from libm, and sums are
// of integers.
#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <vector>

namespace verbatim::ops {

// The token is the largest adjusted logit's (lower id on a tie) at temperature 0. Else each id has the weight
// exp((logit - largest) / temperature) * 2^40, cut to an integer, and of those at least max(1, min_p * the largest
// weight) the top_k heaviest stay (lower id first on ties), and of these the fewest, likewise in order, whose weights
// reach top_p of their sum. The token is the first, in order of id, at which the sum of the weights passes
// random * sum / 2^64.
struct SampleRow {
  float temperature = 0.0f;
  float top_p = 1.0f;
  float min_p = 0.0f;
  int32_t top_k = 0;      // 0: all
  uint64_t random = 0;    // 64 random bits
  int32_t otherwise = 0;  // the token where no logit is above -infinity
};

// Of logit `id` of row `row`: multiplied by `repetition` if it is not positive, else divided by it, then less
// `subtract`, plus `add`. At most one for an id of a row.
struct LogitAdjustment {
  int32_t row = 0, id = 0;
  float repetition = 1.0f, subtract = 0.0f, add = -0.0f;  // which change no bit
};

constexpr float adjusted_logit(float logit, const LogitAdjustment& by) {
  const float repeated = logit > 0 ? logit / by.repetition : logit * by.repetition;
  return repeated - by.subtract + by.add;
}

// exp(x) for x <= 0 in double, relative error below 1e-13, 0 below -700 and for NaN.
constexpr double sampling_exp(double x) {
  if (!(x > -700.0)) return 0.0;
  // To the nearest integer, ties to even: the sum leaves no bits for a fraction.
  constexpr double kWhole = 0x1.8p52, kLn2High = 0x1.62e42fefa3800p-1, kLn2Low = 0x1.ef35793c76730p-45;
  const double n = (x * 0x1.71547652b82fep+0 + kWhole) - kWhole;
  const double r = (x - n * kLn2High) - n * kLn2Low;
  // Taylor to r^13 on |r| <= ln2 / 2: the next term is below 5e-18.
  double sum = 1.0 / 6227020800.0;
  sum = 1.0 / 479001600.0 + sum * r;
  sum = 1.0 / 39916800.0 + sum * r;
  sum = 1.0 / 3628800.0 + sum * r;
  sum = 1.0 / 362880.0 + sum * r;
  sum = 1.0 / 40320.0 + sum * r;
  sum = 1.0 / 5040.0 + sum * r;
  sum = 1.0 / 720.0 + sum * r;
  sum = 1.0 / 120.0 + sum * r;
  sum = 1.0 / 24.0 + sum * r;
  sum = 1.0 / 6.0 + sum * r;
  sum = 0.5 + sum * r;
  sum = 1.0 + sum * r;
  sum = 1.0 + sum * r;
  return sum * std::bit_cast<double>(static_cast<uint64_t>(static_cast<int64_t>(n) + 1023) << 52);
}

// The weight of a logit under the largest one, at most 2^40.
constexpr uint64_t sampling_weight(float logit, float largest, double per_temperature) {
  const double x = (static_cast<double>(logit) - static_cast<double>(largest)) * per_temperature;
  return static_cast<uint64_t>(sampling_exp(x) * 0x1p40);
}

constexpr double per_temperature(const SampleRow& how) { return 1.0 / static_cast<double>(how.temperature); }

constexpr uint64_t least_weight(const SampleRow& how, uint64_t largest) {
  const auto least = static_cast<uint64_t>(static_cast<double>(how.min_p) * static_cast<double>(largest));
  return least > 1 ? least : 1;
}

// Index of the largest, the lower one on a tie; NaN never wins; 0 where nothing does.
int32_t largest_logit(std::span<const float> logits);

// Working memory of sample_row(), kept from row to row.
struct SampleSpace {
  std::vector<uint64_t> weights;
  std::vector<int32_t> order;
};

// The token of adjusted logits.
int32_t sample_row(std::span<const float> logits, const SampleRow& how, SampleSpace& space);

}  // namespace verbatim::ops
