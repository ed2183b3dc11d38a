#include "evaluate/compare.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "tests/checkpoint/test_files.h"
#include "tests/model/tiny_models.h"
#include "tests/quantize/conversion_files.h"

namespace verbatim::evaluate {
namespace {

using checkpoint::Checkpoint;
using checkpoint::refusal_of;
using model::Group;

struct Pair {
  Checkpoint a, b;
  model::Config config;
  Pair(const std::string& in_a, const std::string& in_b)
      : a(Checkpoint::open(model::tiny(in_a))),
        b(Checkpoint::open(model::tiny(in_b))),
        config(model::parse_config(a.config_text(), in_a)) {}
};

const GroupDifference& group(const WeightComparison& weights, Group name) {
  return weights.groups[static_cast<size_t>(name)];
}

TEST(CompareWeights, ACheckpointWithItself) {
  const Pair same("tiny-nvfp4", "tiny-nvfp4");
  ThreadPool pool(2);
  const WeightComparison weights = compare_weights(same.a, same.b, same.config, pool);
  uint64_t tensors = 0;
  for (const GroupDifference& difference : weights.groups) {
    EXPECT_EQ(difference.same_bytes, difference.tensors);
    EXPECT_EQ(difference.squared_error, 0);
    EXPECT_EQ(difference.relative_error(), 0);
    EXPECT_EQ(difference.different_input_scales, 0u);
    tensors += difference.tensors;
  }
  EXPECT_EQ(tensors, 1318u - 3 * 249);  // matrices count once
  EXPECT_EQ(group(weights, Group::kRoutedExperts).input_scales, 240u);
}

// Against sums in plain float64 over the dequantised matrices.
TEST(CompareWeights, QuantisedAndNot) {
  const Pair pair("tiny-bf16", "tiny-w4a4-experts");
  ThreadPool one(1), three(3);
  const WeightComparison weights = compare_weights(pair.a, pair.b, pair.config, three);
  double error = 0, norm = 0;
  for (const TensorDifference& tensor : weights.tensors) {
    if (tensor.group != Group::kRoutedExperts) {
      EXPECT_TRUE(tensor.same_bytes) << tensor.name;
      EXPECT_EQ(tensor.squared_error, 0) << tensor.name;
      continue;
    }
    EXPECT_EQ(tensor.form_b, checkpoint::Form::kNvfp4);
    EXPECT_FALSE(tensor.same_bytes);
    EXPECT_NEAR(tensor.relative_error(), 0.095, 0.005) << tensor.name;  // what NVFP4 does to normal weights
    const auto shape = pair.a.find(tensor.name + ".weight")->shape;
    std::vector<float> x(static_cast<size_t>(shape.elements())), y(x.size());
    checkpoint::dequantise(pair.a, checkpoint::resolve_matrix(pair.a, tensor.name, shape[0], shape[1]), x);
    checkpoint::dequantise(pair.b, checkpoint::resolve_matrix(pair.b, tensor.name, shape[0], shape[1]), y);
    double e = 0;
    float largest = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      e += (static_cast<double>(x[i]) - static_cast<double>(y[i])) *
           (static_cast<double>(x[i]) - static_cast<double>(y[i]));
      norm += static_cast<double>(x[i]) * static_cast<double>(x[i]);
      largest = std::max(largest, std::fabs(x[i] - y[i]));
    }
    EXPECT_NEAR(tensor.squared_error / e, 1, 1e-12);
    EXPECT_EQ(tensor.largest_error, largest);
    error += e;
  }
  const GroupDifference& experts = group(weights, Group::kRoutedExperts);
  EXPECT_NEAR(experts.relative_error() / std::sqrt(error / norm), 1, 1e-12);
  EXPECT_EQ(experts.input_scales_of_one, 240u);
  const WeightComparison again = compare_weights(pair.a, pair.b, pair.config, one);
  for (size_t i = 0; i < again.tensors.size(); ++i)
    EXPECT_EQ(again.tensors[i].squared_error, weights.tensors[i].squared_error);
}

TEST(CompareWeights, InputScales) {
  const Pair pair("tiny-nvfp4", "tiny-w4a4-experts");
  ThreadPool pool(2);
  const WeightComparison weights = compare_weights(pair.a, pair.b, pair.config, pool);
  const GroupDifference& experts = group(weights, Group::kRoutedExperts);
  EXPECT_EQ(experts.same_bytes, 240u);  // the weights are the same; the scales of activations are not
  EXPECT_EQ(experts.input_scales, 240u);
  EXPECT_GT(experts.different_input_scales, 200u);
  EXPECT_GT(experts.largest_scale_ratio, 1.04);
  EXPECT_EQ(group(weights, Group::kDenseMlp).input_scales_of_one, 9u);
}

TEST(CompareWeights, RefusesAnotherModel) {
  const Pair pair("tiny-bf16", "tiny-bf16");
  model::Config config = pair.config;
  config.experts = 17;
  ThreadPool pool(1);
  EXPECT_NE(refusal_of([&] { compare_weights(pair.a, pair.b, config, pool); }).message.find("expected"),
            std::string::npos);
}

// Worked by hand: p = (1/2, 1/4, 1/4), q = (1/4, 1/2, 1/4): KL = 1/2 log 2 - 1/4 log 2 = log(2) / 4.
TEST(CompareRows, KnownAnswers) {
  const float ln2 = std::log(2.0f);
  const std::vector<float> p = {3 + ln2, 3, 3}, q = {-1, -1 + ln2, -1};
  const RowComparison row = compare_rows(p, q, 1);
  EXPECT_NEAR(row.divergence, std::log(2.0) / 4, 1e-7);
  EXPECT_FALSE(row.same_first);
  EXPECT_NEAR(row.log_a, std::log(0.25), 1e-6);
  EXPECT_NEAR(row.log_b, std::log(0.5), 1e-6);
  EXPECT_EQ(compare_rows(p, p, -1).divergence, 0);
  EXPECT_TRUE(compare_rows(p, p, -1).same_first);
  const std::vector<float> large = {1000, 0, 0}, tied = {7, 7, 7};
  EXPECT_NEAR(compare_rows(large, tied, 0).divergence, std::log(3.0), 1e-12);
  EXPECT_TRUE(compare_rows(large, tied, 0).same_first);  // the lower id wins a tie
}

TEST(ComparePredictions, IsTheSumOverRows) {
  const model::Cpu cpu;
  const model::Loaded a(model::tiny("tiny-bf16")), b(model::tiny("tiny-w4a4-experts"));
  const std::vector<std::vector<int32_t>> prompts = {model::random_ids(70, 3), model::random_ids(1, 4), {}};
  const PredictionComparison made = compare_predictions(*cpu.ops, a.model, b.model, prompts, 490);
  EXPECT_EQ(made.positions, 71);
  EXPECT_EQ(made.targets, 69);
  double divergence = 0, log_a = 0, worst = 0;
  int same = 0;
  for (const auto& ids : {prompts[0], prompts[1]}) {
    const auto x = model::prompt_logits(*cpu.ops, a.model, ids), y = model::prompt_logits(*cpu.ops, b.model, ids);
    for (size_t row = 0; row < ids.size(); ++row) {
      const std::span p = std::span(x).subspan(row * 512, 490), q = std::span(y).subspan(row * 512, 490);
      double sum_p = 0, sum_q = 0, kl = 0;
      for (size_t i = 0; i < 490; ++i)
        sum_p += std::exp(static_cast<double>(p[i])), sum_q += std::exp(static_cast<double>(q[i]));
      for (size_t i = 0; i < 490; ++i) {
        const double pi = std::exp(static_cast<double>(p[i])) / sum_p, qi = std::exp(static_cast<double>(q[i])) / sum_q;
        kl += pi * std::log(pi / qi);
      }
      divergence += kl;
      worst = std::max(worst, kl);
      same += std::max_element(p.begin(), p.end()) - p.begin() == std::max_element(q.begin(), q.end()) - q.begin();
      if (row + 1 < ids.size())
        log_a += std::log(std::exp(static_cast<double>(p[static_cast<size_t>(ids[row + 1])])) / sum_p);
    }
  }
  EXPECT_NEAR(made.mean_divergence / (divergence / 71), 1, 1e-9);
  EXPECT_NEAR(made.largest_divergence / worst, 1, 1e-9);
  EXPECT_DOUBLE_EQ(made.same_first, same / 71.0);
  EXPECT_NEAR(made.perplexity_a / std::exp(-log_a / 69), 1, 1e-9);
  EXPECT_GT(made.mean_divergence, 0.01);

  const PredictionComparison itself = compare_predictions(*cpu.ops, a.model, a.model, prompts, 512);
  EXPECT_EQ(itself.mean_divergence, 0);
  EXPECT_EQ(itself.same_first, 1);
  EXPECT_EQ(itself.perplexity_a, itself.perplexity_b);
}

TEST(ComparePredictions, Refusals) {
  const model::Cpu cpu;
  const model::Loaded a(model::tiny("tiny-bf16"));
  EXPECT_TRUE(refusal_of([&] { compare_predictions(*cpu.ops, a.model, a.model, {}, 512); }).thrown);
  const std::vector<std::vector<int32_t>> prompts = {{1}};
  EXPECT_TRUE(refusal_of([&] { compare_predictions(*cpu.ops, a.model, a.model, prompts, 513); }).thrown);
}

// The command, as scripts use it.
TEST(CompareCommand, PrintsWhatScriptsRead) {
  const checkpoint::TemporaryDirectory scratch;
  const std::string prompts = (scratch.path() / "p.jsonl").string(), a = model::tiny("tiny-bf16").string(),
                    b = model::tiny("tiny-w4a4-experts").string();
  checkpoint::write_bytes(prompts, "{\"ids\": [5, 6, 7, 8, 9, 10]}\n");
  const auto run = quantize::run_program(
      {VERBATIM_PROGRAM, "compare", a, b, "--prompts", prompts, "--json", "--worst", "3", "--precision", "checkpoint"});
  ASSERT_EQ(run.code, 0) << run.text;
  const auto out = nlohmann::json::parse(run.text);
  EXPECT_EQ(out["weights"]["groups"]["routed_experts"]["tensors"], 240);
  EXPECT_NEAR(out["weights"]["groups"]["routed_experts"]["relative_error"].get<double>(), 0.095, 0.002);
  EXPECT_EQ(out["weights"]["groups"]["kda"]["relative_error"], 0);
  EXPECT_EQ(out["weights"]["worst"].size(), 3u);
  EXPECT_EQ(out["predictions"]["positions"], 6);
  EXPECT_EQ(out["predictions"]["precision"], nlohmann::json({"full", "checkpoint"}));
  EXPECT_GT(out["predictions"]["mean_kl"], 0);
  EXPECT_EQ(out["predictions"]["perplexity"].size(), 2u);
  const auto text = quantize::run_program({VERBATIM_PROGRAM, "compare", a, b, "--prompts", prompts});
  for (const char* expected : {"routed_experts", "worst:", "KL(A || B)", "the same first token", "perplexity"})
    EXPECT_NE(text.text.find(expected), std::string::npos) << expected;
  EXPECT_EQ(quantize::run_program({VERBATIM_PROGRAM, "compare", a, b, "--precision", "checkpoint"}).code,
            2);  // no effect
  EXPECT_EQ(quantize::run_program({VERBATIM_PROGRAM, "compare", a, scratch.path().string()}).code, 1);
}

}  // namespace
}  // namespace verbatim::evaluate
