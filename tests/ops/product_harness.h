// What the tests of products and vector operators share: stored matrices with their values in float64, the backends
// that must agree in bits, and a comparison that prints its worst coordinate.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/formats.h"
#include "tests/ops/step_harness.h"

namespace verbatim::ops {

// Half an ulp of 1: the relative error of one rounding.
inline constexpr double kRoundoff = 0x1p-24;

inline constexpr WeightForm kForms[] = {WeightForm::kBf16, WeightForm::kF32, WeightForm::kNvfp4, WeightForm::kFp8Block};
inline const char* form_name(WeightForm form) {
  constexpr const char* kNames[] = {"bf16", "f32", "nvfp4", "fp8"};
  return kNames[static_cast<int>(form)];
}

// A random matrix in a stored form, at an odd address, and its values: what the bytes stand for, NVFP4 with its matrix
// scale, nothing rounded.
struct StoredMatrix {
  Matrix matrix;
  std::vector<uint8_t> bytes, block_scales;
  Floats grid;
  std::vector<double> values;  // [rows, columns]

  StoredMatrix(WeightForm form, int64_t rows, int64_t columns, uint64_t seed) {
    std::mt19937_64 bits(seed);
    matrix.form = form;
    matrix.rows = rows;
    matrix.columns = columns;
    const int64_t twice = form == WeightForm::kF32     ? 8
                          : form == WeightForm::kBf16  ? 4
                          : form == WeightForm::kNvfp4 ? 1
                                                       : 2;
    matrix.row_bytes = (columns * twice + 1) / 2 + 3;
    bytes.resize(static_cast<size_t>(rows * matrix.row_bytes + 1));
    const Floats random = random_floats(rows * columns, seed + 1);
    for (uint8_t& byte : bytes) {
      byte = static_cast<uint8_t>(bits());
      if (form == WeightForm::kFp8Block && e4m3_is_nan(byte)) byte = 0x7e;
    }
    for (int64_t i = 0; i < rows * columns; ++i) {
      uint8_t* row = bytes.data() + 1 + i / columns * matrix.row_bytes;
      const int64_t k = i % columns;
      const float value = random[static_cast<size_t>(i)];
      const uint16_t half = float_to_bf16(value);
      if (form == WeightForm::kF32) std::memcpy(row + 4 * k, &value, 4);
      if (form == WeightForm::kBf16) std::memcpy(row + 2 * k, &half, 2);
    }
    if (form == WeightForm::kNvfp4) {
      matrix.block_scale_stride = (columns + 15) / 16 + 1;
      matrix.matrix_scale = 0.0371f;
      block_scales.resize(static_cast<size_t>(rows * matrix.block_scale_stride));
      // Mostly of the size that real scales have, with both ends of the format among them.
      for (uint8_t& scale : block_scales) scale = static_cast<uint8_t>(0x28 + bits() % 0x30);
      for (size_t i = 0; i < block_scales.size(); i += 7) block_scales[i] = static_cast<uint8_t>(bits() % 0x7f);
    }
    if (form == WeightForm::kFp8Block) {
      matrix.grid_stride = (columns + 127) / 128;
      grid = random_floats((rows + 127) / 128 * matrix.grid_stride, seed + 2, 0.01f);
    }
    point();
    decode();
  }
  StoredMatrix(const StoredMatrix&) = delete;
  StoredMatrix(StoredMatrix&& other) noexcept
      : matrix(other.matrix),
        bytes(std::move(other.bytes)),
        block_scales(std::move(other.block_scales)),
        grid(std::move(other.grid)),
        values(std::move(other.values)) {
    point();
  }
  StoredMatrix& operator=(const StoredMatrix&) = delete;

  void point() {
    matrix.data = reinterpret_cast<const std::byte*>(bytes.data() + 1);
    matrix.block_scale = block_scales.empty() ? nullptr : block_scales.data();
    matrix.grid_scale = grid.empty() ? nullptr : grid.data();
  }
  // Fills `values` from the bytes; call again after changing them.
  void decode() {
    values.resize(static_cast<size_t>(matrix.rows * matrix.columns));
    for (int64_t r = 0; r < matrix.rows; ++r)
      for (int64_t k = 0; k < matrix.columns; ++k) values[static_cast<size_t>(r * matrix.columns + k)] = value(r, k);
  }
  double value(int64_t r, int64_t k) const {
    const uint8_t* row = bytes.data() + 1 + r * matrix.row_bytes;
    switch (matrix.form) {
      case WeightForm::kF32: {
        float v = 0;
        std::memcpy(&v, row + 4 * k, 4);
        return v;
      }
      case WeightForm::kBf16: {
        uint16_t v = 0;
        std::memcpy(&v, row + 2 * k, 2);
        return bf16_to_float(v);
      }
      case WeightForm::kNvfp4:
        return double{e2m1_to_float(static_cast<uint8_t>(k % 2 == 0 ? row[k / 2] & 15 : row[k / 2] >> 4))} *
               e4m3_to_float(block_scales[static_cast<size_t>(r * matrix.block_scale_stride + k / 16)]) *
               double{matrix.matrix_scale};
      case WeightForm::kFp8Block:
        return double{e4m3_to_float(row[k])} * grid[static_cast<size_t>(r / 128 * matrix.grid_stride + k / 128)];
    }
    return 0;
  }
};

// y = w x in float64 and sum |w x|, the unit of error bounds.
struct Reference {
  std::vector<double> y, magnitude;  // [rows of x, rows of w]
};
inline Reference reference_product(const std::vector<double>& w, int64_t outputs, const std::vector<double>& x,
                                   int64_t rows) {
  const auto columns = static_cast<int64_t>(x.size()) / rows;
  Reference result;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t o = 0; o < outputs; ++o) {
      double sum = 0, magnitude = 0;
      for (int64_t k = 0; k < columns; ++k) {
        const double term = w[static_cast<size_t>(o * columns + k)] * x[static_cast<size_t>(r * columns + k)];
        sum += term;
        magnitude += std::fabs(term);
      }
      result.y.push_back(sum);
      result.magnitude.push_back(magnitude);
    }
  return result;
}
inline std::vector<double> widen(const Floats& x) { return {x.begin(), x.end()}; }

// Roundings that a term of a dot meets at most: 16 in its lane, 4 in the lane tree, its slices, the tree of parts, the
// weight's own and the scale's. The matrix units cut each of a slice's 16 steps off instead of rounding it, and align
// its products to the largest before: counted as three; three terms of an activation add two sums.
inline double dot_roundings(int64_t columns, int parts) {
  if (tested_backend.is_cuda)
    return 3 * 16 + static_cast<double>((columns / parts + 127) / 128) + std::ceil(std::log2(parts)) + 4;
  const auto slices = static_cast<double>((columns / parts + 255) / 256);
  return 16 + 4 + slices + std::ceil(std::log2(parts)) + 2;
}

// |got - want| <= bound everywhere; returns the largest share of the bound and prints where it is.
inline double expect_near(const std::string& what, const Floats& got, const std::vector<double>& want,
                          const std::vector<double>& bound) {
  double worst = 0;
  size_t at = 0;
  EXPECT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < got.size() && i < want.size(); ++i) {
    const double off = std::fabs(got[i] - want[i]);
    const double share = off == 0 ? 0 : off / bound[i];
    if (!(share <= worst)) worst = share, at = i;
  }
  EXPECT_LE(worst, 1.0) << what << ": element " << at << " is " << got[at] << ", expected " << want[at] << " within "
                        << bound[at];
  return worst;
}

// A wrong formula must be far from what was computed: somewhere at least `times` bounds away.
inline void expect_far(const std::string& what, const Floats& got, const std::vector<double>& wrong,
                       const std::vector<double>& bound, double times = 100) {
  double most = 0;
  ASSERT_EQ(got.size(), wrong.size());
  for (size_t i = 0; i < got.size(); ++i) most = std::max(most, std::fabs(got[i] - wrong[i]) / bound[i]);
  std::printf("%s: %.3g bounds away\n", what.c_str(), most);
  EXPECT_GT(most, times) << what;
}

// Every instruction set of this machine with one, two and three threads; those that are missing are named once.
// Where CUDA is tested, it and the plain CPU, whose bits it has too but for products on the matrix units.
enum class Bits { kOfEveryBackend, kOfOneBackend };

class EveryBackend {
 public:
  explicit EveryBackend(Bits bits = Bits::kOfEveryBackend) {
    if (tested_backend.is_cuda) {
      if (bits == Bits::kOfEveryBackend) add(CpuIsa::kPlain, "plain", 1);
      add(CpuIsa::kBest, "cuda", 1);
      return;
    }
    constexpr std::pair<CpuIsa, const char*> kSets[] = {
        {CpuIsa::kPlain, "plain"}, {CpuIsa::kAvx2, "avx2"}, {CpuIsa::kAvx512, "avx512"}};
    int threads = 1;
    for (const auto& [isa, name] : kSets) {
      if (!cpu_isa_available(isa)) {
        std::printf("this machine has no %s: left out\n", name);
        continue;
      }
      for (int i = 0; i < (isa == CpuIsa::kPlain ? 1 : 2); ++i) {
        add(isa, name, threads);
        threads = threads % 3 + 1;
      }
    }
    // plain 1, avx2 2 and 3, avx512 1 and 2; and the best again with 3.
    add(CpuIsa::kBest, "best", 3);
  }

  // The result of the first, after comparing all others with it bit by bit.
  Floats run(const std::string& what, const std::function<Floats(Ops&)>& compute) const {
    const Floats first = compute(*backends_[0]->ops);
    for (size_t i = 1; i < backends_.size(); ++i)
      EXPECT_EQ(first_difference(first, compute(*backends_[i]->ops)), "")
          << what << ": " << names_[0] << " and " << names_[i];
    return first;
  }
  const std::vector<std::unique_ptr<Backend>>& all() const { return backends_; }

 private:
  void add(CpuIsa isa, const char* name, int threads) {
    backends_.push_back(std::make_unique<Backend>(isa, threads));
    names_.push_back(std::string(name) + " with " + std::to_string(threads) + " threads");
  }

  std::vector<std::unique_ptr<Backend>> backends_;
  std::vector<std::string> names_;
};

}  // namespace verbatim::ops
