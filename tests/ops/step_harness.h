// What the tests of stateful operators share: random rows, backend memory, and a sequence that is fed in pieces.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "ops/ops.h"
#include "tests/tested_backend.h"

namespace verbatim::ops {

using Floats = std::vector<float>;

inline Floats random_floats(int64_t count, uint64_t seed, float scale = 1.0f) {
  std::mt19937_64 bits(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  Floats values(static_cast<size_t>(count));
  for (float& value : values) value = normal(bits);
  return values;
}

// A copy of host floats in backend memory.
class Device {
 public:
  Device(Ops& ops, const Floats& values) : ops_(&ops), buffer_(ops, std::max<size_t>(values.size(), 1) * 4) {
    ops.copy_in(buffer_.floats(), values.data(), values.size() * 4);
    count_ = values.size();
  }
  Device(Ops& ops, int64_t count) : Device(ops, Floats(static_cast<size_t>(count))) {}
  float* floats() const { return buffer_.floats(); }
  Floats read() const {
    Floats values(count_);
    ops_->copy_out(values.data(), buffer_.floats(), count_ * 4);
    return values;
  }

 private:
  Ops* ops_;
  Buffer buffer_;
  size_t count_ = 0;
};

// The first difference in bits, or an empty text.
inline std::string first_difference(const Floats& a, const Floats& b) {
  if (a.size() != b.size()) return "sizes differ";
  for (size_t i = 0; i < a.size(); ++i)
    if (std::bit_cast<uint32_t>(a[i]) != std::bit_cast<uint32_t>(b[i]))
      return "element " + std::to_string(i) + ": " + std::to_string(a[i]) + " and " + std::to_string(b[i]);
  return {};
}

inline double norm(const float* x, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += double{x[i]} * x[i];
  return std::sqrt(sum);
}

inline double distance(const float* x, const double* y, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += (x[i] - y[i]) * (x[i] - y[i]);
  return std::sqrt(sum);
}

// Rows source[0], source[1], ... of `rows` rows of `width` floats.
inline Floats gather(const Floats& rows, int64_t width, const std::vector<int64_t>& source) {
  Floats out;
  for (const int64_t row : source) out.insert(out.end(), rows.begin() + row * width, rows.begin() + (row + 1) * width);
  return out;
}

// One sequence's part of a step: which rows of the test's tables stand at positions position, position + 1, ...
struct Feed {
  int32_t slot = 0;
  int64_t position = 0;
  std::vector<int64_t> source;
  int64_t certain = 0;
};

inline std::vector<int64_t> iota(int64_t begin, int64_t end) {
  std::vector<int64_t> values;
  for (int64_t i = begin; i < end; ++i) values.push_back(i);
  return values;
}

// How a sequence of `rows` rows is fed: a prompt of rows cut in pieces of `piece`, or verification windows of `window`
// rows of which `accepted` (by step) beyond the first are kept; the others are junk rows, fed at their positions and
// taken back. The junk begins at row `rows` of the tables.
template <class Step>
void feed_pieces(int64_t rows, int64_t piece, const Step& step) {
  for (int64_t begin = 0; begin < rows; begin += piece) {
    const int64_t end = std::min(rows, begin + piece);
    step(Feed{0, begin, iota(begin, end), end - begin}, end - begin);
  }
}

template <class Step, class Accepted>
void feed_windows(int64_t rows, int64_t window, const Accepted& accepted, const Step& step) {
  int64_t junk = 0;
  for (int64_t begin = 0, turn = 0; begin < rows; ++turn) {
    const int64_t kept = std::min(1 + accepted(turn), rows - begin);
    std::vector<int64_t> source = iota(begin, begin + kept);
    while (static_cast<int64_t>(source.size()) < window) source.push_back(rows + junk++ % 64);
    step(Feed{0, begin, source, 1}, kept);
    begin += kept;
  }
}

inline constexpr int64_t kJunkRows = 64;

struct Backend {
  explicit Backend(CpuIsa isa = CpuIsa::kBest, int threads = 2) : pool(threads), ops(tested_backend.make(pool, isa)) {}
  ThreadPool pool;
  std::unique_ptr<Ops> ops;
};

}  // namespace verbatim::ops
