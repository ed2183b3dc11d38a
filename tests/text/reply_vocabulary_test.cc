#include "text/reply_vocabulary.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/mapped_file.h"
#include "tests/text/byte_tokenizer.h"
#include "text/reply_parser.h"

namespace verbatim::text {
namespace {

TEST(ReplyVocabulary, FindsTheTagsByContent) {
  const Tokenizer tokenizer = byte_tokenizer(chat_tokens());
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
        byte_tokenizer({"<think>", "</think>", "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>"}),
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
  const Tokenizer tokenizer = byte_tokenizer(chat_tokens());
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

// tests/fixtures/text/assistant_turns.json, made by scripts/make_reply_turns.py: turns as the released template renders
// them, and the messages that they were rendered from.
TEST(ReplyVocabulary, ReadsBackWhatTheReleasedTemplateWrites) {
  using nlohmann::json;
  const Tokenizer tokenizer = byte_tokenizer(chat_tokens());
  const ReplyVocabulary vocabulary = ReplyVocabulary::of(tokenizer, "test");
  const json turns = json::parse(read_text_file(VERBATIM_FIXTURES "/text/assistant_turns.json", 1 << 20));
  ASSERT_GE(turns.size(), 15u);
  for (const json& turn : turns) {
    std::vector<OfferedTool> offered;
    for (const json& tool : turn["tools"]) offered.push_back({tool["name"], tool["parameters"].dump()});
    const ToolSet tools(offered);
    ReplyParser parser(vocabulary, tools, {.eos = {*tokenizer.find("<|user|>")}});
    std::vector<ReplyEvent> events;
    parser.feed(tokenizer.encode(turn["text"].get<std::string>() + "<|user|>", true), events);
    const FinishReason reason = parser.finish(events);
    json found = {{"reasoning", ""}, {"content", ""}, {"calls", json::array()}};
    std::string arguments;
    const auto append = [&](const char* key, const std::string& text) {
      found[key] = found[key].get<std::string>() + text;
    };
    for (const ReplyEvent& event : events) {
      switch (event.kind) {
        case ReplyEvent::Kind::kReasoning: append("reasoning", event.text); break;
        case ReplyEvent::Kind::kText: append("content", event.text); break;
        case ReplyEvent::Kind::kCallBegin:
          found["calls"].push_back({{"name", event.text}});
          arguments.clear();
          break;
        case ReplyEvent::Kind::kCallArguments: arguments += event.text; break;
        case ReplyEvent::Kind::kCallEnd:
          EXPECT_TRUE(event.complete);
          found["calls"].back()["arguments"] = json::parse(arguments);
      }
    }
    EXPECT_EQ(found["reasoning"], turn["reasoning"]) << turn;
    EXPECT_EQ(found["content"], turn["content"]) << turn;
    EXPECT_EQ(found["calls"], turn["calls"]) << turn;
    EXPECT_EQ(reason, turn["calls"].empty() ? FinishReason::kStop : FinishReason::kToolCalls) << turn;
  }
}

TEST(ReplyStart, IsReadFromThePromptsEnd) {
  const Tokenizer tokenizer = byte_tokenizer(chat_tokens());
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
