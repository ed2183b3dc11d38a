#include "checkpoint/quantisation.h"

#include <gtest/gtest.h>

#include "base/mapped_file.h"
#include "checkpoint/checkpoint.h"
#include "tests/checkpoint/test_files.h"

namespace verbatim::checkpoint {
namespace {

namespace fs = std::filesystem;

const std::string kLayers = "model.language_model.layers.";

Quantisation parse(const std::string& members, const std::optional<std::string>& beside = std::nullopt) {
  return parse_quantisation("{\"quantization_config\":{" + members + "}}", beside, "config.json");
}

Quantisation released(const std::string& form) {
  const fs::path directory = fs::path(VERBATIM_FIXTURES) / "configs" / form;
  std::optional<std::string> beside;
  if (fs::exists(directory / "hf_quant_config.json"))
    beside = read_text_file(directory / "hf_quant_config.json", 1 << 20);
  return parse_quantisation(read_text_file(directory / "config.json", 1 << 20), beside, form);
}

TEST(Quantisation, NoneIsDeclared) {
  EXPECT_EQ(released("bf16").kind, QuantisationKind::kNone);
  EXPECT_FALSE(released("bf16").claims("lm_head"));
  EXPECT_EQ(parse_quantisation(R"({"quantization_config":null})", std::nullopt, "c").kind, QuantisationKind::kNone);
}

TEST(Quantisation, ReleasedNvfp4) {
  const Quantisation q = released("nvfp4");
  EXPECT_EQ(q.kind, QuantisationKind::kNvfp4);
  EXPECT_TRUE(q.fp8_kv_cache);
  EXPECT_FALSE(q.weight_only);
  EXPECT_EQ(q.producer.substr(0, 15), "modelopt 0.47.0");
  EXPECT_EQ(q.ignore.all().size(), 132u);
  EXPECT_TRUE(q.claims(kLayers + "3.mlp.experts.0.up_proj"));
  EXPECT_TRUE(q.claims(kLayers + "45.mlp.experts.0.up_proj"));  // which is stored BF16: the metadata is wrong there
  EXPECT_FALSE(q.claims(kLayers + "3.mlp.shared_experts.up_proj"));
  EXPECT_FALSE(q.claims(kLayers + "3.self_attn.indexer.wk"));
  EXPECT_FALSE(q.claims("model.visual.merger.proj"));
  EXPECT_TRUE(q.notes.empty());
}

TEST(Quantisation, ReleasedMixedPrecisionKeyedByContainer) {
  const Quantisation q = released("w4a4_experts");
  EXPECT_EQ(q.kind, QuantisationKind::kMixedPrecision);
  EXPECT_EQ(q.quantized_layers.size(), 42u);
  EXPECT_FALSE(q.fp8_kv_cache);
  EXPECT_TRUE(q.claims(kLayers + "3.mlp.experts.287.down_proj"));
  EXPECT_FALSE(q.claims(kLayers + "45.mlp.experts.0.down_proj"));
  EXPECT_FALSE(q.claims(kLayers + "0.mlp.down_proj"));
  EXPECT_FALSE(q.is_weight_only(kLayers + "3.mlp.experts.287.down_proj"));
}

TEST(Quantisation, MixedPrecisionKeyedOneByOneWithoutIgnore) {
  const std::string expert = kLayers + "3.mlp.experts.1.";
  const Quantisation q = parse(
      R"("quant_method":"modelopt","quant_algo":"MIXED_PRECISION","quantized_layers":{")" + expert +
      R"(up_proj":{"quant_algo":"NVFP4","group_size":16},"language_model.model.layers.4.mlp.experts.2":{"quant_algo":"W4A16_NVFP4"},
          "*.layers.5.mlp.experts*":{"quant_algo":"W4A16_NVFP4"}})");
  EXPECT_TRUE(q.claims(expert + "up_proj"));
  EXPECT_FALSE(q.claims(expert + "gate_proj"));
  EXPECT_FALSE(q.is_weight_only(expert + "up_proj"));
  EXPECT_TRUE(q.is_weight_only(kLayers + "4.mlp.experts.2.down_proj"));
  EXPECT_FALSE(q.is_weight_only(kLayers + "4.mlp.experts.20.down_proj"));
  EXPECT_TRUE(q.is_weight_only(kLayers + "5.mlp.experts.20.down_proj"));
}

TEST(Quantisation, WeightsAlone) {
  EXPECT_TRUE(parse(R"("quant_method":"modelopt","quant_algo":"W4A16_NVFP4")").is_weight_only("m"));
  EXPECT_EQ(parse(R"("quant_method":"modelopt","quant_algo":"W4A16_NVFP4")").kind, QuantisationKind::kW4A16Nvfp4);
  const std::string groups = R"("config_groups":{"g":{"weights":{"num_bits":4,"type":"float","group_size":16}}})";
  EXPECT_TRUE(parse(R"("quant_method":"modelopt","quant_algo":"NVFP4",)" + groups).weight_only);
  EXPECT_TRUE(parse(R"("quant_method":"compressed-tensors","format":"nvfp4-pack-quantized",)" + groups).weight_only);
}

TEST(Quantisation, ReleasedFp8) {
  const Quantisation q = released("fp8");
  EXPECT_EQ(q.kind, QuantisationKind::kFp8Block);
  EXPECT_EQ(q.ignore.all().size(), 830u);
  EXPECT_FALSE(q.weight_only);
  EXPECT_FALSE(q.claims(kLayers + "3.self_attn.kv_b_proj"));  // listed as model.layers.3...
  EXPECT_TRUE(q.claims(kLayers + "3.self_attn.q_b_proj"));
}

TEST(Quantisation, CompressedTensorsInGroups) {
  const Quantisation q = parse_quantisation(
      read_text_file(fs::path(VERBATIM_TINY) / "tiny-compressed" / "config.json", 1 << 20), std::nullopt, "c");
  EXPECT_EQ(q.kind, QuantisationKind::kCompressedTensors);
  EXPECT_FALSE(q.weight_only);
  EXPECT_FALSE(q.fp8_kv_cache);
  EXPECT_FALSE(q.claims(kLayers + "3.mlp.gate"));
  EXPECT_TRUE(q.claims(kLayers + "8.mlp.experts.0.up_proj"));
}

TEST(Quantisation, HfQuantConfigAlone) {
  const Quantisation q = parse_quantisation(
      "{}",
      R"({"producer":{"name":"modelopt"},"quantization":{"quant_algo":"NVFP4","kv_cache_quant_algo":"FP8","exclude_modules":["lm_head"]}})",
      "c");
  EXPECT_EQ(q.kind, QuantisationKind::kNvfp4);
  EXPECT_TRUE(q.fp8_kv_cache);
  EXPECT_EQ(q.producer, "modelopt");
  EXPECT_FALSE(q.claims("lm_head"));
}

TEST(Quantisation, HarmlessDisagreementIsNoted) {
  const std::string nvfp4 = R"("quant_method":"modelopt","quant_algo":"NVFP4")";
  const Quantisation lists =
      parse(nvfp4 + R"(,"ignore":["a"])", R"({"quantization":{"quant_algo":"NVFP4","exclude_modules":["b"]}})");
  ASSERT_EQ(lists.notes.size(), 1u);
  EXPECT_NE(lists.notes[0].find("different modules"), std::string::npos);
  EXPECT_FALSE(lists.claims("a"));
  const Quantisation cache = parse(nvfp4, R"({"quantization":{"quant_algo":"NVFP4","kv_cache_quant_algo":"FP8"}})");
  EXPECT_EQ(cache.notes.size(), 1u);
  EXPECT_TRUE(cache.fp8_kv_cache);
  const Quantisation unknown = parse(nvfp4 + R"(,"kv_cache_quant_algo":"INT8")");
  ASSERT_EQ(unknown.notes.size(), 1u);
  EXPECT_NE(unknown.notes[0].find("'INT8'"), std::string::npos);
  EXPECT_FALSE(unknown.fp8_kv_cache);
}

TEST(Quantisation, MetadataThatDisagreesWithTheTensorsIsNotedAndLoads) {
  const fs::path fixtures(VERBATIM_FIXTURES);
  auto notes = [&](const std::string& form) {
    const Checkpoint c = Checkpoint::from_inventory(fixtures / "headers" / (form + ".json.gz"),
                                                    fixtures / "configs" / form / "config.json");
    std::string all;
    for (const std::string& note : c.notes()) all += note + "\n";
    return all;
  };
  EXPECT_EQ(notes("bf16"), "");
  EXPECT_EQ(notes("w4a4_experts"), "");
  // Layer 45: 864 experts, 3 shared, 9 of attention, eh_proj and the router, all BF16 though the list omits them.
  EXPECT_NE(notes("nvfp4").find("877 matrices are stored unquantised though the metadata does not say so"),
            std::string::npos)
      << notes("nvfp4");
  EXPECT_NE(notes("fp8").find("10 of 830 names that the metadata leaves unquantised name nothing stored"),
            std::string::npos)
      << notes("fp8");
}

}  // namespace
}  // namespace verbatim::checkpoint
