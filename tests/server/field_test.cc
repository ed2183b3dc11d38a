// Fields of requests: what is refused, and that the refusal names the field.
#include <gtest/gtest.h>

#include "tests/server/test_server.h"

namespace verbatim::server {
namespace {

using nlohmann::json;

class Fields400 : public testing::Test {
 protected:
  TestServer server_{{.model = {.pages = 64}}};

  void refused(const std::string& path, const std::string& body, const std::string& param) {
    for (const bool stream : {false, true}) {
      std::string sent = body;
      if (stream && sent.size() > 2 && sent.find("\"stream") == std::string::npos)
        sent.insert(sent.size() - 1, ",\"stream\":true");
      const Answer answer = server_.post_text(path, sent);
      EXPECT_EQ(answer.status, 400) << sent << "\n" << answer.body;
      EXPECT_EQ(answer.error("type"), "invalid_request_error") << answer.body;
      EXPECT_EQ(answer.error("param"), param) << sent << "\n" << answer.body;
      EXPECT_FALSE(answer.error("message").empty());
      EXPECT_EQ(answer.headers.at("content-type"), "application/json");
    }
  }
};

TEST_F(Fields400, ChatNamesTheField) {
  const std::vector<std::pair<std::string, std::string>> rows = {
      {R"("temperature":"hot")", "temperature"},
      {R"("temperature":-1)", "temperature"},
      {R"("temperature":1e9)", "temperature"},
      {R"("top_p":0)", "top_p"},
      {R"("top_p":1.5)", "top_p"},
      {R"("min_p":2)", "min_p"},
      {R"("top_k":1.5)", "top_k"},
      {R"("top_k":-2)", "top_k"},
      {R"("frequency_penalty":3)", "frequency_penalty"},
      {R"("presence_penalty":"x")", "presence_penalty"},
      {R"("repetition_penalty":0)", "repetition_penalty"},
      {R"("seed":1.5)", "seed"},
      {R"("seed":"x")", "seed"},
      {R"("n":0)", "n"},
      {R"("n":17)", "n"},
      {R"("n":"1")", "n"},
      {R"("stop":5)", "stop"},
      {R"("stop":[""])", "stop"},
      {R"("stop":[1])", "stop"},
      {R"("stop":["a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a"])", "stop"},
      {"\"stop\":\"" + std::string(257, 's') + "\"", "stop"},
      {R"("stop_token_ids":[-1])", "stop_token_ids"},
      {R"("stop_token_ids":[999999])", "stop_token_ids"},
      {R"("logit_bias":[1])", "logit_bias"},
      {R"("logit_bias":{"a":1})", "logit_bias"},
      {R"("logit_bias":{"1":101})", "logit_bias"},
      {R"("logit_bias":{"999999":1})", "logit_bias"},
      {R"("max_tokens":0)", "max_tokens"},
      {R"("max_tokens":"many")", "max_tokens"},
      {R"("max_completion_tokens":1.5)", "max_completion_tokens"},
      {R"("logprobs":1)", "logprobs"},
      {R"("top_logprobs":3)", "top_logprobs"},
      {R"("logprobs":true,"top_logprobs":21)", "top_logprobs"},
      {R"("prompt_logprobs":21)", "prompt_logprobs"},
      {R"("stream":"yes")", "stream"},
      {R"("stream_options":5)", "stream_options"},
      {R"("stream":true,"stream_options":{"include_usage":1})", "stream_options.include_usage"},
      {R"("model":5)", "model"},
      {R"("reasoning_effort":"huge")", "reasoning_effort"},
      {R"("reasoning_effort":1)", "reasoning_effort"},
      {R"("chat_template_kwargs":[])", "chat_template_kwargs"},
      {R"("thinking_budget":-1)", "thinking_budget"},
      {R"("draft":"no")", "draft"},
      {R"("ignore_eos":1)", "ignore_eos"},
      {R"("priority":"high")", "priority"},
      {R"("parallel_tool_calls":1)", "parallel_tool_calls"},
      {R"("tools":5)", "tools"},
      {R"("tools":[5])", "tools[0]"},
      {R"("tools":[{"type":"web_search"}])", "tools[0].type"},
      {R"("tools":[{"type":"function"}])", "tools[0].function"},
      {R"("tools":[{"type":"function","function":{}}])", "tools[0].function.name"},
      {R"("tools":[{"type":"function","function":{"name":""}}])", "tools[0].function.name"},
      {R"("tools":[{"type":"function","function":{"name":"f","parameters":[]}}])", "tools[0].function.parameters"},
      {R"("tools":[{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"f"}}])", "tools"},
      {R"("tool_choice":"maybe")", "tool_choice"},
      {R"("tool_choice":"required")", "tool_choice"},
      {R"("tool_choice":{"type":"function","function":{"name":"f"}})", "tool_choice"},
      {R"("tool_choice":{"type":"allowed_tools"})", "tool_choice.type"},
      {R"("functions":[])", "functions"},
      {R"("modalities":["audio"])", "modalities"},
      {R"("audio":{})", "audio"},
      {R"("response_format":"json")", "response_format"},
      {R"("response_format":{"type":"yaml"})", "response_format.type"},
      {R"("response_format":{"type":"json_schema"})", "response_format.json_schema.schema"},
      {R"("structured_outputs":{"structural_tag":{}})", "structured_outputs.structural_tag"},
      {R"("guided_choice":"a")", "guided_choice"},
      {R"("guided_regex":5)", "guided_regex"},
      {R"("guided_regex":"a","guided_json":{})", "guided_regex"},
      {R"("guided_grammar":"root ::= x")", "guided_grammar"},
  };
  for (const auto& [field, param] : rows)
    refused("/v1/chat/completions", R"({"messages":[{"role":"user","content":"x"}],)" + field + "}", param);
}

TEST_F(Fields400, Messages) {
  const std::vector<std::pair<std::string, std::string>> rows = {
      {R"({})", "messages"},
      {R"({"messages":5})", "messages"},
      {R"({"messages":[]})", "messages"},
      {R"({"messages":[5]})", "messages[0]"},
      {R"({"messages":[{}]})", "messages[0].role"},
      {R"({"messages":[{"role":"wizard","content":"x"}]})", "messages"},
      {R"({"messages":[{"role":"user","content":5}]})", "messages"},
      {R"({"messages":[{"role":"user","content":[{"type":"smell"}]}]})", "messages"},
      {R"({"messages":[{"role":"tool","content":"x","tool_call_id":"1"}]})", "messages[0]"},
      {R"({"messages":[{"role":"assistant","tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"{}"}}]},
          {"role":"tool","content":"x","tool_call_id":"b"}]})",
       "messages[1].tool_call_id"},
      {R"({"messages":[{"role":"assistant","tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"not json"}}]}]})",
       "messages"},
      {R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://169.254.169.254/x"}}]}]})",
       "messages[0].content[0]"},
      {R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"file:///etc/passwd"}}]}]})",
       "messages[0].content[0]"},
      {R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}]}]})",
       "messages[0].content[0]"},
      {R"({"messages":[{"role":"user","content":[{"type":"image_url"}]}]})", "messages[0].content[0]"},
  };
  for (const auto& [body, param] : rows) refused("/v1/chat/completions", body, param);
}

TEST_F(Fields400, NullMeansAbsent) {
  const Answer answer = server_.chat("hi", {{"stop", nullptr},
                                            {"n", nullptr},
                                            {"tools", nullptr},
                                            {"seed", nullptr},
                                            {"response_format", nullptr},
                                            {"logit_bias", nullptr}});
  EXPECT_EQ(answer.status, 200) << answer.body;
}

TEST_F(Fields400, UnknownFieldsAreIgnored) {
  EXPECT_EQ(server_.chat("hi", {{"quantum", true}, {"metadata", {{"a", 1}}}, {"user", "u"}}).status, 200);
}

TEST_F(Fields400, ContextOverflow) {
  for (const json& more : {json{{"max_tokens", 5000}}, json{{"max_tokens", 10}, {"pad", 1}}}) {
    const Answer answer = server_.chat(more.contains("pad") ? std::string(5000, 'x') : "hi", more);
    EXPECT_EQ(answer.status, 400);
    EXPECT_EQ(answer.error("code"), "context_length_exceeded");
    EXPECT_TRUE(answer.error("message").starts_with("This server's maximum context length is 4095 tokens"))
        << answer.body;
  }
  const Answer whole = server_.chat("hi");  // what is left, never more
  EXPECT_EQ(whole.status, 200);
}

TEST_F(Fields400, Completions) {
  const std::vector<std::pair<std::string, std::string>> rows = {
      {R"({})", "prompt"},
      {R"({"prompt":5})", "prompt"},
      {R"({"prompt":""})", "prompt"},
      {R"({"prompt":[]})", "prompt"},
      {R"({"prompt":[1,"a"]})", "prompt"},
      {R"({"prompt":[1.5]})", "prompt"},
      {R"({"prompt":[999999]})", "prompt"},
      {R"({"prompt":[[1],[-1]]})", "prompt"},
      {R"({"prompt":"a","suffix":"b"})", "suffix"},
      {R"({"prompt":"a","logprobs":true})", "logprobs"},
      {R"({"prompt":"a","logprobs":21})", "logprobs"},
      {R"({"prompt":"a","best_of":3})", "best_of"},
      {R"({"prompt":"a","echo":1})", "echo"},
      {R"({"prompt":"a","max_tokens":0})", "max_tokens"},
  };
  for (const auto& [body, param] : rows) refused("/v1/completions", body, param);
}

TEST_F(Fields400, BodiesThatAreNoJson) {
  const std::vector<std::string> bodies = {"",
                                           "{",
                                           "[]",
                                           "5",
                                           "null",
                                           "{\"a\":1,}",
                                           "{'a':1}",
                                           "\xff\xfe",
                                           "{\"messages\":\"\xff\"}",
                                           "{\"a\":NaN}",
                                           "{\"a\":1}{\"b\":2}",
                                           "{\"a\":1,\"a\":2}",
                                           "{\"seed\":1e999}",
                                           "{\"seed\":99999999999999999999999}",
                                           "{\"a\":" + std::string(200, '[') + std::string(200, ']') + "}",
                                           "{\"a\":\"\\ud800\"}",
                                           "\xEF\xBB\xBF"};
  for (const std::string& body : bodies) {
    const Answer answer = server_.post_text("/v1/chat/completions", body);
    EXPECT_EQ(answer.status, 400) << body << answer.body;
    EXPECT_FALSE(answer.error("message").empty()) << body;
  }
  std::string wide = "{";
  for (int i = 0; i < 2000; ++i) wide += "\"k" + std::to_string(i) + "\":0,";
  wide.back() = '}';
  EXPECT_EQ(server_.post_text("/v1/chat/completions", wide).status, 400);
}

}  // namespace
}  // namespace verbatim::server
