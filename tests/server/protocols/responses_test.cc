// OpenAI's /v1/responses.
#include <filesystem>
#include <fstream>

#include "tests/checkpoint/test_files.h"
#include "tests/server/protocols/asking.h"
#include "tests/server/protocols/scripted_server.h"

namespace verbatim::server {
namespace {

const json kTools = json::parse(R"([{"type": "function", "name": "get_weather", "description": "The weather.",
  "strict": true, "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}},
  {"type": "function", "name": "get_time", "parameters": {"type": "object", "properties": {}}}])");

json asking(const std::string& say) { return {{"model", "scripted"}, {"input", "say: " + say}}; }

std::string text_of(const json& response) {
  std::string text;
  for (const json& item : response["output"])
    if (item["type"] == "message") text += item["content"][0]["text"].get<std::string>();
  return text;
}

class Responses : public testing::Test {
 protected:
  JsonAnswer post(const json& body) { return ask.post("/v1/responses", body); }
  void expect_refusal(const json& body, const std::string& param) {
    const JsonAnswer answer = post(body);
    ASSERT_EQ(answer.status, 400) << answer.text();
    ASSERT_TRUE(answer.body.contains("error")) << answer.text();
    EXPECT_TRUE(answer.body["error"]["param"].is_string() &&
                answer.body["error"]["param"].get<std::string>().starts_with(param))
        << answer.text();
    EXPECT_NE(answer.body["error"]["message"].get<std::string>().find(param), std::string::npos);
  }

  ScriptedServer server{{.model = {.hits_in_ten = 8, .certainty = 60}}};
  Asker ask{server.url()};
};

TEST_F(Responses, Creates) {
  json body = asking("Let me see.</think>Hello.");
  body["instructions"] = "Be brief.";
  body["metadata"] = {{"who", "me"}};
  body["max_output_tokens"] = 100;
  body["reasoning"] = {{"effort", "low"}};
  body["temperature"] = 0.5;
  const JsonAnswer answer = post(body);
  ASSERT_EQ(answer.status, 200) << answer.text();
  const json& made = answer.body;
  EXPECT_TRUE(made["id"].get<std::string>().starts_with("resp_"));
  EXPECT_EQ(made["object"], "response");
  EXPECT_EQ(made["status"], "completed");
  EXPECT_EQ(made["model"], "scripted");
  EXPECT_EQ(made["instructions"], "Be brief.");
  EXPECT_EQ(made["metadata"]["who"], "me");
  EXPECT_EQ(made["max_output_tokens"], 100);
  EXPECT_EQ(made["reasoning"]["effort"], "low");
  EXPECT_EQ(made["temperature"], 0.5);
  EXPECT_EQ(made["tool_choice"], "auto");
  EXPECT_TRUE(made["error"].is_null());
  ASSERT_EQ(made["output"].size(), 2u) << answer.text();
  EXPECT_EQ(made["output"][0]["type"], "reasoning");
  EXPECT_EQ(made["output"][0]["content"][0], json::parse(R"({"type": "reasoning_text", "text": "Let me see."})"));
  EXPECT_EQ(made["output"][1]["type"], "message");
  EXPECT_EQ(made["output"][1]["role"], "assistant");
  EXPECT_EQ(made["output"][1]["status"], "completed");
  EXPECT_EQ(made["output"][1]["content"][0]["type"], "output_text");
  EXPECT_EQ(made["output"][1]["content"][0]["text"], "Hello.");
  const json& usage = made["usage"];
  EXPECT_EQ(usage["total_tokens"], usage["input_tokens"].get<int>() + usage["output_tokens"].get<int>());
  EXPECT_GT(usage["output_tokens_details"]["reasoning_tokens"], 2);
  EXPECT_EQ(made["verbatim"]["token_hash"].get<std::string>().size(), 16u);
}

TEST_F(Responses, StreamsTheUpstreamSequence) {
  json body = asking(
      "Hm.</think>Yes: <tool_call>get_weather<arg_key>city</arg_key><arg_value>Oslo</arg_value></tool_call>"
      "<tool_call>get_time</tool_call>");
  body["tools"] = kTools;
  const std::vector<StreamEvent> events = ask.stream("/v1/responses", body);
  std::string order;
  std::map<std::string, std::string> deltas;  // by item
  int64_t number = 0, index = -1;
  for (const StreamEvent& event : events) {
    EXPECT_EQ(event.name, event.data.value("type", "")) << event.data;
    EXPECT_EQ(event.data["sequence_number"], number++);
    std::string step = event.name;
    if (step.starts_with("response.")) step = step.substr(9);
    if (event.name == "response.output_item.added") {
      EXPECT_EQ(event.data["output_index"], ++index);
      EXPECT_EQ(event.data["item"]["status"], "in_progress");
      step += " " + event.data["item"]["type"].get<std::string>();
    } else if (event.data.contains("item_id")) {
      EXPECT_EQ(event.data["output_index"], index);
      const std::string id = event.data["item_id"];
      if (event.data.contains("delta")) deltas[id] += event.data["delta"].get<std::string>();
      if (event.data.contains("text")) {
        EXPECT_EQ(deltas[id], event.data["text"]);
      }
      if (event.data.contains("arguments")) {
        EXPECT_EQ(deltas[id], event.data["arguments"]);
      }
    }
    if (!order.ends_with(step + "\n")) order += step + "\n";
  }
  EXPECT_EQ(order,
            "created\nin_progress\n"
            "output_item.added reasoning\ncontent_part.added\nreasoning_text.delta\nreasoning_text.done\n"
            "content_part.done\noutput_item.done\n"
            "output_item.added message\ncontent_part.added\noutput_text.delta\noutput_text.done\n"
            "content_part.done\noutput_item.done\n"
            "output_item.added function_call\nfunction_call_arguments.delta\nfunction_call_arguments.done\n"
            "output_item.done\n"
            "output_item.added function_call\nfunction_call_arguments.delta\nfunction_call_arguments.done\n"
            "output_item.done\ncompleted\n");
  const json& last = events.back().data["response"];
  EXPECT_EQ(last["status"], "completed");
  ASSERT_EQ(last["output"].size(), 4u);
  EXPECT_EQ(last["output"][2]["name"], "get_weather");
  EXPECT_EQ(json::parse(last["output"][2]["arguments"].get<std::string>()), json::parse(R"({"city": "Oslo"})"));
  EXPECT_EQ(last["output"][3]["arguments"], "{}");
  EXPECT_NE(last["output"][2]["call_id"], last["output"][3]["call_id"]);

  // Kept as it was streamed; the whole reply says the same.
  EXPECT_EQ(ask.get("/v1/responses/" + last["id"].get<std::string>()).body, last);
  const JsonAnswer whole = post(body);
  EXPECT_EQ(whole.body["verbatim"]["token_hash"], last["verbatim"]["token_hash"]);
  for (size_t i = 0; i < 4; ++i)
    for (const char* member : {"type", "content", "name", "arguments", "status"})
      if (last["output"][i].contains(member)) {
        EXPECT_EQ(whole.body["output"][i][member], last["output"][i][member]) << i << " " << member;
      }
}

TEST_F(Responses, GoesOnFromAnEarlierOne) {
  json body = asking("I think so.</think>First.");
  body["instructions"] = "Only here.";
  const JsonAnswer first = post(body);
  ASSERT_EQ(first.status, 200) << first.text();
  body = asking("</think>Second.");
  const int alone = post(body).body["usage"]["input_tokens"];
  body["previous_response_id"] = first.body["id"];
  const JsonAnswer second = post(body);
  ASSERT_EQ(second.status, 200) << second.text();
  EXPECT_EQ(text_of(second.body), "Second.");
  EXPECT_EQ(second.body["previous_response_id"], first.body["id"]);
  EXPECT_TRUE(second.body["instructions"].is_null());
  EXPECT_GT(second.body["usage"]["input_tokens"], alone + 8);
  // The same conversation, item by item.
  json items = json::array({{{"role", "user"}, {"content", "say: I think so.</think>First."}}});
  for (const json& item : first.body["output"]) items.push_back(item);
  items.push_back({{"role", "user"}, {"content", json::array({{{"type", "input_text"}, {"text", body["input"]}}})}});
  const JsonAnswer spelled = post({{"input", items}});
  ASSERT_EQ(spelled.status, 200) << spelled.text();
  EXPECT_EQ(spelled.body["usage"]["input_tokens"], second.body["usage"]["input_tokens"]);
  EXPECT_EQ(spelled.body["verbatim"]["token_hash"], second.body["verbatim"]["token_hash"]);
  // A third turn still knows the first.
  body["previous_response_id"] = second.body["id"];
  EXPECT_GT(post(body).body["usage"]["input_tokens"], second.body["usage"]["input_tokens"].get<int>() + 4);

  body["previous_response_id"] = "resp_of_nobody";
  const JsonAnswer unknown = post(body);
  EXPECT_EQ(unknown.status, 404);
  EXPECT_EQ(unknown.body["error"]["param"], "previous_response_id");
}

TEST_F(Responses, ToolResultsComeBack) {
  json body = asking("</think><tool_call>get_weather<arg_key>city</arg_key><arg_value>Oslo</arg_value></tool_call>");
  body["tools"] = kTools;
  const JsonAnswer call = post(body);
  ASSERT_EQ(call.body["output"].size(), 1u) << call.text();
  const json output = json::array({{{"type", "function_call_output"},
                                    {"call_id", call.body["output"][0]["call_id"]},
                                    {"output", "say: </think>Rain."}}});
  json next = {{"previous_response_id", call.body["id"]}, {"input", output}, {"tools", kTools}};
  EXPECT_EQ(text_of(post(next).body), "Rain.");
  next["input"][0]["output"] = json::array({{{"type", "input_text"}, {"text", "say: </think>More rain."}}});
  EXPECT_EQ(text_of(post(next).body), "More rain.");
  next["input"][0]["call_id"] = "call_other";
  EXPECT_EQ(post(next).status, 400);
  next.erase("previous_response_id");
  EXPECT_EQ(post(next).status, 400);  // a result without its call
}

TEST_F(Responses, ToolChoice) {
  json body = asking("</think><tool_call>get_time</tool_call>");
  body["tools"] = kTools;
  for (const json& choice : {json("auto"), json("required"), json{{"type", "function"}, {"name", "get_time"}}}) {
    body["tool_choice"] = choice;
    const JsonAnswer answer = post(body);
    ASSERT_EQ(answer.status, 200) << answer.text();
    EXPECT_EQ(answer.body["output"][0]["name"], "get_time");
    EXPECT_EQ(answer.body["tool_choice"], choice);
  }
  body["tool_choice"] = {{"type", "function"}, {"name", "nothing"}};
  expect_refusal(body, "tool_choice");
  body["tool_choice"] = {{"type", "web_search"}};
  expect_refusal(body, "tool_choice");
}

TEST_F(Responses, IncompleteOnes) {
  json body = asking("</think>one two three four five six seven");
  body["max_output_tokens"] = 4;
  JsonAnswer answer = post(body);
  EXPECT_EQ(answer.body["status"], "incomplete");
  EXPECT_EQ(answer.body["incomplete_details"]["reason"], "max_output_tokens");
  EXPECT_EQ(answer.body["output"][0]["status"], "incomplete");
  EXPECT_EQ(ask.stream("/v1/responses", body).back().name, "response.incomplete");
  body = asking("reasoning that never comes to an end");
  body["max_output_tokens"] = 4;
  answer = post(body);
  EXPECT_EQ(answer.body["status"], "incomplete");
  ASSERT_EQ(answer.body["output"].size(), 1u);
  EXPECT_EQ(answer.body["output"][0]["type"], "reasoning");
  EXPECT_EQ(answer.body["verbatim"]["ended_in"], "reasoning");
}

TEST_F(Responses, KeepsAndForgets) {
  const JsonAnswer made = post(asking("</think>Kept."));
  const std::string path = "/v1/responses/" + made.body["id"].get<std::string>();
  EXPECT_EQ(ask.get(path).body, made.body);
  const JsonAnswer items = ask.get(path + "/input_items");
  ASSERT_EQ(items.status, 200) << items.text();
  EXPECT_EQ(items.body["object"], "list");
  EXPECT_EQ(items.body["data"][0]["content"][0]["text"], "say: </think>Kept.");
  EXPECT_FALSE(items.body["data"][0]["id"].get<std::string>().empty());
  const JsonAnswer gone = ask.send("DELETE", path);
  EXPECT_EQ(gone.status, 200);
  EXPECT_EQ(gone.body["deleted"], true);
  for (const char* method : {"GET", "DELETE"}) {
    const JsonAnswer answer = ask.send(method, path);
    EXPECT_EQ(answer.status, 404);
    EXPECT_EQ(answer.body["error"]["type"], "not_found_error");
  }
  json body = asking("</think>Not kept.");
  body["store"] = false;
  EXPECT_EQ(ask.get("/v1/responses/" + post(body).body["id"].get<std::string>()).status, 404);
}

TEST(ResponsesWithKeys, AnotherKeysAreUnknown) {
  const checkpoint::TemporaryDirectory directory;
  const auto file = directory.path() / "keys";
  std::ofstream(file) << "one secret-of-one\ntwo secret-of-two\n";
  std::filesystem::permissions(file, std::filesystem::perms::owner_read);
  ScriptedOptions options;
  options.server.api_key_file = file;
  ScriptedServer server(options);
  Asker one(server.url(), {{"Authorization", "Bearer secret-of-one"}});
  Asker two(server.url(), {{"Authorization", "Bearer secret-of-two"}});
  const JsonAnswer made = one.post("/v1/responses", asking("</think>Mine."));
  ASSERT_EQ(made.status, 200) << made.text();
  const std::string path = "/v1/responses/" + made.body["id"].get<std::string>();
  EXPECT_EQ(two.get(path).status, 404);
  EXPECT_EQ(two.get(path + "/input_items").status, 404);
  EXPECT_EQ(two.send("DELETE", path).status, 404);
  json body = asking("</think>x");
  body["previous_response_id"] = made.body["id"];
  EXPECT_EQ(two.post("/v1/responses", body).status, 404);
  EXPECT_EQ(one.get(path).status, 200);
}

TEST_F(Responses, RefusesByName) {
  const auto with = [](const char* name, json value) {
    json body = asking("</think>x");
    body[name] = std::move(value);
    return body;
  };
  expect_refusal(with("input", nullptr), "input");
  expect_refusal(with("input", 3), "input");
  expect_refusal(with("input", json::array()), "input");
  expect_refusal(with("input", json::array({3})), "input[0]");
  expect_refusal(with("input", json::array({{{"role", "user"}, {"content", "x"}, {"id", 3}}})), "input[0].id");
  expect_refusal(with("input", json::array({{{"type", "item_reference"}, {"id", "x"}}})), "input[0]");
  expect_refusal(with("input", json::array({{{"type", "computer_call"}}})), "input[0]");
  expect_refusal(with("input", json::array({{{"role", "wizard"}, {"content", "x"}}})), "input[0].role");
  expect_refusal(with("input", json::parse(R"([{"role": "user", "content": [{"type": "input_image",
    "image_url": "http://x/y.png"}]}])")),
                 "input[0].content[0]");
  expect_refusal(with("tools", json::array({{{"type", "web_search"}}})), "tools[0]");
  expect_refusal(with("max_output_tokens", "many"), "max_output_tokens");
  expect_refusal(with("background", true), "background");
  expect_refusal(with("truncation", "auto"), "truncation");
  expect_refusal(with("conversation", "conv_1"), "conversation");
  expect_refusal(with("metadata", json{{"a", 1}}), "metadata");
  expect_refusal(with("reasoning", json{{"effort", "huge"}}), "reasoning.effort");
  expect_refusal(with("text", json{{"format", {{"type", "xml"}}}}), "text.format");
  expect_refusal(with("include", json::array({"message.output_text.logprobs"})), "include");
  json body = asking("x");
  body["model"] = "another";
  EXPECT_EQ(post(body).status, 404);
}

}  // namespace
}  // namespace verbatim::server
