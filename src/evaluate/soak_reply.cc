#include "evaluate/soak_reply.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace verbatim::evaluate {
namespace {

using nlohmann::json;

// A string member; empty if it is absent, null or no string.
std::string string_of(const json& object, const char* name) {
  if (!object.is_object()) return {};
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

const json& member(const json& object, const char* name) {
  static const json kNone;
  if (!object.is_object()) return kNone;
  const auto found = object.find(name);
  return found != object.end() ? *found : kNone;
}

// The arguments of a call as both forms of Anthropic's replies can tell them.
std::string canonical(const std::string& arguments) {
  const json parsed = json::parse(arguments, nullptr, false);
  return parsed.is_object() ? parsed.dump() : "{}";
}

int64_t integer_of(const json& object, const char* name) {
  const json& found = member(object, name);
  return found.is_number_integer() ? found.get<int64_t>() : 0;
}

void read_hashes(const json& block, SoakReply& reply) {
  const json& list = member(block, "choices");
  for (size_t i = 0; i < reply.choices.size(); ++i)
    reply.choices[i].token_hash = string_of(list.is_array() && i < list.size() ? list[i] : block, "token_hash");
}

void read_problem(const json& body, SoakReply& reply) {
  const json& error = member(body, "error");
  if (!error.is_null())
    reply.problem = "the server says: " + (error.is_string() ? error.get<std::string>() : error.dump());
}

void read_message(const json& content, SoakReply::Choice& choice) {
  for (const json& block : content) {
    const std::string type = string_of(block, "type");
    if (type == "thinking") choice.reasoning += string_of(block, "thinking");
    if (type == "text") choice.text += string_of(block, "text");
    if (type == "tool_use") choice.calls.push_back(string_of(block, "name") + " " + member(block, "input").dump());
  }
}

void read_output(const json& output, SoakReply::Choice& choice) {
  for (const json& item : output) {
    const std::string type = string_of(item, "type");
    if (type == "reasoning" || type == "message")
      for (const json& part : member(item, "content"))
        (type == "message" ? choice.text : choice.reasoning) += string_of(part, "text");
    if (type == "function_call") choice.calls.push_back(string_of(item, "name") + " " + string_of(item, "arguments"));
  }
}

void check(SoakReply& reply) {
  if (!reply.problem.empty()) return;
  for (const SoakReply::Choice& choice : reply.choices)
    if (choice.token_hash.empty()) reply.problem = "it has no token hash";
}

std::string shortened(const std::string& text) {
  constexpr size_t kShown = 200;
  return text.size() <= kShown ? text : text.substr(0, kShown) + "...";
}

}  // namespace

const char* path_of(SoakRoute route) {
  switch (route) {
    case SoakRoute::kChat: return "/v1/chat/completions";
    case SoakRoute::kCompletions: return "/v1/completions";
    case SoakRoute::kMessages: return "/v1/messages";
    default: return "/v1/responses";
  }
}

std::string difference(const SoakReply& found, const SoakReply& alone) {
  if (found.choices.size() != alone.choices.size())
    return fmt::format("{} choices; alone {}", found.choices.size(), alone.choices.size());
  for (size_t i = 0; i < found.choices.size(); ++i) {
    const SoakReply::Choice &a = found.choices[i], &b = alone.choices[i];
    if (a.token_hash != b.token_hash)
      return fmt::format("choice {}: token hash {}; alone {}", i, a.token_hash, b.token_hash);
    if (a.reasoning != b.reasoning)
      return fmt::format("choice {}: reasoning {}; alone {}", i, shortened(a.reasoning), shortened(b.reasoning));
    if (a.text != b.text) return fmt::format("choice {}: text {}; alone {}", i, shortened(a.text), shortened(b.text));
    if (a.calls != b.calls)
      return fmt::format("choice {}: calls {}; alone {}", i, shortened(fmt::format("{}", fmt::join(a.calls, " | "))),
                         shortened(fmt::format("{}", fmt::join(b.calls, " | "))));
  }
  return {};
}

std::string difference_of_beginning(const SoakReply& found, const SoakReply& alone) {
  for (size_t i = 0; i < found.choices.size() && i < alone.choices.size(); ++i) {
    const SoakReply::Choice &a = found.choices[i], &b = alone.choices[i];
    bool begins =
        b.reasoning.starts_with(a.reasoning) && b.text.starts_with(a.text) && a.calls.size() <= b.calls.size();
    for (size_t call = 0; begins && call < a.calls.size(); ++call) begins = b.calls[call].starts_with(a.calls[call]);
    if (!begins)
      return fmt::format("choice {}: it begins with {}{}; alone {}{}", i, shortened(a.reasoning), shortened(a.text),
                         shortened(b.reasoning), shortened(b.text));
  }
  return {};
}

SoakReply read_whole(SoakRoute route, std::string_view body) {
  SoakReply reply;
  const json whole = json::parse(body, nullptr, false);
  if (!whole.is_object()) {
    reply.problem = "the body is not a JSON object: " + shortened(std::string(body));
    return reply;
  }
  read_problem(whole, reply);
  const json& usage = member(whole, "usage");
  const bool is_openai = route == SoakRoute::kChat || route == SoakRoute::kCompletions;
  reply.generated_tokens = integer_of(usage, is_openai ? "completion_tokens" : "output_tokens");
  if (is_openai) {
    for (const json& one : member(whole, "choices")) {
      SoakReply::Choice& choice = reply.choices.emplace_back();
      if (route == SoakRoute::kCompletions) {
        choice.text = string_of(one, "text");
        continue;
      }
      const json& message = member(one, "message");
      choice.reasoning = string_of(message, "reasoning_content");
      choice.text = string_of(message, "content");
      for (const json& call : member(message, "tool_calls")) {
        const json& function = member(call, "function");
        choice.calls.push_back(string_of(function, "name") + " " + string_of(function, "arguments"));
      }
    }
    if (reply.choices.empty()) reply.problem = "it has no choices";
  } else if (route == SoakRoute::kMessages) {
    read_message(member(whole, "content"), reply.choices.emplace_back());
  } else {
    read_output(member(whole, "output"), reply.choices.emplace_back());
  }
  read_hashes(member(whole, "verbatim"), reply);
  check(reply);
  return reply;
}

StreamedReply::StreamedReply(SoakRoute route, int choices) : route_(route) {
  reply_.choices.resize(static_cast<size_t>(choices));
}

bool StreamedReply::event(std::string_view data) {
  if (data == "[DONE]") {
    is_done_ = true;
    return false;
  }
  const json event = json::parse(data, nullptr, false);
  if (!event.is_object()) {
    reply_.problem = "an event is not a JSON object: " + shortened(std::string(data));
    return false;
  }
  switch (route_) {
    case SoakRoute::kChat:
    case SoakRoute::kCompletions: return openai(event);
    case SoakRoute::kMessages: return message(event);
    default: return response(event);
  }
}

bool StreamedReply::openai(const json& event) {
  read_problem(event, reply_);
  bool brings = false;
  for (const json& one : member(event, "choices")) {
    const auto index = static_cast<size_t>(integer_of(one, "index"));
    if (index >= reply_.choices.size()) {
      reply_.problem = fmt::format("choice {} was not asked for", index);
      return false;
    }
    SoakReply::Choice& choice = reply_.choices[index];
    const json& delta = member(one, "delta");
    const std::string reasoning = string_of(delta, "reasoning_content");
    const std::string text = route_ == SoakRoute::kChat ? string_of(delta, "content") : string_of(one, "text");
    choice.reasoning += reasoning;
    choice.text += text;
    brings = brings || !reasoning.empty() || !text.empty();
    for (const json& call : member(delta, "tool_calls")) {
      const auto number = static_cast<size_t>(integer_of(call, "index"));
      if (number > choice.calls.size()) {
        reply_.problem = fmt::format("call {} came before call {}", number, choice.calls.size());
        return false;
      }
      const json& function = member(call, "function");
      if (number == choice.calls.size()) choice.calls.push_back(string_of(function, "name") + " ");
      choice.calls[number] += string_of(function, "arguments");
      brings = true;
    }
    if (member(one, "finish_reason").is_string()) ++finished_;
  }
  if (const json& block = member(event, "verbatim"); block.is_object()) read_hashes(block, reply_);
  if (const json& usage = member(event, "usage"); usage.is_object())
    reply_.generated_tokens = integer_of(usage, "completion_tokens");
  return brings;
}

bool StreamedReply::message(const json& event) {
  const std::string type = string_of(event, "type");
  SoakReply::Choice& choice = reply_.choices.front();
  if (type == "error") read_problem(event, reply_);
  if (type == "content_block_start") {
    const json& block = member(event, "content_block");
    if (string_of(block, "type") == "tool_use") choice.calls.push_back(string_of(block, "name") + " ");
  } else if (type == "content_block_delta") {
    const json& delta = member(event, "delta");
    choice.reasoning += string_of(delta, "thinking");
    choice.text += string_of(delta, "text");
    if (const std::string part = string_of(delta, "partial_json"); !part.empty() && !choice.calls.empty())
      choice.calls.back() += part;
    return true;
  } else if (type == "message_delta") {
    ++finished_;
    read_hashes(member(event, "verbatim"), reply_);
    reply_.generated_tokens = integer_of(member(event, "usage"), "output_tokens");
  } else if (type == "message_stop") {
    is_done_ = true;
  }
  return false;
}

bool StreamedReply::response(const json& event) {
  const std::string type = string_of(event, "type"), delta = string_of(event, "delta");
  SoakReply::Choice& choice = reply_.choices.front();
  if (type == "error" || type == "response.failed") {
    reply_.problem = "the server says: " + event.dump();
  } else if (type == "response.output_text.delta") {
    choice.text += delta;
  } else if (type == "response.reasoning_text.delta") {
    choice.reasoning += delta;
  } else if (type == "response.output_item.added") {
    const json& item = member(event, "item");
    if (string_of(item, "type") == "function_call") choice.calls.push_back(string_of(item, "name") + " ");
    return false;
  } else if (type == "response.function_call_arguments.delta" && !choice.calls.empty()) {
    choice.calls.back() += delta;
  } else {
    if (type == "response.completed" || type == "response.incomplete") {
      const json& whole = member(event, "response");
      read_hashes(member(whole, "verbatim"), reply_);
      reply_.generated_tokens = integer_of(member(whole, "usage"), "output_tokens");
      ++finished_;
      is_done_ = true;
    }
    return false;
  }
  return true;
}

SoakReply StreamedReply::reply(bool is_whole) const {
  SoakReply reply = reply_;
  if (route_ == SoakRoute::kMessages && is_whole)
    for (std::string& call : reply.choices.front().calls) {
      const size_t space = std::min(call.find(' '), call.size() - 1);
      call = call.substr(0, space + 1) + canonical(call.substr(space + 1));
    }
  if (!is_whole) {
    // A call's spelling can be compared only if it is whole.
    if (route_ == SoakRoute::kMessages) reply.choices.front().calls.clear();
    return reply;
  }
  if (reply.problem.empty() && !is_done_) reply.problem = "the stream ended before its last event";
  if (reply.problem.empty() && finished_ != reply.choices.size())
    reply.problem = fmt::format("{} of {} choices have a finish reason", finished_, reply.choices.size());
  check(reply);
  return reply;
}

}  // namespace verbatim::evaluate
