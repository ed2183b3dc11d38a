#include "evaluate/soak_cases.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>

namespace verbatim::evaluate {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array kWords = {
    "the",    "river", "seven",   "of",    "compiler", "light",  "über",    "and",     "queue",   "東京",  "a",
    "garden", "to",    "latency", "\n",    "return",   "blue",   "Привет",  "pages",   "(x + 1)", "in",    "mountain",
    "is",     "42",    "naïve",   "music", "for",      "kernel", "{\"k\":", "window",  "안녕",    "that",  "under",
    "3.1415", "we",    "token",   "🌊",     "with",     "stone",  "cache",   "written", "```c\n",  "tests", "on"};

Json message(const char* role, const std::string& content) { return {{"role", role}, {"content", content}}; }

Json parameters() {
  return Json::parse(R"({"type":"object","properties":{"city":{"type":"string","maxLength":12},
    "days":{"type":"integer","minimum":0,"maximum":9},"unit":{"enum":["C","F"]}},
    "required":["city","days"],"additionalProperties":false})");
}

Json function_tool(const char* name) {
  return {{"type", "function"},
          {"function", {{"name", name}, {"description", "Looks it up."}, {"parameters", parameters()}}}};
}

}  // namespace

std::string SoakCase::request(bool stream, bool draft) const {
  Json whole = Json::parse(body);
  whole["stream"] = stream;
  if (stream && (route == SoakRoute::kChat || route == SoakRoute::kCompletions))
    whole["stream_options"] = {{"include_usage", true}};
  whole["draft"] = draft;
  return whole.dump();
}

int64_t CaseMaker::below(int64_t most) {
  return static_cast<int64_t>(random_() % static_cast<uint64_t>(std::max<int64_t>(most, 1)));
}

std::string CaseMaker::words(int64_t least, int64_t most) {
  std::string text;
  for (int64_t count = least + below(most - least + 1); count > 0; --count) {
    if (!text.empty()) text += ' ';
    text += kWords[static_cast<size_t>(below(std::ssize(kWords)))];
  }
  return text;
}

// One of few, so that prompts share beginnings: from a line to half of the longest prompt.
std::string CaseMaker::system() {
  const int64_t which = below(4);
  std::string text = fmt::format("You answer in style {}.", which);
  for (int64_t word = 0; word < which * which * mix_.prompt_words / 18; ++word)
    text.append(" ").append(kWords[static_cast<size_t>((word * 7 + which) % std::ssize(kWords))]);
  return text;
}

SoakCase CaseMaker::next() {
  constexpr std::array kKinds = {"chat", "conversation", "tools",       "schema", "several",  "completion",
                                 "long", "conversation", "forced tool", "chat",   "messages", "responses"};
  const char* kind = kKinds[made_++ % kKinds.size()];
  SoakCase made;
  made.kind = kind;
  Json body;
  body["model"] = mix_.model;
  const bool is_long = made.kind == "long";
  const std::string question = is_long ? words(mix_.prompt_words / 2, mix_.prompt_words) : words(3, 40);
  const int64_t reply_tokens = mix_.reply_tokens / 4 + 1 + below(mix_.reply_tokens * 3 / 4);
  const bool is_greedy = below(3) == 0;

  if (made.kind == "completion") {
    made.route = SoakRoute::kCompletions;
    body["prompt"] = words(3, 80);
  } else if (made.kind == "messages") {
    made.route = SoakRoute::kMessages;
    body["system"] = system();
    body["messages"] = Json::array({message("user", question)});
  } else if (made.kind == "responses") {
    made.route = SoakRoute::kResponses;
    body["instructions"] = system();
    body["input"] = question;
    body["store"] = false;
  } else {
    body["messages"] = Json::array({message("system", system()), message("user", question)});
    made.can_go_on = made.kind == "conversation";
  }
  body[made.route == SoakRoute::kResponses ? "max_output_tokens" : "max_tokens"] = reply_tokens;
  body["temperature"] = is_greedy ? 0.0 : 0.25 * static_cast<double>(1 + below(5));
  if (!is_greedy && below(2) == 0) body["top_p"] = 0.9;
  if (!is_greedy && made.route == SoakRoute::kChat && below(3) == 0) body["presence_penalty"] = 0.5;
  body["seed"] = below(int64_t{1} << 40);
  if (below(3) == 0) body["thinking_budget"] = below(reply_tokens);

  if (made.kind == "tools" || made.kind == "forced tool")
    body["tools"] = Json::array({function_tool("forecast"), function_tool("look_up")});
  if (made.kind == "forced tool") {
    body["tool_choice"] =
        below(2) == 0 ? Json("required") : Json::parse(R"({"type":"function","function":{"name":"forecast"}})");
    body["thinking_budget"] = below(8);
  } else if (made.kind == "schema") {
    body["response_format"] = {{"type", "json_schema"},
                               {"json_schema", {{"name", "answer"}, {"schema", parameters()}}}};
    body["thinking_budget"] = below(8);
  } else if (made.kind == "several") {
    made.choices = static_cast<int>(2 + below(3));
    body["n"] = made.choices;
  }
  made.body = body.dump();
  return made;
}

SoakCase CaseMaker::next_turn(const SoakCase& before, const SoakReply& reply) {
  SoakCase made = before;
  Json body = Json::parse(before.body);
  Json answer = message("assistant", reply.choices.front().text);
  if (!reply.choices.front().reasoning.empty()) answer["reasoning_content"] = reply.choices.front().reasoning;
  body["messages"].push_back(std::move(answer));
  body["messages"].push_back(message("user", words(2, 20)));
  body["seed"] = below(int64_t{1} << 40);
  made.body = body.dump();
  return made;
}

}  // namespace verbatim::evaluate
