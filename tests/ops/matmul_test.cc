// Products with stored weights: against float64, bits across instruction sets, threads, rows and cuts of parts.
#include <gtest/gtest.h>

#include <limits>

#include "tests/ops/product_harness.h"

namespace verbatim::ops {
namespace {

struct Sizes {
  int64_t outputs, columns, rows;
  int parts;
};

Floats product(Ops& ops, const Matrix& w, const Floats& x, int64_t rows, int parts) {
  Floats y(static_cast<size_t>(rows * w.rows), -7.0f);
  ops.matmul(w, x.data(), w.columns, rows, parts, y.data(), w.rows);
  return y;
}

bool can_store(WeightForm form, int64_t columns) { return form != WeightForm::kNvfp4 || columns % 2 == 0; }

std::string label(WeightForm form, const Sizes& z) {
  return std::string(form_name(form)) + " " + std::to_string(z.outputs) + " x " + std::to_string(z.columns) + ", " +
         std::to_string(z.rows) + " rows, " + std::to_string(z.parts) + " parts";
}

constexpr Sizes kSizes[] = {{1, 1, 1, 1},       {3, 2, 2, 1},      {5, 8, 3, 1},      {5, 7, 20, 1},
                            {9, 15, 5, 1},      {9, 16, 1, 1},     {130, 48, 3, 1},   {33, 256, 4, 1},
                            {33, 272, 7, 2},    {67, 512, 11, 2},  {40, 768, 12, 3},  {131, 1040, 33, 1},
                            {6, 40, 1, 2},      {64, 2048, 1, 8},  {37, 4096, 2, 8},  {129, 640, 50, 4},
                            {20, 24 * 8, 6, 8}, {260, 1000, 1, 5}, {260, 4096, 1, 1}, {70, 300 * 4, 40, 4}};

TEST(Matmul, MatchesFloat64AndAgreesInBits) {
  const EveryBackend backends(Bits::kOfOneBackend);
  double worst = 0;
  for (const Sizes& z : kSizes)
    for (const WeightForm form : kForms) {
      if (!can_store(form, z.columns)) continue;
      const StoredMatrix w(form, z.outputs, z.columns, 11);
      const Floats x = random_floats(z.rows * z.columns, 12);
      const std::string what = label(form, z);
      const Floats y = backends.run(what, [&](Ops& ops) { return product(ops, w.matrix, x, z.rows, z.parts); });
      Reference want = reference_product(w.values, z.outputs, widen(x), z.rows);
      for (double& m : want.magnitude) m *= dot_roundings(z.columns, z.parts) * kRoundoff;
      worst = std::max(worst, expect_near(what, y, want.y, want.magnitude));
    }
  std::printf("largest share of the bound: %.3f\n", worst);
}

// The order of a sum in scalar float32, from its definition in ops.h.
float defined_sum(const Floats& w, const float* x, int64_t columns, int parts, float scale) {
  const int64_t length = columns / parts;
  std::vector<float> sums;
  for (int part = 0; part < parts; ++part) {
    float sum = 0;
    for (int64_t begin = part * length; begin < (part + 1) * length; begin += 256) {
      const int64_t end = std::min(begin + 256, (part + 1) * length);
      float lanes[16] = {};
      for (int64_t k = begin; k < end; ++k)
        lanes[(k - begin) % 16] = std::fma(w[static_cast<size_t>(k)], x[k], lanes[(k - begin) % 16]);
      for (int half = 8; half > 0; half /= 2)
        for (int l = 0; l < half; ++l) lanes[l] += lanes[l + half];
      sum = begin == part * length ? lanes[0] : sum + lanes[0];
    }
    sums.push_back(sum * scale);
  }
  while (sums.size() > 1) {
    std::vector<float> next;
    for (size_t i = 0; i + 1 < sums.size(); i += 2) next.push_back(sums[i] + sums[i + 1]);
    if (sums.size() % 2 == 1) next.push_back(sums.back());
    sums = next;
  }
  return sums[0];
}

TEST(Matmul, AddsInTheStatedOrder) {
  if (tested_backend.is_cuda) GTEST_SKIP() << "the matrix units have an order of their own";
  Backend backend;
  for (const Sizes& z : kSizes)
    for (const WeightForm form : kForms) {
      if (!can_store(form, z.columns)) continue;
      const StoredMatrix w(form, z.outputs, z.columns, 21);
      const Floats x = random_floats(z.rows * z.columns, 22);
      const Floats y = product(*backend.ops, w.matrix, x, z.rows, z.parts);
      const float scale = form == WeightForm::kNvfp4 ? w.matrix.matrix_scale : 1.0f;
      Floats row(static_cast<size_t>(z.columns)), want;
      for (int64_t r = 0; r < z.rows; ++r)
        for (int64_t o = 0; o < z.outputs; ++o) {
          for (int64_t k = 0; k < z.columns; ++k)
            row[static_cast<size_t>(k)] = static_cast<float>(w.value(o, k) / double{scale});
          want.push_back(defined_sum(row, x.data() + r * z.columns, z.columns, z.parts, scale));
        }
      EXPECT_EQ(first_difference(y, want), "") << label(form, z);
    }
}

TEST(Matmul, RowsTogetherAreEachAlone) {
  Backend backend;
  for (const WeightForm form : kForms)
    for (const int64_t columns : {1536, 304, 72}) {
      const StoredMatrix w(form, 77, columns, 31);
      constexpr int64_t kRows = 70;
      const Floats x = random_floats(kRows * columns, 32);
      Floats alone;
      for (int64_t r = 0; r < kRows; ++r) {
        const Floats y = product(*backend.ops, w.matrix, gather(x, columns, {r}), 1, 2);
        alone.insert(alone.end(), y.begin(), y.end());
      }
      for (int64_t rows = 1; rows <= kRows; rows += rows < 20 ? 1 : 7) {
        const Floats y = product(*backend.ops, w.matrix, x, rows, 2);
        EXPECT_EQ(first_difference(y, {alone.begin(), alone.begin() + rows * 77}), "")
            << form_name(form) << " " << columns << " columns, " << rows << " rows";
      }
    }
}

// More rows than are prepared at a time.
TEST(Matmul, ManyRows) {
  Backend backend;
  const StoredMatrix w(WeightForm::kBf16, 40, 64, 41);
  const Floats x = random_floats(1100 * 64, 42);
  const Floats y = product(*backend.ops, w.matrix, x, 1100, 1);
  for (const int64_t r : {0, 511, 512, 1023, 1024, 1099})
    EXPECT_EQ(first_difference({y.begin() + r * 40, y.begin() + (r + 1) * 40},
                               product(*backend.ops, w.matrix, gather(x, 64, {r}), 1, 1)),
              "");
}

TEST(Matmul, StridesAreKept) {
  Backend backend;
  const StoredMatrix w(WeightForm::kNvfp4, 33, 128, 51);
  for (const int64_t rows : {2, 9, 30}) {
    const Floats x = random_floats(rows * 150, 52);
    Floats y(static_cast<size_t>(rows * 40), -3.0f), packed;
    backend.ops->matmul(w.matrix, x.data(), 150, rows, 1, y.data(), 40);
    for (int64_t r = 0; r < rows; ++r) packed.insert(packed.end(), x.begin() + r * 150, x.begin() + r * 150 + 128);
    const Floats want = product(*backend.ops, w.matrix, packed, rows, 1);
    for (int64_t r = 0; r < rows; ++r) {
      EXPECT_EQ(first_difference({y.begin() + r * 40, y.begin() + r * 40 + 33},
                                 {want.begin() + r * 33, want.begin() + (r + 1) * 33}),
                "");
      for (int64_t i = 33; i < 40; ++i) EXPECT_EQ(y[static_cast<size_t>(r * 40 + i)], -3.0f);
    }
  }
}

// Views at any row and column give what the whole matrix' values give.
TEST(Matmul, ViewsAtOddPlaces) {
  const EveryBackend backends(Bits::kOfOneBackend);
  for (const WeightForm form : kForms) {
    const StoredMatrix w(form, 150, 400, 61);
    for (const auto& [row, rows] : {std::pair<int64_t, int64_t>{1, 149}, {127, 5}, {130, 1}})
      for (const auto& [column, columns] :
           {std::pair<int64_t, int64_t>{0, 400}, {2, 398}, {16, 144}, {126, 20}, {250, 33}, {34, 1}}) {
        const Matrix view = w.matrix.row_range(row, rows).column_range(column, columns);
        for (const int64_t n : {1, 6, 17}) {
          const Floats x = random_floats(n * columns, 62);
          const std::string what = std::string(form_name(form)) + " view " + std::to_string(row) + " " +
                                   std::to_string(column) + " " + std::to_string(columns);
          const Floats y = backends.run(what, [&](Ops& ops) { return product(ops, view, x, n, 1); });
          std::vector<double> values;
          for (int64_t r = row; r < row + rows; ++r)
            for (int64_t k = column; k < column + columns; ++k) values.push_back(w.value(r, k));
          Reference want = reference_product(values, rows, widen(x), n);
          for (double& m : want.magnitude) m *= dot_roundings(columns, 1) * kRoundoff;
          expect_near(what, y, want.y, want.magnitude);
        }
      }
  }
}

// Eight parts, cut over 1, 2, 4 and 8 ranks: each rank its own columns and parts, sums of ranks as a tree.
TEST(Matmul, RanksGiveTheSameBits) {
  Backend backend;
  for (const WeightForm form : kForms)
    for (const int64_t part : {16, 48, 256, 288, 24, 300, 6}) {
      const int64_t columns = 8 * part;
      const StoredMatrix w(form, 37, columns, 71);
      for (const int64_t rows : {1, 6, 19}) {
        const Floats x = random_floats(rows * columns, 72);
        const Floats whole = product(*backend.ops, w.matrix, x, rows, 8);
        for (const int ranks : {2, 4, 8}) {
          std::vector<Floats> sums;
          const int64_t cut = columns / ranks;
          for (int rank = 0; rank < ranks; ++rank) {
            Floats own;
            for (int64_t r = 0; r < rows; ++r)
              own.insert(own.end(), x.begin() + r * columns + rank * cut, x.begin() + r * columns + (rank + 1) * cut);
            sums.push_back(product(*backend.ops, w.matrix.column_range(rank * cut, cut), own, rows, 8 / ranks));
          }
          for (int left = ranks; left > 1; left /= 2)
            for (int i = 0; i < left / 2; ++i)
              for (size_t j = 0; j < whole.size(); ++j)
                sums[static_cast<size_t>(i)][j] =
                    sums[static_cast<size_t>(2 * i)][j] + sums[static_cast<size_t>(2 * i + 1)][j];
          EXPECT_EQ(first_difference(sums[0], whole), "")
              << form_name(form) << " " << columns << " columns, " << rows << " rows, " << ranks << " ranks";
        }
      }
    }
}

TEST(Matmul, GroupIsEachAlone) {
  Backend backend;
  const StoredMatrix a(WeightForm::kBf16, 65, 256, 81), b(WeightForm::kNvfp4, 3, 256, 82),
      c(WeightForm::kF32, 9, 256, 83), d(WeightForm::kFp8Block, 40, 256, 84);
  StoredMatrix e(WeightForm::kNvfp4, 50, 256, 85);
  e.matrix.input_scale = 0.01f;
  for (const int64_t rows : {1, 5, 20}) {
    const Floats x = random_floats(rows * 256, 86);
    std::vector<Floats> y;
    std::vector<Ops::Product> products;
    for (const StoredMatrix* w : {&a, &b, &c, &d, static_cast<const StoredMatrix*>(&e)})
      y.emplace_back(static_cast<size_t>(rows * w->matrix.rows));
    size_t i = 0;
    for (const StoredMatrix* w : {&a, &b, &c, &d, static_cast<const StoredMatrix*>(&e)}) {
      products.push_back({&w->matrix, y[i].data(), w->matrix.rows});
      ++i;
    }
    backend.ops->matmul_group(products, x.data(), 256, rows);
    for (i = 0; i < products.size(); ++i)
      EXPECT_EQ(first_difference(y[i], product(*backend.ops, *products[i].weight, x, rows, 1)), "") << i;
  }
}

// Zero rows, the largest and smallest activations, all codes and scales at their limits.
TEST(Matmul, ExtremeInputs) {
  const EveryBackend backends(Bits::kOfOneBackend);
  StoredMatrix w(WeightForm::kNvfp4, 40, 512, 91);
  for (size_t i = 0; i < w.bytes.size(); ++i)
    if (i % 3 == 0) w.bytes[i] = i % 2 == 0 ? 0x77 : 0xff;  // 6 and -6
  constexpr uint8_t kScales[] = {0x00, 0x01, 0x07, 0x08, 0x7e, 0x38};
  for (size_t i = 0; i < w.block_scales.size(); ++i) w.block_scales[i] = kScales[i % 6];
  w.decode();
  StoredMatrix bytes(WeightForm::kFp8Block, 40, 512, 92);
  for (size_t i = 0; i < bytes.bytes.size(); i += 2) bytes.bytes[i] = i % 4 == 0 ? 0x7e : 0x81;  // 448, -2^-9
  bytes.decode();
  for (const StoredMatrix* m : {&std::as_const(w), &std::as_const(bytes)})
    for (const float scale : {1e-38f, 1e-30f, 1.0f, 1e30f}) {
      Floats x = random_floats(3 * 512, 93, scale);
      std::fill(x.begin(), x.begin() + 512, 0.0f);
      const Floats y = backends.run("extreme", [&](Ops& ops) { return product(ops, m->matrix, x, 3, 2); });
      for (size_t o = 0; o < 40; ++o) EXPECT_EQ(y[o], 0.0f);
      Reference want = reference_product(m->values, 40, widen(x), 3);
      // Results below 2^-126 lose bits: half of 2^-149 a rounding, before the scale multiplies it.
      for (double& b : want.magnitude) b = b * dot_roundings(512, 2) * kRoundoff + 600 * 0x1p-150;
      // So do the terms of an activation: half of 2^-133 each.
      if (tested_backend.is_cuda)
        for (size_t i = 0; i < want.magnitude.size(); ++i)
          for (size_t k = 0; k < 512; ++k) want.magnitude[i] += std::fabs(m->values[i % 40 * 512 + k]) * 0x1p-133;
      expect_near("extreme", y, want.y, want.magnitude);
    }
}

// A NaN among the weights makes its outputs NaN and no others.
TEST(Matmul, NanBytesStayNan) {
  for (const WeightForm form : {WeightForm::kNvfp4, WeightForm::kFp8Block})
    for (const uint8_t nan : {uint8_t{0x7f}, uint8_t{0xff}}) {
      StoredMatrix w(form, 70, 320, 101);
      if (form == WeightForm::kNvfp4)
        w.block_scales[static_cast<size_t>(5 * w.matrix.block_scale_stride + 3)] = nan;
      else
        w.bytes[static_cast<size_t>(1 + 5 * w.matrix.row_bytes + 77)] = nan;
      const EveryBackend backends(Bits::kOfOneBackend);
      for (const int64_t rows : {1, 2, 6, 18}) {
        const Floats x = random_floats(rows * 320, 102);
        for (const auto& backend : backends.all()) {
          const Floats y = product(*backend->ops, w.matrix, x, rows, 1);
          for (size_t i = 0; i < y.size(); ++i) EXPECT_EQ(std::isnan(y[i]), i % 70 == 5) << backend->ops->name();
        }
      }
    }
}

// Activations rounded to NVFP4, from the definition (MODEL.md section 9): a search over all codes.
std::vector<double> rounded_activation(const float* x, int64_t columns, float input_scale) {
  const auto nearest = [](double value, int codes, const std::function<float(uint8_t)>& decode) {
    int best = 0;
    for (int c = 1; c < codes; ++c) {
      const double a = std::fabs(decode(static_cast<uint8_t>(c)) - value);
      const double b = std::fabs(decode(static_cast<uint8_t>(best)) - value);
      if (a < b || (a == b && c % 2 == 0)) best = c;
    }
    return decode(static_cast<uint8_t>(best));
  };
  std::vector<double> result;
  for (int64_t begin = 0; begin < columns; begin += 16) {
    const int64_t end = std::min(begin + 16, columns);
    float most = 0;
    for (int64_t k = begin; k < end; ++k) most = std::max(most, std::fabs(x[k]));
    const float scale = nearest(std::clamp(most / (6.0f * input_scale), 0x1p-9f, 448.0f), 127,
                                [](uint8_t c) { return e4m3_to_float(c); });
    for (int64_t k = begin; k < end; ++k) {
      const float value = x[k] / (scale * input_scale);
      const float code = nearest(std::fabs(value), 8, [](uint8_t c) { return e2m1_to_float(c); });
      result.push_back((value < 0 ? -1.0 : 1.0) * code * scale * input_scale);
    }
  }
  return result;
}

TEST(Matmul, RoundsActivationsToNvfp4) {
  const EveryBackend backends(Bits::kOfOneBackend);
  for (const int64_t columns : {512, 48, 40})
    for (const float input_scale : {1e-6f, 0.004f, 3.0f})
      for (const int64_t rows : {1, 3, 6, 20}) {
        StoredMatrix w(WeightForm::kNvfp4, 35, columns, 111);
        w.matrix.input_scale = input_scale;
        Floats x = random_floats(rows * columns, 112);
        std::fill(x.begin(), x.begin() + 16, 0.0f);
        x[static_cast<size_t>(columns - 1)] = 2.5f * 1.0e4f;  // saturates the scale for the smallest input_scale
        const Floats y = backends.run("W4A4", [&](Ops& ops) { return product(ops, w.matrix, x, rows, 1); });
        std::vector<double> rounded, exact = widen(x);
        for (int64_t r = 0; r < rows; ++r) {
          const auto row = rounded_activation(x.data() + r * columns, columns, input_scale);
          rounded.insert(rounded.end(), row.begin(), row.end());
        }
        Reference want = reference_product(w.values, 35, rounded, rows);
        // One rounding more: the product of the two scales.
        for (double& m : want.magnitude) m *= (dot_roundings(columns, 1) + 1) * kRoundoff;
        expect_near("W4A4", y, want.y, want.magnitude);
        if (columns == 512 && rows == 1 && input_scale == 0.004f)
          expect_far("activations left unrounded", y, reference_product(w.values, 35, exact, rows).y, want.magnitude);
      }
}

TEST(Matmul, NanActivationsStayNanWhenRounded) {
  Backend backend;
  StoredMatrix w(WeightForm::kNvfp4, 4, 64, 121);
  w.matrix.input_scale = 0.01f;
  Floats x(64, 1.0f);
  x[20] = std::numeric_limits<float>::quiet_NaN();
  for (const float y : product(*backend.ops, w.matrix, x, 1, 1)) EXPECT_TRUE(std::isnan(y));
}

// Which formula it is: each of these is a mistake that other engines made.
TEST(Matmul, WrongFormulasAreFar) {
  Backend backend;
  const StoredMatrix w(WeightForm::kNvfp4, 64, 1024, 131);
  const Floats x = random_floats(1024, 132);
  const Floats y = product(*backend.ops, w.matrix, x, 1, 1);
  Reference want = reference_product(w.values, 64, widen(x), 1);
  for (double& m : want.magnitude) m *= dot_roundings(1024, 1) * kRoundoff;
  expect_near("right", y, want.y, want.magnitude);
  std::vector<double> swapped(w.values.size()), shifted(w.values.size()), x16 = widen(x);
  for (size_t i = 0; i < swapped.size(); ++i) {
    swapped[i] = w.values[i ^ 1];  // high nibble first
    shifted[i] = w.values[(i + 1) % w.values.size()];
  }
  for (double& value : x16) value = bf16_to_float(float_to_bf16(static_cast<float>(value)));
  // In units of a bound that is wider on CUDA.
  const double times = tested_backend.is_cuda ? 20 : 100;
  expect_far("high nibble first", y, reference_product(swapped, 64, widen(x), 1).y, want.magnitude, times);
  expect_far("weights one column off", y, reference_product(shifted, 64, widen(x), 1).y, want.magnitude, times);
  expect_far("activations in bf16", y, reference_product(w.values, 64, x16, 1).y, want.magnitude, times);
}

}  // namespace
}  // namespace verbatim::ops
