#include "text/reply_vocabulary.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "text/reply_parser.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace verbatim::text {
namespace {

// A piece a byte and these added tokens; the names with a bar are special.
Tokenizer tokenizer_with(const std::vector<std::string>& added) {
  using nlohmann::json;
  json vocabulary = json::object();
  int32_t next = 0;
  char32_t unprintable = 0x100;
  for (char32_t byte = 0; byte < 256; ++byte) {
    const bool itself = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    std::string character;
    append_utf8(character, itself ? byte : unprintable++);
    vocabulary[character] = next++;
  }
  json tokens = json::array();
  for (const std::string& content : added)
    tokens.push_back({{"id", next++},
                      {"content", content},
                      {"single_word", false},
                      {"lstrip", false},
                      {"rstrip", false},
                      {"normalized", false},
                      {"special", content.find('|') != std::string::npos}});
  const json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  const json file = {{"version", "1.0"},
                     {"added_tokens", tokens},
                     {"pre_tokenizer", byte_level},
                     {"decoder", byte_level},
                     {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", json::array()}}}};
  return Tokenizer::parse(file.dump(), "test");
}

const std::vector<std::string> kAll = {"<|user|>",     "<|assistant|>", "<think>",    "</think>",    "<tool_call>",
                                       "</tool_call>", "<arg_key>",     "</arg_key>", "<arg_value>", "</arg_value>"};

TEST(ReplyVocabulary, FindsTheTagsByContent) {
  const Tokenizer tokenizer = tokenizer_with(kAll);
  const ReplyVocabulary vocabulary = ReplyVocabulary::of(tokenizer, "test");
  for (size_t i = 0; i < kReplyTagText.size(); ++i) {
    EXPECT_EQ(vocabulary.tags[i], tokenizer.find(kReplyTagText[i]));
    EXPECT_EQ(vocabulary.tag(vocabulary.tags[i]), static_cast<ReplyTag>(i));
  }
  EXPECT_EQ(vocabulary.tag(*tokenizer.find("<|user|>")), std::nullopt);
  EXPECT_EQ(vocabulary.tag(-1), std::nullopt);
  EXPECT_EQ(vocabulary.piece(vocabulary.tags[0]), "<think>");
  EXPECT_TRUE(vocabulary.is_special(*tokenizer.find("<|user|>")));
  EXPECT_FALSE(vocabulary.is_special(vocabulary.tags[0]));
}

TEST(ReplyVocabulary, RefusesATokenizerWithoutThemByName) {
  try {
    ReplyVocabulary::of(
        tokenizer_with({"<think>", "</think>", "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>"}),
        "models/x/tokenizer.json");
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
    EXPECT_STREQ(
        error.what(),
        "[models/x/tokenizer.json] the tokenizer has no added token <arg_value> </arg_value>; replies are read by "
        "these tags; use the tokenizer.json that belongs to the checkpoint");
  }
}

TEST(ReplyVocabulary, ParsesWhatTheTokenizerEncodes) {
  const Tokenizer tokenizer = tokenizer_with(kAll);
  const ReplyVocabulary vocabulary = ReplyVocabulary::of(tokenizer, "test");
  const ToolSet tools(std::vector<OfferedTool>{{"get", ""}});
  ReplyParser parser(vocabulary, tools, {.eos = {*tokenizer.find("<|user|>")}});
  std::vector<ReplyEvent> events;
  parser.feed(tokenizer.encode("hé</think>\nyes<tool_call>get</tool_call><|user|>", true), events);
  EXPECT_EQ(parser.finish(events), FinishReason::kToolCalls);
  ASSERT_EQ(events.size(), 5u);
  EXPECT_EQ(events[0].text, "hé");
  EXPECT_EQ(events[1].text, "yes");
  EXPECT_EQ(events[2].text, "get");
  EXPECT_EQ(events[3].text, "{}");
}

TEST(ReplyStart, IsReadFromThePromptsEnd) {
  const Tokenizer tokenizer = tokenizer_with(kAll);
  const ReplyVocabulary vocabulary = ReplyVocabulary::of(tokenizer, "test");
  const auto start = [&](std::string_view prompt) { return reply_start(tokenizer.encode(prompt, true), vocabulary); };
  EXPECT_EQ(start("<|user|>hi<|assistant|><think>"), ReplyStart::kReasoning);
  EXPECT_EQ(start("<|user|>hi<|assistant|><think>so far"), ReplyStart::kReasoning);
  EXPECT_EQ(start("<|user|>hi<|assistant|><think></think>"), ReplyStart::kAnswer);
  EXPECT_EQ(start("<|user|>hi<|assistant|><think>a</think>Once"), ReplyStart::kMidAnswer);
  EXPECT_EQ(start("<|user|>hi<|assistant|><think>a</think>b<|user|>c<|assistant|>"), ReplyStart::kUnspecified);
  EXPECT_EQ(start("no tags"), ReplyStart::kUnspecified);
  EXPECT_EQ(start(""), ReplyStart::kUnspecified);
}

}  // namespace
}  // namespace verbatim::text
