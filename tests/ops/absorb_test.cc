// Absorbed queries and values against float64 over kv_b in every stored form.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>

#include "base/formats.h"
#include "tests/ops/step_harness.h"

namespace verbatim::ops {
namespace {

// A random matrix in a stored form, and its values.
struct Stored {
  Matrix matrix;
  std::vector<std::byte> bytes;
  std::vector<uint8_t> block_scales;
  Floats grid;
  std::vector<double> values;  // [rows, columns]
};

Stored make_stored(WeightForm form, int64_t rows, int64_t columns, uint64_t seed) {
  std::mt19937_64 bits(seed);
  Stored s;
  s.matrix.form = form;
  s.matrix.rows = rows;
  s.matrix.columns = columns;
  s.values.resize(static_cast<size_t>(rows * columns));
  const Floats random = random_floats(rows * columns, seed);
  const auto code = [&](int64_t i) { return static_cast<uint8_t>(s.bytes[static_cast<size_t>(i)]); };
  switch (form) {
    case WeightForm::kF32:
    case WeightForm::kBf16: {
      const int64_t size = form == WeightForm::kF32 ? 4 : 2;
      s.matrix.row_bytes = columns * size + 2;  // at any alignment
      s.bytes.resize(static_cast<size_t>(rows * s.matrix.row_bytes));
      for (int64_t i = 0; i < rows * columns; ++i) {
        std::byte* to = s.bytes.data() + i / columns * s.matrix.row_bytes + i % columns * size;
        const uint16_t half = float_to_bf16(random[static_cast<size_t>(i)]);
        if (size == 4)
          std::copy_n(reinterpret_cast<const std::byte*>(&random[static_cast<size_t>(i)]), 4, to);
        else
          std::copy_n(reinterpret_cast<const std::byte*>(&half), 2, to);
        s.values[static_cast<size_t>(i)] = size == 4 ? random[static_cast<size_t>(i)] : bf16_to_float(half);
      }
      break;
    }
    case WeightForm::kNvfp4: {
      s.matrix.row_bytes = columns / 2;
      s.matrix.block_scale_stride = columns / 16;
      s.matrix.matrix_scale = 0.0123f;
      s.matrix.input_scale = 0.5f;  // of the latents: absorbing ignores it
      s.bytes.resize(static_cast<size_t>(rows * columns / 2));
      s.block_scales.resize(static_cast<size_t>(rows * columns / 16));
      for (std::byte& byte : s.bytes) byte = static_cast<std::byte>(bits());
      for (uint8_t& scale : s.block_scales) scale = static_cast<uint8_t>(bits() % 0x7f);
      s.matrix.block_scale = s.block_scales.data();
      for (int64_t i = 0; i < rows * columns; ++i)
        s.values[static_cast<size_t>(i)] =
            double{e2m1_to_float(static_cast<uint8_t>(i % 2 == 0 ? code(i / 2) & 15 : code(i / 2) >> 4))} *
            e4m3_to_float(s.block_scales[static_cast<size_t>(i / 16)]) * double{s.matrix.matrix_scale};
      break;
    }
    case WeightForm::kFp8Block: {
      s.matrix.row_bytes = columns;
      s.matrix.grid_stride = (columns + 127) / 128;
      s.grid = random_floats((rows + 127) / 128 * s.matrix.grid_stride, seed + 1, 0.01f);
      s.matrix.grid_scale = s.grid.data();
      s.bytes.resize(static_cast<size_t>(rows * columns));
      for (std::byte& byte : s.bytes) {
        const auto value = static_cast<uint8_t>(bits());
        byte = static_cast<std::byte>(e4m3_is_nan(value) ? uint8_t{0x38} : value);
      }
      for (int64_t i = 0; i < rows * columns; ++i)
        s.values[static_cast<size_t>(i)] =
            double{e4m3_to_float(code(i))} *
            s.grid[static_cast<size_t>(i / columns / 128 * s.matrix.grid_stride + i % columns / 128)];
      break;
    }
  }
  s.matrix.data = s.bytes.data();
  return s;
}

constexpr WeightForm kForms[] = {WeightForm::kBf16, WeightForm::kF32, WeightForm::kNvfp4, WeightForm::kFp8Block};

struct Sizes {
  int64_t heads, key_width, value_width, latent_width, rows;
};
constexpr Sizes kSizes[] = {{4, 48, 32, 64, 5}, {3, 256, 256, 512, 9}, {2, 300, 16, 208, 3}, {1, 16, 48, 16, 1}};

TEST(Absorb, MatchesTheDefinition) {
  Backend backend;
  for (const Sizes& z : kSizes) {
    for (const WeightForm form : kForms) {
      const int64_t head_rows = z.key_width + z.value_width;
      const Stored w = make_stored(form, z.heads * head_rows, z.latent_width, 1);
      const Floats q = random_floats(z.rows * z.heads * z.key_width, 2);
      const Floats attended = random_floats(z.rows * z.heads * z.latent_width, 3);
      const Device q_device(*backend.ops, q), attended_device(*backend.ops, attended);
      const Device absorbed(*backend.ops, z.rows * z.heads * z.latent_width);
      const Device values(*backend.ops, z.rows * z.heads * z.value_width);
      backend.ops->absorb_queries(w.matrix, z.heads, z.key_width, z.value_width, q_device.floats(), z.rows,
                                  absorbed.floats());
      backend.ops->absorb_values(w.matrix, z.heads, z.key_width, z.value_width, attended_device.floats(), z.rows,
                                 values.floats());
      const Floats got_absorbed = absorbed.read(), got_values = values.read();
      // A column product rounds once a term (and once a slice), a dot once in 16 and 4 for the lanes, a slice or a
      // scale one each: in units of roundoff of the terms' magnitudes.
      const double column_bound = (static_cast<double>(z.key_width) + 4) * 0x1p-24;
      const double dot_bound = (static_cast<double>(z.latent_width) / 16 + 8) * 0x1p-24;
      double worst = 0;
      for (int64_t r = 0; r < z.rows; ++r) {
        for (int64_t n = 0; n < z.heads; ++n) {
          const auto weight = [&](int64_t row, int64_t column) {
            return w.values[static_cast<size_t>((n * head_rows + row) * z.latent_width + column)];
          };
          for (int64_t c = 0; c < z.latent_width; ++c) {
            double sum = 0, magnitude = 0;
            for (int64_t j = 0; j < z.key_width; ++j) {
              const double term = weight(j, c) * q[static_cast<size_t>((r * z.heads + n) * z.key_width + j)];
              sum += term;
              magnitude += std::abs(term);
            }
            const double off =
                std::abs(sum - got_absorbed[static_cast<size_t>((r * z.heads + n) * z.latent_width + c)]);
            worst = std::max(worst, off / (magnitude * column_bound));
          }
          for (int64_t j = 0; j < z.value_width; ++j) {
            double sum = 0, magnitude = 0;
            for (int64_t c = 0; c < z.latent_width; ++c) {
              const double term =
                  weight(z.key_width + j, c) * attended[static_cast<size_t>((r * z.heads + n) * z.latent_width + c)];
              sum += term;
              magnitude += std::abs(term);
            }
            const double off = std::abs(sum - got_values[static_cast<size_t>((r * z.heads + n) * z.value_width + j)]);
            worst = std::max(worst, off / (magnitude * dot_bound));
          }
        }
      }
      EXPECT_LT(worst, 1.0) << "form " << static_cast<int>(form) << ", key width " << z.key_width;
      EXPECT_GT(worst, 1e-3);
    }
  }
}

TEST(Absorb, SameBitsEverywhere) {
  for (const Sizes& z : kSizes) {
    for (const WeightForm form : kForms) {
      const Stored w = make_stored(form, z.heads * (z.key_width + z.value_width), z.latent_width, 4);
      const Floats q = random_floats(z.rows * z.heads * z.key_width, 5);
      const Floats attended = random_floats(z.rows * z.heads * z.latent_width, 6);
      Floats expected;
      for (const CpuIsa isa : {CpuIsa::kPlain, CpuIsa::kAvx2, CpuIsa::kAvx512}) {
        if (!cpu_isa_available(isa)) continue;
        for (const int threads : {1, 2, 3}) {
          for (const bool alone : {false, true}) {  // all rows in one call, or each in its own
            Backend backend(isa, threads);
            Floats got;
            for (const bool queries : {true, false}) {
              const int64_t in = z.heads * (queries ? z.key_width : z.latent_width);
              const int64_t out = z.heads * (queries ? z.latent_width : z.value_width);
              const Device x(*backend.ops, queries ? q : attended), y(*backend.ops, z.rows * out);
              const int64_t step = alone ? 1 : z.rows;
              for (int64_t r = 0; r < z.rows; r += step) {
                if (queries)
                  backend.ops->absorb_queries(w.matrix, z.heads, z.key_width, z.value_width, x.floats() + r * in, step,
                                              y.floats() + r * out);
                else
                  backend.ops->absorb_values(w.matrix, z.heads, z.key_width, z.value_width, x.floats() + r * in, step,
                                             y.floats() + r * out);
              }
              const Floats part = y.read();
              got.insert(got.end(), part.begin(), part.end());
            }
            if (expected.empty()) expected = got;
            EXPECT_EQ(first_difference(got, expected), "")
                << backend.ops->name() << ", " << threads << " threads, form " << static_cast<int>(form);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace verbatim::ops
