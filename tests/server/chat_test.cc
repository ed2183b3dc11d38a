// Chat replies, whole and streamed, and what went wrong with them elsewhere.
#include <gtest/gtest.h>

#include "base/sha256.h"
#include "tests/server/test_server.h"
#include "text/utf8.h"

namespace verbatim::server {
namespace {

using nlohmann::json;

const json kWeatherTool = json::parse(R"({"type":"function","function":{"name":"get_weather","description":"d",
  "parameters":{"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer"}}}}})");
const json kClockTool = json::parse(R"({"type":"function","function":{"name":"clock"}})");

std::string call(const std::string& name, const std::vector<std::pair<std::string, std::string>>& arguments) {
  std::string text = "<tool_call>" + name;
  for (const auto& [key, value] : arguments)
    text += "<arg_key>" + key + "</arg_key><arg_value>" + value + "</arg_value>";
  return text + "</tool_call>";
}

// Replies by name, so that a test reads as a table.
std::string replies(const std::string& user) {
  if (user == "call") return "think</think>" + call("get_weather", {{"city", "Paris"}, {"days", "3"}});
  if (user == "parallel")
    return "t</think>both:" + call("get_weather", {{"city", "Oslo"}}) + call("clock", {}) + call("clock", {});
  if (user == "amid") return "I should look" + call("clock", {});
  if (user == "unoffered") return "t</think>" + call("launch", {{"x", "1"}});
  if (user == "emoji") return "\xF0\x9F\xA4\x94</think>\xF0\x9F\x8E\x89 \xC3\xA9t\xC3\xA9 \xE4\xB8\xAD\xE6\x96\x87";
  if (user == "endless") return std::string(5000, 'x');
  if (user == "stopping") return "END</think>one END two";
  if (user == "eos2") return "t</think>a<|observation|>b";
  if (user == "eos3") return "t</think>a<|endoftext|>b";
  return default_script(user);
}

class Chat : public testing::Test {
 protected:
  TestServer server_{{.model = {.script = replies}}};

  // The deltas of a stream put together again, in the shape of a whole reply.
  json streamed(const std::string& user, json more = json::object()) {
    more["stream"] = true;
    const Answer answer = server_.chat(user, more);
    EXPECT_EQ(answer.status, 200) << answer.body;
    const std::vector<std::string> events = sse_data(answer.body);
    EXPECT_FALSE(events.empty());
    if (events.empty()) return {};
    EXPECT_EQ(events.back(), "[DONE]");
    json choices = json::array();
    json whole = {{"events", events.size()}};
    for (size_t i = 0; i + 1 < events.size(); ++i) {
      const json chunk = json::parse(events[i], nullptr, false);
      EXPECT_FALSE(chunk.is_discarded()) << events[i];
      EXPECT_EQ(chunk["object"], "chat.completion.chunk");
      for (const char* member : {"usage", "verbatim"})
        if (chunk.contains(member)) whole[member] = chunk[member];
      for (const json& part : chunk["choices"]) {
        const size_t index = part["index"];
        while (choices.size() <= index) choices.push_back({{"message", json::object()}, {"logprobs", json::array()}});
        json& choice = choices[index];
        const json& delta = part["delta"];
        for (const char* text : {"content", "reasoning_content", "reasoning", "role"}) {
          if (!delta.contains(text)) continue;
          const auto piece = delta[text].get<std::string>();
          EXPECT_EQ(text::valid_utf8_bytes(piece, 0), piece.size());
          choice["message"][text] = choice["message"].value(text, "") + piece;
        }
        for (const json& one : delta.value("tool_calls", json::array())) {
          json& calls = choice["message"]["tool_calls"];
          if (one.contains("id")) {
            EXPECT_EQ(one["index"], calls.is_null() ? 0 : calls.size());
            calls.push_back(one);
          } else {
            calls[one["index"].get<size_t>()]["function"]["arguments"] =
                calls[one["index"].get<size_t>()]["function"]["arguments"].get<std::string>() +
                one["function"]["arguments"].get<std::string>();
          }
        }
        if (part["logprobs"].is_object())
          for (const json& token : part["logprobs"]["content"]) choice["logprobs"].push_back(token);
        if (!part["finish_reason"].is_null()) {
          EXPECT_FALSE(choice.contains("finish_reason")) << "two ends";
          choice["finish_reason"] = part["finish_reason"];
          choice["stop_reason"] = part["stop_reason"];
        }
      }
    }
    whole["choices"] = choices;
    for (const json& choice : choices) EXPECT_TRUE(choice.contains("finish_reason"));
    return whole;
  }
  json whole(const std::string& user, json more = json::object()) {
    const Answer answer = server_.chat(user, more);
    EXPECT_EQ(answer.status, 200) << answer.body;
    return answer.json();
  }
};

TEST_F(Chat, WholeReply) {
  const json reply = whole("hello");
  EXPECT_EQ(reply["object"], "chat.completion");
  EXPECT_EQ(reply["model"], "scripted");
  const json& choice = reply["choices"][0];
  EXPECT_EQ(choice["message"]["role"], "assistant");
  EXPECT_EQ(choice["message"]["content"], "hello");
  EXPECT_EQ(choice["message"]["reasoning_content"], "let me see");
  EXPECT_EQ(choice["message"]["reasoning"], "let me see");
  EXPECT_FALSE(choice["message"].contains("tool_calls"));
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(choice["logprobs"], nullptr);
  const json& usage = reply["usage"];
  EXPECT_EQ(usage["completion_tokens"], 10 + 1 + 5 + 1);  // with </think> and the end
  EXPECT_EQ(usage["completion_tokens_details"]["reasoning_tokens"], 11);
  EXPECT_EQ(usage["prompt_tokens_details"]["cached_tokens"], 0);
  EXPECT_EQ(usage["total_tokens"], usage["prompt_tokens"].get<int>() + usage["completion_tokens"].get<int>());
}

TEST_F(Chat, VerbatimBlockHashesTheTokens) {
  std::vector<int32_t> ids = server_.model.tokenizer().encode("let me see</think>hello<|user|>", true);
  for (const json& reply : {whole("hello"), streamed("hello")}) {
    const json& block = reply["verbatim"];
    EXPECT_EQ(block["token_hash"], token_hash(ids));
    EXPECT_EQ(block["generated_tokens"], ids.size());
    EXPECT_EQ(block["drafted_tokens"], 0);
    EXPECT_EQ(block["ended_in"], "text");
    EXPECT_GT(block["total_ms"], 0);
    EXPECT_TRUE(block["seed"].is_number_unsigned());
  }
}

TEST_F(Chat, StreamsTheSameAsWhole) {
  for (const char* user : {"hello", "call", "parallel", "amid", "unoffered", "emoji", "stopping", "eos2"}) {
    const json more = {{"tools", {kWeatherTool, kClockTool}}, {"stop", "END"}};
    json one = whole(user, more)["choices"][0];
    json other = streamed(user, more)["choices"][0];
    for (const char* text : {"content", "reasoning_content"}) {
      const auto of = [&](const json& choice) {
        return choice["message"].contains(text) && choice["message"][text].is_string()
                   ? choice["message"][text].get<std::string>()
                   : std::string();
      };
      EXPECT_EQ(of(one), of(other)) << user;
    }
    EXPECT_EQ(one["finish_reason"], other["finish_reason"]) << user;
    const size_t calls = one["message"].value("tool_calls", json::array()).size();
    ASSERT_EQ(calls, other["message"].value("tool_calls", json::array()).size()) << user;
    for (size_t i = 0; i < calls; ++i)
      EXPECT_EQ(one["message"]["tool_calls"][i]["function"], other["message"]["tool_calls"][i]["function"]) << user;
  }
}

TEST_F(Chat, ToolCalls) {
  const json more = {{"tools", {kWeatherTool, kClockTool}}};
  const json choice = whole("call", more)["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(choice["message"]["content"], nullptr);
  const json& call = choice["message"]["tool_calls"][0];
  EXPECT_EQ(call["type"], "function");
  EXPECT_EQ(call["function"]["name"], "get_weather");
  EXPECT_EQ(json::parse(call["function"]["arguments"].get<std::string>()), json({{"city", "Paris"}, {"days", 3}}));

  const json parallel = streamed("parallel", more)["choices"][0]["message"];
  EXPECT_EQ(parallel["content"], "both:");
  ASSERT_EQ(parallel["tool_calls"].size(), 3u);
  EXPECT_EQ(parallel["tool_calls"][1]["function"], json({{"name", "clock"}, {"arguments", "{}"}}));  // not dropped
  EXPECT_NE(parallel["tool_calls"][1]["id"], parallel["tool_calls"][2]["id"]);

  const json amid = whole("amid", more)["choices"][0];  // inside reasoning: not lost
  EXPECT_EQ(amid["message"]["tool_calls"][0]["function"]["name"], "clock");
  EXPECT_EQ(amid["message"]["reasoning_content"], "I should look");

  const json unoffered = whole("unoffered", more)["choices"][0];
  EXPECT_FALSE(unoffered["message"].contains("tool_calls"));
  EXPECT_NE(unoffered["message"]["content"].get<std::string>().find("<tool_call>launch"), std::string::npos);
  EXPECT_EQ(unoffered["finish_reason"], "stop");
}

TEST_F(Chat, NoToolsNoDuplicatedText) {
  const std::string reply = whole("call")["choices"][0]["message"]["content"];
  EXPECT_EQ(reply, call("get_weather", {{"city", "Paris"}, {"days", "3"}}));
}

TEST_F(Chat, OneCallWhereParallelIsOff) {
  const json choice =
      whole("parallel", {{"tools", {kWeatherTool, kClockTool}}, {"parallel_tool_calls", false}})["choices"][0];
  EXPECT_EQ(choice["message"]["tool_calls"].size(), 1u);
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
}

TEST_F(Chat, ToolChoiceNoneNeverCalls) {
  const json choice =
      whole("call", {{"tools", {kWeatherTool}}, {"tool_choice", "none"}, {"max_tokens", 40}})["choices"][0];
  EXPECT_FALSE(choice["message"].contains("tool_calls"));
  EXPECT_EQ(choice.dump().find("<tool_call>"), std::string::npos);
}

TEST_F(Chat, ToolResultsComeBack) {
  const json assistant = whole("call", {{"tools", {kWeatherTool}}})["choices"][0]["message"];
  const Answer answer =
      server_.post("/v1/chat/completions",
                   {{"temperature", 0},
                    {"tools", {kWeatherTool}},
                    {"messages",
                     {{{"role", "user"}, {"content", "call"}},
                      assistant,
                      {{"role", "tool"}, {"tool_call_id", assistant["tool_calls"][0]["id"]}, {"content", "rain"}},
                      {{"role", "user"}, {"content", "so?"}}}}});
  ASSERT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(answer.json()["choices"][0]["message"]["content"], "so?");
}

// enable_thinking=false means nothing to the model, which thinks all the same: it must not leak into the content.
TEST_F(Chat, EnableThinkingFalseDoesNotLeak) {
  const json message =
      whole("hello", {{"chat_template_kwargs", {{"enable_thinking", false}}}})["choices"][0]["message"];
  EXPECT_EQ(message["content"], "hello");
  EXPECT_EQ(message["reasoning_content"], "let me see");
}

TEST_F(Chat, NeverHalfACharacter) {
  const Answer answer = server_.chat("emoji", {{"stream", true}});
  EXPECT_EQ(answer.body.find("\xEF\xBF\xBD"), std::string::npos);
  EXPECT_EQ(text::valid_utf8_bytes(answer.body, 0), answer.body.size());
  EXPECT_EQ(streamed("emoji")["choices"][0]["message"]["content"],
            "\xF0\x9F\x8E\x89 \xC3\xA9t\xC3\xA9 \xE4\xB8\xAD\xE6\x96\x87");
}

TEST_F(Chat, EveryEndTokenEnds) {
  EXPECT_EQ(whole("eos2")["choices"][0]["message"]["content"], "a");
  EXPECT_EQ(whole("eos3")["choices"][0]["message"]["content"], "a");
  EXPECT_EQ(whole("hello")["choices"][0]["finish_reason"], "stop");
}

TEST_F(Chat, StopStringsEndTextNotReasoning) {
  const json reply = whole("stopping", {{"stop", {"never", "END"}}});
  EXPECT_EQ(reply["choices"][0]["message"]["content"], "one");
  EXPECT_EQ(reply["choices"][0]["message"]["reasoning_content"], "END");
  EXPECT_EQ(reply["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(reply["choices"][0]["stop_reason"], "END");
  // The reply ends with the token that completes it, so its hash is the same whoever asks and however it is sent.
  EXPECT_EQ(reply["usage"]["completion_tokens"], 3 + 1 + 7);
  EXPECT_EQ(reply["verbatim"]["token_hash"], streamed("stopping", {{"stop", "END"}})["verbatim"]["token_hash"]);
}

TEST_F(Chat, ReasoningThatNeverEndsSaysSo) {
  const json reply = whole("endless", {{"max_tokens", 100}});
  EXPECT_EQ(reply["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(reply["verbatim"]["ended_in"], "reasoning");
  EXPECT_EQ(reply["choices"][0]["message"]["content"], "");
  EXPECT_EQ(reply["usage"]["completion_tokens_details"]["reasoning_tokens"], 100);
}

TEST_F(Chat, ThinkingBudget) {
  const json reply = whole("endless", {{"max_tokens", 100}, {"thinking_budget", 20}});
  EXPECT_EQ(reply["choices"][0]["message"]["reasoning_content"], std::string(20, 'x'));
  EXPECT_EQ(reply["usage"]["completion_tokens_details"]["reasoning_tokens"], 21);
}

TEST_F(Chat, MaxCompletionTokensWins) {
  EXPECT_EQ(whole("endless", {{"max_tokens", 50}, {"max_completion_tokens", 7}})["usage"]["completion_tokens"], 7);
}

TEST_F(Chat, Choices) {
  const json reply = streamed("hello", {{"n", 3}, {"stream_options", {{"include_usage", true}}}});
  ASSERT_EQ(reply["choices"].size(), 3u);
  for (const json& choice : reply["choices"]) {
    EXPECT_EQ(choice["message"]["content"], "hello");
    EXPECT_EQ(choice["message"]["role"], "assistant");
  }
  EXPECT_EQ(reply["usage"]["completion_tokens"], 3 * 17);
  EXPECT_EQ(reply["usage"]["prompt_tokens"], whole("hello")["usage"]["prompt_tokens"]);
  EXPECT_EQ(reply["verbatim"]["choices"].size(), 3u);
}

TEST_F(Chat, Logprobs) {
  for (const json& reply : {whole("hello", {{"logprobs", true}, {"top_logprobs", 2}}),
                            streamed("hello", {{"logprobs", true}, {"top_logprobs", 2}})}) {
    const json& logprobs = reply["choices"][0]["logprobs"];
    const json& tokens = logprobs.is_object() ? logprobs["content"] : logprobs;
    ASSERT_EQ(tokens.size(), 17u);  // every token, those of reasoning too
    EXPECT_EQ(tokens[11]["token"], "h");
    EXPECT_EQ(tokens[11]["bytes"], json({'h'}));
    EXPECT_LE(tokens[11]["logprob"], 0);
    ASSERT_EQ(tokens[11]["top_logprobs"].size(), 2u);
    EXPECT_EQ(tokens[11]["top_logprobs"][0]["token"], "h");
  }
}

TEST_F(Chat, PromptLogprobs) {
  const json reply = whole("hello", {{"prompt_logprobs", 1}});
  const json& scored = reply["prompt_logprobs"];
  ASSERT_EQ(scored.size(), reply["usage"]["prompt_tokens"].get<size_t>());
  EXPECT_EQ(scored[0], nullptr);
  EXPECT_TRUE(scored[1].is_object());
}

TEST_F(Chat, SeedComesBackAndRepeats) {
  json more = {{"temperature", 1.0}, {"logit_bias", {{"97", 30}, {"98", 30}, {"99", 30}}}, {"max_tokens", 12}};
  const json first = whole("endless", more);
  more["seed"] = first["verbatim"]["seed"];
  EXPECT_EQ(whole("endless", more)["verbatim"]["token_hash"], first["verbatim"]["token_hash"]);
}

TEST_F(Chat, UsageOnlyWhereAsked) {
  EXPECT_FALSE(streamed("hello").contains("usage"));
  EXPECT_TRUE(streamed("hello", {{"stream_options", {{"include_usage", true}}}}).contains("usage"));
}

TEST_F(Chat, Effort) {
  const auto prompt_tokens = [&](json more) {
    return whole("hello", std::move(more))["usage"]["prompt_tokens"].get<int>();
  };
  const int none = prompt_tokens({});
  const auto added = [&](const char* effort) { return prompt_tokens({{"reasoning_effort", effort}}) - none; };
  EXPECT_EQ(added("low"), added("minimal"));  // "Effort: low" whatever it was called
  EXPECT_EQ(added("none"), added("low"));
  EXPECT_EQ(added("medium"), added("high"));
  EXPECT_EQ(added("high"), added("low") + 1);
}

TEST_F(Chat, AliasesAreServedUnderTheNameAsked) {
  EXPECT_EQ(whole("hello", {{"model", "alias/of-it"}})["model"], "alias/of-it");
  const Answer answer = server_.chat("hello", {{"model", "gpt-5"}});
  EXPECT_EQ(answer.status, 404);
  EXPECT_EQ(answer.error("code"), "model_not_found");
}

// Drafted tokens come several at a time: the reply, its pieces put together and its hash are the same.
TEST_F(Chat, SeveralTokensAtOnce) {
  const std::string song = "</think>la la la la la la \xF0\x9F\x8E\x89\xF0\x9F\x8E\x89\xF0\x9F\x8E\x89 la la la la la" +
                           call("clock", {}) + call("get_weather", {{"city", "la la la la la"}}) +
                           call("get_weather", {{"city", "la la la la la"}});
  TestServer drafting(
      {.model = {.script = [&](const std::string&) { return song; }}, .scheduler = {.draft_from_text = true}});
  TestServer plain({.model = {.script = [&](const std::string&) { return song; }}});
  json more = {{"tools", {kWeatherTool, kClockTool}}};
  const json undrafted = plain.chat("sing", more).json();
  const json drafted = drafting.chat("sing", more).json();
  EXPECT_GT(drafted["verbatim"]["accepted_tokens"], 10);
  EXPECT_EQ(undrafted["verbatim"]["drafted_tokens"], 0);
  EXPECT_EQ(drafted["verbatim"]["token_hash"], undrafted["verbatim"]["token_hash"]);
  EXPECT_EQ(drafted["choices"][0]["message"]["content"], undrafted["choices"][0]["message"]["content"]);
  ASSERT_EQ(drafted["choices"][0]["message"]["tool_calls"].size(), 3u);
  for (size_t i = 0; i < 3; ++i)
    EXPECT_EQ(drafted["choices"][0]["message"]["tool_calls"][i]["function"],
              undrafted["choices"][0]["message"]["tool_calls"][i]["function"]);
  more["stream"] = true;
  std::string content;
  std::string arguments;
  for (const std::string& event : sse_data(drafting.chat("sing", more).body)) {
    const json chunk = json::parse(event, nullptr, false);
    if (!chunk.is_object() || chunk["choices"].empty()) continue;
    const json& delta = chunk["choices"][0]["delta"];
    content += delta.value("content", "");
    for (const json& one : delta.value("tool_calls", json::array()))
      arguments += one["function"]["arguments"].get<std::string>();
  }
  EXPECT_EQ(content, undrafted["choices"][0]["message"]["content"]);
  EXPECT_EQ(arguments, R"({}{"city": "la la la la la"}{"city": "la la la la la"})");
  more["stream"] = false;
  more["draft"] = false;
  EXPECT_EQ(drafting.chat("sing", more).json()["verbatim"]["drafted_tokens"], 0);
}

// Two requests at once, many times: the state of one reply's parser must never be another's.
TEST_F(Chat, RepliesDoNotMix) {
  std::vector<std::thread> clients;
  std::atomic<int> wrong{0};
  for (int client = 0; client < 8; ++client)
    clients.emplace_back([&, client] {
      for (int i = 0; i < 10; ++i) {
        const std::string user = "message " + std::to_string(client) + "." + std::to_string(i);
        const json reply = streamed(user, {{"tools", {kClockTool}}});
        if (reply["choices"][0]["message"]["content"] != user) ++wrong;
      }
    });
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace verbatim::server
