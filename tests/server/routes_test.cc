// The routes beside chat: completions, models, tokens, figures.
#include <gtest/gtest.h>

#include <thread>

#include "tests/server/test_server.h"

namespace verbatim::server {
namespace {

using nlohmann::json;

// Without a conversation the model says letters by position: the token at position p is 'a' + p % 26.
std::string letters(int from, int count) {
  std::string text;
  for (int i = from; i < from + count; ++i) text += static_cast<char>('a' + i % 26);
  return text;
}

class Completions : public testing::Test {
 protected:
  TestServer server_;
  json complete(json body) {
    if (!body.contains("temperature")) body["temperature"] = 0;
    const Answer answer = server_.post("/v1/completions", body);
    EXPECT_EQ(answer.status, 200) << answer.body;
    return answer.json();
  }
};

TEST_F(Completions, TextAndIds) {
  const json reply = complete({{"prompt", "xyz"}});
  EXPECT_EQ(reply["object"], "text_completion");
  EXPECT_EQ(reply["choices"][0]["text"], letters(3, 16));  // 16 tokens where nothing is said
  EXPECT_EQ(reply["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(reply["usage"]["prompt_tokens"], 3);
  EXPECT_EQ(complete({{"prompt", {1, 2, 3, 4}}, {"max_tokens", 2}})["choices"][0]["text"], letters(4, 2));
  // Added tokens count as such in a completion's text.
  EXPECT_EQ(complete({{"prompt", "<think>x"}, {"max_tokens", 1}})["usage"]["prompt_tokens"], 2);
}

TEST_F(Completions, ManyPrompts) {
  const json reply = complete({{"prompt", {"a", "bcd"}}, {"n", 2}, {"max_tokens", 3}});
  ASSERT_EQ(reply["choices"].size(), 4u);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(reply["choices"][static_cast<size_t>(i)]["index"], i);
    EXPECT_EQ(reply["choices"][static_cast<size_t>(i)]["text"], letters(i < 2 ? 1 : 3, 3));
  }
  EXPECT_EQ(reply["usage"]["prompt_tokens"], 4);
  EXPECT_EQ(reply["usage"]["completion_tokens"], 12);
  EXPECT_EQ(complete({{"prompt", {{1, 2}, {3}}}, {"max_tokens", 1}})["choices"].size(), 2u);
}

TEST_F(Completions, EchoAndLogprobs) {
  const json choice = complete({{"prompt", "xyz"}, {"max_tokens", 2}, {"echo", true}, {"logprobs", 1}})["choices"][0];
  EXPECT_EQ(choice["text"], "xyz" + letters(3, 2));
  const json& logprobs = choice["logprobs"];
  EXPECT_EQ(logprobs["tokens"], json({"x", "y", "z", "d", "e"}));
  EXPECT_EQ(logprobs["text_offset"], json({0, 1, 2, 3, 4}));
  EXPECT_EQ(logprobs["token_logprobs"][0], nullptr);
  EXPECT_TRUE(logprobs["token_logprobs"][1].is_number());
  EXPECT_EQ(logprobs["top_logprobs"][3].begin().key(), "d");
  EXPECT_FALSE(choice.contains("prompt_logprobs"));
  const json scored = complete({{"prompt", "xyz"}, {"max_tokens", 0}, {"echo", true}, {"logprobs", 0}});
  EXPECT_EQ(scored["choices"][0]["text"], "xyz");
  EXPECT_EQ(scored["choices"][0]["logprobs"]["tokens"].size(), 3u);
  EXPECT_EQ(scored["usage"]["completion_tokens"], 0);
}

TEST_F(Completions, Streams) {
  for (const json& more : {json{{"logprobs", 1}}, json::object()}) {
    json body = {{"prompt", {"ab", "c"}}, {"max_tokens", 5},  {"stream", true},
                 {"echo", true},          {"temperature", 0}, {"stream_options", {{"include_usage", true}}}};
    body.update(more);
    const Answer answer = server_.post("/v1/completions", body);
    EXPECT_EQ(answer.headers.at("content-type"), "text/event-stream; charset=utf-8");
    const auto events = sse_data(answer.body);
    ASSERT_GT(events.size(), 3u);
    EXPECT_EQ(events.back(), "[DONE]");
    std::string texts[2];
    size_t tokens = 0;
    int ends = 0;
    json usage;
    for (size_t i = 0; i + 1 < events.size(); ++i) {
      const json chunk = json::parse(events[i]);
      if (chunk.contains("usage")) usage = chunk["usage"];
      for (const json& choice : chunk["choices"]) {
        texts[choice["index"].get<size_t>()] += choice["text"].get<std::string>();
        if (choice["logprobs"].is_object()) tokens += choice["logprobs"]["tokens"].size();
        ends += !choice["finish_reason"].is_null();
      }
    }
    EXPECT_EQ(texts[0], "ab" + letters(2, 5));
    EXPECT_EQ(texts[1], "c" + letters(1, 5));
    EXPECT_EQ(ends, 2);
    EXPECT_EQ(tokens, more.empty() ? 0u : 13u);
    EXPECT_EQ(usage["completion_tokens"], 10);
  }
}

TEST_F(Completions, PlainTextKeepsTagsAndSpace) {
  const json reply = complete({{"prompt", "x"}, {"max_tokens", 4}, {"logit_bias", json::object()}, {"stop", "d"}});
  EXPECT_EQ(reply["choices"][0]["text"], "bc");
  EXPECT_EQ(reply["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(reply["choices"][0]["stop_reason"], "d");
}

TEST(Models, ListsEveryName) {
  TestServer server;
  const json list = server.get("/v1/models").json();
  ASSERT_EQ(list["data"].size(), 2u);
  EXPECT_EQ(list["data"][0]["id"], "scripted");
  EXPECT_EQ(list["data"][1]["id"], "alias/of-it");
  EXPECT_EQ(list["data"][0]["max_model_len"], 65536);
  EXPECT_EQ(list["data"][0]["object"], "model");
  EXPECT_EQ(list["data"][0]["created_at"], "2023-11-14T22:13:20Z");
}

TEST(Tokens, ThereAndBack) {
  TestServer server;
  const json text = server.post("/tokenize", {{"prompt", "h\xC3\xA9<think>"}, {"return_token_strs", true}}).json();
  EXPECT_EQ(text["count"], 4);
  EXPECT_EQ(text["max_model_len"], 65536);
  EXPECT_EQ(text["token_strs"][0], "h");
  EXPECT_EQ(server.post("/detokenize", {{"tokens", text["tokens"]}}).json()["prompt"], "h\xC3\xA9<think>");
  const json chat = server.post("/tokenize", {{"messages", {{{"role", "user"}, {"content", "<think>"}}}}}).json();
  EXPECT_EQ(chat["count"], 2 + 1 + 7 + 2);  // a user's text forges no tag
  EXPECT_EQ(server.post("/tokenize", {{"prompt", 5}}).error("param"), "prompt");
  EXPECT_EQ(server.post("/tokenize", json::object()).error("param"), "prompt");
  EXPECT_EQ(server.post("/detokenize", {{"tokens", {1, 99999}}}).error("param"), "tokens");
  EXPECT_EQ(server.post("/detokenize", {{"tokens", "a"}}).error("param"), "tokens");
  // A text cut inside a character.
  EXPECT_EQ(server.post("/detokenize", {{"tokens", {server.model.tokenizer().encode("\xC3\xA9", false)[0]}}})
                .json()["prompt"],
            "\xEF\xBF\xBD");
}

TEST(Figures, Metrics) {
  TestServer server({.model = {.step_s = 0.001}});
  server.chat("hello");
  server.chat("hello", {{"max_tokens", 3}});
  server.post_text("/v1/chat/completions", "{");
  const Answer answer = server.get("/metrics");
  EXPECT_EQ(answer.status, 200);
  EXPECT_TRUE(answer.headers.at("content-type").starts_with("text/plain"));
  const auto value = [&](const std::string& series) {
    const size_t at = answer.body.find("\n" + series + " ");
    EXPECT_NE(at, std::string::npos) << series;
    return at == std::string::npos ? -1.0 : std::stod(answer.body.substr(at + series.size() + 2));
  };
  const std::string model = "model_name=\"scripted\"";
  EXPECT_EQ(value("vllm:num_requests_running{" + model + "}"), 0);
  EXPECT_EQ(value("vllm:num_requests_waiting{" + model + "}"), 0);
  EXPECT_EQ(value("vllm:kv_cache_usage_perc{" + model + "}"), 0);
  EXPECT_EQ(value("vllm:generation_tokens_total{" + model + "}"), 17 + 3);
  EXPECT_GT(value("vllm:prompt_tokens_total{" + model + "}"), 10);
  EXPECT_EQ(value("vllm:request_success_total{" + model + ",finished_reason=\"stop\"}"), 1);
  EXPECT_EQ(value("vllm:request_success_total{" + model + ",finished_reason=\"length\"}"), 1);
  EXPECT_EQ(value("vllm:time_to_first_token_seconds_count{" + model + "}"), 2);
  EXPECT_EQ(value("vllm:time_per_output_token_seconds_count{" + model + "}"), 16 + 2);
  EXPECT_EQ(value("vllm:e2e_request_latency_seconds_bucket{" + model + ",le=\"+Inf\"}"), 2);
  EXPECT_EQ(value("verbatim:http_responses_total{" + model + ",status=\"200\"}"), 2);
  EXPECT_EQ(value("verbatim:http_responses_total{" + model + ",status=\"400\"}"), 1);
  for (const char* name :
       {"vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total", "vllm:spec_decode_num_draft_tokens_total",
        "vllm:spec_decode_num_accepted_tokens_total", "vllm:num_preemptions_total", "verbatim:pages_free"})
    EXPECT_GE(value(std::string(name) + "{" + model + "}"), 0);
}

TEST(Figures, Version) {
  TestServer server;
  EXPECT_FALSE(server.get("/version").json()["version"].get<std::string>().empty());
  EXPECT_EQ(server.get("/health").json()["status"], "ok");
  EXPECT_EQ(server.get("/health/ready").json()["status"], "ready");
}

}  // namespace
}  // namespace verbatim::server
