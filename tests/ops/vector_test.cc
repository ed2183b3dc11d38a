// Norms, activations, hyper-connections, router and argmax against float64, and bits across instruction sets.
#include <gtest/gtest.h>

#include <limits>
#include <numeric>

#include "ops/cuda_backend.h"
#include "tests/ops/product_harness.h"

namespace verbatim::ops {
namespace {

constexpr int64_t kWidths[] = {1, 7, 16, 31, 256, 1000, 4096};

TEST(Embed, CopiesARowToEveryStream) {
  const EveryBackend backends;
  for (const WeightForm form : kForms) {
    const StoredMatrix table(form, 20, 96, 1);
    const std::vector<int32_t> ids = {3, 0, 19, 3};
    const Floats out = backends.run("embed", [&](Ops& ops) {
      Floats streams(4 * 3 * 96);
      ops.embed(table.matrix, ids, 3, streams.data());
      // The same for ids that an operator could have left.
      const Buffer there(ops, 8 * sizeof(int32_t));
      ops.copy_in(there.ints(), ids.data(), 4 * sizeof(int32_t));
      ops.copy(there.ints() + 4, there.ints(), 4 * sizeof(int32_t));
      Floats again(streams.size());
      ops.embed(table.matrix, StepIds::on_backend(there.ints() + 4, 4), 3, again.data());
      EXPECT_EQ(again, streams);
      return streams;
    });
    for (size_t i = 0; i < out.size(); ++i) {
      const int64_t row = ids[i / (3 * 96)];
      EXPECT_EQ(out[i], static_cast<float>(table.value(row, static_cast<int64_t>(i % 96)))) << form_name(form) << i;
    }
  }
}

// Roundings of dot16, then division, sum, root, reciprocal (half of the error of what is under the root) and products.
double norm_bound(int64_t width) { return (dot_roundings(width, 1) / 2 + 6) * kRoundoff; }

TEST(RmsNorm, MatchesFloat64) {
  const EveryBackend backends;
  for (const int64_t width : kWidths)
    for (const float scale : {0.0f, 1e-12f, 1.0f, 1e12f}) {
      const Floats x = random_floats(5 * (width + 3), 2, scale), weight = random_floats(width, 3);
      const Floats y = backends.run("rms_norm", [&](Ops& ops) {
        Floats result(static_cast<size_t>(5 * width));
        ops.rms_norm(x.data(), width + 3, weight.data(), 1e-5f, 5, width, result.data(), width);
        return result;
      });
      std::vector<double> want, bound;
      for (int64_t r = 0; r < 5; ++r) {
        const float* row = x.data() + r * (width + 3);
        const double squares = norm(row, width) * norm(row, width);
        for (int64_t k = 0; k < width; ++k) {
          want.push_back(weight[static_cast<size_t>(k)] * (row[k] / std::sqrt(squares / width + double{1e-5f})));
          bound.push_back(std::fabs(want.back()) * norm_bound(width) + 1e-44);
        }
      }
      expect_near("rms_norm", y, want, bound);
      if (scale == 1e-12f) {
        std::vector<double> without = want;
        for (double& value : without) value *= std::sqrt(1e-5) / 1e-12;
        expect_far("no epsilon", y, without, bound);
      }
    }
}

TEST(LayerNorm, MatchesFloat64) {
  const EveryBackend backends;
  for (const int64_t width : kWidths) {
    Floats x = random_floats(3 * width, 4);
    for (float& value : x) value += 3.0f;
    const Floats weight = random_floats(width, 5), bias = random_floats(width, 6);
    const Floats y = backends.run("layer_norm", [&](Ops& ops) {
      Floats result = x;  // in place
      ops.layer_norm(result.data(), weight.data(), bias.data(), 1e-6f, 3, width, result.data());
      return result;
    });
    std::vector<double> want, bound;
    for (int64_t r = 0; r < 3; ++r) {
      const float* row = x.data() + r * width;
      const double mean = std::accumulate(row, row + width, 0.0) / width;
      double variance = 0, magnitude = 0;
      for (int64_t k = 0; k < width; ++k) {
        variance += (row[k] - mean) * (row[k] - mean) / width;
        magnitude += std::fabs(row[k]) / width;
      }
      const double inverse = 1 / std::sqrt(variance + double{1e-6f});
      // The mean's error moves every difference from it, and the variance by less than that.
      const double mean_error = magnitude * (dot_roundings(width, 1) + 2) * kRoundoff;
      for (int64_t k = 0; k < width; ++k) {
        const double scaled = (row[k] - mean) * inverse, w = weight[static_cast<size_t>(k)];
        want.push_back(scaled * w + bias[static_cast<size_t>(k)]);
        bound.push_back(std::fabs(w) * inverse * (mean_error + std::fabs(row[k]) * kRoundoff) * 2 +
                        std::fabs(scaled * w) * (norm_bound(width) + 2 * inverse * mean_error) +
                        std::fabs(want.back()) * kRoundoff);
      }
    }
    expect_near("layer_norm of " + std::to_string(width), y, want, bound);
  }
}

TEST(Add, AddsAndClears) {
  const EveryBackend backends;
  const Floats x = random_floats(40001, 7), start = random_floats(40001, 8);
  const Floats y = backends.run("add", [&](Ops& ops) {
    Floats result = start;
    ops.add(x.data(), 40001, result.data());
    return result;
  });
  for (size_t i = 0; i < y.size(); ++i) ASSERT_EQ(y[i], start[i] + x[i]);
  const Floats zeros = backends.run("clear", [&](Ops& ops) {
    Floats result = start;
    ops.clear(result.data(), 40000);
    return result;
  });
  EXPECT_EQ(std::count(zeros.begin(), zeros.end() - 1, 0.0f), 40000);
  EXPECT_EQ(zeros.back(), start.back());
}

TEST(Swiglu, MatchesFloat64AndClamps) {
  const EveryBackend backends;
  Floats gate = random_floats(20003, 9, 8.0f), up = random_floats(20003, 10, 8.0f);
  gate[0] = -1e30f, gate[1] = 1e30f, gate[2] = 0.0f, up[3] = -1e30f, gate[4] = 10.0f, up[4] = -10.0f;
  const Floats h = backends.run("swiglu", [&](Ops& ops) {
    Floats result(gate.size());
    ops.swiglu(gate.data(), up.data(), 10.0f, static_cast<int64_t>(gate.size()), result.data());
    return result;
  });
  const auto silu = [](double a) { return a / (1 + std::exp(-a)); };
  std::vector<double> want, bound, unclamped, gate_both_sides;
  for (size_t i = 0; i < gate.size(); ++i) {
    const double a = std::min<double>(gate[i], 10), b = std::clamp<double>(up[i], -10, 10);
    want.push_back(silu(a) * b);
    bound.push_back(std::fabs(want.back()) * 8 * kRoundoff + 1e-35);  // silu within 3.5 ulp, one product
    unclamped.push_back(silu(std::clamp(gate[i], -40.0f, 40.0f)) * std::clamp(up[i], -40.0f, 40.0f));
    gate_both_sides.push_back(silu(std::clamp<double>(gate[i], -10, 10)) * b);
  }
  expect_near("swiglu", h, want, bound);
  expect_far("no clamp", h, unclamped, bound);
  expect_far("gate clamped from below too", h, gate_both_sides, bound, 10);
  Floats bad = {std::numeric_limits<float>::quiet_NaN(), 1.0f}, other = {1.0f, std::numeric_limits<float>::quiet_NaN()};
  for (const auto& backend : backends.all()) {
    Floats y(2);
    backend->ops->swiglu(bad.data(), other.data(), 10.0f, 2, y.data());
    EXPECT_TRUE(std::isnan(y[0]) && std::isnan(y[1])) << "a NaN must not be clamped away";
  }
}

// ---- hyper-connections ----------------------------------------------------------------------------------------------
struct Maps {
  std::vector<double> pre, post, comb;
};

enum class Mistake { kNone, kNoSinkhorn, kNoEpsilonInNorm };

Maps reference_maps(const HyperShape& shape, const StoredMatrix& fn, const Floats& base, const Floats& scale,
                    const float* x, Mistake mistake) {
  const int64_t s = shape.streams, flat = s * shape.width;
  double squares = 0;
  for (int64_t i = 0; i < flat; ++i) squares += double{x[i]} * x[i];
  const double r =
      1 / std::sqrt(squares / flat + (mistake == Mistake::kNoEpsilonInNorm ? 0 : double{shape.norm_epsilon}));
  std::vector<double> m;
  for (int64_t i = 0; i < (2 + s) * s; ++i) {
    double sum = 0;
    for (int64_t k = 0; k < flat; ++k) sum += fn.values[static_cast<size_t>(i * flat + k)] * x[k];
    m.push_back(sum * r * scale[static_cast<size_t>(std::min<int64_t>(i / s, 2))] + base[static_cast<size_t>(i)]);
  }
  Maps maps;
  for (int64_t i = 0; i < s; ++i) {
    maps.pre.push_back(1 / (1 + std::exp(-m[static_cast<size_t>(i)])) + double{shape.epsilon});
    maps.post.push_back(2 / (1 + std::exp(-m[static_cast<size_t>(s + i)])));
  }
  auto& c = maps.comb;
  c.assign(m.begin() + 2 * s, m.end());
  const auto at = [&](int64_t i, int64_t j) -> double& { return c[static_cast<size_t>(i * s + j)]; };
  const auto rows = [&](double epsilon) {
    for (int64_t i = 0; i < s; ++i) {
      double sum = epsilon;
      for (int64_t j = 0; j < s; ++j) sum += at(i, j);
      for (int64_t j = 0; j < s; ++j) at(i, j) /= sum;
    }
  };
  const auto columns = [&] {
    for (int64_t j = 0; j < s; ++j) {
      double sum = double{shape.epsilon};
      for (int64_t i = 0; i < s; ++i) sum += at(i, j);
      for (int64_t i = 0; i < s; ++i) at(i, j) /= sum;
    }
  };
  for (int64_t i = 0; i < s; ++i) {
    const double most = *std::max_element(&at(i, 0), &at(i, 0) + s);
    for (int64_t j = 0; j < s; ++j) at(i, j) = std::exp(at(i, j) - most);
  }
  rows(0);
  for (double& value : c) value += double{shape.epsilon};
  if (mistake == Mistake::kNoSinkhorn) return maps;
  columns();
  for (int i = 1; i < shape.sinkhorn_iterations; ++i) {
    rows(double{shape.epsilon});
    columns();
  }
  return maps;
}

TEST(HyperConnections, MatchFloat64) {
  const EveryBackend backends;
  for (const auto& [streams, width, stream_scale] : {std::tuple<int64_t, int64_t, float>{4, 256, 1.0f},
                                                     {4, 1024, 2.0f},
                                                     {4, 1000, 30.0f},
                                                     {2, 17, 1.0f},
                                                     {1, 64, 1.0f},
                                                     {8, 40, 1e-3f}}) {
    const HyperShape shape{streams, width, 20, 1e-6f, 1e-5f};
    const int64_t flat = streams * width, count = (2 + streams) * streams, rows = 5;
    const StoredMatrix fn(WeightForm::kF32, count, flat, 20);
    const Floats base = random_floats(count, 21), scale = {0.11f, 0.07f, 0.13f}, norm_weight = random_floats(width, 22);
    Floats x = random_floats(rows * flat, 23, stream_scale);
    if (stream_scale == 1.0f) std::fill(x.begin(), x.begin() + flat, 0.0f);
    const Floats y = random_floats(rows * width, 24);
    const HyperWeights weights{fn.matrix, base.data(), scale.data()};
    const Floats out = backends.run("hyper", [&](Ops& ops) {
      Floats maps(static_cast<size_t>(rows * count)), h(static_cast<size_t>(rows * width)),
          streams_after = x, mean(static_cast<size_t>(rows * width));
      ops.hyper_enter(shape, weights, norm_weight.data(), x.data(), rows, maps.data(), h.data());
      ops.hyper_leave(shape, maps.data(), y.data(), rows, streams_after.data());
      ops.hyper_mean(shape, streams_after.data(), rows, mean.data());
      for (const Floats* part : {&h, &streams_after, &mean}) maps.insert(maps.end(), part->begin(), part->end());
      return maps;
    });
    auto from = out.begin();
    const auto take = [&](int64_t n) {
      const Floats part(from, from + n);
      from += n;
      return part;
    };
    const Floats maps = take(rows * count), h = take(rows * width), after = take(rows * flat),
                 mean = take(rows * width);

    std::vector<double> want_maps, want_h, want_after, want_mean, transposed, no_sinkhorn, no_epsilon;
    std::vector<double> bound_maps, bound_h, bound_after, bound_mean;
    for (int64_t r = 0; r < rows; ++r) {
      const float* row = x.data() + r * flat;
      const Maps m = reference_maps(shape, fn, base, scale, row, Mistake::kNone);
      const auto append = [](std::vector<double>& to, const Maps& part) {
        for (const auto* v : {&part.pre, &part.post, &part.comb}) to.insert(to.end(), v->begin(), v->end());
      };
      append(want_maps, m);
      append(no_sinkhorn, reference_maps(shape, fn, base, scale, row, Mistake::kNoSinkhorn));
      append(no_epsilon, reference_maps(shape, fn, base, scale, row, Mistake::kNoEpsilonInNorm));
      // Logits: |fn| |x| r is at most the sum of |fn| over sqrt(...): the dot's error, through exp or sigmoid (slope at
      // most 1 relative); 40 normalisations of 6 roundings each.
      double magnitude = 0, squares = 0;
      for (int64_t i = 0; i < flat; ++i) squares += double{row[i]} * row[i];
      for (int64_t i = 0; i < count; ++i) {
        double sum = 0;
        for (int64_t k = 0; k < flat; ++k) sum += std::fabs(fn.values[static_cast<size_t>(i * flat + k)] * row[k]);
        magnitude = std::max(magnitude, sum / std::sqrt(squares / flat + 1e-5));
      }
      const double logit = (0.13 * magnitude * (2 * dot_roundings(flat, 1) + 4) + 2 * 4) * kRoundoff;
      const double relative = 2 * logit + 240 * kRoundoff;
      for (int64_t i = 0; i < count; ++i)
        bound_maps.push_back(relative * want_maps[want_maps.size() - static_cast<size_t>(count - i)]);

      // From the maps that were computed: only the sums themselves are tested here.
      const float* own = maps.data() + r * count;
      double square = 0;
      std::vector<double> collapsed, collapsed_magnitude;
      for (int64_t k = 0; k < width; ++k) {
        double sum = 0, size = 0;
        for (int64_t s = 0; s < streams; ++s)
          sum += double{own[s]} * row[s * width + k], size += std::fabs(own[s] * row[s * width + k]);
        collapsed.push_back(sum);
        collapsed_magnitude.push_back(size);
        square += sum * sum;
      }
      const double inverse = 1 / std::sqrt(square / width + double{1e-5f});
      for (int64_t k = 0; k < width; ++k) {
        const double w = norm_weight[static_cast<size_t>(k)];
        want_h.push_back(w * collapsed[static_cast<size_t>(k)] * inverse);
        bound_h.push_back(std::fabs(w) * inverse * collapsed_magnitude[static_cast<size_t>(k)] *
                              (2 * static_cast<double>(streams) * kRoundoff + norm_bound(width)) +
                          1e-44);
        double sum_of_streams = 0, size_of_streams = 0;
        for (int64_t j = 0; j < streams; ++j)
          sum_of_streams += after[static_cast<size_t>(r * flat + j * width + k)],
              size_of_streams += std::fabs(after[static_cast<size_t>(r * flat + j * width + k)]);
        want_mean.push_back(sum_of_streams / static_cast<double>(streams));
        bound_mean.push_back(size_of_streams * kRoundoff * 2);
      }
      for (int64_t j = 0; j < streams; ++j)
        for (int64_t k = 0; k < width; ++k) {
          const double added = double{own[streams + j]} * y[static_cast<size_t>(r * width + k)];
          double sum = added, size = std::fabs(added), wrong = added;
          for (int64_t i = 0; i < streams; ++i) {
            const double term = double{own[2 * streams + i * streams + j]} * row[i * width + k];
            sum += term, size += std::fabs(term);
            wrong += double{own[2 * streams + j * streams + i]} * row[i * width + k];
          }
          want_after.push_back(sum);
          transposed.push_back(wrong);
          bound_after.push_back(size * (static_cast<double>(streams) + 1) * kRoundoff);
        }
    }
    const std::string what = std::to_string(streams) + " streams of " + std::to_string(width);
    expect_near("maps, " + what, maps, want_maps, bound_maps);
    expect_near("h, " + what, h, want_h, bound_h);
    expect_near("leave, " + what, after, want_after, bound_after);
    expect_near("mean, " + what, mean, want_mean, bound_mean);
    if (stream_scale < 1.0f) expect_far("no epsilon in the maps' norm", maps, no_epsilon, bound_maps);
    if (streams == 4) {
      expect_far("no Sinkhorn", maps, no_sinkhorn, bound_maps);
      expect_far("comb not transposed", after, transposed, bound_after);
    }
  }
}

// ---- router
// -----------------------------------------------------------------------------------------------------------
struct Routed {
  std::vector<int32_t> chosen;
  Floats weights;
};
Routed route(Ops& ops, const Floats& logits, const Floats& bias, int64_t rows, int64_t top) {
  const auto experts = static_cast<int64_t>(bias.size());
  Routed result{std::vector<int32_t>(static_cast<size_t>(rows * top)), Floats(static_cast<size_t>(rows * top))};
  ops.route(logits.data(), bias.data(), rows, experts, top, 2.5f, result.chosen.data(), result.weights.data());
  return result;
}

TEST(Route, MatchesFloat64) {
  const EveryBackend backends;
  for (const auto& [experts, top, rows] :
       {std::tuple<int64_t, int64_t, int64_t>{288, 8, 40}, {8, 8, 3}, {5, 1, 3}, {1, 1, 1}}) {
    const Floats logits = random_floats(rows * experts, 30), bias = random_floats(experts, 31, 0.3f);
    Routed got;
    const Floats weights = backends.run("route", [&](Ops& ops) {
      got = route(ops, logits, bias, rows, top);
      Floats all = got.weights;
      all.insert(all.end(), got.chosen.begin(), got.chosen.end());
      return all;
    });
    std::vector<double> want, bound, biased;
    for (int64_t r = 0; r < rows; ++r) {
      std::vector<double> score, key;
      for (int64_t e = 0; e < experts; ++e) {
        score.push_back(1 / (1 + std::exp(-double{logits[static_cast<size_t>(r * experts + e)]})));
        key.push_back(score.back() + bias[static_cast<size_t>(e)]);
      }
      std::vector<size_t> order(static_cast<size_t>(experts));
      std::iota(order.begin(), order.end(), size_t{0});
      std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return key[a] > key[b]; });
      double sum = 1e-20, biased_sum = 1e-20;
      for (int64_t i = 0; i < top; ++i)
        sum += score[order[static_cast<size_t>(i)]], biased_sum += key[order[static_cast<size_t>(i)]];
      for (int64_t i = 0; i < top; ++i) {
        EXPECT_EQ(got.chosen[static_cast<size_t>(r * top + i)], static_cast<int32_t>(order[static_cast<size_t>(i)]));
        want.push_back(score[order[static_cast<size_t>(i)]] / sum * 2.5);
        biased.push_back(key[order[static_cast<size_t>(i)]] / biased_sum * 2.5);
        // A sigmoid within 2.5 ulp over a sum of such, top additions, division and product.
        bound.push_back(want.back() * (10 + static_cast<double>(top) + 3) * kRoundoff);
      }
    }
    expect_near("route", got.weights, want, bound);
    if (top == 8 && experts > 8) expect_far("weights from biased scores", got.weights, biased, bound);
  }
}

TEST(Route, TiesGoToTheLowerId) {
  Backend backend;
  Floats logits(20, 0.5f), bias(20, 0.0f);
  logits[13] = 2.0f;
  const Routed got = route(*backend.ops, logits, bias, 1, 4);
  EXPECT_EQ(got.chosen, (std::vector<int32_t>{13, 0, 1, 2}));
  EXPECT_NE(got.chosen, (std::vector<int32_t>{13, 19, 18, 17})) << "ties to the higher id";
  // A bias selects, and is no part of the weight.
  bias[7] = 1.0f;
  const Routed biased = route(*backend.ops, Floats(20, 0.0f), bias, 1, 2);
  EXPECT_EQ(biased.chosen, (std::vector<int32_t>{7, 0}));
  EXPECT_EQ(biased.weights, (Floats{1.25f, 1.25f}));
  // A NaN is chosen last; all scores zero give zero weights, not NaN.
  logits[13] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(route(*backend.ops, logits, Floats(20, 0.0f), 1, 2).chosen, (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(route(*backend.ops, Floats(20, -1000.0f), bias, 1, 2).weights, (Floats{0.0f, 0.0f}));
}

// Router logits in bf16 would choose other experts.
TEST(Route, NeedsFloat32Logits) {
  Backend backend;
  constexpr int64_t kRows = 64, kExperts = 288, kWidth = 1024;
  const StoredMatrix gate(WeightForm::kBf16, kExperts, kWidth, 40);
  const Floats x = random_floats(kRows * kWidth, 41, 1.0f / 32), bias(kExperts, 0.0f);
  Floats logits(kRows * kExperts), rounded;
  backend.ops->matmul(gate.matrix, x.data(), kWidth, kRows, 1, logits.data(), kExperts);
  const Reference want = reference_product(gate.values, kExperts, widen(x), kRows);
  Floats exact;
  for (const double value : want.y) exact.push_back(static_cast<float>(value));
  for (const float value : exact) rounded.push_back(bf16_to_float(float_to_bf16(value)));
  const Routed got = route(*backend.ops, logits, bias, kRows, 8), same = route(*backend.ops, exact, bias, kRows, 8),
               wrong = route(*backend.ops, rounded, bias, kRows, 8);
  int64_t differ = 0, differ_exact = 0;
  for (size_t i = 0; i < got.chosen.size(); ++i) {
    differ += got.chosen[i] != wrong.chosen[i] ? 1 : 0;
    differ_exact += got.chosen[i] != same.chosen[i] ? 1 : 0;
  }
  std::printf("router in bf16: %ld of %zu choices differ (exact logits: %ld)\n", static_cast<long>(differ),
              got.chosen.size(), static_cast<long>(differ_exact));
  EXPECT_EQ(differ_exact, 0);
  EXPECT_GT(differ, 10);
}

TEST(Argmax, TakesTheFirstOfTheLargest) {
  const EveryBackend backends;
  const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  constexpr int64_t kStride = 1003;
  Floats logits = random_floats(10 * kStride, 50);
  const auto row = [&](int64_t r) { return logits.begin() + r * kStride; };
  row(0)[17] = 50, row(0)[900] = 50;                   // the first of two
  row(1)[0] = nan, row(1)[5] = nan, row(1)[999] = 60;  // NaN never wins; the last within the limit
  row(2)[1001] = 99, row(2)[3] = 40;                   // past the limit
  std::fill(row(3), row(4), -infinity);                // all equal
  std::fill(row(4), row(5), nan);                      // nothing to choose
  row(5)[31] = infinity, row(5)[500] = infinity;
  std::fill(row(6), row(7), -infinity);
  row(6)[70] = -1e38f;
  std::fill(row(7), row(8), -1.0f);
  row(7)[2] = -0.0f, row(7)[9] = 0.0f;  // equal
  std::fill(row(8), row(9), nan);
  row(8)[998] = -5;
  row(9)[0] = 77;
  const Floats ids = backends.run("argmax", [&](Ops& ops) {
    std::vector<int32_t> found(10);
    ops.argmax(logits.data(), 10, kStride, 1000, found.data());
    return Floats(found.begin(), found.end());
  });
  EXPECT_EQ(ids, (Floats{17, 999, 3, 0, 0, 31, 70, 2, 998, 0}));
}

TEST(Memory, IsAlignedAndZero) {
  Backend backend;
  for (const size_t bytes : {size_t{1}, size_t{100}, size_t{1} << 20}) {
    const Buffer buffer(*backend.ops, bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.floats()) % 64, 0u);
    for (size_t i = 0; i < bytes; ++i) ASSERT_EQ(reinterpret_cast<const char*>(buffer.floats())[i], 0);
  }
  try {
    backend.ops->allocate(SIZE_MAX - 7);
    FAIL() << "expected a refusal";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kCapacity);
    EXPECT_NE(std::string(error.what()).find("could not be allocated"), std::string::npos);
  }
}

TEST(Backends, CudaIsRefusedWhereThereIsNoSuchDevice) {
  try {
    make_cuda_ops({.device = 1000});
    FAIL() << "expected a refusal";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
    EXPECT_NE(std::string(error.what()).find("use --backend cpu"), std::string::npos);
  }
}

TEST(Backends, AreNamedAndRefusedWhereMissing) {
  ThreadPool pool(1);
  EXPECT_STREQ(make_cpu_ops(pool, CpuIsa::kPlain)->name(), "cpu (plain)");
  for (const auto& [isa, name] : {std::pair{CpuIsa::kAvx2, "cpu (avx2)"}, {CpuIsa::kAvx512, "cpu (avx512)"}}) {
    if (cpu_isa_available(isa)) {
      EXPECT_STREQ(make_cpu_ops(pool, isa)->name(), name);
    } else {
      EXPECT_THROW(make_cpu_ops(pool, isa), Error);
    }
  }
}

}  // namespace
}  // namespace verbatim::ops
