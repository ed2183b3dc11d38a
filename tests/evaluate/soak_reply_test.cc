#include "evaluate/soak_reply.h"

#include <gtest/gtest.h>

namespace verbatim::evaluate {
namespace {

constexpr const char* kHashOfTwo =
    R"("verbatim":{"token_hash":"aa","choices":[{"token_hash":"aa"},{"token_hash":"bb"}]})";

TEST(SoakReply, WholeChat) {
  const SoakReply reply = read_whole(
      SoakRoute::kChat,
      std::string(R"({"choices":[{"message":{"content":"Hi","reasoning_content":"Hm"},"finish_reason":"stop"},
        {"message":{"content":null,"tool_calls":[{"function":{"name":"f","arguments":"{}"}}]}}],
        "usage":{"completion_tokens":9},)") +
          kHashOfTwo + "}");
  EXPECT_EQ(reply.problem, "");
  ASSERT_EQ(reply.choices.size(), 2u);
  EXPECT_EQ(reply.choices[0].reasoning + "|" + reply.choices[0].text, "Hm|Hi");
  EXPECT_EQ(reply.choices[1].calls, std::vector<std::string>{"f {}"});
  EXPECT_EQ(reply.choices[0].token_hash + reply.choices[1].token_hash, "aabb");
  EXPECT_EQ(reply.generated_tokens, 9);
}

TEST(SoakReply, StreamsMakeTheSame) {
  StreamedReply stream(SoakRoute::kChat, 2);
  EXPECT_FALSE(stream.event(R"({"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]})"));
  EXPECT_TRUE(stream.event(R"({"choices":[{"index":0,"delta":{"reasoning_content":"H"}}]})"));
  EXPECT_TRUE(stream.event(R"({"choices":[{"index":1,"delta":{"tool_calls":[{"index":0,"id":"x","function":
    {"name":"f","arguments":""}}]}}]})"));
  EXPECT_TRUE(stream.event(R"({"choices":[{"index":0,"delta":{"reasoning_content":"m","content":"Hi"}}]})"));
  EXPECT_TRUE(
      stream.event(R"({"choices":[{"index":1,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{}"}}]}}]})"));
  stream.event(R"({"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]})");
  EXPECT_NE(stream.reply(true).problem, "");  // one choice has not ended
  stream.event(std::string(R"({"choices":[{"index":1,"delta":{},"finish_reason":"tool_calls"}],)") + kHashOfTwo + "}");
  EXPECT_NE(stream.reply(true).problem, "");  // no [DONE]
  EXPECT_EQ(stream.reply(false).problem, "");
  stream.event("[DONE]");
  const SoakReply reply = stream.reply(true);
  EXPECT_EQ(reply.problem, "");
  EXPECT_EQ(reply.choices[0].reasoning + "|" + reply.choices[0].text + "|" + reply.choices[1].calls.at(0),
            "Hm|Hi|f {}");
  EXPECT_EQ(reply.choices[1].token_hash, "bb");
}

TEST(SoakReply, ErrorsAreProblems) {
  StreamedReply stream(SoakRoute::kChat, 1);
  stream.event(R"({"error":{"message":"the engine stopped"}})");
  stream.event("[DONE]");
  EXPECT_NE(stream.reply(true).problem.find("engine stopped"), std::string::npos);
  EXPECT_NE(read_whole(SoakRoute::kChat, "<html>").problem, "");
  EXPECT_NE(read_whole(SoakRoute::kChat, R"({"choices":[{"message":{"content":"Hi"}}]})").problem, "");  // no hash
}

TEST(SoakReply, DifferencesAreSeen) {
  SoakReply one;
  one.choices.push_back({"aa", "thinks", "says", {"f {\"a\": 1}"}});
  EXPECT_EQ(difference(one, one), "");
  SoakReply other = one;
  other.choices[0].token_hash = "bb";
  EXPECT_NE(difference(other, one).find("token hash bb; alone aa"), std::string::npos);
  for (const auto change : {+[](SoakReply::Choice& choice) { choice.reasoning += "!"; },
                            +[](SoakReply::Choice& choice) { choice.text += "!"; },
                            +[](SoakReply::Choice& choice) { choice.calls[0] += "!"; }}) {
    other = one;
    change(other.choices[0]);
    EXPECT_NE(difference(other, one), "");
    EXPECT_NE(difference_of_beginning(other, one), "");
    EXPECT_EQ(difference_of_beginning(one, other), "");
  }
  other.choices.push_back({});
  EXPECT_NE(difference(other, one), "");
}

}  // namespace
}  // namespace verbatim::evaluate
