// A thousand requests that make no sense, drawn from a seed: each gets a 4xx with a message, and the server is as it
// was.
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "tests/server/test_server.h"

namespace verbatim::server {
namespace {

using nlohmann::json;

class Generator {
 public:
  explicit Generator(uint32_t seed) : random_(seed) {}

  struct Request {
    std::string path, body;
  };
  Request next() {
    switch (pick(9)) {
      case 0: return chat(bad_json());
      case 1: return chat(with(wrong_type()));
      case 2: return chat(with(huge_number()));
      case 3: return chat(deep());
      case 4: return chat(bad_utf8());
      case 5: return chat(messages(bad_message()));
      case 6:
        return chat(
            messages(R"({"role":"tool","tool_call_id":"call_)" + std::to_string(pick(9)) + R"(","content":"x"})"));
      case 7:
        return chat(
            messages(R"({"role":"user","content":[{"type":"image_url","image_url":{"url":)" + bad_url() + "}}]}"));
      default: return completion();
    }
  }

 private:
  size_t pick(size_t count) { return std::uniform_int_distribution<size_t>(0, count - 1)(random_); }
  template <typename T>
  T one_of(std::initializer_list<T> list) {
    return *(list.begin() + static_cast<std::ptrdiff_t>(pick(list.size())));
  }

  static Request chat(std::string body) { return {"/v1/chat/completions", std::move(body)}; }
  static std::string messages(const std::string& message) { return R"({"messages":[)" + message + "]}"; }
  std::string with(const std::string& field) {
    std::string stream = pick(2) == 0 ? R"("stream":true,)" : "";
    return "{" + stream + R"("messages":[{"role":"user","content":"x"}],)" + field + "}";
  }
  std::string good() {
    return R"({"messages":[{"role":"user","content":"hello \u00e9"}],"temperature":0.5,"stop":["a","b"],"n":1})";
  }

  // Something is taken out, put in or cut off until it is no JSON.
  std::string bad_json() {
    for (;;) {
      std::string text = good();
      const size_t at = pick(text.size());
      switch (pick(4)) {
        case 0: text.resize(at); break;
        case 1: text.erase(at, 1 + pick(3)); break;
        case 2: text.insert(at, 1, one_of({'{', '}', '[', ']', '"', ',', ':', '\\', '\n', '\0', '\x01'})); break;
        default: text.append(one_of<const char*>({"}", "{}", ",", "null", "\0x"}));
      }
      if (!json::accept(text)) return text;
    }
  }
  std::string wrong_type() {
    const auto field = one_of<const char*>({"temperature",
                                            "top_p",
                                            "max_tokens",
                                            "max_completion_tokens",
                                            "n",
                                            "seed",
                                            "stop",
                                            "logit_bias",
                                            "stream",
                                            "stream_options",
                                            "tools",
                                            "tool_choice",
                                            "response_format",
                                            "logprobs",
                                            "top_logprobs",
                                            "reasoning_effort",
                                            "chat_template_kwargs",
                                            "min_p",
                                            "top_k",
                                            "ignore_eos",
                                            "priority",
                                            "thinking_budget",
                                            "structured_outputs",
                                            "guided_json",
                                            "guided_regex",
                                            "guided_choice",
                                            "prompt_logprobs",
                                            "draft",
                                            "parallel_tool_calls",
                                            "model",
                                            "presence_penalty",
                                            "frequency_penalty",
                                            "repetition_penalty",
                                            "messages",
                                            "stop_token_ids",
                                            "documents"});
    // A value that none of the fields takes.
    return "\"" + std::string(field) + "\":" + one_of<const char*>({"[[]]", "[{\"a\":[]}]", "[null]", "[true,{}]"});
  }
  std::string huge_number() {
    const auto field = one_of<const char*>({"temperature", "top_p", "max_tokens", "n", "seed", "top_k", "min_p",
                                            "priority", "thinking_budget", "top_logprobs", "prompt_logprobs",
                                            "presence_penalty", "repetition_penalty"});
    return "\"" + std::string(field) + "\":" +
           one_of<const char*>({"1e400", "-1e400", "99999999999999999999999999", "-99999999999999999999",
                                "18446744073709551616", "1e308"});
  }
  std::string deep() {
    const size_t levels = 65 + pick(3000);
    const auto open = one_of<const char*>({"[", "{\"a\":"});
    const bool is_array = *open == '[';
    std::string text;
    for (size_t i = 0; i < levels; ++i) text += open;
    text += "0";
    text.append(levels, is_array ? ']' : '}');
    return with("\"metadata\":" + text);
  }
  std::string bad_utf8() {
    std::string text = good();
    const auto bad = one_of<const char*>(
        {"\xff", "\xc0\xaf", "\xed\xa0\x80", "\xf5\x80\x80\x80", "\xe2\x82", "\x80", "\\ud800", "\\udfff\\ud800"});
    text.insert(text.find("hello") + pick(5), bad);
    return text;
  }
  std::string bad_message() {
    return one_of<std::string>(
        {"5",
         "null",
         "[]",
         "\"hello\"",
         "{}",
         R"({"role":"wizard","content":"x"})",
         R"({"role":5,"content":"x"})",
         R"({"role":"","content":"x"})",
         R"({"role":"user","content":5})",
         R"({"role":"user","content":{"a":1}})",
         R"({"role":"user","content":[5]})",
         R"({"role":"user","content":[{"type":"text"}]})",
         R"({"role":"user","content":[{"type":"telepathy","text":"x"}]})",
         R"({"role":"user","content":[{"type":"input_audio","input_audio":{"data":"AAAA","format":"wav"}}]})",
         R"({"role":"assistant","tool_calls":5})",
         R"({"role":"assistant","tool_calls":[5]})",
         R"({"role":"assistant","tool_calls":[{"type":"function","function":{"name":"f","arguments":"{"}}]})",
         R"({"role":"assistant","tool_calls":[{"type":"function","function":{"name":5,"arguments":"{}"}}]})",
         R"({"role":"assistant","tool_calls":[{"type":"function","function":{"name":"f","arguments":"[1]"}}]})",
         R"({"role":"assistant","content":"x","reasoning_content":5})"});
  }
  std::string bad_url() {
    return one_of<std::string>(
        {"\"http://localhost/x.png\"", "\"https://example.com/x.png\"", "\"file:///etc/passwd\"", "\"/etc/passwd\"",
         "\"\"", "5", "null", "\"ftp://x\"", "\"data:\"", "\"data:image/png;base64,!!!!\"",
         "\"data:image/png;base64,AAAA\"", "\"data:text/html,<b>\"", "\"data:image/jpeg;base64,iVBORw0KGgo=\"",
         "\"DATA:image/png;base64,AAAA\"", "\"data:image/png;base64," + std::string(100000, 'A') + "\""});
  }
  Request completion() {
    return {"/v1/completions",
            one_of<std::string>({R"({"prompt":[[[1]]]})", R"({"prompt":{"a":1}})", R"({"prompt":[1,"x"]})",
                                 R"({"prompt":[-1]})", R"({"prompt":[99999999]})", R"({"prompt":true})",
                                 R"({"prompt":"x","suffix":"y"})", R"({"prompt":"x","logprobs":99})",
                                 R"({"prompt":"x","max_tokens":99999999})", R"({"prompt":"x","echo":"yes"})",
                                 "{\"prompt\":\"\xff\"}", "{\"prompt\":[" + std::string(200, '[') + "]}"})};
  }

  std::mt19937 random_;
};

// JSON inside strings of the JSON is nested as deep as its author likes.
TEST(Malformed, DepthInsideStrings) {
  TestServer server;
  std::string deep;
  for (int i = 0; i < 500000; ++i) deep += "{\"a\":[";
  for (int i = 0; i < 500000; ++i) deep += "]}";
  const json arguments = {
      {"messages",
       {{{"role", "assistant"},
         {"tool_calls", {{{"id", "1"}, {"type", "function"}, {"function", {{"name", "f"}, {"arguments", deep}}}}}}}}}};
  EXPECT_EQ(server.post("/v1/chat/completions", arguments).status, 400);
  deep.resize(200 << 10);
  EXPECT_EQ(server.chat("x", {{"guided_json", deep}}).status, 400);
  EXPECT_EQ(server.chat("x", {{"guided_regex", std::string(100000, '(')}}).status, 400);
  EXPECT_EQ(server.get("/health").status, 200);
}

TEST(Malformed, AThousandRequests) {
  TestServer server;
  const Answer before = server.chat("the same before and after", {{"seed", 7}});
  ASSERT_EQ(before.status, 200);
  Generator generator(20261129);
  std::map<int, int> statuses;
  Client client(server.port());  // one connection: a refusal does not end it
  for (int i = 0; i < 1000; ++i) {
    const Generator::Request request = generator.next();
    const Answer answer = client.request("POST", request.path, request.body);
    ASSERT_GE(answer.status, 400) << request.body.substr(0, 500) << answer.body;
    ASSERT_LT(answer.status, 500) << request.body.substr(0, 500) << answer.body;
    EXPECT_GT(answer.error("message").size(), 10u) << answer.body;
    EXPECT_EQ(answer.error("type"), "invalid_request_error");
    ++statuses[answer.status];
  }
  for (const auto& [status, count] : statuses) std::printf("%d: %d\n", status, count);
  const auto stats = server.engine.stats();
  EXPECT_EQ(stats.running + stats.waiting, 0);
  EXPECT_EQ(stats.pages_free, stats.pages_total);
  EXPECT_EQ(stats.cancelled, 0);
  for (int i = 0; i < 500 && server.server->http_counts().body_bytes > 0; ++i)  // a worker lets go of the last one
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  EXPECT_EQ(server.server->http_counts().body_bytes, 0);
  const Answer after = server.chat("the same before and after", {{"seed", 7}});
  EXPECT_EQ(after.json()["verbatim"]["token_hash"], before.json()["verbatim"]["token_hash"]);
}

}  // namespace
}  // namespace verbatim::server
