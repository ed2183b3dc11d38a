#include "text/chat_inputs.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"

namespace verbatim::text {
namespace {

using Json = nlohmann::ordered_json;

Json request(const char* text) { return parse_ordered_json(text, "request"); }

void expect_refused(const char* text, ErrorKind kind, const std::string& part) {
  try {
    const Json inputs = chat_inputs(request(text));
    ADD_FAILURE() << text << "\ngives " << inputs.dump();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what() << "\nlacks: " << part;
  }
}

TEST(ChatInputs, DefaultsAreThoseOfHuggingFace) {
  EXPECT_EQ(
      chat_inputs(request(R"({"messages": [{"role": "user", "content": "hi"}], "temperature": 1})")).dump(),
      R"({"messages":[{"role":"user","content":"hi"}],"tools":null,"documents":null,"add_generation_prompt":true})");
}

TEST(ChatInputs, OptionsAndKeywords) {
  const Json inputs = chat_inputs(request(R"({"messages": [], "tools": [{"x": 1}], "reasoning_effort": "low",
      "clear_thinking": true, "add_generation_prompt": false,
      "chat_template_kwargs": {"enable_thinking": false, "reasoning_effort": "high"}})"));
  EXPECT_EQ(inputs.dump(), R"({"messages":[],"tools":[{"x":1}],"documents":null,"add_generation_prompt":false,)"
                           R"("reasoning_effort":"high","clear_thinking":true,"enable_thinking":false})");
  EXPECT_FALSE(chat_inputs(request(R"({"messages": [], "reasoning_effort": null})")).contains("reasoning_effort"));
}

TEST(ChatInputs, MessagesAreMadeRegular) {
  const Json inputs = chat_inputs(request(R"({"messages": [
      {"role": "developer", "content": "d"},
      {"role": "assistant", "content": null, "reasoning": "r", "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"b\": 1.50, \"a\": [null]}"}},
        {"name": "g", "arguments": {"x": 1}}, {"function": {"name": "h", "arguments": ""}}, {"function": {"name": "i"}}]},
      {"role": "tool", "tool_call_id": "c1", "content": [{"type": "tool_reference", "name": "f"}, {"output": "x"}]},
      {"role": "assistant", "reasoning_content": null}, {"role": "user", "content": [], "name": "n"}]})"));
  const Json& messages = inputs["messages"];
  EXPECT_EQ(messages[0].dump(), R"({"role":"system","content":"d"})");
  EXPECT_EQ(messages[1].dump(),
            R"({"role":"assistant","content":"","reasoning_content":"r","tool_calls":[)"
            R"({"id":"c1","type":"function","function":{"name":"f","arguments":{"b":1.5,"a":[null]}}},)"
            R"({"name":"g","arguments":{"x":1}},{"function":{"name":"h","arguments":{}}},)"
            R"({"function":{"name":"i","arguments":{}}}]})");
  EXPECT_EQ(messages[2].dump(), R"({"tool_call_id":"c1","role":"tool","content":[{"type":"tool_reference","name":"f"},)"
                                R"({"output":"x"}]})");
  EXPECT_EQ(messages[3].dump(), R"({"role":"assistant","content":""})");
  EXPECT_EQ(messages[4].dump(), R"({"name":"n","role":"user","content":[]})");
}

TEST(ChatInputs, MediaPartsAreListedAndLoseTheirData) {
  std::vector<MediaPart> media;
  const Json inputs =
      chat_inputs(request(R"({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": [
      {"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "data:"}}, "plain",
      {"type": "video_url", "video_url": {"url": "u"}}, {"type": "image"}]}]})"),
                  &media);
  EXPECT_EQ(inputs["messages"][1]["content"].dump(),
            R"([{"type":"text","text":"a"},{"type":"image"},"plain",{"type":"video"},{"type":"image"}])");
  ASSERT_EQ(media.size(), 3u);
  EXPECT_TRUE(!media[0].is_video && media[0].message == 1 && media[0].part == 1);
  EXPECT_TRUE(media[1].is_video && media[1].message == 1 && media[1].part == 3);
  EXPECT_TRUE(!media[2].is_video && media[2].part == 4);
}

TEST(ChatInputs, RefusalsNameTheMessage) {
  expect_refused("[]", ErrorKind::kFormat, "object");
  expect_refused("{}", ErrorKind::kFormat, "'messages'");
  expect_refused(R"({"messages": [1]})", ErrorKind::kFormat, "messages[0]");
  expect_refused(R"({"messages": [{"content": "x"}]})", ErrorKind::kFormat, "'role'");
  expect_refused(R"({"messages": [{"role": "function", "content": "x"}]})", ErrorKind::kUnsupported, "'function'");
  expect_refused(R"({"messages": [{"role": "user", "content": 5}]})", ErrorKind::kFormat, "'content'");
  expect_refused(R"({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]})", ErrorKind::kUnsupported,
                 "'input_audio'");
  expect_refused(R"({"messages": [{"role": "user", "content": [{"type": "text"}]}]})", ErrorKind::kFormat, "'text'");
  expect_refused(R"({"messages": [{"role": "user", "content": [7]}]})", ErrorKind::kUnsupported, "part");
  expect_refused(R"({"messages": [{"role": "assistant", "reasoning_content": 5}]})", ErrorKind::kFormat, "reasoning");
  expect_refused(R"({"messages": [{"role": "assistant", "tool_calls": {}}]})", ErrorKind::kFormat, "'tool_calls'");
  expect_refused(R"({"messages": [{"role": "assistant", "tool_calls": [5]}]})", ErrorKind::kFormat, "tool_calls[0]");
  expect_refused(R"({"messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}]})", ErrorKind::kFormat,
                 "name");
  for (const char* arguments : {R"("[1]")", R"("{")", R"("text")", "[1]", "5"})
    expect_refused((std::string(R"({"messages": [{"role": "assistant", "tool_calls": [{"name": "f", "arguments": )") +
                    arguments + "}]}]}")
                       .c_str(),
                   ErrorKind::kFormat, "arguments");
  expect_refused(R"({"messages": [], "tools": {}})", ErrorKind::kFormat, "tools");
  expect_refused(R"({"messages": [], "chat_template_kwargs": {"messages": []}})", ErrorKind::kFormat, "'messages'");
  expect_refused(R"({"messages": [], "chat_template_kwargs": []})", ErrorKind::kFormat, "chat_template_kwargs");
}

TEST(ParseOrderedJson, RefusesWhatItWouldRound) {
  EXPECT_EQ(parse_ordered_json("[9223372036854775807, -9223372036854775808, 1e30, 1.0]", "t").dump(),
            "[9223372036854775807,-9223372036854775808,1e+30,1.0]");
  for (const char* text : {"[9223372036854775808]", "123456789012345678901234567890", "{\"a\": -9223372036854775809}"})
    EXPECT_THROW(parse_ordered_json(text, "t"), Error) << text;
  for (const char* text : {"", "{", "nul", "[1,]", "\"\\ud800\"", "\"\xFF\"", "1e999", "[1] 2"})
    EXPECT_THROW(parse_ordered_json(text, "t"), Error) << text;
}

}  // namespace
}  // namespace verbatim::text
