#include "model/config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/mapped_file.h"

namespace verbatim::model {
namespace {

using nlohmann::json;

std::string fixture(const std::string& form) {
  return read_text_file(std::string(VERBATIM_FIXTURES) + "/configs/" + form + "/config.json", 1 << 20);
}

TEST(Config, ReadsTheReleasedSizes) {
  for (const char* form : {"bf16", "fp8", "nvfp4", "w4a4_experts"}) {
    const Config c = parse_config(fixture(form), form);
    EXPECT_EQ(c.layers, 45);
    EXPECT_EQ(c.next_n_layers, 1);
    EXPECT_EQ(c.hidden, 4096);
    EXPECT_EQ(c.vocabulary, 154880);
    EXPECT_EQ(c.linear_heads, 64);
    EXPECT_EQ(c.linear_head_width, 128);
    EXPECT_EQ(c.linear_lower_bound, -5.0f);
    EXPECT_EQ(c.index_pool, 4);
    EXPECT_EQ(c.index_top, 2048);
    EXPECT_EQ(c.experts, 288);
    EXPECT_EQ(c.count(MixerKind::kSparse), 11);
    for (int64_t layer = 0; layer < 45; ++layer) {
      EXPECT_EQ(c.mixer(layer), layer % 4 == 3 ? MixerKind::kSparse : MixerKind::kLinear);
      EXPECT_EQ(c.ffn(layer), layer < 3 ? FfnKind::kDense : FfnKind::kSparse);
    }
    EXPECT_EQ(c.mixer(45), MixerKind::kSparse);  // the next-n layer
    EXPECT_EQ(c.end_tokens, (std::vector<int32_t>{154820, 154827, 154829}));
    EXPECT_TRUE(c.notes.empty()) << form << ": " << c.notes.front();
    EXPECT_EQ(c.vision.depth, 24);
  }
}

// The NVIDIA config has both spellings of the linear-attention sizes, the others one: either is enough.
TEST(Config, EitherSpellingOfLinearAttention) {
  json flat = json::parse(fixture("nvfp4"));
  flat["text_config"].erase("linear_attn_config");
  EXPECT_EQ(parse_config(flat.dump(), "flat").linear_heads, 64);
  json both = json::parse(fixture("nvfp4"));
  both["text_config"]["linear_num_heads"] = 32;
  EXPECT_THROW(parse_config(both.dump(), "both"), Error);
  json unlisted = json::parse(fixture("bf16"));
  unlisted["text_config"].erase("layer_types");
  unlisted["text_config"].erase("mlp_layer_types");
  EXPECT_EQ(parse_config(unlisted.dump(), "unlisted").mixers, parse_config(fixture("bf16"), "bf16").mixers);
  EXPECT_EQ(parse_config(unlisted.dump(), "unlisted").ffns, parse_config(fixture("bf16"), "bf16").ffns);
}

TEST(Config, HarmlessUnknownFieldsAreListed) {
  json config = json::parse(fixture("bf16"));
  config["text_config"]["_name_or_path"] = "somewhere";
  config["text_config"]["hidden_dropout"] = 0.1;
  config["use_sliding_window"] = false;
  config["rope_theta_of_something"] = nullptr;
  const Config c = parse_config(config.dump(), "c");
  ASSERT_EQ(c.notes.size(), 4u);
  std::string all;
  for (const std::string& note : c.notes) all += note;
  for (const char* name : {"_name_or_path", "hidden_dropout", "use_sliding_window", "rope_theta_of_something"})
    EXPECT_NE(all.find(name), std::string::npos) << name;
}

struct Refused {
  const char* where;  // JSON pointer of the value to set; "null text" removes it
  const char* value;
  const char* expected;  // in the message
};

class ConfigRefusal : public testing::TestWithParam<Refused> {};

TEST_P(ConfigRefusal, NamesTheField) {
  const auto& [where, value, expected] = GetParam();
  json config = json::parse(fixture("bf16"));
  const json::json_pointer pointer(where);
  if (std::string(value) == "absent")
    config[pointer.parent_pointer()].erase(pointer.back());
  else
    config[pointer] = json::parse(value);
  try {
    parse_config(config.dump(), "config.json");
    FAIL() << where << " = " << value << " was accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(expected), std::string::npos) << error.what();
    // The last step of the pointer is the field, unless it is a list's index or the other spelling is named.
    const bool is_field = pointer.back().find_first_not_of("0123456789") != std::string::npos;
    if (is_field && std::string(expected) != "linear_conv_kernel_dim") {
      EXPECT_NE(std::string(error.what()).find(pointer.back()), std::string::npos) << error.what();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Values, ConfigRefusal,
    testing::Values(
        // Fields that would change the arithmetic.
        Refused{"/text_config/attn_logit_softcapping", "30.0", "unknown field"},
        Refused{"/text_config/sliding_window", "4096", "unknown field"},
        Refused{"/text_config/residual_multiplier", "0.5", "unknown field"},
        Refused{"/text_config/use_qk_norm", "true", "unknown field"}, Refused{"/logits_scaling", "2", "unknown field"},
        Refused{"/vision_config/deepstack_visual_indexes", "[1,2]", "unknown field"},
        Refused{"/text_config/linear_attn_config/gate_rank", "3", "unknown field"},
        // Values that are not implemented.
        Refused{"/text_config/scoring_func", "\"softmax\"", "only \"sigmoid\""},
        Refused{"/text_config/topk_method", "\"greedy\"", "only \"noaux_tc\""},
        Refused{"/text_config/norm_topk_prob", "false", "only true"},
        Refused{"/text_config/moe_router_dtype", "\"bfloat16\"", "only \"float32\""},
        Refused{"/text_config/hidden_act", "\"gelu\"", "only \"silu\""},
        Refused{"/text_config/mla_use_nope", "false", "only true"}, Refused{"/text_config/mhc", "false", "only true"},
        Refused{"/text_config/index_kpool_compress", "false", "only true"},
        Refused{"/text_config/attention_bias", "true", "only false"},
        Refused{"/text_config/qk_rope_head_dim", "64", "only 0"}, Refused{"/text_config/n_group", "8", "only 1"},
        Refused{"/text_config/indexer_types/7", "\"shared\"", "only \"full\""},
        Refused{"/text_config/layer_types/2", "\"mamba\"", "implemented are"},
        Refused{"/text_config/tie_word_embeddings", "true", "only false"},
        Refused{"/model_type", "\"llama\"", "only \"glm5_next\""},
        Refused{"/vision_config/hidden_act", "\"gelu\"", "only \"silu\""},
        // Absurd or missing values.
        Refused{"/text_config/index_kpool", "absent", "is missing"},
        Refused{"/text_config/hidden_size", "absent", "is missing"}, Refused{"/text_config", "absent", "is missing"},
        Refused{"/text_config/hidden_size", "-4096", "expected a whole number"},
        Refused{"/text_config/hidden_size", "4096.5", "expected a whole number"},
        Refused{"/text_config/hidden_size", "18446744073709551615", "expected a whole number"},
        Refused{"/text_config/hidden_size", "\"4096\"", "expected a whole number"},
        Refused{"/text_config/hidden_size", "4100", "multiple of 16"},
        Refused{"/text_config/num_hidden_layers", "1000000000", "expected a whole number"},
        Refused{"/text_config/num_hidden_layers", "0", "expected a whole number"},
        Refused{"/text_config/rms_norm_eps", "-1", "expected a number"},
        Refused{"/text_config/rms_norm_eps", "true", "expected a number"},
        Refused{"/text_config/n_routed_experts", "4", "expected at most"},
        Refused{"/text_config/index_topk", "2047", "multiple of index_kpool"},
        Refused{"/text_config/index_kpool", "6", "multiple of index_kpool"},
        Refused{"/text_config/eos_token_id", "[154880]", "below vocab_size"},
        Refused{"/text_config/eos_token_id", "\"stop\"", "token ids"},
        Refused{"/text_config/layer_types", "[\"linear_attention\"]", "a list of 45"},
        Refused{"/text_config/mlp_layer_types/0", "\"sparse\"", "disagrees"},
        Refused{"/text_config/linear_attn_config/kda_layers/0", "3", "expected once"},
        Refused{"/text_config/linear_attn_config/short_conv_kernel_size", "5", "linear_conv_kernel_dim"},
        Refused{"/vision_config/out_hidden_size", "2048", "hidden_size"}));

TEST(Config, RefusesWhatIsNotAnObject) {
  for (const char* text : {"", "[]", "{", "null", "{\"text_config\": []}", "\xff\xfe", "{\"a\":}"})
    EXPECT_THROW(parse_config(text, "config.json"), Error) << text;
}

TEST(Config, RefusesDeepNesting) {
  const std::string deep(100000, '[');
  EXPECT_THROW(parse_config("{\"x\":" + deep, "config.json"), Error);
  const std::string closed = std::string(100000, '[') + std::string(100000, ']');
  try {
    parse_config("{\"x\":" + closed + "}", "config.json");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("nested past 64 levels"), std::string::npos) << error.what();
  }
}

TEST(Config, GenerationConfigOverridesEndTokens) {
  Config c = parse_config(fixture("bf16"), "c");
  apply_generation_config(c, R"({"eos_token_id": 7})", "g");
  EXPECT_EQ(c.end_tokens, std::vector<int32_t>{7});
  apply_generation_config(c, R"({"temperature": 1.0})", "g");
  EXPECT_EQ(c.end_tokens, std::vector<int32_t>{7});
  EXPECT_THROW(apply_generation_config(c, R"({"eos_token_id": [-1]})", "g"), Error);
}

}  // namespace
}  // namespace verbatim::model
