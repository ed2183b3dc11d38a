#include "server/anthropic_request.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "server/api_error.h"

namespace verbatim::server {
namespace {

using Json = nlohmann::ordered_json;

Json text_part(const std::string& text) { return {{"type", "text"}, {"text", text}}; }

// One block's text stands as a string, several as parts, in the way of a chat request's content.
Json content_of(std::vector<std::string>& texts) {
  if (texts.empty()) return "";
  if (texts.size() == 1) return std::move(texts.front());
  Json parts = Json::array();
  for (const std::string& text : texts) parts.push_back(text_part(text));
  return parts;
}

[[noreturn]] void refuse_block(const std::string& where, const std::string& type) {
  throw ApiFailure({.status = 400,
                    .message = type == "image" || type == "document"
                                   ? fmt::format("{}: this server reads no {}s; send text", where, type)
                                   : fmt::format("{}: blocks of type {} are not supported", where, type.substr(0, 100)),
                    .code = "unsupported",
                    .param = where});
}

// A string, or an array of text blocks.
std::vector<std::string> texts_of(const Json& content, const std::string& where) {
  std::vector<std::string> texts;
  if (content.is_null()) return texts;
  if (content.is_string()) {
    texts.push_back(content.get<std::string>());
    return texts;
  }
  if (!content.is_array()) refuse_field(where, "a string or an array of blocks is expected");
  for (size_t i = 0; i < content.size(); ++i) {
    const std::string at = fmt::format("{}[{}]", where, i);
    if (const std::string& type = string_member(content[i], "type", at); type != "text") refuse_block(at, type);
    texts.push_back(string_member(content[i], "text", at));
  }
  return texts;
}

// Claude Code puts a block of its own before the system prompt that differs in every request: prompts would share
// nothing, and nothing would be found in the prefix cache.
bool is_billing_header(const std::string& text) { return text.starts_with("x-anthropic-billing-header:"); }

void add_system(const Json* system, Json& messages) {
  if (system == nullptr) return;
  std::vector<std::string> texts = texts_of(*system, "system");
  std::erase_if(texts, is_billing_header);
  if (texts.empty()) return;
  messages.push_back({{"role", "system"}, {"content", content_of(texts)}});
}

void add_user(const Json& content, const std::string& where, Json& messages) {
  if (!content.is_array()) {
    std::vector<std::string> texts = texts_of(content, where);
    messages.push_back({{"role", "user"}, {"content", content_of(texts)}});
    return;
  }
  std::vector<std::string> texts;
  for (size_t i = 0; i < content.size(); ++i) {
    const std::string at = fmt::format("{}[{}]", where, i);
    const Json& block = content[i];
    const std::string& type = string_member(block, "type", at);
    if (type == "text") {
      texts.push_back(string_member(block, "text", at));
    } else if (type == "tool_result") {
      const auto result = block.find("content");
      std::vector<std::string> answers = texts_of(result == block.end() ? Json() : *result, at + ".content");
      messages.push_back({{"role", "tool"},
                          {"tool_call_id", string_member(block, "tool_use_id", at)},
                          {"content", content_of(answers)}});
    } else {
      refuse_block(at, type);
    }
  }
  const bool has_results = !messages.empty() && messages.back()["role"] == "tool";
  if (!texts.empty() || !has_results) messages.push_back({{"role", "user"}, {"content", content_of(texts)}});
}

void add_assistant(const Json& content, const std::string& where, Json& messages) {
  Json message = {{"role", "assistant"}};
  std::vector<std::string> texts;
  if (content.is_array()) {
    std::string thinking;
    Json calls = Json::array();
    for (size_t i = 0; i < content.size(); ++i) {
      const std::string at = fmt::format("{}[{}]", where, i);
      const Json& block = content[i];
      const std::string& type = string_member(block, "type", at);
      if (type == "text") {
        texts.push_back(string_member(block, "text", at));
      } else if (type == "thinking") {
        // The signature is not looked at: the client may make its own server think what it likes.
        thinking += string_member(block, "thinking", at);
      } else if (type == "tool_use") {
        const auto input = block.find("input");
        if (input == block.end() || !input->is_object()) refuse_field(at + ".input", "an object is expected");
        calls.push_back({{"id", string_member(block, "id", at)},
                         {"type", "function"},
                         {"function", {{"name", string_member(block, "name", at)}, {"arguments", *input}}}});
      } else if (type != "redacted_thinking") {  // nobody else can read that
        refuse_block(at, type);
      }
    }
    if (!thinking.empty()) message["reasoning_content"] = thinking;
    message["content"] = content_of(texts);
    if (!calls.empty()) message["tool_calls"] = std::move(calls);
  } else {
    texts = texts_of(content, where);
    message["content"] = content_of(texts);
  }
  messages.push_back(std::move(message));
}

Json chat_messages(const Json* system, const Json& messages) {
  Json out = Json::array();
  add_system(system, out);
  if (messages.empty()) refuse_field("messages", "at least one is expected");
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string at = fmt::format("messages[{}]", i);
    const Json& message = messages[i];
    const std::string& role = string_member(message, "role", at);
    const auto content = message.find("content");
    if (content == message.end()) refuse_field(at + ".content", "it is missing; a string or blocks are expected");
    if (role == "user") {
      add_user(*content, at + ".content", out);
    } else if (role == "assistant") {
      add_assistant(*content, at + ".content", out);
    } else if (role == "system") {
      std::vector<std::string> texts = texts_of(*content, at + ".content");
      out.push_back({{"role", "system"}, {"content", content_of(texts)}});
    } else {
      refuse_field(at + ".role", "user or assistant is expected");
    }
  }
  if (messages.back()["role"] == "assistant")
    refuse_field("messages", "the last one is the assistant's; this model takes no prefill, end with a user message");
  return out;
}

// The tools in the form of a chat request.
Json chat_tools(const Json& tools) {
  Json out = Json::array();
  for (size_t i = 0; i < tools.size(); ++i) {
    const std::string at = fmt::format("tools[{}]", i);
    const Json& tool = tools[i];
    if (!tool.is_object()) refuse_field(at, "an object is expected");
    if (const auto type = tool.find("type"); type != tool.end() && !type->is_null() && *type != "custom")
      throw ApiFailure({.status = 400,
                        .message = at + ": tools that a provider runs are not supported; send a name and an "
                                        "input_schema",
                        .code = "unsupported",
                        .param = at});
    Json function = {{"name", string_member(tool, "name", at)}};
    if (const auto description = tool.find("description"); description != tool.end() && !description->is_null())
      function["description"] = string_member(tool, "description", at);
    const auto schema = tool.find("input_schema");
    if (schema == tool.end() || !schema->is_object()) refuse_field(at + ".input_schema", "an object is expected");
    function["parameters"] = *schema;
    out.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return out;
}

void read_tool_choice(const Json* choice, ChatRequest& request) {
  if (choice == nullptr) return;
  Fields fields(*choice, "tool_choice.");
  const std::string type = fields.string("type").value_or("");
  request.parallel_tool_calls = !fields.boolean("disable_parallel_tool_use").value_or(false);
  if (type == "any") {
    require_call("tool_choice", request);
  } else if (type == "none") {
    request.tool_choice = ToolChoice::kNone;
  } else if (type == "tool") {
    require_call_of(fields.string("name").value_or(""), "tool_choice.name", request);
  } else if (type != "auto") {
    refuse_field("tool_choice.type", "auto, any, tool or none is expected");
  }
}

// Returns the effort that it asks for, if any.
std::optional<std::string> read_thinking(const Json* thinking, MessagesRequest& request) {
  if (thinking == nullptr) return std::nullopt;
  Fields fields(*thinking, "thinking.");
  Generation& generation = request.chat.generation;
  const std::string type = fields.string("type").value_or("");
  const std::string display = fields.string("display").value_or("");
  if (type == "disabled") return "none";
  if (type != "enabled" && type != "adaptive" && type != "between_tools")
    refuse_field("thinking.type", "enabled, adaptive or disabled is expected");
  request.thinking = display == "omitted" ? ThinkingShown::kSignature : ThinkingShown::kYes;
  const auto budget = fields.integer("budget_tokens", 1, kMostTokens);
  if (type == "enabled") {
    if (!budget) refuse_field("thinking.budget_tokens", "it is missing; an integer is expected");
    generation.thinking_budget = budget;
    if (generation.max_tokens && *generation.max_tokens <= *budget)
      refuse_field("max_tokens", "{}; it must be greater than thinking.budget_tokens, {}", *generation.max_tokens,
                   *budget);
  }
  return std::nullopt;
}

}  // namespace

MessagesRequest parse_messages_request(Json& body, bool counts_only, const RequestLimits& limits,
                                       const EffortRules& rules, std::vector<std::string>& unknown) {
  Fields fields(body);
  MessagesRequest request;
  Generation& generation = request.chat.generation;
  read_sampling(fields, limits, generation);
  if (generation.choices != 1) refuse_field("n", "messages have one reply; send the request several times");
  read_stop(fields, "stop_sequences", limits, generation);
  generation.max_tokens = fields.integer("max_tokens", 1, kMostTokens);
  if (!counts_only && !generation.max_tokens) refuse_field("max_tokens", "it is missing; an integer is expected");

  std::optional<std::string> effort = read_thinking(fields.object("thinking"), request);
  std::string effort_param = "thinking";
  const auto read_format = [&](const Json& format, const std::string& param) {
    read_response_format(format, param, limits, generation.structured);
  };
  if (const Json* format = fields.object("output_format")) read_format(*format, "output_format");
  if (const Json* config = fields.object("output_config")) {
    Fields inner(*config, "output_config.");
    if (const auto asked = inner.string("effort")) {
      effort = asked;
      effort_param = "output_config.effort";
    }
    if (const Json* format = inner.object("format")) read_format(*format, "output_config.format");
  }

  const Json* messages = fields.array("messages");
  if (messages == nullptr) refuse_field("messages", "it is missing; an array of messages is expected");
  auto inputs = std::make_shared<Json>(Json::object());
  Json& chat = (*inputs)["messages"] = chat_messages(fields.any("system"), *messages);
  check_messages(chat);
  if (const Json* tools = fields.array("tools"); tools != nullptr && !tools->empty()) {
    Json converted = chat_tools(*tools);
    request.chat.tools = read_tools(converted, limits);
    (*inputs)["tools"] = std::move(converted);
  }
  read_tool_choice(fields.object("tool_choice"), request.chat);
  if (const Json* servers = fields.array("mcp_servers"); servers != nullptr && !servers->empty())
    refuse_field("mcp_servers", "not supported: this server reaches no network");
  const std::string template_word = template_effort(effort, effort_param, rules);
  if (!template_word.empty()) (*inputs)["reasoning_effort"] = template_word;
  fields.accept({"metadata", "service_tier", "container", "context_management", "inference_geo", "cache_control"});
  unknown = fields.unknown();
  request.chat.inputs = std::move(inputs);
  return request;
}

}  // namespace verbatim::server
