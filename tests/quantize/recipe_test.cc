#include "quantize/recipe.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/checkpoint/test_files.h"

namespace verbatim::quantize {
namespace {

using checkpoint::refusal_of;
using model::Group;

TEST(Recipe, ShippedOnes) {
  EXPECT_EQ(shipped_recipes(), (std::vector<std::string>{"nvfp4-experts-and-dense-mlp", "nvfp4-experts-w4a4"}));
  const Recipe community = find_recipe("nvfp4-experts-w4a4");
  EXPECT_EQ(community.form, OutputForm::kMixedPrecision);
  EXPECT_EQ(community.scales_file, "activation-scales.safetensors");
  EXPECT_EQ(community.shard_bytes, 0u);
  EXPECT_EQ(community.margin, 1.05);
  for (int64_t layer = 0; layer < 46; ++layer) {
    EXPECT_EQ(community.quantises(Group::kRoutedExperts, layer), layer >= 3 && layer <= 44);
    EXPECT_FALSE(community.quantises(Group::kDenseMlp, layer));
    EXPECT_FALSE(community.quantises(Group::kNextNExperts, layer));
    EXPECT_EQ(community.percentile_of(Site::kW13, layer), 99);
    EXPECT_EQ(community.percentile_of(Site::kW2, layer), layer >= 3 && layer <= 8     ? 98
                                                         : layer >= 24 && layer <= 44 ? 98.9
                                                                                      : 99);
  }
  const Recipe nvidia = find_recipe("nvfp4-experts-and-dense-mlp");
  EXPECT_EQ(nvidia.form, OutputForm::kNvfp4);
  EXPECT_EQ(nvidia.activations, ActivationRule::kLargest);
  EXPECT_TRUE(nvidia.permits_fp8_cache);
  EXPECT_TRUE(nvidia.scales_file.empty());
  EXPECT_TRUE(nvidia.quantises(Group::kDenseMlp, 0) && nvidia.quantises(Group::kRoutedExperts, 44));
  EXPECT_FALSE(nvidia.quantises(Group::kSharedExperts, 3));
}

TEST(Recipe, EveryFieldIsChecked) {
  const std::string good = find_recipe("nvfp4-experts-w4a4").text;
  const struct {
    const char *pointer, *value, *expected;
  } kCases[] = {
      {"/name", "7", "name"},
      {"/form", "\"FP5\"", "NVFP4 or MIXED_PRECISION"},
      {"/surplus", "1", "surplus: 1; expected no such field"},
      {"/producer/surplus", "1", "producer.surplus"},
      {"/quantise", "[]", "at least one group"},
      {"/quantise/0/group", "\"kda\"", "routed_experts, dense_mlp or shared_experts"},
      {"/quantise/0/layers", "[5, 3]", "[first, last]"},
      {"/quantise/0/layers", "[-1, 3]", "[first, last]"},
      {"/weights/rule", "\"mse\"", "largest"},
      {"/activations/rule", "\"median\"", "none, largest or percentile"},
      {"/activations/percentile", "101", "0 to 100"},
      {"/activations/margin", "0", "0.01 to 100"},
      {"/activations/exceptions/1/site", "\"w3\"", "activations.exceptions[1].site"},
      {"/activations/exceptions/0/surplus", "1", "surplus"},
      {"/kv_cache", "\"INT4\"", "FP8"},
      {"/scales_file", "\"../a.safetensors\"", "activation-scales.safetensors"},
      {"/scales_file", "\"model-a.safetensors\"", "not beginning with model"},
      {"/shards", "0", "bytes of a shard"},
      {"/shards", "\"120\"", "as the source"},
  };
  for (const auto& [pointer, value, expected] : kCases) {
    nlohmann::ordered_json recipe = nlohmann::ordered_json::parse(good);
    recipe[nlohmann::ordered_json::json_pointer(pointer)] = nlohmann::ordered_json::parse(value);
    const auto refusal = refusal_of([&] { parse_recipe(recipe.dump(), "r.json"); });
    EXPECT_TRUE(refusal.thrown) << pointer;
    EXPECT_EQ(refusal.kind, ErrorKind::kFormat);
    EXPECT_NE(refusal.message.find(expected), std::string::npos) << pointer << ": " << refusal.message;
  }
  for (const char* missing : {"name", "form", "producer", "quantise", "weights", "activations", "shards"}) {
    nlohmann::ordered_json recipe = nlohmann::ordered_json::parse(good);
    recipe.erase(missing);
    EXPECT_NE(refusal_of([&] { parse_recipe(recipe.dump(), "r.json"); }).message.find("absent"), std::string::npos)
        << missing;
  }
  EXPECT_TRUE(refusal_of([] { parse_recipe("{", "r.json"); }).thrown);
  EXPECT_TRUE(refusal_of([] { parse_recipe("[]", "r.json"); }).thrown);
  EXPECT_EQ(refusal_of([] { find_recipe("none"); }).kind, ErrorKind::kUsage);
  EXPECT_EQ(refusal_of([] { find_recipe("/nowhere/none.json"); }).kind, ErrorKind::kIo);
}

}  // namespace
}  // namespace verbatim::quantize
