#include "checkpoint/names.h"

#include <gtest/gtest.h>

#include "checkpoint/dtype.h"
#include "checkpoint/module_patterns.h"
#include "checkpoint/quote_name.h"
#include "tests/checkpoint/test_files.h"

namespace verbatim::checkpoint {
namespace {

TEST(DType, NamesAndSizes) {
  EXPECT_EQ(dtype_from_name("BF16"), DType::kBF16);
  EXPECT_EQ(dtype_from_name("F8_E4M3"), DType::kF8E4M3);
  EXPECT_EQ(dtype_from_name("F4"), std::nullopt);
  for (int i = 0; i <= static_cast<int>(DType::kF64); ++i)
    EXPECT_EQ(dtype_from_name(dtype_name(static_cast<DType>(i))), static_cast<DType>(i));
  EXPECT_EQ(dtype_bytes(DType::kF8E5M2), 1u);
  EXPECT_EQ(dtype_bytes(DType::kBF16), 2u);
  EXPECT_EQ(dtype_bytes(DType::kF32), 4u);
  EXPECT_EQ(dtype_bytes(DType::kI64), 8u);
}

TEST(Shape, CountsAndRefuses) {
  EXPECT_EQ(Shape{}.elements(), 1);
  EXPECT_EQ(Shape{}.text(), "[]");
  EXPECT_EQ((Shape{24, 16384}.text()), "[24, 16384]");
  EXPECT_EQ((Shape{24, 16384}.elements()), 24 * 16384);
  EXPECT_EQ((Shape{3, 0}.elements()), 0);
  EXPECT_NE((Shape{3}), (Shape{3, 1}));
  EXPECT_EQ((Shape{-1}.checked_elements()), std::nullopt);
  EXPECT_EQ((Shape{int64_t{1} << 62, 2}.checked_elements()), std::nullopt);
  EXPECT_EQ(checked_bytes(DType::kF64, Shape{int64_t{1} << 60}), std::nullopt);
  EXPECT_THROW((Shape{int64_t{1} << 62, 2}.elements()), Error);
  EXPECT_THROW((Shape{1, 1, 1, 1, 1, 1, 1, 1, 1}), Error);
  Shape full{1, 2, 3, 4, 5, 6, 7, 8};
  EXPECT_FALSE(full.push_back(9));
  EXPECT_EQ(full.size(), 8u);
}

TEST(Names, CanonicalOnesAreLeftAlone) {
  for (const char* name :
       {"lm_head.weight", "model.language_model.embed_tokens.weight", "model.visual.blocks.0.norm1.weight",
        "model.language_model.layers.3.self_attn.q_a_proj.weight", "unknown", "",
        "model.language_model.layers.3.hc_attn_fn", "model.language_model.layers.x.attn_hc.fn"})
    EXPECT_EQ(canonical_name(name), std::nullopt) << name;
}

TEST(Names, AliasesAreMapped) {
  const std::string layer = "model.language_model.layers.12.";
  const std::pair<std::string, std::string> pairs[] = {
      {"language_model.model.embed_tokens.weight", "model.language_model.embed_tokens.weight"},
      {"language_model.model.layers.12.input_layernorm.weight", layer + "input_layernorm.weight"},
      {"language_model.lm_head.weight", "lm_head.weight"},
      {"vision_tower.blocks.0.norm1.weight", "model.visual.blocks.0.norm1.weight"},
      {"model.vision_tower.merger.proj.weight", "model.visual.merger.proj.weight"},
      {layer + "attn_hc.fn", layer + "hc_attn_fn"},
      {layer + "attn_hc.base", layer + "hc_attn_base"},
      {layer + "ffn_hc.scale", layer + "hc_ffn_scale"},
      {layer + "self_attn.forget_gate.A_log", layer + "self_attn.A_log"},
      {layer + "self_attn.forget_gate.dt_bias", layer + "self_attn.dt_bias"},
      {layer + "self_attn.forget_gate.f_a_proj.weight", layer + "self_attn.f_a_proj.weight"},
      {layer + "self_attn.forget_gate.f_b_proj.weight_scale_2", layer + "self_attn.f_b_proj.weight_scale_2"},
      {"language_model.model.layers.12.ffn_hc.fn", layer + "hc_ffn_fn"},  // prefix and module at once
  };
  for (const auto& [alias, canonical] : pairs) EXPECT_EQ(canonical_name(alias), canonical) << alias;
}

TEST(Names, FusedTensorsAreCut) {
  const std::string layer = "model.language_model.layers.3.";
  const std::vector<FusedPart> taps = fused_parts(layer + "self_attn.conv1d.weight", Shape{24, 1, 4}, "file");
  ASSERT_EQ(taps.size(), 3u);
  EXPECT_EQ(taps[0].name, layer + "self_attn.q_conv1d.weight");
  EXPECT_EQ(taps[1].name, layer + "self_attn.k_conv1d.weight");
  EXPECT_EQ(taps[2].name, layer + "self_attn.v_conv1d.weight");
  EXPECT_EQ(taps[2].shape, (Shape{8, 1, 4}));
  EXPECT_EQ(taps[2].offset_elements, 64u);

  const std::vector<FusedPart> gate_up = fused_parts(layer + "mlp.experts.gate_up_proj", Shape{2, 6, 5}, "file");
  ASSERT_EQ(gate_up.size(), 4u);
  EXPECT_EQ(gate_up[0].name, layer + "mlp.experts.0.gate_proj.weight");
  EXPECT_EQ(gate_up[1].name, layer + "mlp.experts.0.up_proj.weight");
  EXPECT_EQ(gate_up[3].name, layer + "mlp.experts.1.up_proj.weight");
  EXPECT_EQ(gate_up[3].shape, (Shape{3, 5}));
  EXPECT_EQ(gate_up[3].offset_elements, 45u);

  const std::vector<FusedPart> down = fused_parts(layer + "mlp.experts.down_proj", Shape{2, 5, 3}, "file");
  ASSERT_EQ(down.size(), 2u);
  EXPECT_EQ(down[1].name, layer + "mlp.experts.1.down_proj.weight");
  EXPECT_EQ(down[1].shape, (Shape{5, 3}));
  EXPECT_EQ(down[1].offset_elements, 15u);

  for (const char* plain : {"mlp.down_proj.weight", "mlp.experts.0.down_proj.weight", "self_attn.q_conv1d.weight"})
    EXPECT_TRUE(fused_parts(layer + plain, Shape{3, 4}, "file").empty()) << plain;
  EXPECT_TRUE(fused_parts("model.visual.conv1d.weight", Shape{3, 4}, "file").empty());
}

TEST(ModulePatterns, PlainNamesGlobsAndRegularExpressions) {
  ModulePatterns patterns;
  EXPECT_FALSE(patterns.matches("lm_head"));
  for (const char* pattern :
       {"lm_head", "model.language_model.layers.0.self_attn*", "*mlp.gate", "re:.*shared_experts.*",
        "re:^model\\.visual\\..*proj$", "re:a|b", "model.layers.7.mlp", "vision_tower.merger"})
    patterns.add(pattern);
  EXPECT_EQ(patterns.all().size(), 8u);
  const std::string layers = "model.language_model.layers.";
  for (const std::string& module :
       {std::string("lm_head"), layers + "0.self_attn.q_proj", layers + "3.mlp.gate",
        layers + "3.mlp.shared_experts.up_proj", std::string("model.visual.blocks.0.attn.proj"),
        layers + "7.mlp.experts.3.up_proj", std::string("model.visual.merger.x")})
    EXPECT_TRUE(patterns.matches(module)) << module;
  for (const std::string& module : {std::string("lm_head2"), layers + "1.self_attn.q_proj", layers + "3.mlp.gate_proj",
                                    std::string("model.visual.projx"), std::string("a"), layers + "70.mlp"})
    EXPECT_FALSE(patterns.matches(module)) << module;
}

TEST(ModulePatterns, GlobsTakeLinearTime) {
  std::string glob;
  for (int i = 0; i < 200; ++i) glob += "*a";
  EXPECT_FALSE(glob_matches(glob + "b", std::string(20000, 'a')));
  EXPECT_TRUE(glob_matches(glob, std::string(20000, 'a')));
  EXPECT_TRUE(glob_matches("**", ""));
  EXPECT_FALSE(glob_matches("", "a"));
}

TEST(QuoteName, KeepsMessagesPrintable) {
  EXPECT_EQ(quote_name("a.b"), "'a.b'");
  EXPECT_EQ(quote_name(std::string_view("a\x1b[2J\0", 6)), "'a\\x1b[2J\\x00'");
  EXPECT_LT(quote_name(std::string(100000, 'x')).size(), 200u);
}

}  // namespace
}  // namespace verbatim::checkpoint
