// What went wrong in other servers' streams, on /v1/messages and /v1/responses.
#include <chrono>
#include <random>
#include <thread>

#include "tests/server/protocols/asking.h"
#include "tests/server/protocols/scripted_server.h"

namespace verbatim::server {
namespace {

using namespace std::chrono_literals;

const json kTool = json::parse(R"({"name": "get_time", "parameters": {"type": "object", "properties": {}}})");

struct Protocol {
  const char* name;
  const char* path;
  const char* last_event;

  json asking(const std::string& say, bool has_tools = false) const {
    json body;
    const std::string text = "say: " + say;
    if (std::string_view(name) == "responses") {
      body = {{"input", text}, {"max_output_tokens", 600}};
      if (has_tools) {
        body["tools"] = json::array({kTool});
        body["tools"][0]["type"] = "function";
      }
    } else {
      body = {{"max_tokens", 600}, {"messages", json::array({{{"role", "user"}, {"content", text}}})}};
      body["thinking"] = {{"type", "adaptive"}};
      if (has_tools) body["tools"] = json::array({{{"name", "get_time"}, {"input_schema", kTool["parameters"]}}});
    }
    return body;
  }
  // Reasoning or text that an event brings.
  std::string piece(const json& event) const {
    if (std::string_view(name) == "responses")
      return event.value("type", "").ends_with("_text.delta") ? event["delta"].get<std::string>() : "";
    if (event.value("type", "") != "content_block_delta") return "";
    return event["delta"].value("thinking", "") + event["delta"].value("text", "");
  }
};

class Streams : public testing::TestWithParam<Protocol> {
 protected:
  static ScriptedOptions options(double step_s) {
    ScriptedOptions options;
    options.model.certainty = 60;
    options.model.step_s = step_s;
    return options;
  }
  static bool is_idle_soon(ScriptedServer& server) {
    for (int tries = 0; tries < 200; ++tries) {
      const engine::SchedulerStats stats = server.engine().stats();
      if (stats.running + stats.waiting == 0 && server.server().http_counts().exchanges == 0) return true;
      std::this_thread::sleep_for(10ms);
    }
    return false;
  }
};

INSTANTIATE_TEST_SUITE_P(Protocols, Streams,
                         testing::Values(Protocol{"messages", "/v1/messages", "message_stop"},
                                         Protocol{"responses", "/v1/responses", "response.completed"}),
                         [](const auto& one) { return one.param.name; });

TEST_P(Streams, ArriveAsTheyAreMade) {
  ScriptedServer server(options(0.01));
  Asker ask(server.url());
  std::string text = "</think>";
  for (int i = 0; i < 40; ++i) text += "word" + std::to_string(i) + " ";
  json body = GetParam().asking(text);
  body["stream"] = true;
  body["draft"] = false;
  std::vector<std::chrono::steady_clock::time_point> times;
  const auto listening = [&](std::string_view) {
    times.push_back(std::chrono::steady_clock::now());
    return true;
  };
  ask.client().post(GetParam().path, body.dump(), {.on_body = listening});
  ASSERT_GT(times.size(), 20u);
  const auto spread = times.back() - times.front();
  EXPECT_GT(spread, 300ms);
  size_t within = 0;  // neither at once nor in a burst at the end
  for (const auto at : times) within += at > times.front() + spread / 5 && at < times.back() - spread / 5;
  EXPECT_GT(within, times.size() / 3);
}

TEST_P(Streams, HoldWholeCharacters) {
  ScriptedServer server(options(0));
  Asker ask(server.url());
  const std::string text = "龘鑫 🧑‍🚀🌊 ŵ̈ ꙮ", reasoning = "𝕏𐍈";
  std::string all;
  for (const StreamEvent& event : ask.stream(GetParam().path, GetParam().asking(reasoning + "</think>" + text))) {
    const std::string piece = GetParam().piece(event.data);
    EXPECT_EQ(piece.find("\xEF\xBF\xBD"), std::string::npos);
    all += piece;
  }
  EXPECT_EQ(all, reasoning + text);
}

TEST_P(Streams, ACallAmidReasoningIsNotLost) {
  ScriptedServer server(options(0));
  Asker ask(server.url());
  std::string all;
  for (const StreamEvent& event :
       ask.stream(GetParam().path, GetParam().asking("Hm. <tool_call>get_time</tool_call>", true)))
    all += event.data.dump();
  EXPECT_NE(all.find(R"("name":"get_time")"), std::string::npos) << all;
  EXPECT_NE(all.find(R"("{}")"), std::string::npos) << all;  // and it has arguments
}

TEST_P(Streams, EndWithAnEnd) {
  ScriptedServer server(options(0));
  Asker ask(server.url());
  for (const char* text : {"</think>Yes.", "</think>", "reasoning alone"}) {
    const std::vector<StreamEvent> events = ask.stream(GetParam().path, GetParam().asking(text));
    ASSERT_FALSE(events.empty());
    EXPECT_EQ(events.back().name, GetParam().last_event) << text;
  }
}

TEST_P(Streams, LeavingFreesTheSequence) {
  ScriptedServer server(options(0.005));
  json body = GetParam().asking("</think>" + std::string(2000, 'x'));
  for (const bool stream : {true, false}) {
    body["stream"] = stream;
    Asker ask(server.url());
    const auto response = ask.client().post(GetParam().path, body.dump(), {.leave_after = 100ms});
    EXPECT_TRUE(response.was_abandoned);
    EXPECT_TRUE(is_idle_soon(server)) << stream;
  }
  EXPECT_EQ(server.engine().stats().cancelled, 2);
}

TEST_P(Streams, AnEngineThatStopsEndsThemWithAnError) {
  ScriptedServer server(options(0.005));
  json body = GetParam().asking("</think>" + std::string(2000, 'x'));
  std::thread stopper([&] {
    std::this_thread::sleep_for(100ms);
    server.model().throws = true;
  });
  Asker ask(server.url());
  const std::vector<StreamEvent> events = ask.stream(GetParam().path, body);
  stopper.join();
  ASSERT_FALSE(events.empty());
  const std::string last = events.back().name;
  EXPECT_TRUE(last == "error" || last == "response.failed") << last;
  EXPECT_NE(events.back().data.dump().find("error"), std::string::npos);
  EXPECT_GE(ask.post(GetParam().path, body).status, 500);
}

// Bodies with a value replaced, a member doubled or bytes changed: refused with a message, or answered, and nothing
// more.
TEST_P(Streams, MalformedBodiesAreRefused) {
  ScriptedServer server(options(0));
  Asker ask(server.url());
  json body = GetParam().asking("</think>Yes.", true);
  body["metadata"] = {{"user_id", "me"}};
  body["temperature"] = 0.5;
  const std::vector<json> values = {nullptr,
                                    true,
                                    -1,
                                    1e300,
                                    "",
                                    "text",
                                    json::array(),
                                    json::object(),
                                    json::array({json::array()}),
                                    json{{"type", "image"}},
                                    std::string(70, '['),
                                    9007199254740993};
  std::mt19937 random(5);
  int refused = 0;
  for (int i = 0; i < 250; ++i) {
    json changed = body;
    json::json_pointer at;
    const json flat = body.flatten();
    auto chosen = flat.begin();
    std::advance(chosen, random() % flat.size());
    at = json::json_pointer(chosen.key());
    for (unsigned up = random() % 3; up > 0 && !at.empty(); --up) at.pop_back();
    if (at.empty()) at = json::json_pointer(chosen.key());
    changed[at] = values[random() % values.size()];
    std::string text = changed.dump();
    if (i % 5 == 4) text[random() % text.size()] = static_cast<char>(random() % 256);
    const JsonAnswer answer = ask.send("POST", GetParam().path, text);
    EXPECT_TRUE(answer.status == 200 || (answer.status >= 400 && answer.status < 500)) << answer.status << " " << text;
    if (answer.status == 200) continue;
    ++refused;
    EXPECT_FALSE(answer.body["error"].value("message", "").empty()) << answer.text();
  }
  EXPECT_GT(refused, 100);
  EXPECT_TRUE(is_idle_soon(server));
  EXPECT_EQ(ask.post(GetParam().path, body).status, 200);
}

}  // namespace
}  // namespace verbatim::server
