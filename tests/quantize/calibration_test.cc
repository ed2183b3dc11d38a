#include "quantize/calibration.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "quantize/calibrate.h"
#include "quantize/scale_policy.h"
#include "tests/checkpoint/test_files.h"
#include "tests/model/tiny_models.h"

namespace verbatim::quantize {
namespace {

using checkpoint::Checkpoint;
using checkpoint::refusal_of;
using model::Group;

struct Tiny {
  Checkpoint source = Checkpoint::open(model::tiny("tiny-bf16"));
  model::Config config = model::parse_config(source.config_text(), "tiny-bf16");
  ThreadPool pool{2};
  std::unique_ptr<ops::Ops> ops = ops::make_cpu_ops(pool);

  Calibration run(std::span<const std::vector<int32_t>> prompts, CalibrateOptions options = {}) {
    return calibrate(source, config, prompts, options, *ops);
  }
};

std::vector<std::vector<int32_t>> some_prompts(int count, uint64_t seed) {
  std::vector<std::vector<int32_t>> prompts;
  for (int i = 0; i < count; ++i) prompts.push_back(model::random_ids(20 + 31 * i, seed + static_cast<uint64_t>(i)));
  return prompts;
}

void expect_same(const Calibration& a, const Calibration& b) {
  ASSERT_EQ(a.sites.size(), b.sites.size());
  for (const auto& [key, record] : a.sites) {
    const SiteRecord& other = b.sites.at(key);
    EXPECT_EQ(record.largest, other.largest) << site_text(key);
    EXPECT_EQ(record.seen, other.seen) << site_text(key);
    EXPECT_EQ(record.histogram, other.histogram) << site_text(key);
  }
  EXPECT_EQ(a.routed, b.routed);
  EXPECT_EQ(a.tokens, b.tokens);
}

// scripts/oracle_calibration.py: transformers in float32 on the same prompts.
TEST(Calibrate, IsTransformers) {
  const auto oracle =
      nlohmann::json::parse(checkpoint::read_bytes(std::string(VERBATIM_FIXTURES) + "/quantize/calibration.json"));
  const auto prompts = oracle["prompts"].get<std::vector<std::vector<int32_t>>>();
  Tiny tiny;
  const Calibration made = tiny.run(prompts);
  EXPECT_EQ(made.sites.size(), oracle["largest"].size());
  double worst = 0;
  int values = 0;
  for (const auto& [key, record] : made.sites) {
    const auto expected = oracle["largest"].at(site_text(key)).get<std::vector<double>>();
    ASSERT_EQ(expected.size(), record.largest.size());
    for (size_t e = 0; e < expected.size(); ++e, ++values) {
      const double found = static_cast<double>(record.largest[e]);
      const double error = expected[e] == 0 ? found : std::fabs(found / expected[e] - 1);
      EXPECT_LT(error, 1e-5) << site_text(key) << " " << e;
      worst = std::max(worst, error);
    }
    if (key.group == Group::kRoutedExperts) {
      EXPECT_EQ(made.routed.at(key.layer),
                oracle["routed"].at(container_name(key.group, key.layer)).get<std::vector<int64_t>>());
      EXPECT_EQ(record.seen, made.routed.at(key.layer));
    }
  }
  EXPECT_EQ(values, 5 * 2 * 16 + 5 * 2 + 3 * 2);
  RecordProperty("worst_relative_error", std::to_string(worst));
}

// Every row is counted once, and the histogram and the largest magnitude are of the same values.
TEST(Calibrate, CountsAddUp) {
  Tiny tiny;
  const Calibration made = tiny.run(some_prompts(2, 3));
  const int64_t tokens = 20 + 51;
  EXPECT_EQ(made.tokens, tokens);
  EXPECT_EQ(made.sequences, 2);
  for (const auto& [key, record] : made.sites) {
    int64_t rows = 0, elements = 0;
    for (int64_t e = 0; e < record.experts(); ++e) {
      rows += record.seen[static_cast<size_t>(e)];
      int64_t top = -1;
      for (int64_t bin = 0; bin < kHistogramBins; ++bin) {
        const int64_t count = record.histogram[static_cast<size_t>(e * kHistogramBins + bin)];
        elements += count;
        if (count > 0) top = bin;
      }
      if (record.has_data(e)) {
        EXPECT_EQ(top, histogram_bin(record.largest[static_cast<size_t>(e)]));
      }
    }
    const int64_t width = key.site == Site::kW13          ? tiny.config.hidden
                          : key.group == Group::kDenseMlp ? tiny.config.dense_intermediate
                                                          : tiny.config.expert_intermediate;
    EXPECT_EQ(rows, key.group == Group::kRoutedExperts ? tokens * tiny.config.experts_per_token : tokens);
    EXPECT_EQ(elements, rows * width) << site_text(key);
  }
}

// Neither chunks nor threads nor what other prompts there are change what is recorded.
TEST(Calibrate, ChunksAndMergesChangeNothing) {
  Tiny tiny;
  const auto prompts = some_prompts(4, 9);
  const Calibration whole = tiny.run(prompts);
  expect_same(tiny.run(prompts, {.chunk_rows = 7}), whole);
  Calibration sum = tiny.run(std::span(prompts).first(1));
  merge_calibration(sum, tiny.run(std::span(prompts).subspan(1)));
  expect_same(sum, whole);
  EXPECT_EQ(sum.sequences, 4);
}

TEST(Calibrate, EveryExpertSeesEveryToken) {
  Tiny tiny;
  const std::vector<std::vector<int32_t>> prompts = {{7}};
  const Calibration routed = tiny.run(prompts), every = tiny.run(prompts, {.every_expert = true});
  int64_t unreached = 0;
  for (const auto& [key, record] : every.sites) {
    if (key.group != Group::kRoutedExperts) continue;
    for (int64_t e = 0; e < record.experts(); ++e) {
      EXPECT_EQ(record.seen[static_cast<size_t>(e)], 1);
      EXPECT_TRUE(record.has_data(e));
      const SiteRecord& some = routed.sites.at(key);
      if (!some.has_data(e))
        ++unreached;
      else
        EXPECT_EQ(some.largest[static_cast<size_t>(e)], record.largest[static_cast<size_t>(e)]);
    }
  }
  EXPECT_EQ(unreached, 5 * 2 * (16 - 4));
  EXPECT_EQ(routed.routed, every.routed);
}

TEST(Calibrate, Refusals) {
  Tiny tiny;
  const std::vector<std::vector<int32_t>> none, wrong = {{1, 512}};
  EXPECT_EQ(refusal_of([&] { tiny.run(none); }).kind, ErrorKind::kUsage);
  EXPECT_TRUE(refusal_of([&] { tiny.run(none); }).thrown);
  EXPECT_NE(refusal_of([&] { tiny.run(wrong); }).message.find("512; expected 0 to 511"), std::string::npos);
}

TEST(CalibrationFile, KeepsEverything) {
  Tiny tiny;
  const checkpoint::TemporaryDirectory directory;
  const auto path = directory.path() / "a.safetensors";
  const Calibration made = tiny.run(some_prompts(2, 3));
  save_calibration(made, path);
  const Calibration read = load_calibration(path);
  expect_same(read, made);
  EXPECT_EQ(read.runs, made.runs);
  EXPECT_EQ(read.model_sha256, model_identity(tiny.source));
  EXPECT_FALSE(read.every_expert);
}

TEST(CalibrationFile, Refusals) {
  Tiny tiny;
  const checkpoint::TemporaryDirectory directory;
  const auto path = directory.path() / "a.safetensors";
  Calibration made = tiny.run(some_prompts(1, 3));
  EXPECT_NE(refusal_of([&] { merge_calibration(made, made); }).message.find("is in both"), std::string::npos);
  Calibration other = made;
  other.runs = {"x"};
  other.model_sha256 = "y";
  EXPECT_NE(refusal_of([&] { merge_calibration(made, other); }).message.find("of one model"), std::string::npos);
  other.model_sha256 = made.model_sha256;
  other.every_expert = true;
  EXPECT_NE(refusal_of([&] { merge_calibration(made, other); }).message.find("every expert"), std::string::npos);
  other.every_expert = false;
  other.sites.erase(other.sites.begin());
  EXPECT_NE(refusal_of([&] { merge_calibration(made, other); }).message.find("same sites"), std::string::npos);

  EXPECT_NE(refusal_of([&] {
              load_calibration(model::tiny("tiny-bf16") / "model.safetensors");
            }).message.find("expected verbatim-calibration-1"),
            std::string::npos);
  made.sites.begin()->second.largest[0] = -1;
  save_calibration(made, path);
  EXPECT_NE(refusal_of([&] { load_calibration(path); }).message.find("finite"), std::string::npos);
}

TEST(Histogram, BinsAreQuarterOctaves) {
  EXPECT_EQ(histogram_bin(0), 0);
  EXPECT_EQ(histogram_bin(0x1.fffffep-25f), 0);
  for (int64_t bin = 1; bin < kHistogramBins; ++bin) {
    const float begin = histogram_bin_begin(bin);
    EXPECT_EQ(histogram_bin(begin), bin);
    EXPECT_EQ(histogram_bin(std::nextafter(begin, 0.0f)), bin - 1);
  }
  EXPECT_EQ(histogram_bin_begin(1), 0x1p-24f);
  EXPECT_EQ(histogram_bin_begin(2), 0x1.4p-24f);
  EXPECT_EQ(histogram_bin_begin(kHistogramBins - 1), 0x1.8p15f);
  EXPECT_EQ(histogram_bin(3e38f), kHistogramBins - 1);
}

// ---- scale policy -------------------------------------------------------------------------------------------------
TEST(ScalePolicy, PercentilesInterpolateLinearly) {
  const std::vector<double> ten = {9, 1, 8, 2, 7, 3, 6, 4, 5, 0};
  EXPECT_EQ(percentile_of(ten, 0), 0);
  EXPECT_EQ(percentile_of(ten, 100), 9);
  EXPECT_EQ(percentile_of(ten, 50), 4.5);
  EXPECT_DOUBLE_EQ(percentile_of(ten, 99), 8.91);
  EXPECT_DOUBLE_EQ(percentile_of(ten, 98.9), 8.901);
  EXPECT_EQ(percentile_of(std::vector<double>{3}, 99), 3);
  std::vector<double> hundred(101);
  for (int i = 0; i <= 100; ++i) hundred[static_cast<size_t>(i)] = i;
  EXPECT_EQ(percentile_of(hundred, 98), 98);
  EXPECT_DOUBLE_EQ(percentile_of(hundred, 98.9), 98.9);
  EXPECT_TRUE(refusal_of([] { percentile_of({}, 50); }).thrown);
  EXPECT_TRUE(refusal_of([] { percentile_of(std::vector<double>{1}, 101); }).thrown);
}

// 288 experts whose largest activations are 2688 x (1 .. 288): input_scales 1 .. 288.
SiteRecord made_up(int64_t experts = 288) {
  SiteRecord record(experts);
  for (int64_t e = 0; e < experts; ++e) record.add(e, std::vector<float>{2688.0f * static_cast<float>(e + 1), -1});
  return record;
}

TEST(ScalePolicy, CommunityRecipe) {
  const Recipe recipe = find_recipe("nvfp4-experts-w4a4");
  const SiteRecord record = made_up();
  auto value = [&](int64_t layer, Site site) {
    const SiteScales scales = choose_scales(recipe, {Group::kRoutedExperts, layer, site}, record);
    EXPECT_EQ(scales.values, std::vector<float>(288, scales.values[0]));  // one value a layer and site
    EXPECT_TRUE(scales.without_data.empty());
    return scales.values[0];
  };
  auto expected = [](double position) { return static_cast<float>((1 + position) * 1.05); };
  for (int64_t layer = 3; layer <= 44; ++layer) {
    // Gate and up pooled: 576 values, each twice; position 0.99 x 575 = 569.25 lies between values 284.5 -> 285 and
    // 286.
    EXPECT_EQ(value(layer, Site::kW13), static_cast<float>(285.25 * 1.05)) << layer;
    const double percentile = layer <= 8 ? 0.98 : layer >= 24 ? 0.989 : 0.99;
    EXPECT_FLOAT_EQ(value(layer, Site::kW2), expected(percentile * 287)) << layer;
  }
}

TEST(ScalePolicy, LargestRecipeAndExpertsWithoutData) {
  const Recipe recipe = find_recipe("nvfp4-experts-and-dense-mlp");
  SiteRecord record = made_up(4);
  record.largest[2] = 0;
  record.seen[2] = 0;
  const SiteScales scales = choose_scales(recipe, {Group::kRoutedExperts, 5, Site::kW2}, record);
  EXPECT_EQ(scales.values, (std::vector<float>{1, 2, 4, 4}));  // the third takes the site's largest
  EXPECT_EQ(scales.without_data, (std::vector<int64_t>{2}));

  const SiteScales pooled =
      choose_scales(find_recipe("nvfp4-experts-w4a4"), {Group::kRoutedExperts, 12, Site::kW2}, record);
  EXPECT_FLOAT_EQ(pooled.values[2], static_cast<float>((2 + 0.98 * 2) * 1.05));  // p99 of 1, 2, 4
  EXPECT_EQ(pooled.values, std::vector<float>(4, pooled.values[0]));
  EXPECT_EQ(pooled.pooled, 3);

  EXPECT_NE(refusal_of([&] {
              choose_scales(recipe, {Group::kRoutedExperts, 5, Site::kW2}, SiteRecord(4));
            }).message.find("reached none of its 4 experts"),
            std::string::npos);
}

// What was done to tiny-nvfp4's scales (p99, gate and up pooled, x 1.05) to make tiny-w4a4-experts'.
TEST(ScalePolicy, TinyCheckpointsAgree) {
  const Checkpoint each = Checkpoint::open(model::tiny("tiny-nvfp4")),
                   pooled = Checkpoint::open(model::tiny("tiny-w4a4-experts"));
  auto scale = [](const Checkpoint& stored, const std::string& module) {
    float value = 0;
    std::memcpy(&value, stored.data(*stored.find(module + ".input_scale")).data(), 4);
    return value;
  };
  for (int64_t layer = 3; layer < 8; ++layer)
    for (const Site site : {Site::kW13, Site::kW2}) {
      std::vector<float> values;
      std::vector<std::string> modules;
      for (int e = 0; e < 16; ++e)
        for (const char* projection : {".gate_proj", ".up_proj", ".down_proj"}) {
          const std::string module =
              container_name(Group::kRoutedExperts, layer) + "." + std::to_string(e) + projection;
          if (site_of(module) != site) continue;
          modules.push_back(module);
          values.push_back(scale(each, module));
        }
      EXPECT_EQ(values.size(), site == Site::kW13 ? 32u : 16u);
      const float made = pooled_scale(values, 99, 1.05);
      for (const std::string& module : modules) EXPECT_NEAR(made / scale(pooled, module), 1, 1e-6) << module;
    }
}

}  // namespace
}  // namespace verbatim::quantize
