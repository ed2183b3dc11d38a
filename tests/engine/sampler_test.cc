#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace verbatim::engine {
namespace {

constexpr int32_t kVocabulary = 50;

std::vector<float> some_logits(uint64_t seed) {
  std::vector<float> logits;
  for (int i = 0; i < kVocabulary; ++i) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    logits.push_back(static_cast<float>(seed >> 40) / static_cast<float>(1 << 22) - 2.0f);
  }
  return logits;
}

struct Case {
  Request request;
  TokenCounts prompt;
  std::vector<int32_t> generated;
  uint64_t seed = 1;
  int choice = 0;
  SamplingContext context() const { return {&request, seed, choice, generated, &prompt, kVocabulary}; }
};

TEST(SamplingMath, AgreesWithLibm) {
  for (double x = 0; x > -700; x -= 0.37) EXPECT_NEAR(ops::sampling_exp(x) / std::exp(x), 1.0, 1e-13) << x;
  EXPECT_EQ(ops::sampling_exp(-701), 0.0);
  EXPECT_EQ(ops::sampling_exp(-std::numeric_limits<double>::infinity()), 0.0);
  EXPECT_EQ(ops::sampling_exp(std::numeric_limits<double>::quiet_NaN()), 0.0);
  for (double x = 1e-300; x < 1e300; x *= 1.7)
    EXPECT_NEAR(sampling_log(x), std::log(x), 1e-13 * std::max(1.0, std::fabs(std::log(x)))) << x;
}

TEST(Sampler, GreedyTakesTheLowerIdOnATie) {
  Case c;
  c.request.sampling.temperature = 0;
  std::vector<float> logits(kVocabulary, 0.0f);
  logits[7] = logits[31] = 5.0f;
  Sampler sampler;
  EXPECT_EQ(sampler.sample(logits, c.context()), 7);
  SamplingContext limited = c.context();
  logits[40] = 9.0f;
  limited.vocabulary_limit = 40;  // ids at or above are never sampled
  EXPECT_EQ(sampler.sample(logits, limited), 7);
  logits[7] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(sampler.sample(logits, limited), 31);
}

// A pure function: the same arguments give the same token; seed, choice and place each matter.
TEST(Sampler, IsAFunctionOfItsArguments) {
  Sampler one, other;
  int differ_by_seed = 0, differ_by_choice = 0, differ_by_place = 0;
  for (uint64_t i = 0; i < 200; ++i) {
    Case c;
    c.seed = i;
    const std::vector<float> logits = some_logits(i / 10);
    const int32_t id = one.sample(logits, c.context());
    EXPECT_EQ(other.sample(logits, c.context()), id);
    Case seed = c, choice = c, place = c;
    seed.seed += 1000;
    choice.choice = 1;
    place.generated = {3};
    differ_by_seed += one.sample(logits, seed.context()) != id;
    differ_by_choice += one.sample(logits, choice.context()) != id;
    differ_by_place += one.sample(logits, place.context()) != id;
  }
  EXPECT_GT(differ_by_seed, 100);
  EXPECT_GT(differ_by_choice, 100);
  EXPECT_GT(differ_by_place, 100);
}

// Frequencies follow the softmax: chi-square over 50 ids with 20,000 draws; 99.99 % quantile for 49 degrees is 98.
TEST(Sampler, FollowsTheDistribution) {
  const std::vector<float> logits = some_logits(3);
  Case c;
  c.request.sampling.temperature = 1.3f;
  std::vector<int> counts(kVocabulary, 0);
  Sampler sampler;
  constexpr int kDraws = 20000;
  for (uint64_t i = 0; i < kDraws; ++i) {
    c.seed = i;
    ++counts[static_cast<size_t>(sampler.sample(logits, c.context()))];
  }
  double sum = 0, chi_square = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) / 1.3);
  for (size_t i = 0; i < kVocabulary; ++i) {
    const double expected = kDraws * std::exp(static_cast<double>(logits[i]) / 1.3) / sum;
    chi_square += (counts[i] - expected) * (counts[i] - expected) / expected;
  }
  EXPECT_LT(chi_square, 98);
}

TEST(Sampler, CutsKeepTheMostLikely) {
  std::vector<float> logits(kVocabulary, -20.0f);
  logits[10] = 3.0f, logits[20] = 2.0f, logits[30] = 1.0f, logits[40] = 1.0f;
  // Shares: e^3, e^2, e, e of 32.9: 0.61, 0.22, 0.08, 0.08.
  auto seen = [&](const std::function<void(SamplingOptions&)>& change) {
    Case c;
    change(c.request.sampling);
    std::vector<int32_t> ids;
    Sampler sampler;
    for (uint64_t seed = 0; seed < 500; ++seed) {
      c.seed = seed;
      const int32_t id = sampler.sample(logits, c.context());
      if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
    }
    std::sort(ids.begin(), ids.end());
    return ids;
  };
  using Ids = std::vector<int32_t>;
  EXPECT_EQ(seen([](SamplingOptions& s) { s.top_k = 1; }), Ids{10});
  EXPECT_EQ(seen([](SamplingOptions& s) { s.top_k = 3; }), (Ids{10, 20, 30}));  // 30 and 40 tie: the lower id
  EXPECT_EQ(seen([](SamplingOptions& s) { s.top_p = 0.5f; }), Ids{10});
  EXPECT_EQ(seen([](SamplingOptions& s) { s.top_p = 0.8f; }), (Ids{10, 20}));
  EXPECT_EQ(seen([](SamplingOptions& s) { s.top_p = 1e-6f; }), Ids{10});
  EXPECT_EQ(seen([](SamplingOptions& s) { s.min_p = 0.3f; }), (Ids{10, 20}));
  EXPECT_EQ(seen([](SamplingOptions& s) { s.min_p = 0.1f; }), (Ids{10, 20, 30, 40}));
}

TEST(Sampler, PenaltiesBiasAndMask) {
  Case c;
  c.request.sampling.temperature = 0;
  std::vector<float> logits(kVocabulary, 0.0f);
  logits[5] = 4.0f, logits[6] = 3.5f, logits[7] = 3.0f;
  Sampler sampler;
  EXPECT_EQ(sampler.sample(logits, c.context()), 5);
  c.generated = {5, 5};
  c.request.sampling.presence_penalty = 0.6f;  // 4.0 - 0.6 < 3.5
  EXPECT_EQ(sampler.sample(logits, c.context()), 6);
  c.request.sampling.presence_penalty = 0;
  c.request.sampling.frequency_penalty = 0.3f;  // twice
  EXPECT_EQ(sampler.sample(logits, c.context()), 6);
  c.request.sampling.frequency_penalty = 0.2f;
  EXPECT_EQ(sampler.sample(logits, c.context()), 5);
  c.request.sampling.frequency_penalty = 0;
  c.generated.clear();
  c.prompt.add(5);
  c.request.sampling.repetition_penalty = 1.2f;  // of prompt tokens too: 4.0 / 1.2 < 3.5
  EXPECT_EQ(sampler.sample(logits, c.context()), 6);
  c.request.sampling.repetition_penalty = 1.0f;
  c.request.sampling.logit_bias = {{7, 2.0f}};
  EXPECT_EQ(sampler.sample(logits, c.context()), 7);
  c.request.mask = [](std::span<const int32_t>, std::span<uint64_t> allowed) { allowed[0] = 1u << 6; };
  EXPECT_EQ(sampler.sample(logits, c.context()), 6);
  c.request.mask = [](std::span<const int32_t>, std::span<uint64_t>) {};  // nothing allowed
  c.request.stop_tokens = {9};
  EXPECT_EQ(sampler.sample(logits, c.context()), 9);
}

TEST(Sampler, LogProbabilities) {
  const std::vector<float> logits = some_logits(8);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
  GeneratedToken token;
  token.id = 17;
  Sampler().log_probabilities(logits, kVocabulary, 5, token);
  EXPECT_NEAR(token.logprob, static_cast<double>(logits[17]) - std::log(sum), 1e-6);
  ASSERT_EQ(token.top.size(), 5u);
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_NEAR(token.top[i].logprob, static_cast<double>(logits[static_cast<size_t>(token.top[i].id)]) - std::log(sum),
                1e-6);
    if (i > 0) {
      EXPECT_LE(token.top[i].logprob, token.top[i - 1].logprob);
    }
  }
}

}  // namespace
}  // namespace verbatim::engine
