// Hyper-connections and linear attention, all in device memory so that launches run into each other as in a model,
// against the plain CPU in bits.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "ops/cuda_backend.h"
#include "tests/ops/product_harness.h"

namespace verbatim::ops {
namespace {

class FloatOperators : public testing::Test {
 protected:
  void SetUp() override {
    try {
      device_ = make_cuda_ops({});
    } catch (const Error& error) {
      GTEST_SKIP() << error.what();
    }
  }
  ThreadPool pool_{2};
  std::unique_ptr<Ops> plain_ = make_cpu_ops(pool_, CpuIsa::kPlain), device_;
};

// A copy of host floats in backend memory.
class Held {
 public:
  Held(Ops& ops, const Floats& values) : ops_(ops), count_(values.size()), buffer_(ops, count_ * sizeof(float)) {
    ops.copy_in(buffer_.floats(), values.data(), count_ * sizeof(float));
  }
  float* floats() const { return buffer_.floats(); }
  void append_to(Floats& all) const {
    all.resize(all.size() + count_);
    ops_.copy_out(all.data() + all.size() - count_, buffer_.floats(), count_ * sizeof(float));
  }

 private:
  Ops& ops_;
  size_t count_;
  Buffer buffer_;
};

Floats zeros(int64_t count) { return Floats(static_cast<size_t>(count)); }

// ---- hyper-connections ----------------------------------------------------------------------------------------------
// Three sites, each left before the next: h of each, then the streams and the last maps.
Floats run_sites(Ops& ops, const StoredMatrix& fn, int64_t width, int64_t rows) {
  const HyperShape shape{4, width, 20, 1e-6f, 1e-5f};
  const Matrix uploaded = ops.upload(fn.matrix);
  const Held base(ops, random_floats(24, 31)), scale(ops, {0.02f, 0.01f, 0.03f}), norm(ops, random_floats(width, 32)),
      streams(ops, random_floats(rows * 4 * width, 33)), y(ops, random_floats(rows * width, 34)),
      maps(ops, zeros(rows * 24));
  const HyperWeights weights{uploaded, base.floats(), scale.floats()};
  Floats all;
  std::vector<Held> kept;
  kept.reserve(3);
  for (int site = 0; site < 3; ++site) {
    kept.emplace_back(ops, zeros(rows * width));
    ops.hyper_enter(shape, weights, norm.floats(), streams.floats(), rows, maps.floats(), kept.back().floats());
    ops.hyper_leave(shape, maps.floats(), y.floats(), rows, streams.floats());
  }
  streams.append_to(all);
  for (const Held& each : kept) each.append_to(all);
  maps.append_to(all);
  return all;
}

TEST_F(FloatOperators, SitesHaveTheCpusBits) {
  // One, two, four and sixteen blocks a cluster, and widths that no cluster takes.
  for (const int64_t width : {256, 512, 1024, 4096, 768, 4352})
    for (const WeightForm form : {WeightForm::kBf16, WeightForm::kF32})
      for (const int64_t rows : {1, 6, 17, 300}) {
        if (rows > 17 && width > 512 && form == WeightForm::kF32) continue;
        const StoredMatrix fn(form, 24, 4 * width, 30);
        EXPECT_EQ(first_difference(run_sites(*device_, fn, width, rows), run_sites(*plain_, fn, width, rows)), "")
            << form_name(form) << ", " << rows << " rows of " << width;
      }
}

// ---- norms ----------------------------------------------------------------------------------------------------------
// Norms side by side, in place and not, more of them than a launch takes and wider than a thread's share is held.
Floats run_norms(Ops& ops, int64_t rows) {
  constexpr int64_t kWidths[] = {1536, 512, 128, 4096, 4352, 7, 272};
  std::vector<Held> held;
  held.reserve(4 * std::size(kWidths));
  std::vector<Ops::Norm> norms;
  const auto values = [&](int64_t count, uint64_t key) {
    held.emplace_back(ops, random_floats(count, key));
    return held.back().floats();
  };
  Floats all;
  for (size_t i = 0; i < std::size(kWidths); ++i) {
    const int64_t width = kWidths[i], stride = i % 2 == 0 ? width : width + 16;
    const bool shifts = i % 3 == 2;
    Ops::Norm n;
    n.width = width;
    n.x_stride = n.y_stride = shifts ? width : stride;
    n.x = values(rows * stride, 50 + i);
    n.y = i % 2 == 0 ? held.back().floats() : values(rows * stride, 60 + i);
    n.weight = values(width, 70 + i);
    if (shifts) n.bias = values(width, 80 + i);
    n.epsilon = 1e-5f;
    norms.push_back(n);
  }
  ops.norms(norms, rows);
  for (const Held& each : held) each.append_to(all);
  return all;
}

TEST_F(FloatOperators, NormsSideBySideHaveTheCpusBits) {
  for (const int64_t rows : {1, 3, 70}) {
    const Floats made = run_norms(*device_, rows);
    EXPECT_EQ(first_difference(made, run_norms(*plain_, rows)), "") << rows << " rows";
  }
}

// ---- linear attention -----------------------------------------------------------------------------------------------
struct Piece {
  int64_t rows = 0, certain = 0, kept = 0;  // rows that the next step of the sequence finds
};

// Steps of several sequences; outputs of all rows and, at the end, the states.
Floats run_linear(Ops& ops, int64_t width, float lower, const std::vector<std::vector<Piece>>& steps) {
  constexpr int64_t kHeads = 2;
  const int64_t channels = kHeads * width, slots = std::ssize(steps.front());
  const KdaShape shape{kHeads, width, lower, 1e-5f};
  const Held conv_q(ops, random_floats(channels * 4, 1, 0.5f)), conv_k(ops, random_floats(channels * 4, 2, 0.5f)),
      conv_v(ops, random_floats(channels * 4, 3, 0.5f)), a_log(ops, random_floats(kHeads, 4, 0.5f)),
      dt_bias(ops, random_floats(channels, 5)), o_norm(ops, random_floats(width, 6));
  const Held states(ops, random_floats(slots * channels * width, 7)),
      conv(ops, random_floats(slots * kConvRing * 3 * channels, 8)),
      key(ops, random_floats(slots * kKdaRing * channels, 9)),
      value(ops, random_floats(slots * kKdaRing * channels, 10)),
      decay(ops, random_floats(slots * kKdaRing * channels, 11));
  std::vector<int64_t> positions(static_cast<size_t>(slots)), state_positions(static_cast<size_t>(slots));
  Floats all;
  uint64_t seed = 100;
  for (const auto& step : steps) {
    std::vector<Span> spans;
    int64_t rows = 0;
    for (size_t i = 0; i < step.size(); ++i) {
      if (step[i].rows == 0) continue;
      Span span;
      span.first_row = rows;
      span.rows = step[i].rows;
      span.certain = step[i].certain;
      span.position = positions[i];
      span.state_position = state_positions[i];
      span.sequence = static_cast<int32_t>(i);
      state_positions[i] = state_position_after(span);
      positions[i] += step[i].kept;
      rows += span.rows;
      spans.push_back(span);
    }
    const auto any = [&](int64_t count, float scale) { return Held(ops, random_floats(count, ++seed, scale)); };
    const Held q = any(rows * channels, 1), k = any(rows * channels, 1), v = any(rows * channels, 1),
               f = any(rows * channels, 2), gate = any(rows * channels, 1), beta = any(rows * kHeads, 1),
               out(ops, zeros(rows * channels));
    ops.kda(shape,
            {conv_q.floats(), conv_k.floats(), conv_v.floats(), a_log.floats(), dt_bias.floats(), o_norm.floats()},
            {q.floats(), k.floats(), v.floats(), f.floats(), gate.floats(), beta.floats()},
            {states.floats(), conv.floats(), key.floats(), value.floats(), decay.floats()}, spans, rows, out.floats());
    out.append_to(all);
  }
  states.append_to(all);
  return all;
}

TEST_F(FloatOperators, LinearAttentionHasTheCpusBits) {
  // Prompts that begin and end anywhere beside windows and replies: more chunks than are in the making at a time, rows
  // that are taken back behind and inside whole chunks, single rows past a boundary.
  const std::vector<std::vector<Piece>> steps = {
      {{21, 21, 21}, {600, 600, 600}, {1, 1, 1}}, {{90, 83, 85}, {1, 1, 1}, {40, 40, 40}},
      {{8, 1, 6}, {64, 64, 64}, {23, 16, 16}},    {{48, 48, 48}, {8, 1, 1}, {7, 7, 7}},
      {{1, 1, 1}, {6, 6, 6}, {96, 96, 96}},       {{1, 1, 1}, {1, 1, 1}, {1, 1, 1}},
      {{31, 31, 31}, {0, 0, 0}, {8, 1, 8}},       {{1, 1, 1}, {1, 1, 1}, {1, 1, 1}},
      {{1, 1, 1}, {1, 1, 1}, {1, 1, 1}}};
  for (const int64_t width : {128, 64})
    for (const float lower : {-5.0f, 0.0f})
      EXPECT_EQ(first_difference(run_linear(*device_, width, lower, steps), run_linear(*plain_, width, lower, steps)),
                "")
          << "heads of " << width << ", bound " << lower;
}

// Replies alone, every row of a chunk and past it.
TEST_F(FloatOperators, RepliesHaveTheCpusBits) {
  const std::vector<std::vector<Piece>> steps(40, {{1, 1, 1}, {1, 1, 1}, {1, 1, 1}});
  for (const int64_t width : {128, 64, 32, 16})
    EXPECT_EQ(first_difference(run_linear(*device_, width, -5.0f, steps), run_linear(*plain_, width, -5.0f, steps)), "")
        << "heads of " << width;
}

// ---- router
// -----------------------------------------------------------------------------------------------------------
TEST_F(FloatOperators, RoutesHaveTheCpusBits) {
  for (const auto& [experts, top] :
       {std::pair<int64_t, int64_t>{288, 8}, {192, 8}, {300, 6}, {7, 7}, {500, 4}, {64, 40}})
    for (const bool coarse : {false, true}) {
      constexpr int64_t kRows = 50;
      Floats logits = random_floats(kRows * experts, 40, 3.0f);
      // Ties, and rows of NaN.
      if (coarse)
        for (size_t i = 0; i < logits.size(); ++i)
          logits[i] = i % 97 == 0 ? std::numeric_limits<float>::quiet_NaN() : std::round(logits[i]);
      const auto run = [&](Ops& ops) {
        const Held on_device(ops, logits), bias(ops, random_floats(experts, 41, coarse ? 0.0f : 0.3f)),
            weights(ops, zeros(kRows * top));
        const Buffer chosen(ops, static_cast<size_t>(kRows * top) * sizeof(int32_t));
        ops.route(on_device.floats(), bias.floats(), kRows, experts, top, 2.5f, chosen.ints(), weights.floats());
        std::vector<int32_t> ids(static_cast<size_t>(kRows * top));
        ops.copy_out(ids.data(), chosen.ints(), ids.size() * sizeof(int32_t));
        Floats all;
        weights.append_to(all);
        for (float& weight : all)
          if (std::isnan(weight)) weight = -1.0f;
        all.insert(all.end(), ids.begin(), ids.end());
        return all;
      };
      EXPECT_EQ(first_difference(run(*device_), run(*plain_)), "") << top << " of " << experts;
    }
}

}  // namespace
}  // namespace verbatim::ops
