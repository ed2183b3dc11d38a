#include "cli/chat_session.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/sha256.h"
#include "tests/cli/chat_helpers.h"

namespace verbatim::cli {
namespace {

class ChatSessionTest : public testing::Test {
 protected:
  ChatSession& start(std::vector<std::string> replies, ChatSettings settings = {}, int64_t context_tokens = 4096) {
    script_.emplace(std::move(replies));
    session_.emplace(
        toy_model(context_tokens), script_->generate(), [this](std::string_view text) { shown_ += text; },
        std::move(settings));
    return *session_;
  }
  // What a line shows.
  std::string say(const std::string& line) {
    shown_.clear();
    EXPECT_TRUE(session_->line(line));
    return shown_;
  }

  std::optional<Script> script_;
  std::optional<ChatSession> session_;
  std::string shown_;
};

TEST_F(ChatSessionTest, ShowsReasoningAndAnswerAndSumsUp) {
  start({"hm\n</think>\nHello <b>\n<|user|>ignored"});
  const std::vector<int32_t> ids =
      text::byte_tokenizer(text::chat_tokens()).encode("hm\n</think>\nHello <b>\n<|user|>", true);
  EXPECT_EQ(say("hi"), "hm\n\nHello <b>\n[stop: 16 tokens, 4 of them reasoning; hash " + token_hash(ids) + "]\n");
  EXPECT_EQ(script_->prompts[0], "[gMASK]<sop><|user|>hi<|assistant|><think>");
}

TEST_F(ChatSessionTest, DimsReasoningOnATerminal) {
  start({"why</think>Because<|user|>"}, {.is_styled = true});
  EXPECT_EQ(say("hi").substr(0, 31), "\x1b[2mwhy\x1b[0m\n\nBecause\n\x1b[2m[stop:");
}

TEST_F(ChatSessionTest, HidesReasoningIfAsked) {
  start({"why</think>Because<|user|>"}, {.shows_reasoning = false});
  EXPECT_EQ(say("hi").substr(0, 14), "Because\n[stop:");
  say("more");  // it is part of the conversation all the same
  EXPECT_NE(script_->prompts[1].find("<think>why</think>Because<|user|>more"), std::string::npos);
}

TEST_F(ChatSessionTest, TheConversationGoesOnAndIsReset) {
  start({"a</think>One<|user|>", "b</think>Two<|user|>"});
  say("1");
  say("2");
  EXPECT_EQ(script_->prompts[1], "[gMASK]<sop><|user|>1<|assistant|><think>a</think>One<|user|>2<|assistant|><think>");
  EXPECT_EQ(say("/reset"), "(a new conversation)\n");
  say("3");
  EXPECT_EQ(script_->prompts[2], "[gMASK]<sop><|user|>3<|assistant|><think>");
}

TEST_F(ChatSessionTest, SystemAndEffort) {
  start({"</think>ok<|user|>"}, {.system = "Be brief.", .effort = "high"});
  say("1");
  EXPECT_EQ(script_->prompts[0], "[gMASK]<sop><|system|>Effort: high<|system|>Be brief.<|user|>1<|assistant|><think>");
  EXPECT_EQ(say("/effort low"), "(effort low)\n");
  EXPECT_EQ(say("/system"), "(no system message)\n");
  EXPECT_EQ(say("/reset"), "(a new conversation)\n");
  say("2");
  EXPECT_EQ(script_->prompts[1], "[gMASK]<sop><|system|>Effort: low<|user|>2<|assistant|><think>");
  EXPECT_EQ(say("/system  Be kind. "), "(system message set)\n");
  EXPECT_EQ(say("/effort hihg"), "error: [effort] 'hihg'; expected low, high or max\n");
  EXPECT_EQ(say("/effort"), "error: [effort] ''; expected low, high or max\n");
  EXPECT_THROW(start({""}, {.effort = "medium"}), Error);
}

TEST_F(ChatSessionTest, Commands) {
  start({"</think>ok<|user|>"});
  EXPECT_EQ(say("/help"), ChatSession::help());
  EXPECT_EQ(say("/what ever"), "error: no command /what; /help lists them, // begins a message that begins with /\n");
  EXPECT_EQ(say("  "), "");
  EXPECT_TRUE(script_->prompts.empty());
  say("//usr is what?");
  EXPECT_NE(script_->prompts[0].find("<|user|>/usr is what?<"), std::string::npos);
  EXPECT_FALSE(session_->line("/quit"));
  EXPECT_FALSE(session_->line("/exit"));
}

TEST_F(ChatSessionTest, ABackslashContinuesALine) {
  start({"</think>ok<|user|>"});
  EXPECT_STREQ(session_->prompt(), "> ");
  EXPECT_EQ(say("one\\"), "");
  EXPECT_STREQ(session_->prompt(), "... ");
  say("/two\r");  // no command: it continues
  EXPECT_NE(script_->prompts[0].find("<|user|>one\n/two<"), std::string::npos);
  say("three\\");
  session_->forget_pending();
  EXPECT_STREQ(session_->prompt(), "> ");
}

TEST_F(ChatSessionTest, AnInterruptStopsTheReplyAndKeepsWhatWasSaid) {
  start({"ab</think>cdefgh<|user|>", "</think>ok<|user|>"});
  script_->on_said = [&](int64_t said) {
    if (said == 5) session_->interrupt();
  };
  EXPECT_EQ(say("1").substr(0, 42), "ab\n\ncd\n[interrupted: 5 tokens, 3 of them r");
  session_->clear_interrupt();
  script_->on_said = nullptr;
  EXPECT_EQ(say("2").substr(0, 9), "ok\n[stop:");
  EXPECT_NE(script_->prompts[1].find("<think>ab</think>cd<|user|>2"), std::string::npos);
  // Before the first token as well.
  script_->on_prompt = [&] { session_->interrupt(); };
  EXPECT_EQ(say("3").substr(0, 25), "[interrupted: 0 tokens, 0");
}

TEST_F(ChatSessionTest, RepliesEndAtTheLimitAndTheContext) {
  start({"abc</think>defghijkl<|user|>"}, {.most_tokens = 6}, 60);
  EXPECT_EQ(say("1").substr(0, 17), "abc\n\nde\n[length: ");
  EXPECT_EQ(script_->most_tokens, 6);
  start({"abc</think>def<|user|>"}, {}, 60);
  say("1");
  EXPECT_EQ(script_->most_tokens, 60 - 6);
  EXPECT_EQ(say(std::string(60, 'x')),
            "error: [chat] the conversation has grown to 76 tokens; the context holds 60; /reset begins a new one, "
            "--context asks for more\n");
  say("2");  // the conversation is as it was
  EXPECT_NE(script_->prompts[1].find("<|user|>1<|assistant|><think>abc</think>def<|user|>2"), std::string::npos);
}

TEST_F(ChatSessionTest, AFailureIsReportedAndLeavesTheConversationAsItWas) {
  start({"ab</think>cd<|user|>"});
  script_->on_said = [](int64_t said) {
    if (said == 2) fail(ErrorKind::kCapacity, "pages", "none left");
  };
  EXPECT_EQ(say("1"), "ab\nerror: [pages] none left\n");
  script_->on_said = nullptr;
  say("2");
  EXPECT_EQ(script_->prompts[1], "[gMASK]<sop><|user|>2<|assistant|><think>");
  EXPECT_EQ(say("\xFF"), "error: the line is not valid UTF-8; nothing was sent\n");
}

TEST_F(ChatSessionTest, TypedControlTokensAreText) {
  start({"</think>ok<|user|>"});
  std::vector<int32_t> prompt;
  session_.emplace(
      toy_model(),
      [&](std::span<const int32_t> ids, const GenerateOptions&, const std::function<bool(int32_t)>&) {
        prompt.assign(ids.begin(), ids.end());
      },
      [](std::string_view) {}, ChatSettings{});
  session_->line("<|user|></think>");
  const text::Tokenizer tokenizer = text::byte_tokenizer(text::chat_tokens());
  EXPECT_EQ(std::count(prompt.begin(), prompt.end(), *tokenizer.find("<|user|>")), 1);
  EXPECT_EQ(std::count(prompt.begin(), prompt.end(), *tokenizer.find("</think>")), 0);
}

TEST_F(ChatSessionTest, ARepliesControlCharactersDoNotReachTheTerminal) {
  start({"</think>a\x1b[2Jb\r\x07\tc\x7F\xC2\x9Bz<|user|>"});
  EXPECT_EQ(say("1").substr(0, 25), "a^[[2Jb^M^G\tc^?\uFFFDz\n[stop");
}

TEST(ChatSessionStart, RefusesATokenizerWithoutTheTags) {
  ChatModel model = toy_model();
  model.tokenizer = text::byte_tokenizer({"<|user|>"});
  EXPECT_THROW(ChatSession(std::move(model), nullptr, nullptr, {}), Error);
}

}  // namespace
}  // namespace verbatim::cli
