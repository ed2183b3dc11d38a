// Sparse attention, its indexer and the products with kv_b as they ship on CUDA: bfloat16 caches, bfloat16 operands on
// the matrix units, against float64 on the rounded operands, and against themselves in bits.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstdio>

#include "base/formats.h"
#include "model/plan.h"
#include "ops/cuda_backend.h"
#include "tests/model/tiny_models.h"
#include "tests/ops/sparse_attention_harness.h"

namespace verbatim::ops {
namespace {

// A slice's sum on the matrix units: in each step of sixteen products the unit aligns seventeen numbers to the largest
// and cuts, at worst two units in the last place of 24 bits for each of them; here by magnitudes of the whole sum.
constexpr double kStepRoundoff = 4 * kUnitRoundoff;

float rounded(float value) { return bf16_to_float(float_to_bf16(value)); }

Floats all_rounded(Floats values) {
  for (float& value : values) value = rounded(value);
  return values;
}

class AsShipped : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0)
      ops_ = make_cuda_ops({.activations = Activations::kBf16}).release();
  }
  static void TearDownTestSuite() {
    delete ops_;
    ops_ = nullptr;
  }
  void SetUp() override {
    if (ops_ == nullptr) GTEST_SKIP() << "this machine has no CUDA device";
  }
  static inline Ops* ops_ = nullptr;
};

IndexShape index_shape(int64_t heads, int64_t width, int64_t pool, int64_t top, bool tail = true) {
  return {.heads = heads, .width = width, .pool = pool, .top = top, .always_select_tail = tail};
}

// ---- attention ------------------------------------------------------------------------------------------------------
// One head over tokens in groups of 64, as ops.h says for CUDA, on rounded q and latents: what comes out, and by how
// much float32 may differ in each column. A weight is rounded; where its float32 error reaches a boundary of rounding,
// both neighbours are allowed.
struct HeadReference {
  std::vector<double> out, bound;
};

HeadReference attend_head(const float* q, const std::vector<const float*>& latents, int64_t width, double scale,
                          bool rounds) {
  const auto columns = static_cast<size_t>(width);
  const double steps = static_cast<double>(width) / 16 + 2;
  std::vector<double> sum(columns), off(columns), flips(columns);
  double total = 0, total_flips = 0, maximum = -INFINITY, worst_score = 0;
  const size_t groups = (latents.size() + 63) / 64;
  for (size_t g = 0; g < groups; ++g) {
    const size_t begin = g * 64, end = std::min(latents.size(), begin + 64);
    std::vector<double> scores;
    double most = -INFINITY, score_error = 0;
    for (size_t j = begin; j < end; ++j) {
      double dot = 0, magnitude = 0;
      for (size_t c = 0; c < columns; ++c) {
        const double term = double{q[c]} * latents[j][c];
        dot += term;
        magnitude += std::abs(term);
      }
      scores.push_back(dot * scale);
      most = std::max(most, dot * scale);
      score_error = std::max(score_error, magnitude * scale * steps * kStepRoundoff);
    }
    worst_score = std::max(worst_score, score_error);
    const double both = std::max(maximum, most), keep = std::exp(maximum - both), factor = std::exp(most - both);
    for (size_t c = 0; c < columns; ++c) {
      sum[c] *= keep;
      off[c] *= keep;
      flips[c] *= keep;
    }
    total *= keep;
    total_flips *= keep;
    for (size_t j = begin; j < end; ++j) {
      const double exact = std::exp(scores[j - begin] - most);
      const double error = 2 * score_error + (most - scores[j - begin] + 4) * kUnitRoundoff;
      const auto as_used = [&](double value) { return rounds ? double{rounded(static_cast<float>(value))} : value; };
      const double weight = as_used(exact), low = as_used(exact * (1 - error)), high = as_used(exact * (1 + error));
      const double flip = std::max(high - weight, weight - low) * factor;
      total += weight * factor;
      total_flips += flip;
      for (size_t c = 0; c < columns; ++c) {
        sum[c] += weight * factor * latents[j][c];
        off[c] += weight * factor * std::abs(latents[j][c]);
        flips[c] += flip * std::abs(latents[j][c]);
      }
    }
    maximum = both;
  }
  HeadReference r;
  // Four steps of a group's product, six roundings a group of merging and its factors' errors, the quotient.
  const double chain = 5 * kStepRoundoff + 6 * static_cast<double>(groups) * kUnitRoundoff + 4 * worst_score;
  for (size_t c = 0; c < columns; ++c) {
    r.out.push_back(sum[c] / total);
    r.bound.push_back((off[c] * (2 * chain + 4 * kUnitRoundoff) + flips[c] + total_flips * std::abs(sum[c] / total)) /
                      total);
  }
  return r;
}

struct Case {
  const char* name;
  IndexShape shape;
  int64_t heads, latent_width, rows, step;  // step: every so many-th row is checked
};

class AsShippedSparse : public AsShipped, public testing::WithParamInterface<Case> {};

TEST_P(AsShippedSparse, MatchesTheDefinition) {
  const Case& c = GetParam();
  const SparseProblem p = make_sparse_problem(c.shape, c.heads, c.latent_width, c.rows, 1);
  SparseRunner runner(*ops_, p);
  const SparseRows rows = runner.step({Feed{0, 0, iota(0, p.rows), p.rows}});

  // Pool keys are the float32 ones rounded; the indexer is held to those that are cached.
  SparseReference reference(p);
  const Floats keys = runner.pool_keys(p.rows);
  ASSERT_EQ(keys.size(), reference.keys.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    const double error = std::abs(keys[i] - reference.keys[i]);
    EXPECT_LE(error, std::abs(reference.keys[i]) * 0x1.000001p-8 + reference.key_bounds[i] * 1.01 + 0x1p-130);
    reference.keys[i] = keys[i];
    reference.key_bounds[i] = 0;
  }
  for (int64_t r = 0; r < p.rows; r += c.step) {
    const std::vector<int32_t>& chosen = rows.pools[static_cast<size_t>(r)];
    // What the float32 bound allows a dot of `width` products allows three chains of width / 16 steps four times over.
    const PoolScores s = reference.scores(r);
    ASSERT_EQ(static_cast<int64_t>(chosen.size()), std::min(std::ssize(s.score), p.shape.budget_pools())) << r;
    ASSERT_TRUE(std::is_sorted(chosen.begin(), chosen.end(), std::less_equal<>())) << r;
    double least_in = INFINITY, most_out = -INFINITY;
    const std::set<int32_t> in(chosen.begin(), chosen.end());
    for (size_t pool = 0; pool < s.score.size(); ++pool) {
      if (in.count(static_cast<int32_t>(pool)) != 0)
        least_in = std::min(least_in, s.score[pool] + 4 * s.bound[pool]);
      else
        most_out = std::max(most_out, s.score[pool] - 4 * s.bound[pool]);
    }
    EXPECT_GE(least_in, most_out) << "row " << r;
  }

  // Latents wider than 512 are not for the matrix units: nothing but they is rounded.
  const bool rounds = c.latent_width <= 512;
  const Floats q = rounds ? all_rounded(p.q) : p.q, latents = all_rounded(p.latents);
  double worst = 0;
  for (int64_t r = 0; r < p.rows; r += c.step) {
    std::vector<const float*> seen;
    for (const int64_t token : reference.visible(r, rows.pools[static_cast<size_t>(r)]))
      seen.push_back(&latents[static_cast<size_t>(token * p.latent_width)]);
    for (int64_t h = 0; h < p.heads; ++h) {
      const auto at = static_cast<size_t>((r * p.heads + h) * p.latent_width);
      if (seen.empty()) {
        EXPECT_EQ(rows.out[at], 0.0f);
        continue;
      }
      const HeadReference want = attend_head(&q[at], seen, p.latent_width, double{p.scale()}, rounds);
      for (size_t i = 0; i < want.out.size(); ++i) {
        const double share = std::abs(rows.out[at + i] - want.out[i]) / want.bound[i];
        worst = std::isfinite(share) ? std::max(worst, share) : INFINITY;
      }
    }
  }
  std::printf("%s: worst element at %.3f of its bound\n", c.name, worst);
  EXPECT_LT(worst, 1.0);
  EXPECT_GT(worst, rounds ? 1e-3 : 1e-4);  // the bound means something
}

INSTANTIATE_TEST_SUITE_P(Shapes, AsShippedSparse,
                         testing::Values(Case{"small", index_shape(16, 32, 4, 16), 4, 64, 300, 7},
                                         Case{"released_widths", index_shape(32, 128, 4, 256), 64, 512, 330, 41},
                                         Case{"few_rows", index_shape(32, 128, 4, 2048), 64, 512, 4, 1},
                                         Case{"odd_heads", index_shape(5, 48, 4, 64), 37, 80, 200, 11},
                                         Case{"two_uneven_slices", index_shape(3, 16, 4, 64), 20, 400, 200, 11},
                                         Case{"pool_of_one", index_shape(3, 16, 1, 20), 2, 32, 150, 5},
                                         Case{"pool_of_64", index_shape(3, 16, 64, 128), 2, 32, 400, 9},
                                         Case{"no_tail", index_shape(4, 32, 4, 32, false), 2, 32, 150, 3},
                                         Case{"wide", index_shape(40, 144, 4, 32), 3, 528, 100, 7}),
                         [](const auto& each) { return std::string(each.param.name); });

// Up to 64 rows of the released width take scores, then sum latents, by 16, 32 or 64 heads and few or many columns a
// block; of other widths they stand in groups; more rows walk the groups with 16, 32 or 64 heads a block: one set of
// bits, and of choices.
TEST_F(AsShipped, SparseBitsOfAnyCut) {
  for (const auto& [heads, width, top] :
       {std::tuple{64, 512, 256}, std::tuple{70, 512, 2048}, std::tuple{40, 80, 64}}) {
    const SparseProblem p = make_sparse_problem(index_shape(32, 128, 4, top), heads, width, 700, 21);
    const SparseRows expected = run_sparse_pieces(*ops_, p, p.rows);
    for (const int64_t piece : {1, 2, 5, 16, 33, 64, 100, 300})
      EXPECT_EQ(first_difference(run_sparse_pieces(*ops_, p, piece), expected), "") << "pieces of " << piece;
  }
}

TEST_F(AsShipped, WindowsThatAreTakenBackLeaveNoTrace) {
  for (const int64_t pool : {1, 4, 16}) {
    const SparseProblem p = make_sparse_problem(index_shape(3, 32, pool, 4 * pool), 3, 32, 130, 14);
    const SparseRows expected = run_sparse_pieces(*ops_, p, p.rows);
    for (int64_t window = 1; window <= kWindowRows + 1; window += 2) {
      SparseRunner runner(*ops_, p);
      SparseRows all;
      feed_windows(
          p.rows, window, [&](int64_t turn) { return turn % window; },
          [&](const Feed& feed, int64_t kept) { all.append(runner.step({feed}), 0, kept, p.heads * p.latent_width); });
      EXPECT_EQ(first_difference(all, expected), "") << "pools of " << pool << ", windows of " << window;
    }
  }
}

// Every form of a launch past positions and elements of 32 bits: 1,000,000 tokens on pages that repeat, whose ids are
// so high that offsets leave 32 bits. Rows see the same tokens whether they come one at a time or together.
TEST_F(AsShipped, MillionTokens) {
  constexpr int64_t kPosition = 1'000'000, kFirstPage = 200'000, kRows = 80;
  SparseProblem p = make_sparse_problem(index_shape(32, 128, 4, 2048), 64, 512, 512, 7);
  std::vector<int32_t> pages;
  for (int64_t i = 0; i <= (kPosition + kRows) / kPageTokens; ++i)
    pages.push_back(static_cast<int32_t>(kFirstPage + i % 8));
  SparseRunner runner(*ops_, p, {pages}, kFirstPage);
  runner.step({Feed{0, 0, iota(0, 512), 512}});
  const SparseRows together = runner.step({Feed{0, kPosition, iota(100, 100 + kRows), kRows}});
  // The last row's own tokens are there now: it asks again, alone.
  const SparseRows alone = runner.step({Feed{0, kPosition + kRows - 1, {100 + kRows - 1}, 1}});
  EXPECT_EQ(alone.pools[0], together.pools[kRows - 1]);
  const Floats last(together.out.end() - 64 * 512, together.out.end());
  EXPECT_EQ(first_difference(alone.out, last), "");
  EXPECT_GT(alone.pools[0].back(), 60'000);  // 512 copies of the best pool, 128 apart
}

// The indexer alone over 1,000,000 tokens in as many distinct pages as that takes, from the last page down.
TEST_F(AsShipped, IndexerOfAMillionDistinctTokens) {
  constexpr int64_t kTokens = 1'000'000, kRows = 3;
  const IndexShape shape = index_shape(4, 64, 4, 2048);
  const int64_t page_pools = kPageTokens / shape.pool, pages = kTokens / kPageTokens + 1;
  const int64_t pools = kTokens / shape.pool;
  const Floats noise = all_rounded(random_floats(4096 * shape.width, 3));
  const auto key = [&](int64_t pool) { return &noise[static_cast<size_t>(pool * 7919 % 4093 * shape.width)]; };
  std::vector<uint16_t> cached(static_cast<size_t>(pages * page_pools * shape.width));
  std::vector<int32_t> ids;
  for (int64_t page = 0; page < pages; ++page) ids.push_back(static_cast<int32_t>(pages - 1 - page));
  for (int64_t pool = 0; pool < pools; ++pool)
    for (int64_t c = 0; c < shape.width; ++c)
      cached[static_cast<size_t>(
          (ids[static_cast<size_t>(pool / page_pools)] * page_pools + pool % page_pools) * shape.width + c)] =
          float_to_bf16(key(pool)[c] * (1 + 0.25f * static_cast<float>(pool % 3)));
  const Buffer cache_memory(*ops_, cached.size() * 2);
  ops_->copy_in(cache_memory.floats(), cached.data(), cached.size() * 2);
  const Floats q = random_floats(kRows * shape.heads * shape.width, 4), weights = random_floats(kRows * shape.heads, 5);
  const Device q_device(*ops_, q), weights_device(*ops_, weights);
  const Device chosen(*ops_, kRows * shape.budget_pools()), counts(*ops_, kRows);
  const Span span{.rows = kRows, .position = kTokens - kRows, .certain = kRows, .pages = ids.data()};
  const LatentCache cache{.pools = cache_memory.floats()};
  const Selection selection{reinterpret_cast<int32_t*>(chosen.floats()), reinterpret_cast<int32_t*>(counts.floats())};
  ops_->select_pools(shape, q_device.floats(), weights_device.floats(), {&span, 1}, cache, selection);
  std::vector<int32_t> got(static_cast<size_t>(kRows * shape.budget_pools()));
  ops_->copy_out(got.data(), selection.pools, got.size() * 4);
  for (int64_t r = 0; r < kRows; ++r) {
    const int64_t complete = (span.position + r + 1) / shape.pool;
    const auto begin = got.begin() + r * shape.budget_pools(), end = begin + shape.budget_pools();
    ASSERT_TRUE(std::is_sorted(begin, end, std::less_equal<>()));
    ASSERT_LT(*(end - 1), complete);
    const std::set<int32_t> in(begin, end);
    double least_in = INFINITY, most_out = -INFINITY;
    for (int64_t pool = 0; pool < complete; ++pool) {
      double score = 0, bound = 0;
      for (int64_t h = 0; h < shape.heads; ++h) {
        double dot = 0, magnitude = 0;
        const float factor = 1 + 0.25f * static_cast<float>(pool % 3);
        for (int64_t c = 0; c < shape.width; ++c) {
          const double term = double{q[static_cast<size_t>((r * shape.heads + h) * shape.width + c)]} *
                              bf16_to_float(float_to_bf16(key(pool)[c] * factor));
          dot += term;
          magnitude += std::abs(term);
        }
        const double weight = double{weights[static_cast<size_t>(r * shape.heads + h)]} /
                              std::sqrt(static_cast<double>(shape.heads * shape.width));
        score += weight * std::max(dot, 0.0);
        bound += std::abs(weight) * magnitude *
                 ((3 * static_cast<double>(shape.width) / 16 + 2) * kStepRoundoff + 8 * kUnitRoundoff);
      }
      if (in.count(static_cast<int32_t>(pool)) != 0)
        least_in = std::min(least_in, score + bound);
      else
        most_out = std::max(most_out, score - bound);
    }
    EXPECT_GE(least_in, most_out) << "row " << r;
    EXPECT_LT(most_out - least_in, 1e-2);
    EXPECT_GT(*(end - 1), pools * 3 / 4);
  }
}

// ---- absorb ---------------------------------------------------------------------------------------------------------
struct Absorbed {
  Floats queries, values;
};

Absorbed absorb(Ops& ops, const Matrix& kv_b, int64_t heads, int64_t key_width, int64_t value_width, const Floats& q,
                const Floats& attended, int64_t rows, int64_t piece) {
  const int64_t latent = kv_b.columns;
  const Device x(ops, q), a(ops, attended), queries(ops, rows * heads * latent),
      values(ops, rows * heads * value_width);
  for (int64_t r = 0; r < rows; r += piece) {
    const int64_t own = std::min(piece, rows - r);
    ops.absorb_queries(kv_b, heads, key_width, value_width, x.floats() + r * heads * key_width, own,
                       queries.floats() + r * heads * latent);
    ops.absorb_values(kv_b, heads, key_width, value_width, a.floats() + r * heads * latent, own,
                      values.floats() + r * heads * value_width);
  }
  return {queries.read(), values.read()};
}

TEST_F(AsShipped, AbsorbMatchesTheDefinitionInAnyCut) {
  struct Sizes {
    int64_t heads, key_width, value_width, latent, rows;
  };
  for (const Sizes& z : {Sizes{64, 256, 256, 512, 70}, Sizes{3, 48, 32, 64, 9}, Sizes{2, 304, 80, 208, 40},
                         Sizes{2, 272, 16, 1040, 600}}) {
    const int64_t head_rows = z.key_width + z.value_width;
    const Floats stored = all_rounded(random_floats(z.heads * head_rows * z.latent, 31));
    std::vector<uint16_t> bits;
    for (const float value : stored) bits.push_back(float_to_bf16(value));
    const Matrix kv_b = ops_->upload({.rows = z.heads * head_rows,
                                      .columns = z.latent,
                                      .data = reinterpret_cast<const std::byte*>(bits.data()),
                                      .row_bytes = z.latent * 2});
    const Floats q = random_floats(z.rows * z.heads * z.key_width, 32),
                 attended = random_floats(z.rows * z.heads * z.latent, 33);
    const Absorbed got = absorb(*ops_, kv_b, z.heads, z.key_width, z.value_width, q, attended, z.rows, z.rows);
    for (const int64_t piece : {1, 8, 13, 31}) {
      const Absorbed cut = absorb(*ops_, kv_b, z.heads, z.key_width, z.value_width, q, attended, z.rows, piece);
      EXPECT_EQ(first_difference(cut.queries, got.queries), "") << "pieces of " << piece;
      EXPECT_EQ(first_difference(cut.values, got.values), "") << "pieces of " << piece;
    }
    const Floats q16 = all_rounded(q), attended16 = all_rounded(attended);
    double worst = 0;
    const auto compare = [&](float value, int64_t count, const auto& weight, const float* x) {
      double sum = 0, magnitude = 0;
      for (int64_t k = 0; k < count; ++k) {
        const double term = double{weight(k)} * x[k];
        sum += term;
        magnitude += std::abs(term);
      }
      const double bound = magnitude * (static_cast<double>(count) / 16 + 2) * kStepRoundoff;
      worst = std::max(worst, std::abs(value - sum) / bound);
    };
    for (int64_t r = 0; r < z.rows; r += 1 + z.rows / 5)
      for (int64_t n = 0; n < z.heads; n += 1 + z.heads / 7) {
        const int64_t row = r * z.heads + n;
        const float* own = &stored[static_cast<size_t>(n * head_rows * z.latent)];
        for (int64_t c = 0; c < z.latent; ++c)
          compare(
              got.queries[static_cast<size_t>(row * z.latent + c)], z.key_width,
              [&](int64_t k) { return own[k * z.latent + c]; }, &q16[static_cast<size_t>(row * z.key_width)]);
        for (int64_t j = 0; j < z.value_width; ++j)
          compare(
              got.values[static_cast<size_t>(row * z.value_width + j)], z.latent,
              [&](int64_t k) { return own[(z.key_width + j) * z.latent + k]; },
              &attended16[static_cast<size_t>(row * z.latent)]);
      }
    std::printf("%ld heads of %ld, %ld, %ld: worst element at %.3f of its bound\n", static_cast<long>(z.heads),
                static_cast<long>(z.key_width), static_cast<long>(z.value_width), static_cast<long>(z.latent), worst);
    EXPECT_LT(worst, 1.0);
    EXPECT_GT(worst, 1e-3);
  }
}

// ---- memory ---------------------------------------------------------------------------------------------------------
TEST_F(AsShipped, ThePlanEqualsWhatIsAllocated) {
  const auto stored = checkpoint::Checkpoint::open(model::tiny("tiny-nvfp4"));
  const model::Config config = model::parse_config(stored.config_text(), "tiny");
  const model::Plan plan =
      model::make_plan(stored, config, {.context_tokens = 1000, .sequences = 3, .backend = model::BackendKind::kCuda});
  EXPECT_EQ(ops_->cache_element_bytes(), 2);
  const state::Storage storage(*ops_, config, 3, 3 * plan.pages_per_sequence);
  EXPECT_EQ(storage.allocated_bytes(), 3 * (plan.sequence_bytes + plan.pages_per_sequence * plan.page_bytes));
}

}  // namespace
}  // namespace verbatim::ops
