#include "text/reply_vocabulary.h"

#include <gtest/gtest.h>

#include "base/error.h"
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
