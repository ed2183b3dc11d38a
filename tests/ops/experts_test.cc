// Routed and shared experts against float64; bits across instruction sets, rows, blocks and ranks; and the mistakes
// that would pass a look at the output.
#include <gtest/gtest.h>

#include "tests/ops/product_harness.h"

namespace verbatim::ops {
namespace {

struct Shape {
  WeightForm form;
  int64_t experts, width, inner, shared_inner, rows, top;
  int parts;
  float limit;
};

struct Case {
  Shape shape;
  std::vector<StoredMatrix> gate, up, down;  // the shared expert last, BF16
  std::vector<ExpertWeights> experts;
  ExpertWeights shared;
  Floats x, weights;
  std::vector<int32_t> chosen;

  explicit Case(const Shape& s, float input_scale = 0.0f) : shape(s) {
    for (int64_t e = 0; e <= s.experts; ++e) {
      const bool is_shared = e == s.experts;
      const WeightForm form = is_shared ? WeightForm::kBf16 : s.form;
      const int64_t inner = is_shared ? s.shared_inner : s.inner;
      const auto seed = static_cast<uint64_t>(1000 + 10 * e);
      gate.emplace_back(form, inner, s.width, seed);
      up.emplace_back(form, inner, s.width, seed + 3);
      down.emplace_back(form, s.width, inner, seed + 6);
      if (form == WeightForm::kNvfp4) {
        // Each matrix has its own scale: gate's taken for up is a known mistake.
        gate.back().matrix.matrix_scale = 0.0041f * static_cast<float>(1 + e);
        up.back().matrix.matrix_scale = 0.0093f;
        if (input_scale > 0.0f) {
          gate.back().matrix.input_scale = input_scale;
          up.back().matrix.input_scale = e % 2 == 0 ? input_scale : 1.5f * input_scale;
          down.back().matrix.input_scale = 2 * input_scale;
        }
        for (StoredMatrix* m : {&gate.back(), &up.back()}) m->decode();
      }
    }
    for (size_t e = 0; e < gate.size(); ++e) experts.push_back({gate[e].matrix, up[e].matrix, down[e].matrix});
    shared = experts.back();
    experts.pop_back();
    x = random_floats(s.rows * s.width, 5, 0.3f);
    std::mt19937_64 bits(6);
    for (int64_t r = 0; r < s.rows; ++r) {
      std::vector<int32_t> ids;
      while (static_cast<int64_t>(ids.size()) < s.top) {
        const auto id = static_cast<int32_t>(bits() % static_cast<uint64_t>(s.experts));
        if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
      }
      chosen.insert(chosen.end(), ids.begin(), ids.end());
    }
    weights = random_floats(s.rows * s.top, 7);
    for (float& weight : weights) weight = std::fabs(weight) + 0.1f;
  }

  Floats run(Ops& ops, int64_t first_row, int64_t rows) const {
    Floats y(static_cast<size_t>(rows * shape.width), -9.0f);
    ops.experts(experts, shared, shape.limit, x.data() + first_row * shape.width, rows, shape.top,
                chosen.data() + first_row * shape.top, weights.data() + first_row * shape.top, shape.parts, y.data());
    return y;
  }
  Floats run(Ops& ops) const { return run(ops, 0, shape.rows); }
};

enum class Mistake { kNone, kNoClamp, kGateScaleForUp, kSharedWeighted, kNextSlot };

struct Result {
  std::vector<double> y, bound;
};

// Without rounded activations.
Result reference(const Case& c, Mistake mistake) {
  const Shape& s = c.shape;
  Result result;
  for (int64_t r = 0; r < s.rows; ++r) {
    const std::vector<double> x(c.x.begin() + r * s.width, c.x.begin() + (r + 1) * s.width);
    std::vector<double> y(static_cast<size_t>(s.width)), bound(static_cast<size_t>(s.width));
    for (int64_t slot = 0; slot <= s.top; ++slot) {
      const bool is_shared = slot == s.top;
      const auto e = is_shared ? static_cast<size_t>(s.experts)
                               : static_cast<size_t>(c.chosen[static_cast<size_t>(r * s.top + slot)]);
      const int64_t weight_slot = mistake == Mistake::kNextSlot ? (slot + 1) % s.top : slot;
      double weight = is_shared ? 1 : c.weights[static_cast<size_t>(r * s.top + weight_slot)];
      if (is_shared && mistake == Mistake::kSharedWeighted) weight = 2.5;
      const int64_t inner = c.gate[e].matrix.rows;
      const Reference gate = reference_product(c.gate[e].values, inner, x, 1);
      Reference up = reference_product(c.up[e].values, inner, x, 1);
      if (mistake == Mistake::kGateScaleForUp)
        for (double& value : up.y) value *= c.gate[e].matrix.matrix_scale / double{c.up[e].matrix.matrix_scale};
      std::vector<double> h, h_error;
      for (int64_t i = 0; i < inner; ++i) {
        const auto at = static_cast<size_t>(i);
        const bool clamp = mistake != Mistake::kNoClamp;
        const double a = clamp ? std::min<double>(gate.y[at], s.limit) : gate.y[at];
        const double b = clamp ? std::clamp<double>(up.y[at], -s.limit, s.limit) : up.y[at];
        const double silu = a / (1 + std::exp(-a));
        h.push_back(silu * b);
        // The dots' errors through silu (slope at most 1.1) and the product; silu within 3.5 ulp, one product.
        const double dot = dot_roundings(s.width, 1) * kRoundoff;
        h_error.push_back(1.1 * gate.magnitude[at] * dot * std::fabs(b) + std::fabs(silu) * up.magnitude[at] * dot +
                          std::fabs(silu * b) * 9 * kRoundoff);
      }
      for (int64_t o = 0; o < s.width; ++o) {
        double sum = 0, size = 0, error = 0;
        for (int64_t i = 0; i < inner; ++i) {
          const double w = c.down[e].values[static_cast<size_t>(o * inner + i)];
          sum += w * h[static_cast<size_t>(i)];
          size += std::fabs(w * h[static_cast<size_t>(i)]);
          error += std::fabs(w) * h_error[static_cast<size_t>(i)];
        }
        y[static_cast<size_t>(o)] += weight * sum;
        // top + 1 additions of slots beside the dot's own roundings.
        bound[static_cast<size_t>(o)] +=
            weight * (error + size * (dot_roundings(inner, s.parts) + static_cast<double>(s.top) + 2) * kRoundoff);
      }
    }
    result.y.insert(result.y.end(), y.begin(), y.end());
    result.bound.insert(result.bound.end(), bound.begin(), bound.end());
  }
  return result;
}

constexpr Shape kShapes[] = {
    {WeightForm::kNvfp4, 6, 64, 32, 48, 1, 3, 1, 1.0f},     {WeightForm::kNvfp4, 12, 128, 256, 64, 9, 4, 8, 0.7f},
    {WeightForm::kBf16, 5, 96, 64, 64, 30, 2, 2, 0.8f},     {WeightForm::kFp8Block, 4, 160, 144, 32, 7, 2, 1, 1.0f},
    {WeightForm::kF32, 3, 40, 24, 8, 17, 3, 4, 5.0f},       {WeightForm::kNvfp4, 3, 48, 96, 96, 40, 1, 4, 0.5f},
    {WeightForm::kNvfp4, 20, 256, 128, 128, 5, 8, 1, 10.0f}};

TEST(Experts, MatchFloat64AndAgreeInBits) {
  const EveryBackend backends(Bits::kOfOneBackend);
  for (const Shape& shape : kShapes) {
    const Case c(shape);
    const std::string what = std::string(form_name(shape.form)) + " " + std::to_string(shape.width);
    const Floats y = backends.run(what, [&](Ops& ops) { return c.run(ops); });
    const Result want = reference(c, Mistake::kNone);
    std::printf("%s: %.3f of the bound\n", what.c_str(), expect_near(what, y, want.y, want.bound));
  }
}

TEST(Experts, WrongFormulasAreFar) {
  Backend backend;
  const Case c(kShapes[1]);
  const Floats y = c.run(*backend.ops);
  const std::vector<double> bound = reference(c, Mistake::kNone).bound;
  expect_far("no clamp", y, reference(c, Mistake::kNoClamp).y, bound);
  expect_far("gate's scale used for up", y, reference(c, Mistake::kGateScaleForUp).y, bound);
  expect_far("shared expert scaled", y, reference(c, Mistake::kSharedWeighted).y, bound);
  expect_far("weights of other slots", y, reference(c, Mistake::kNextSlot).y, bound);
}

// Built from the other operators: the same bits, activations rounded or not.
TEST(Experts, AreTheirParts) {
  Backend backend;
  Ops& ops = *backend.ops;
  for (const float input_scale : {0.0f, 0.003f})
    for (const Shape& shape : kShapes) {
      // Parts of activations that are rounded must begin at blocks to be rounded alone.
      if (shape.form == WeightForm::kNvfp4 && input_scale > 0 && shape.inner / shape.parts % 16 != 0) continue;
      const Case c(shape, input_scale);
      const Shape& s = c.shape;
      Floats want;
      for (int64_t r = 0; r < s.rows; ++r) {
        // partials[slot][part]
        std::vector<std::vector<Floats>> partials;
        for (int64_t slot = 0; slot <= s.top; ++slot) {
          const ExpertWeights& e =
              slot == s.top ? c.shared
                            : c.experts[static_cast<size_t>(c.chosen[static_cast<size_t>(r * s.top + slot)])];
          const int64_t inner = e.gate.rows;
          Floats gate(static_cast<size_t>(inner)), up(gate), h(gate);
          ops.matmul(e.gate, c.x.data() + r * s.width, s.width, 1, 1, gate.data(), inner);
          ops.matmul(e.up, c.x.data() + r * s.width, s.width, 1, 1, up.data(), inner);
          ops.swiglu(gate.data(), up.data(), s.limit, inner, h.data());
          std::vector<Floats> parts;
          for (int part = 0; part < s.parts; ++part) {
            const int64_t cut = inner / s.parts;
            Floats y(static_cast<size_t>(s.width));
            ops.matmul(e.down.column_range(part * cut, cut), h.data() + part * cut, cut, 1, 1, y.data(), s.width);
            parts.push_back(y);
          }
          partials.push_back(parts);
        }
        for (int64_t o = 0; o < s.width; ++o) {
          Floats sums;
          for (size_t part = 0; part < static_cast<size_t>(s.parts); ++part) {
            float sum = 0;
            for (size_t slot = 0; slot < static_cast<size_t>(s.top); ++slot) {
              const float weight = c.weights[static_cast<size_t>(r * s.top) + slot];
              const float term = partials[slot][part][static_cast<size_t>(o)];
              sum = slot == 0 ? weight * term : std::fma(weight, term, sum);
            }
            sums.push_back(sum + partials.back()[part][static_cast<size_t>(o)]);
          }
          while (sums.size() > 1) {
            Floats next;
            for (size_t i = 0; i + 1 < sums.size(); i += 2) next.push_back(sums[i] + sums[i + 1]);
            sums = next;
          }
          want.push_back(sums[0]);
        }
      }
      EXPECT_EQ(first_difference(c.run(ops), want), "") << form_name(s.form) << " " << s.width << " " << input_scale;
    }
}

TEST(Experts, RowsTogetherAreEachAlone) {
  const EveryBackend backends(Bits::kOfOneBackend);
  for (const Shape& shape : {kShapes[1], kShapes[2], kShapes[5]})
    for (const float input_scale : {0.0f, 0.003f}) {
      const Case c(shape, input_scale);
      const Floats together = backends.run("experts", [&](Ops& ops) { return c.run(ops); });
      Floats alone;
      for (int64_t r = 0; r < shape.rows; ++r) {
        const Floats y = c.run(*backends.all().back()->ops, r, 1);
        alone.insert(alone.end(), y.begin(), y.end());
      }
      EXPECT_EQ(first_difference(together, alone), "");
    }
}

// Enough rows and parts that rows are taken in blocks and outputs in strips.
TEST(Experts, BlocksAndStripsChangeNothing) {
  Backend backend;
  const Case c({WeightForm::kNvfp4, 4, 4096, 128, 128, 700, 3, 8, 1.0f});
  const Floats together = c.run(*backend.ops);
  for (const int64_t r : {0, 1, 255, 511, 512, 699})
    EXPECT_EQ(
        first_difference({together.begin() + r * 4096, together.begin() + (r + 1) * 4096}, c.run(*backend.ops, r, 1)),
        "")
        << r;
}

// Eight parts over 1, 2, 4 and 8 ranks: each rank has its share of every expert's inner width.
TEST(Experts, RanksGiveTheSameBits) {
  Backend backend;
  for (const Shape& shape : {Shape{WeightForm::kNvfp4, 7, 64, 128, 256, 6, 3, 8, 1.0f},
                             Shape{WeightForm::kBf16, 4, 48, 192, 64, 20, 2, 8, 1.0f}}) {
    const Case c(shape);
    const Floats whole = c.run(*backend.ops);
    for (const int ranks : {2, 4, 8}) {
      std::vector<Floats> sums;
      for (int rank = 0; rank < ranks; ++rank) {
        const auto share = [&](const ExpertWeights& e) {
          const int64_t cut = e.gate.rows / ranks;
          return ExpertWeights{e.gate.row_range(rank * cut, cut), e.up.row_range(rank * cut, cut),
                               e.down.column_range(rank * cut, cut)};
        };
        std::vector<ExpertWeights> own;
        for (const ExpertWeights& e : c.experts) own.push_back(share(e));
        Floats y(whole.size());
        backend.ops->experts(own, share(c.shared), shape.limit, c.x.data(), shape.rows, shape.top, c.chosen.data(),
                             c.weights.data(), 8 / ranks, y.data());
        sums.push_back(y);
      }
      for (int left = ranks; left > 1; left /= 2)
        for (int i = 0; i < left / 2; ++i)
          for (size_t j = 0; j < whole.size(); ++j)
            sums[static_cast<size_t>(i)][j] =
                sums[static_cast<size_t>(2 * i)][j] + sums[static_cast<size_t>(2 * i + 1)][j];
      EXPECT_EQ(first_difference(sums[0], whole), "") << form_name(shape.form) << " " << ranks << " ranks";
    }
  }
}

}  // namespace
}  // namespace verbatim::ops
