// Pools, selection and sparse attention against MODEL.md section 4 in float64, and against themselves in bits.
#include <gtest/gtest.h>

#include <cstdio>
#include <functional>

#include "base/formats.h"
#include "tests/ops/sparse_attention_harness.h"

namespace verbatim::ops {
namespace {

IndexShape index_shape(int64_t heads, int64_t width, int64_t pool, int64_t top, bool tail = true) {
  return {.heads = heads, .width = width, .pool = pool, .top = top, .always_select_tail = tail};
}

struct Case {
  const char* name;
  IndexShape shape;
  int64_t heads, latent_width, rows;
};

class SparseAccuracy : public testing::TestWithParam<Case> {};

// The pools chosen must be best up to the scores' error; the attention is checked over the pools that were chosen.
TEST_P(SparseAccuracy, MatchesTheDefinition) {
  const Case& c = GetParam();
  const SparseProblem p = make_sparse_problem(c.shape, c.heads, c.latent_width, c.rows, 1);
  const SparseReference reference(p);
  Backend backend;
  const SparseRows rows = run_sparse_pieces(*backend.ops, p, p.rows);
  int64_t scored = 0, disputed = 0;
  for (int64_t r = 0; r < p.rows; ++r) {
    const std::vector<int32_t>& chosen = rows.pools[static_cast<size_t>(r)];
    const PoolScores s = reference.scores(r);
    const auto pools = static_cast<int64_t>(s.score.size());
    ASSERT_EQ(static_cast<int64_t>(chosen.size()), std::min(pools, p.shape.budget_pools())) << "row " << r;
    ASSERT_TRUE(std::is_sorted(chosen.begin(), chosen.end(), std::less_equal<>())) << "row " << r;
    if (chosen.empty()) continue;
    ASSERT_GE(chosen.front(), 0);
    ASSERT_LT(chosen.back(), pools);
    if (pools <= p.shape.budget_pools()) continue;
    ++scored;
    const std::set<int32_t> in(chosen.begin(), chosen.end());
    double least_in = INFINITY, most_out = -INFINITY;
    for (int32_t pool = 0; pool < pools; ++pool) {
      const auto i = static_cast<size_t>(pool);
      if (in.count(pool) != 0)
        least_in = std::min(least_in, s.score[i] + s.bound[i]);
      else
        most_out = std::max(most_out, s.score[i] - s.bound[i]);
    }
    ASSERT_GE(least_in, most_out) << "row " << r;
    disputed += chosen != reference.choose(s);
  }
  const SparseAgreement a = compare_sparse(
      reference, rows, 0, [&](int64_t r) { return reference.visible(r, rows.pools[static_cast<size_t>(r)]); });
  std::printf(
      "%s: %ld rows scored, %ld chosen otherwise within rounding; relative error %.1e, worst row at %.3f of its "
      "bound\n",
      c.name, static_cast<long>(scored), static_cast<long>(disputed), a.relative, a.worst);
  EXPECT_LT(a.worst, 1.0);
  EXPECT_GT(a.worst, 1e-3);  // the bound means something
}

INSTANTIATE_TEST_SUITE_P(Shapes, SparseAccuracy,
                         testing::Values(Case{"small", index_shape(16, 32, 4, 16), 4, 64, 300},
                                         Case{"released_widths", index_shape(32, 128, 4, 64), 6, 512, 150},
                                         Case{"odd_heads", index_shape(5, 48, 4, 64), 5, 80, 200},
                                         Case{"pool_of_one", index_shape(3, 16, 1, 20), 2, 32, 150},
                                         Case{"pool_of_eight", index_shape(3, 16, 8, 64), 2, 32, 200},
                                         Case{"pool_of_64", index_shape(3, 16, 64, 128), 2, 32, 400},
                                         Case{"no_tail", index_shape(4, 32, 4, 32, false), 2, 32, 150},
                                         Case{"wide_latents", index_shape(2, 16, 4, 32), 3, 528, 100},
                                         Case{"long", index_shape(2, 16, 4, 256), 1, 16, 5000}),
                         [](const auto& each) { return std::string(each.param.name); });

TEST(Sparse, NoVisibleTokenGivesZeros) {
  const SparseProblem p = make_sparse_problem(index_shape(2, 16, 4, 16, false), 2, 32, 5, 2);
  Backend backend;
  const SparseRows rows = run_sparse_pieces(*backend.ops, p, p.rows);
  for (size_t i = 0; i < 3 * 2 * 32; ++i) EXPECT_EQ(rows.out[i], 0.0f);
  EXPECT_NE(rows.out[3 * 2 * 32], 0.0f);
}

TEST(Sparse, DenseUpToTheBudgetAndTheTail) {
  // 512 pools of 4: everything is visible up to 2,051 tokens, not 2,048.
  const SparseProblem p = make_sparse_problem(index_shape(2, 16, 4, 2048), 2, 32, 2058, 3);
  const SparseReference reference(p);
  Backend backend;
  const SparseRows rows = run_sparse_pieces(*backend.ops, p, p.rows);
  const auto right = [&](int64_t r) {
    return r < 2051 ? iota(0, r + 1) : reference.visible(r, reference.choose(reference.scores(r)));
  };
  const auto wrong = [&](int64_t r) {  // limit 2,048: the tail is dropped once the pools fill the budget
    std::vector<int64_t> tokens = right(r);
    if (r >= 2048) tokens.resize(std::min<size_t>(tokens.size(), 2048));
    return tokens;
  };
  for (int64_t r = 2040; r < p.rows; ++r) {
    const int64_t pools = std::min<int64_t>((r + 1) / 4, 512);
    EXPECT_EQ(static_cast<int64_t>(rows.pools[static_cast<size_t>(r)].size()), pools);
  }
  const SparseAgreement a = compare_sparse(reference, rows, 1980, right),
                        b = compare_sparse(reference, rows, 2048, wrong);
  std::printf("dense limit: relative error %.1e (%.3f of the bound); with limit 2,048 %.1e (%.0f bounds)\n", a.relative,
              a.worst, b.relative, b.worst);
  EXPECT_LT(a.worst, 1.0);
  EXPECT_GT(b.worst, 100.0);
}

TEST(Sparse, TiesGoToTheLowerIndex) {
  SparseProblem p = make_sparse_problem(index_shape(4, 32, 4, 16), 2, 32, 120, 4);
  // Every token has the same index key and gate, so all pools of a row score the same.
  for (size_t i = 32; i < p.keys.size(); ++i) {
    p.keys[i] = p.keys[i % 32];
    p.gates[i] = p.gates[i % 32];
  }
  const SparseReference reference(p);
  Backend backend;
  const SparseRows rows = run_sparse_pieces(*backend.ops, p, p.rows);
  for (int64_t r = 19; r < p.rows; ++r)
    EXPECT_EQ(rows.pools[static_cast<size_t>(r)], (std::vector<int32_t>{0, 1, 2, 3})) << "row " << r;
  const SparseAgreement a = compare_sparse(reference, rows, 19, [&](int64_t r) {
    return reference.visible(r, {0, 1, 2, 3});
  });
  const SparseAgreement b = compare_sparse(reference, rows, 23, [&](int64_t r) {
    const auto last = static_cast<int32_t>((r + 1) / 4);
    return reference.visible(r, {last - 4, last - 3, last - 2, last - 1});
  });
  std::printf("ties: relative error %.1e (%.3f of the bound); to the higher index %.1e (%.0f bounds)\n", a.relative,
              a.worst, b.relative, b.worst);
  EXPECT_LT(a.worst, 1.0);
  EXPECT_GT(b.worst, 1000.0);
}

TEST(Sparse, TiesAcrossTheLastPlaceAreFilledFromBelow) {
  SparseProblem p = make_sparse_problem(index_shape(1, 16, 4, 32), 1, 16, 128, 5);
  // Keys of a pool are one of three levels: pools 3, 7, 11, ... best, even ones next, the rest worst.
  std::fill(p.index_q.begin(), p.index_q.end(), 1.0f);
  std::fill(p.head_weights.begin(), p.head_weights.end(), 1.0f);
  for (int64_t r = 0; r < p.rows; ++r) {
    const int64_t pool = r / 4;
    std::fill_n(p.keys.begin() + r * 16, 16, pool % 4 == 3 ? 3.0f : pool % 2 == 0 ? 2.0f : -1.0f);
  }
  Backend backend;
  const SparseRows rows = run_sparse_pieces(*backend.ops, p, p.rows);
  EXPECT_EQ(rows.pools[79], (std::vector<int32_t>{0, 2, 3, 4, 7, 11, 15, 19}));  // 20 pools: 5 best, 3 of the next
  EXPECT_EQ(rows.pools[127], (std::vector<int32_t>{3, 7, 11, 15, 19, 23, 27, 31}));
  // Negative weights turn the order: the zeros that relu leaves tie and lead.
  std::fill(p.head_weights.begin(), p.head_weights.end(), -1.0f);
  const SparseRows turned = run_sparse_pieces(*backend.ops, p, p.rows);
  EXPECT_EQ(turned.pools[79], (std::vector<int32_t>{0, 1, 2, 4, 5, 9, 13, 17}));
}

TEST(Sparse, MutationsAreFarAway) {
  const SparseProblem p = make_sparse_problem(index_shape(16, 32, 4, 64), 4, 64, 400, 6);
  const SparseReference reference(p);
  Backend backend;
  const SparseRows rows = run_sparse_pieces(*backend.ops, p, p.rows);
  const auto report = [&](const char* what, const SparseReference& mutated) {
    int64_t others = 0;
    const SparseAgreement a = compare_sparse(reference, rows, 68, [&](int64_t r) {
      const std::vector<int32_t> pools = mutated.choose(mutated.scores(r));
      others += pools != rows.pools[static_cast<size_t>(r)];
      return reference.visible(r, pools);
    });
    std::printf("%s: %ld of %ld rows choose other pools; relative distance %.1e, %.0f bounds\n", what,
                static_cast<long>(others), static_cast<long>(p.rows - 68), a.relative, a.worst);
    return a;
  };
  EXPECT_LT(report("as defined", reference).worst, 1.0);
  SparseReference rounded = reference;
  for (double& key : rounded.keys) key = bf16_to_float(float_to_bf16(static_cast<float>(key)));
  EXPECT_GT(report("pool keys rounded to bfloat16", rounded).worst, 1000.0);
  // The last token of every pool is the one that stood there in a rejected window.
  SparseProblem stale_problem = p;
  for (int64_t r = 3; r < p.rows; r += 4)
    std::copy_n(p.keys.begin() + (p.rows + r % kJunkRows) * 32, 32, stale_problem.keys.begin() + r * 32);
  EXPECT_GT(report("stale tail tokens in pools", SparseReference(stale_problem)).worst, 1000.0);
}

TEST(Sparse, MillionTokens) {
  // Position 1,000,000 over eight pages that repeat: every distinct pool comes back each 128 pools. Page ids so high
  // that offsets leave 32 bits.
  constexpr int64_t kPosition = 1'000'000, kFirstPage = 200'000;
  SparseProblem p = make_sparse_problem(index_shape(2, 16, 4, 2048), 2, 512, 512, 7);
  for (float& weight : p.head_weights) weight = std::abs(weight) + 0.1f;
  std::vector<int32_t> pages;
  for (int64_t i = 0; i <= kPosition / kPageTokens; ++i) pages.push_back(static_cast<int32_t>(kFirstPage + i % 8));
  Backend backend;
  SparseRunner runner(*backend.ops, p, {pages}, kFirstPage);
  runner.step({Feed{0, 0, iota(0, 512), 512}});
  // The token at kPosition replaces the latent of its page slot; kPosition % 4 == 0, so no pool changes.
  const SparseRows rows = runner.step({Feed{0, kPosition, {100}, 1}});
  const SparseReference reference(p);
  SparseProblem asking = p;  // the query of row 100 asks at position 511
  std::copy_n(p.index_q.begin() + 100 * 32, 32, asking.index_q.begin() + 511 * 32);
  std::copy_n(p.head_weights.begin() + 100 * 2, 2, asking.head_weights.begin() + 511 * 2);
  const PoolScores s = SparseReference(asking).scores(511);
  const auto best = std::max_element(s.score.begin(), s.score.end()) - s.score.begin();
  std::vector<int32_t> expected;
  for (int64_t i = 0; i < 512; ++i) expected.push_back(static_cast<int32_t>(best + 128 * i));
  EXPECT_EQ(rows.pools[0], expected);
  std::vector<int64_t> tokens;
  for (int64_t i = 0; i < 512; ++i)
    for (int64_t j = 0; j < 4; ++j) tokens.push_back(best * 4 + j);
  tokens.push_back(100);
  std::vector<double> bound;
  const std::vector<double> out = reference.attend(100, tokens, &bound);
  for (int64_t h = 0; h < 2; ++h)
    EXPECT_LT(distance(&rows.out[static_cast<size_t>(h * 512)], &out[static_cast<size_t>(h * 512)], 512),
              bound[static_cast<size_t>(h)]);
}

// ---- bits -------------------------------------------------------------------------------------------------------
SparseProblem bits_problem(uint64_t seed) { return make_sparse_problem(index_shape(5, 32, 4, 64), 6, 64, 190, seed); }

TEST(SparseBits, InstructionSetsAndThreads) {
  const SparseProblem problems[] = {bits_problem(11), make_sparse_problem(index_shape(4, 128, 4, 32), 5, 528, 70, 12)};
  for (const SparseProblem& p : problems) {
    Backend plain(CpuIsa::kPlain, 1);
    const SparseRows expected = run_sparse_pieces(*plain.ops, p, p.rows);
    for (const CpuIsa isa : {CpuIsa::kPlain, CpuIsa::kAvx2, CpuIsa::kAvx512}) {
      if (!cpu_isa_available(isa)) continue;
      for (const int threads : {1, 2, 3}) {
        Backend backend(isa, threads);
        for (const int64_t piece : {p.rows, int64_t{1}}) {
          if (isa == CpuIsa::kPlain && piece == 1) continue;
          EXPECT_EQ(first_difference(run_sparse_pieces(*backend.ops, p, piece), expected), "")
              << backend.ops->name() << ", " << threads << " threads, pieces of " << piece;
        }
      }
    }
  }
}

TEST(SparseBits, AnyCutOfAPrompt) {
  Backend backend;
  const SparseProblem p = bits_problem(13);
  const SparseRows expected = run_sparse_pieces(*backend.ops, p, p.rows);
  for (const int64_t piece : {1, 2, 3, 4, 5, 7, 13, 16, 63, 64, 65, 189})
    EXPECT_EQ(first_difference(run_sparse_pieces(*backend.ops, p, piece), expected), "") << "pieces of " << piece;
}

TEST(SparseBits, WindowsThatAreTakenBackLeaveNoTrace) {
  Backend backend;
  for (const int64_t pool : {1, 4, 8, 16}) {
    SparseProblem p = make_sparse_problem(index_shape(3, 32, pool, 4 * pool), 3, 32, 130, 14);
    const SparseRows expected = run_sparse_pieces(*backend.ops, p, p.rows);
    const auto run = [&](int64_t window, const std::function<int64_t(int64_t)>& accepted) {
      SparseRunner runner(*backend.ops, p);
      SparseRows all;
      feed_windows(p.rows, window, accepted, [&](const Feed& feed, int64_t kept) {
        all.append(runner.step({feed}), 0, kept, p.heads * p.latent_width);
      });
      return first_difference(all, expected);
    };
    for (int64_t window = 1; window <= kWindowRows + 1; ++window)
      for (int64_t accepted = 0; accepted < window; ++accepted)
        EXPECT_EQ(run(window, [&](int64_t) { return accepted; }), "")
            << "pools of " << pool << ", windows of " << window << " rows, " << accepted << " accepted";
    for (uint64_t seed = 0; seed < 4; ++seed) {
      std::mt19937_64 bits(seed);
      EXPECT_EQ(run(kWindowRows + 1, [&](int64_t) { return static_cast<int64_t>(bits() % (kWindowRows + 1)); }), "");
    }
  }
}

TEST(SparseBits, SequencesAndPagesDoNotMatter) {
  Backend backend;
  constexpr int64_t kSequences = 3, kEach = 150;
  const SparseProblem p = make_sparse_problem(index_shape(5, 32, 4, 64), 6, 64, kSequences * kEach, 15);
  std::vector<SparseRows> expected;
  for (int64_t i = 0; i < kSequences; ++i) {
    SparseRunner alone(*backend.ops, p);
    expected.push_back(alone.step({Feed{0, 0, iota(i * kEach, (i + 1) * kEach), kEach}}));
  }
  for (uint64_t seed = 0; seed < 3; ++seed) {
    std::mt19937_64 bits(seed);
    std::vector<int32_t> ids(12);
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), bits);
    std::vector<std::vector<int32_t>> pages(kSequences + 1);
    for (size_t i = 0; i < ids.size(); ++i) pages[i % 4].push_back(ids[i]);
    SparseRunner together(*backend.ops, p, pages);
    std::vector<SparseRows> got(kSequences);
    std::array<int64_t, kSequences> done{};
    while (std::any_of(done.begin(), done.end(), [](int64_t n) { return n < kEach; })) {
      std::vector<Feed> feeds;
      std::vector<size_t> who;
      for (const auto i : {bits() % kSequences, bits() % kSequences}) {
        const int64_t count = std::min<int64_t>(kEach - done[i], static_cast<int64_t>(1 + bits() % 40));
        if (count == 0 || (!who.empty() && who[0] == i)) continue;
        const int64_t first = static_cast<int64_t>(i) * kEach + done[i];
        feeds.push_back({static_cast<int32_t>(kSequences - i), done[i], iota(first, first + count), count});
        who.push_back(i);
        done[i] += count;
      }
      if (feeds.empty()) continue;
      const SparseRows out = together.step(feeds);
      int64_t from = 0;
      for (size_t j = 0; j < feeds.size(); ++j) {
        const auto count = static_cast<int64_t>(feeds[j].source.size());
        got[who[j]].append(out, from, from + count, p.heads * p.latent_width);
        from += count;
      }
    }
    for (size_t i = 0; i < kSequences; ++i) EXPECT_EQ(first_difference(got[i], expected[i]), "") << "sequence " << i;
  }
}

TEST(SparseBits, SharedPagesAreReadAlike) {
  // Two sequences whose first page is one and the same, written once.
  Backend backend;
  const SparseProblem p = bits_problem(16);
  const SparseRows expected = run_sparse_pieces(*backend.ops, p, p.rows);
  SparseRunner runner(*backend.ops, p, {{3, 1, 2}, {3, 0, 4}});
  SparseRows first, second;
  first.append(runner.step({Feed{0, 0, iota(0, 64), 64}}), 0, 64, p.heads * p.latent_width);
  second = first;
  const SparseRows both = runner.step({Feed{1, 64, iota(64, 100), 36}, Feed{0, 64, iota(64, 190), 126}});
  second.append(both, 0, 36, p.heads * p.latent_width);
  first.append(both, 36, 162, p.heads * p.latent_width);
  second.append(runner.step({Feed{1, 100, iota(100, 190), 90}}), 0, 90, p.heads * p.latent_width);
  EXPECT_EQ(first_difference(first, expected), "");
  EXPECT_EQ(first_difference(second, expected), "");
}

}  // namespace
}  // namespace verbatim::ops
