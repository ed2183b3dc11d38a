// Replies whose form the request asks for. The scripted model wants to say something else and is held to the form.
#include <gtest/gtest.h>

#include "tests/server/test_server.h"

namespace verbatim::server {
namespace {

using nlohmann::json;

class Structured : public testing::Test {
 protected:
  TestServer server_;
  json reply(json more, const std::string& user = "I would rather chat") {
    more["max_tokens"] = 400;
    const Answer answer = server_.chat(user, more);
    EXPECT_EQ(answer.status, 200) << answer.body;
    return answer.json()["choices"][0];
  }
};

const json kSchema =
    json::parse(R"({"type":"object","properties":{"mood":{"enum":["fine","bad"]},"sure":{"type":"boolean"}},
  "required":["mood","sure"],"additionalProperties":false})");

json format(const json& schema) {
  return {{"response_format", {{"type", "json_schema"}, {"json_schema", {{"name", "n"}, {"schema", schema}}}}}};
}

TEST_F(Structured, JsonSchemaAfterReasoning) {
  const json choice = reply(format(kSchema));
  EXPECT_EQ(choice["message"]["reasoning_content"], "let me see");  // reasoning is free
  const json value = json::parse(choice["message"]["content"].get<std::string>());
  EXPECT_TRUE(value["mood"] == "fine" || value["mood"] == "bad");
  EXPECT_TRUE(value["sure"].is_boolean());
  EXPECT_EQ(choice["finish_reason"], "stop");
}

TEST_F(Structured, TheSameByItsOtherNames) {
  const std::string expected = reply(format(kSchema))["message"]["content"];
  for (const json& more : {json{{"guided_json", kSchema}}, json{{"guided_json", kSchema.dump()}},
                           json{{"structured_outputs", {{"json", kSchema}}}}})
    EXPECT_EQ(reply(more)["message"]["content"], expected) << more;
}

TEST_F(Structured, RegexAndChoice) {
  const std::string word = reply({{"guided_regex", "yes|no"}})["message"]["content"];
  EXPECT_TRUE(word == "yes" || word == "no") << word;
  const std::string choice = reply({{"structured_outputs", {{"choice", {"alpha", "beta"}}}}})["message"]["content"];
  EXPECT_TRUE(choice == "alpha" || choice == "beta") << choice;
  const std::string number = reply({{"structured_outputs", {{"regex", "[0-9]{3}"}}}})["message"]["content"];
  EXPECT_EQ(number.size(), 3u);
  EXPECT_EQ(number.find_first_not_of("0123456789"), std::string::npos);
}

TEST_F(Structured, WhatTheModelSaysAnywayPasses) {
  EXPECT_EQ(reply({{"guided_regex", "[a-z]+"}}, "hello")["message"]["content"], "hello");
  EXPECT_EQ(reply({{"response_format", {{"type", "json_object"}}}}, R"({"a": 1})")["message"]["content"],
            R"({"a": 1})");
}

TEST_F(Structured, CompletionsFromTheFirstToken) {
  const Answer answer =
      server_.post("/v1/completions", {{"prompt", "x"}, {"guided_choice", {"one", "two"}}, {"temperature", 0}});
  ASSERT_EQ(answer.status, 200) << answer.body;
  const std::string text = answer.json()["choices"][0]["text"];
  EXPECT_TRUE(text == "one" || text == "two") << text;
}

const json kTools = json::parse(R"([{"type":"function","function":{"name":"paint","parameters":{"type":"object",
  "properties":{"colour":{"enum":["red","blue"]}},"required":["colour"],"additionalProperties":false}}},
  {"type":"function","function":{"name":"wait","parameters":{"type":"object","properties":{},"additionalProperties":false}}}])");

TEST_F(Structured, RequiredCallsSomething) {
  const json choice = reply({{"tools", kTools}, {"tool_choice", "required"}, {"parallel_tool_calls", false}});
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  ASSERT_EQ(choice["message"]["tool_calls"].size(), 1u);
}

TEST_F(Structured, NamedCallsThat) {
  for (const bool parallel : {false, true}) {
    const json choice = reply({{"tools", kTools},
                               {"parallel_tool_calls", parallel},
                               {"tool_choice", {{"type", "function"}, {"function", {{"name", "paint"}}}}}});
    EXPECT_EQ(choice["finish_reason"], "tool_calls");
    ASSERT_EQ(choice["message"]["tool_calls"].size(), 1u);
    const json& function = choice["message"]["tool_calls"][0]["function"];
    EXPECT_EQ(function["name"], "paint");
    const json arguments = json::parse(function["arguments"].get<std::string>());
    EXPECT_TRUE(arguments["colour"] == "red" || arguments["colour"] == "blue");
  }
}

// With tools on offer the model may answer in the form or call.
TEST_F(Structured, FormOrCall) {
  TestServer server({.model = {.script = [](const std::string& user) {
                       return user == "call" ? std::string("t</think><tool_call>wait</tool_call>")
                                             : default_script(user);
                     }}});
  json more = format(kSchema);
  more["tools"] = kTools;
  const json called = server.chat("call", more).json()["choices"][0];
  EXPECT_EQ(called["message"]["tool_calls"][0]["function"]["name"], "wait") << called;
  const json answered = server.chat("talk", more).json()["choices"][0];
  EXPECT_TRUE(json::accept(answered["message"]["content"].get<std::string>())) << answered;
}

TEST_F(Structured, HostileSchemasAreRefusedWithinASecond) {
  const std::vector<std::pair<json, std::string>> rows = {
      {{{"guided_regex", "(a{1,1000}){1,1000}"}}, "guided_regex"},
      {{{"guided_regex", "("}}, "guided_regex"},
      {{{"guided_regex", "(?=a)b"}}, "guided_regex"},
      {{{"guided_json", R"({"type":"object","properties":5})"}}, "guided_json"},
      {{{"guided_json", "not json"}}, "guided_json"},
      {{{"guided_regex", std::string(300 << 10, 'a')}}, "guided_regex"},
      {{{"guided_json", {{"not", {{"type", "string"}}}}}}, "guided_json"},
      {{{"guided_regex", "a+"}, {"ignore_eos", true}}, "ignore_eos"},
      {{{"guided_choice", json::array()}}, "guided_choice"},
  };
  for (const auto& [more, param] : rows) {
    const auto start = Clock::now();
    const Answer answer = server_.chat("x", more);
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    EXPECT_EQ(answer.status, 400) << more.dump().substr(0, 300) << answer.body;
    EXPECT_EQ(answer.error("param"), param) << answer.body;
    EXPECT_LT(seconds, 2.0) << more.dump().substr(0, 300);  // compiling stops at 0.8 s; a busy machine may take longer
  }
}

}  // namespace
}  // namespace verbatim::server
