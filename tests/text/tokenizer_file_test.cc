#include "text/tokenizer_file.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/text/tokenizer_fixture.h"

namespace verbatim::text {
namespace {

using nlohmann::json;

struct Refusal {
  const char* pointer;  // what is set in the small file
  json value;
  ErrorKind kind;
  const char* named;  // what the message must hold
};

class TokenizerFileRefusal : public ::testing::TestWithParam<Refusal> {};

TEST_P(TokenizerFileRefusal, NamesWhatItFound) {
  json file = read_fixture("tokenizer.json");
  ASSERT_NO_THROW(Tokenizer::parse(file.dump(), "unchanged"));
  file[json::json_pointer(GetParam().pointer)] = GetParam().value;
  try {
    Tokenizer::parse(file.dump(), "tokenizer.json");
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), GetParam().kind) << error.what();
    EXPECT_NE(std::string(error.what()).find(GetParam().named), std::string::npos) << error.what();
    EXPECT_TRUE(std::string(error.what()).starts_with("[tokenizer.json] ")) << error.what();
  }
}

constexpr ErrorKind kFormat = ErrorKind::kFormat, kUnsupported = ErrorKind::kUnsupported;
const json kByteLevel = {
    {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};

json deep_sequence() {
  json stage = kByteLevel;
  for (int i = 0; i < 20; ++i) stage = {{"type", "Sequence"}, {"pretokenizers", {stage}}};
  return stage;
}

INSTANTIATE_TEST_SUITE_P(
    Each, TokenizerFileRefusal,
    ::testing::Values(
        Refusal{"/version", "2.0", kUnsupported, "version"}, Refusal{"/surprise", 1, kUnsupported, "surprise"},
        Refusal{"/normalizer", {{"type", "NFC"}}, kUnsupported, "normalizer {\"type\":\"NFC\"}"},
        Refusal{"/truncation", {{"max_length", 5}}, kUnsupported, "truncation"},
        Refusal{"/padding", {{"strategy", "BatchLongest"}}, kUnsupported, "padding"},
        Refusal{"/decoder", nullptr, kUnsupported, "no decoder"},
        Refusal{"/decoder/type", "Metaspace", kUnsupported, "Metaspace"},
        Refusal{"/post_processor/type", "TemplateProcessing", kUnsupported, "TemplateProcessing"},
        Refusal{"/pre_tokenizer", nullptr, kUnsupported, "no pre_tokenizer"},
        Refusal{"/pre_tokenizer", 7, kFormat, "pre_tokenizer is 7"},
        Refusal{"/pre_tokenizer", {{"type", "Whitespace"}}, kUnsupported, "Whitespace"},
        Refusal{"/pre_tokenizer", deep_sequence(), kFormat, "Sequences inside each other"},
        Refusal{"/pre_tokenizer/pretokenizers", {kByteLevel, kByteLevel}, kUnsupported, "after ByteLevel"},
        Refusal{"/pre_tokenizer/pretokenizers", json::array(), kUnsupported, "without ByteLevel"},
        Refusal{"/pre_tokenizer/pretokenizers/0/behavior", "Removed", kUnsupported, "Removed"},
        Refusal{"/pre_tokenizer/pretokenizers/0/pattern", "x", kFormat, "pattern"},
        Refusal{"/pre_tokenizer/pretokenizers/0/pattern", {{"Regex", "("}}, kUnsupported, "PCRE2"},
        Refusal{"/pre_tokenizer/pretokenizers/0/pattern", {{"Regex", "\\w+"}}, kUnsupported, "\\w"},
        Refusal{"/pre_tokenizer/pretokenizers/0/pattern", {{"String", ""}}, kUnsupported, "empty"},
        Refusal{"/pre_tokenizer/pretokenizers/1/add_prefix_space", true, kUnsupported, "add_prefix_space"},
        Refusal{"/model", nullptr, kFormat, "model"}, Refusal{"/model/type", "Unigram", kUnsupported, "Unigram"},
        Refusal{"/model/surprise", true, kUnsupported, "surprise"},
        Refusal{"/model/dropout", 0.1, kUnsupported, "dropout"},
        Refusal{"/model/byte_fallback", true, kUnsupported, "byte_fallback"},
        Refusal{"/model/continuing_subword_prefix", "##", kUnsupported, "continuing_subword_prefix"},
        Refusal{"/model/end_of_word_suffix", "</w>", kUnsupported, "end_of_word_suffix"},
        Refusal{"/model/ignore_merges", 1, kFormat, "ignore_merges"}, Refusal{"/model/vocab", 1, kFormat, "vocab"},
        Refusal{"/model/vocab/a", -1, kFormat, "-1"}, Refusal{"/model/vocab/a", 1 << 24, kFormat, "16777216"},
        Refusal{"/model/vocab/a", 1e9, kFormat, "expected an integer"},
        Refusal{"/model/vocab/a", "7", kFormat, "\"a\""}, Refusal{"/model/vocab/a", 0, kFormat, "id 0 to two pieces"},
        Refusal{"/model/vocab", {{"a", 0}}, kUnsupported, "no piece for the byte 0x00"},
        Refusal{"/model/merges", {}, kFormat, "merges"}, Refusal{"/model/merges/0", "ab", kFormat, "merge 0"},
        Refusal{"/model/merges/0", "a b c", kFormat, "merge 0"}, Refusal{"/model/merges/0", {"a"}, kFormat, "merge 0"},
        Refusal{"/model/merges/0", {"zqj", "a"}, kFormat, "zqj"},
        Refusal{"/model/merges/0", {"\\", "`"}, kFormat, "lacks"}, Refusal{"/added_tokens", 1, kFormat, "added_tokens"},
        Refusal{"/added_tokens/0", 1, kFormat, "added token 0"},
        Refusal{"/added_tokens/0/content", "", kFormat, "empty"},
        Refusal{"/added_tokens/0/content", 5, kFormat, "content"},
        Refusal{"/added_tokens/0/id", nullptr, kFormat, "id"}, Refusal{"/added_tokens/0/id", 5, kFormat, "id 5"},
        Refusal{"/added_tokens/1/content", "<|endoftext|>", kFormat, "clash"},
        Refusal{"/added_tokens/0/surprise", 1, kUnsupported, "surprise"},
        Refusal{"/added_tokens/0/lstrip", "yes", kFormat, "lstrip"},
        Refusal{"/added_tokens/0/content", "th", kFormat, "id"}));

TEST(TokenizerFile, RefusesWhatIsNotJson) {
  EXPECT_THROW(parse_tokenizer_file("", "x"), Error);
  EXPECT_THROW(parse_tokenizer_file("{\"model\":", "x"), Error);
  EXPECT_THROW(parse_tokenizer_file("[]", "x"), Error);
  EXPECT_THROW(parse_tokenizer_file("{\"a\":\"\xff\"}", "x"), Error);
  EXPECT_THROW(Tokenizer::load("/nonexistent/tokenizer.json"), Error);
}

TEST(TokenizerFile, RefusesASpecialTokenThatMergesLeadTo) {
  json file = read_fixture("tokenizer.json");
  const json merge = file["model"]["merges"][0];
  const std::string piece = merge[0].get<std::string>() + merge[1].get<std::string>();
  const json id = file["model"]["vocab"][piece];
  const auto with = [&](const std::string& content, const json& content_id, bool special) {
    json changed = file;
    changed["added_tokens"].push_back({{"id", content_id}, {"content", content}, {"special", special}});
    return changed.dump();
  };
  EXPECT_THROW(parse_tokenizer_file(with(piece, id, true), "x"), Error);
  EXPECT_NO_THROW(parse_tokenizer_file(with("a", file["model"]["vocab"]["a"], false), "x"));
  EXPECT_THROW(parse_tokenizer_file(with("a", file["model"]["vocab"]["a"], true), "x"), Error);
  // The vocabulary's spelling of another byte.
  EXPECT_THROW(parse_tokenizer_file(with("\u0120", file["model"]["vocab"]["\u0120"], false), "x"), Error);
}

TEST(TokenizerFile, ReadsThePreTokenizersOfOtherFiles) {
  json file = read_fixture("tokenizer.json");
  file["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", false}};  // use_regex is true unless given
  TokenizerFile read = parse_tokenizer_file(file.dump(), "x");
  ASSERT_EQ(read.stages.size(), 1u);
  EXPECT_EQ(read.stages[0].pattern, kByteLevelPattern);
  const json split = {{"type", "Split"}, {"pattern", {{"String", "a"}}}, {"behavior", "Isolated"}, {"invert", false}};
  file["pre_tokenizer"] = {{"type", "Sequence"},
                           {"pretokenizers", {split, {{"type", "Sequence"}, {"pretokenizers", {split, kByteLevel}}}}}};
  read = parse_tokenizer_file(file.dump(), "x");
  ASSERT_EQ(read.stages.size(), 2u);
  EXPECT_TRUE(read.stages[1].literal);
}

}  // namespace
}  // namespace verbatim::text
