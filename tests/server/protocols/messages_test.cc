// Anthropic's /v1/messages and /v1/messages/count_tokens.
#include <filesystem>
#include <fstream>

#include "tests/checkpoint/test_files.h"
#include "tests/server/protocols/asking.h"
#include "tests/server/protocols/scripted_server.h"

namespace verbatim::server {
namespace {

const json kWeather = json::parse(R"([{"name": "get_weather", "description": "The weather.", "input_schema":
  {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}},
  {"name": "get_time", "input_schema": {"type": "object", "properties": {}}}])");

json asking(const std::string& say) {
  return {{"model", "scripted"},
          {"max_tokens", 200},
          {"messages", json::array({{{"role", "user"}, {"content", "say: " + say}}})}};
}

class Messages : public testing::Test {
 protected:
  JsonAnswer post(const json& body) { return ask.post("/v1/messages", body); }
  // A refusal in Anthropic's shape that names the field.
  void expect_refusal(const json& body, const std::string& part) {
    const JsonAnswer answer = post(body);
    EXPECT_EQ(answer.status, 400) << answer.text();
    EXPECT_EQ(answer.body.value("type", ""), "error");
    ASSERT_TRUE(answer.body.contains("error")) << answer.text();
    EXPECT_EQ(answer.body["error"].value("type", ""), "invalid_request_error");
    EXPECT_NE(answer.body["error"].value("message", "").find(part), std::string::npos) << answer.text();
  }

  ScriptedServer server{{.model = {.hits_in_ten = 8, .certainty = 60}}};
  Asker ask{server.url()};
};

TEST_F(Messages, TextWithoutThinkingBlocks) {
  const JsonAnswer answer = post(asking("Let me see.</think>Hello **there**."));
  ASSERT_EQ(answer.status, 200) << answer.text();
  EXPECT_EQ(answer.body["type"], "message");
  EXPECT_EQ(answer.body["role"], "assistant");
  EXPECT_EQ(answer.body["model"], "scripted");
  EXPECT_EQ(answer.body["content"], json::parse(R"([{"type": "text", "text": "Hello **there**."}])"));
  EXPECT_EQ(answer.body["stop_reason"], "end_turn");
  EXPECT_TRUE(answer.body["stop_sequence"].is_null());
  EXPECT_GT(answer.body["usage"]["input_tokens"], 10);
  EXPECT_GT(answer.body["usage"]["output_tokens_details"]["thinking_tokens"], 2);
  EXPECT_EQ(answer.body["verbatim"]["token_hash"].get<std::string>().size(), 16u);
  EXPECT_TRUE(answer.body["id"].get<std::string>().starts_with("msg_"));
  EXPECT_FALSE(answer.response.header("request-id").empty());
}

TEST_F(Messages, ThinkingBlocksInAndOut) {
  json body = asking("Let me see.</think>Hello.");
  body["thinking"] = {{"type", "enabled"}, {"budget_tokens", 100}};
  const JsonAnswer answer = post(body);
  ASSERT_EQ(answer.status, 200) << answer.text();
  const json& content = answer.body["content"];
  ASSERT_EQ(content.size(), 2u) << answer.text();
  EXPECT_EQ(content[0]["type"], "thinking");
  EXPECT_EQ(content[0]["thinking"], "Let me see.");
  EXPECT_EQ(content[0]["signature"].get<std::string>().size(), 64u);
  EXPECT_EQ(content[1]["text"], "Hello.");

  // Handed back, the thinking is part of the next prompt; redacted thinking and signatures are taken as they are.
  body["messages"].push_back({{"role", "assistant"}, {"content", content}});
  body["messages"].push_back({{"role", "user"}, {"content", "say: </think>Again."}});
  const int with = ask.post("/v1/messages/count_tokens", body).body["input_tokens"];
  body["messages"][1]["content"][0] = {{"type", "redacted_thinking"}, {"data", "xyz"}};
  const int without = ask.post("/v1/messages/count_tokens", body).body["input_tokens"];
  EXPECT_GT(with, without + 2);
  EXPECT_EQ(post(body).body["content"][0]["text"], "Again.");

  body = asking("Let me see.</think>Hello.");
  body["thinking"] = {{"type", "adaptive"}, {"display", "omitted"}};
  const json hidden = post(body).body["content"];
  EXPECT_EQ(hidden[0]["thinking"], "");
  EXPECT_FALSE(hidden[0]["signature"].get<std::string>().empty());
}

TEST_F(Messages, ThinkingBudgetClosesTheThinking) {
  json body = asking("one two three four five six seven eight nine ten</think>Done.");
  body["thinking"] = {{"type", "enabled"}, {"budget_tokens", 3}};
  const JsonAnswer answer = post(body);
  ASSERT_EQ(answer.status, 200) << answer.text();
  EXPECT_EQ(answer.body["usage"]["output_tokens_details"]["thinking_tokens"], 4);  // with </think>
}

TEST_F(Messages, StreamsTheUpstreamSequence) {
  json body = asking(
      "Hm.</think>Yes: <tool_call>get_weather<arg_key>city</arg_key><arg_value>Oslo</arg_value>"
      "<arg_key>days</arg_key><arg_value>2</arg_value></tool_call><tool_call>get_time</tool_call>");
  body["tools"] = kWeather;
  body["thinking"] = {{"type", "enabled"}, {"budget_tokens", 100}};
  const std::vector<StreamEvent> events = ask.stream("/v1/messages", body);
  std::string order, thinking, text, signature;
  std::vector<std::string> inputs;
  json last;
  int64_t index = -1;
  for (const StreamEvent& event : events) {
    EXPECT_EQ(event.name, event.data.value("type", "")) << event.data;
    std::string step = event.name;
    if (event.name == "content_block_start") {
      EXPECT_EQ(event.data["index"], ++index);
      step += " " + event.data["content_block"]["type"].get<std::string>();
      if (event.data["content_block"]["type"] == "tool_use") {
        EXPECT_EQ(event.data["content_block"]["input"], json::object());
        EXPECT_TRUE(event.data["content_block"]["id"].get<std::string>().starts_with("toolu_"));
        inputs.emplace_back();
      }
    } else if (event.name == "content_block_delta") {
      EXPECT_EQ(event.data["index"], index);
      const json& delta = event.data["delta"];
      step += " " + delta["type"].get<std::string>();
      thinking += delta.value("thinking", "");
      text += delta.value("text", "");
      signature += delta.value("signature", "");
      if (delta["type"] == "input_json_delta") inputs.back() += delta["partial_json"].get<std::string>();
    } else if (event.name == "message_delta") {
      last = event.data;
    }
    if (!order.ends_with(step + "\n")) order += step + "\n";
  }
  EXPECT_EQ(order,
            "message_start\nping\ncontent_block_start thinking\ncontent_block_delta thinking_delta\n"
            "content_block_delta signature_delta\ncontent_block_stop\ncontent_block_start text\n"
            "content_block_delta text_delta\ncontent_block_stop\ncontent_block_start tool_use\n"
            "content_block_delta input_json_delta\ncontent_block_stop\ncontent_block_start tool_use\n"
            "content_block_delta input_json_delta\ncontent_block_stop\nmessage_delta\nmessage_stop\n");
  EXPECT_EQ(thinking, "Hm.");
  EXPECT_EQ(text, "Yes:");
  EXPECT_EQ(signature.size(), 64u);
  ASSERT_EQ(inputs.size(), 2u);
  EXPECT_EQ(json::parse(inputs[0]), json::parse(R"({"city": "Oslo", "days": 2})"));
  EXPECT_EQ(inputs[1], "{}");
  EXPECT_EQ(last["delta"]["stop_reason"], "tool_use");
  EXPECT_GT(last["usage"]["output_tokens"], 10);
  const json& start = events.front().data["message"];
  EXPECT_EQ(start["content"], json::array());
  EXPECT_TRUE(start["stop_reason"].is_null());
  EXPECT_GT(start["usage"]["input_tokens"], 10);

  // The whole reply says the same.
  const JsonAnswer whole = post(body);
  EXPECT_EQ(whole.body["verbatim"]["token_hash"], last["verbatim"]["token_hash"]);
  EXPECT_EQ(whole.body["content"][2]["input"], json::parse(inputs[0]));
  EXPECT_EQ(whole.body["content"][3]["input"], json::object());
  EXPECT_EQ(whole.body["stop_reason"], "tool_use");
}

TEST_F(Messages, HiddenThinkingStreamsNoBlocksOfIt) {
  const std::vector<StreamEvent> events = ask.stream("/v1/messages", asking("Hm, hm.</think>Yes."));
  for (const StreamEvent& event : events) EXPECT_EQ(event.data.dump().find("Hm"), std::string::npos);
  EXPECT_EQ(events[2].data["content_block"]["type"], "text");
}

TEST_F(Messages, ToolResultsComeBack) {
  json body = asking("");
  body["tools"] = kWeather;
  body["messages"] = json::parse(R"([
    {"role": "user", "content": [{"type": "text", "text": "Weather in Oslo and"}, {"type": "text", "text": "Rome?"}]},
    {"role": "assistant", "content": [{"type": "text", "text": "I look."},
      {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Oslo"}},
      {"type": "tool_use", "id": "toolu_2", "name": "get_weather", "input": {"city": "Rome"}}]},
    {"role": "user", "content": [
      {"type": "tool_result", "tool_use_id": "toolu_1", "content": "rain"},
      {"type": "tool_result", "tool_use_id": "toolu_2", "is_error": true,
       "content": [{"type": "text", "text": "say: </think>Rain and who knows."}]}]}])");
  const JsonAnswer answer = post(body);
  ASSERT_EQ(answer.status, 200) << answer.text();
  EXPECT_EQ(answer.body["content"][0]["text"], "Rain and who knows.");
  // Words beside the results come after them.
  body["messages"][2]["content"].push_back({{"type", "text"}, {"text", "say: </think>As you like."}});
  EXPECT_EQ(post(body).body["content"][0]["text"], "As you like.");

  body["messages"][2]["content"][0]["tool_use_id"] = "toolu_9";
  expect_refusal(body, "tool_call_id");
  body["messages"].erase(1);
  expect_refusal(body, "tool result");
}

TEST_F(Messages, SystemAsTextAndBlocks) {
  json body = asking("</think>Ok.");
  const auto tokens = [&] { return ask.post("/v1/messages/count_tokens", body).body["input_tokens"].get<int>(); };
  const int bare = tokens();
  body["system"] = "Be brief.";
  const int with = tokens();
  EXPECT_GT(with, bare);
  body["system"] = json::parse(R"([{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}])");
  EXPECT_EQ(tokens(), with);
  // A block that differs in every request would keep prompts from sharing anything.
  body["system"].insert(body["system"].begin(),
                        json{{"type", "text"}, {"text", "x-anthropic-billing-header: cc_version=2; cch=1f3a;"}});
  EXPECT_EQ(tokens(), with);
  EXPECT_EQ(post(body).body["content"][0]["text"], "Ok.");
}

TEST_F(Messages, StopReasons) {
  json body = asking("</think>one two three STOP four");
  body["stop_sequences"] = {"STOP", "never"};
  JsonAnswer answer = post(body);
  EXPECT_EQ(answer.body["stop_reason"], "stop_sequence");
  EXPECT_EQ(answer.body["stop_sequence"], "STOP");
  EXPECT_EQ(answer.body["content"][0]["text"], "one two three");
  body = asking("</think>one two three four five six seven");
  body["max_tokens"] = 4;
  answer = post(body);
  EXPECT_EQ(answer.body["stop_reason"], "max_tokens");
  EXPECT_EQ(answer.body["usage"]["output_tokens"], 4);
  // A call that is cut cannot be run by mistake.
  body = asking("</think><tool_call>get_weather<arg_key>city</arg_key><arg_value>a very long name of a city");
  body["tools"] = kWeather;
  body["max_tokens"] = 12;
  answer = post(body);
  EXPECT_EQ(answer.body["stop_reason"], "max_tokens");
  EXPECT_EQ(answer.body["content"][0]["input"], json::object());
}

TEST_F(Messages, ToolChoice) {
  json body = asking("</think><tool_call>get_time</tool_call>");
  body["tools"] = kWeather;
  for (const char* type : {"auto", "any"}) {
    body["tool_choice"] = {{"type", type}, {"disable_parallel_tool_use", true}};
    const JsonAnswer answer = post(body);
    EXPECT_EQ(answer.status, 200) << answer.text();
    EXPECT_EQ(answer.body["content"][0]["name"], "get_time") << type;
  }
  body["tool_choice"] = {{"type", "tool"}, {"name", "get_time"}};
  EXPECT_EQ(post(body).body["content"][0]["name"], "get_time");
  body["tool_choice"] = {{"type", "none"}};
  EXPECT_EQ(post(body).body["stop_reason"] == "tool_use", false);
  body["tool_choice"] = {{"type", "tool"}, {"name", "nothing"}};
  expect_refusal(body, "tool_choice.name");
  body["tool_choice"] = {{"type", "whatever"}};
  expect_refusal(body, "tool_choice.type");
  body.erase("tools");
  body["tool_choice"] = {{"type", "any"}};
  expect_refusal(body, "no tools");
}

TEST_F(Messages, CachedTokensAreNoInputTokens) {
  std::string words = "say: </think>Yes.";
  for (int i = 0; i < 100; ++i) words = "word " + words;
  json body = asking("");
  body["messages"][0]["content"] = words;
  const json first = post(body).body["usage"], second = post(body).body["usage"];
  EXPECT_EQ(first["cache_read_input_tokens"], 0);
  EXPECT_GE(second["cache_read_input_tokens"], 64);
  EXPECT_EQ(first["input_tokens"], second["input_tokens"].get<int>() + second["cache_read_input_tokens"].get<int>());
  EXPECT_EQ(ask.post("/v1/messages/count_tokens", body).body["input_tokens"], first["input_tokens"]);
}

TEST_F(Messages, ReadsOtherFields) {
  json body = asking("</think>Yes.");
  body["metadata"] = {{"user_id", "me"}};
  body["top_k"] = 5;
  body["top_p"] = 0.9;
  body["temperature"] = 0.3;
  body["service_tier"] = "auto";
  body["seed"] = 7;
  body["something_new"] = {1, 2};
  body["output_config"] = {{"effort", "medium"}};
  const JsonAnswer answer = post(body);
  EXPECT_EQ(answer.status, 200) << answer.text();
  EXPECT_EQ(answer.body["verbatim"]["seed"], 7);
}

TEST_F(Messages, RefusesByName) {
  const auto with = [](const char* name, json value) {
    json body = asking("</think>x");
    body[name] = std::move(value);
    return body;
  };
  const auto content = [](json blocks) {
    json body = asking("");
    body["messages"][0]["content"] = std::move(blocks);
    return body;
  };
  expect_refusal(with("max_tokens", nullptr), "max_tokens");
  expect_refusal(with("max_tokens", "many"), "max_tokens");
  expect_refusal(with("max_tokens", 0), "max_tokens");
  expect_refusal(with("messages", json::array()), "messages");
  expect_refusal(with("messages", "hi"), "messages");
  expect_refusal(with("temperature", "hot"), "temperature");
  expect_refusal(with("top_k", 1.5), "top_k");
  expect_refusal(with("stop_sequences", json::array({""})), "stop_sequences");
  expect_refusal(with("stop_sequences", json::array({1})), "stop_sequences");
  expect_refusal(with("system", 5), "system");
  expect_refusal(with("n", 2), "n:");
  expect_refusal(with("thinking", json{{"type", "enabled"}}), "budget_tokens");
  expect_refusal(with("thinking", json{{"type", "enabled"}, {"budget_tokens", 200}}), "max_tokens");
  expect_refusal(with("thinking", json{{"type", "sometimes"}}), "thinking.type");
  expect_refusal(with("output_config", json{{"effort", "huge"}}), "output_config.effort");
  expect_refusal(with("tools", json::array({{{"name", "a"}}})), "input_schema");
  expect_refusal(with("tools", json::array({{{"type", "web_search_20250305"}, {"name", "web_search"}}})), "tools[0]");
  expect_refusal(with("mcp_servers", json::array({{{"url", "http://x"}}})), "mcp_servers");
  expect_refusal(content(json::parse(R"([{"type": "image", "source": {"type": "base64", "data": "AAAA"}}])")), "image");
  expect_refusal(content(json::parse(R"([{"type": "image", "source": {"type": "url", "url": "http://x"}}])")), "image");
  expect_refusal(content(json::parse(R"([{"type": "document", "source": {}}])")), "document");
  expect_refusal(content(json::parse(R"([{"type": "text"}])")), "text");
  expect_refusal(content(json::parse(R"([3])")), "messages[0].content[0]");
  json body = asking("x");
  body["messages"].push_back({{"role", "assistant"}, {"content", "It is"}});
  expect_refusal(body, "prefill");
  body["messages"][1]["role"] = "wizard";
  expect_refusal(body, "messages[1].role");
}

TEST_F(Messages, ErrorsHaveTheRightType) {
  json body = asking("x");
  body["model"] = "another";
  JsonAnswer answer = post(body);
  EXPECT_EQ(answer.status, 404);
  EXPECT_EQ(answer.body["error"]["type"], "not_found_error");
  answer = ask.send("POST", "/v1/messages", "{");
  EXPECT_EQ(answer.status, 400);
  EXPECT_EQ(answer.body["type"], "error");
  EXPECT_EQ(ask.get("/v1/messages").status, 405);
  EXPECT_EQ(ask.get("/v1/messages").body["type"], "error");
  EXPECT_EQ(ask.post("/v1/messages/nothing", body).body["error"]["type"], "not_found_error");
  // Agents shorten the conversation when they read these words.
  std::string words;
  for (int i = 0; i < 9000; ++i) words += " word";
  body = asking(words);
  answer = post(body);
  EXPECT_EQ(answer.status, 400);
  EXPECT_NE(answer.text().find("prompt is too long: "), std::string::npos) << answer.text();
  EXPECT_NE(answer.text().find("> 8192 maximum"), std::string::npos) << answer.text();
  body = asking("x");
  body["max_tokens"] = 32000;
  EXPECT_NE(post(body).text().find("exceed context limit: "), std::string::npos);
}

TEST(MessagesWithKeys, EitherHeader) {
  const checkpoint::TemporaryDirectory directory;
  const auto file = directory.path() / "keys";
  std::ofstream(file) << "mine secret-of-mine\n";
  std::filesystem::permissions(file, std::filesystem::perms::owner_read);
  ScriptedOptions options;
  options.server.api_key_file = file;
  ScriptedServer server(options);
  const json body = asking("</think>x");
  EXPECT_EQ(Asker(server.url(), {{"x-api-key", "secret-of-mine"}, {"anthropic-version", "2023-06-01"}})
                .post("/v1/messages", body)
                .status,
            200);
  EXPECT_EQ(Asker(server.url(), {{"Authorization", "Bearer secret-of-mine"}}).post("/v1/messages", body).status, 200);
  for (const char* path : {"/v1/messages", "/v1/messages/count_tokens"}) {
    const JsonAnswer answer = Asker(server.url(), {{"x-api-key", "secret-of-nine"}}).post(path, body);
    EXPECT_EQ(answer.status, 401);
    EXPECT_EQ(answer.body["error"]["type"], "authentication_error");
    EXPECT_EQ(answer.body["type"], "error");
  }
}

}  // namespace
}  // namespace verbatim::server
