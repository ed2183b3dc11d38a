#include "server/responses_request.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "server/api_error.h"
#include "server/service.h"

namespace verbatim::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMostMetadata = 16;

[[noreturn]] void refuse_unsupported(const std::string& param, const std::string& what) {
  throw ApiFailure({.status = 400, .message = param + ": " + what, .code = "unsupported", .param = param});
}

// Text parts as those of a chat message; one alone as a string.
Json content_of(const Json& content, const std::string& where) {
  if (content.is_string()) return content;
  if (!content.is_array()) refuse_field(where, "a string or an array of parts is expected");
  Json parts = Json::array();
  for (size_t i = 0; i < content.size(); ++i) {
    const std::string at = fmt::format("{}[{}]", where, i);
    if (!content[i].is_object()) refuse_field(at, "an object is expected");
    const std::string& type = string_member(content[i], "type", at);
    if (type == "input_image" || type == "input_file" || type == "input_audio")
      refuse_unsupported(at, "parts of type " + type + " are not read by this server; send text");
    if (type == "refusal") {
      parts.push_back({{"type", "text"}, {"text", string_member(content[i], "refusal", at)}});
    } else if (type == "input_text" || type == "output_text" || type == "text" || type == "reasoning_text" ||
               type == "summary_text") {
      parts.push_back({{"type", "text"}, {"text", string_member(content[i], "text", at)}});
    } else {
      refuse_unsupported(at, "parts of type " + type.substr(0, 100) + " are not supported");
    }
  }
  if (parts.size() == 1) return parts[0]["text"];
  return parts;
}

std::string reasoning_of(const Json& item, const std::string& where) {
  std::string text;
  for (const char* member : {"content", "summary"}) {
    const auto found = item.find(member);
    if (found == item.end() || found->is_null() || (found->is_array() && found->empty())) continue;
    const Json content = content_of(*found, where + "." + member);
    if (content.is_string()) return content;
    for (const Json& part : content) text += part["text"].get_ref<const std::string&>();
    return text;
  }
  return text;
}

// Items to the messages of a chat request: what the assistant thought, said and called between two others' items is one
// message.
class Messages {
 public:
  void add(const Json& item, const std::string& where) {
    if (!item.is_object()) refuse_field(where, "an object is expected");
    if (item.contains("id") && !item["id"].is_null()) string_member(item, "id", where);
    const std::string type = item.contains("type") ? string_member(item, "type", where) : "message";
    if (type == "message") {
      add_message(item, where);
    } else if (type == "reasoning") {
      const std::string text = reasoning_of(item, where);
      if (text.empty()) return;
      Json& message = assistant(true);
      message["reasoning_content"] = text;
    } else if (type == "function_call") {
      Json& message = assistant(false);
      message["tool_calls"].push_back(
          {{"id", string_member(item, "call_id", where)},
           {"type", "function"},
           {"function",
            {{"name", string_member(item, "name", where)}, {"arguments", string_member(item, "arguments", where)}}}});
    } else if (type == "function_call_output") {
      const auto output = item.find("output");
      if (output == item.end()) refuse_field(where + ".output", "it is missing; a string is expected");
      push({{"role", "tool"},
            {"tool_call_id", string_member(item, "call_id", where)},
            {"content", content_of(*output, where + ".output")}});
    } else if (type == "item_reference") {
      refuse_unsupported(where, "items by reference are not supported; send the item, or previous_response_id");
    } else {
      refuse_unsupported(where, "items of type " + type.substr(0, 100) + " are not supported");
    }
  }
  void push(Json message) {
    messages_.push_back(std::move(message));
    is_open_ = false;
  }
  Json take() { return std::move(messages_); }

 private:
  void add_message(const Json& item, const std::string& where) {
    const std::string& role = string_member(item, "role", where);
    const auto content = item.find("content");
    if (content == item.end()) refuse_field(where + ".content", "it is missing; a string or parts are expected");
    Json converted = content_of(*content, where + ".content");
    if (role == "assistant") {
      Json& message = assistant(false);
      if (message.contains("content")) {
        push({{"role", "assistant"}});
        is_open_ = true;
      }
      messages_.back()["content"] = std::move(converted);
    } else if (role == "user" || role == "system" || role == "developer") {
      push({{"role", role}, {"content", std::move(converted)}});
    } else {
      refuse_field(where + ".role", "user, assistant, system or developer is expected");
    }
  }
  // The assistant's message that is being put together; a new one at need.
  Json& assistant(bool begins) {
    if (!is_open_ || (begins && messages_.back().size() > 1)) {
      messages_.push_back({{"role", "assistant"}});
      is_open_ = true;
    }
    return messages_.back();
  }

  Json messages_ = Json::array();
  bool is_open_ = false;
};

Json items_of(const Json* input) {
  if (input == nullptr) refuse_field("input", "it is missing; a string or an array of items is expected");
  if (input->is_string())
    return Json::array({{{"type", "message"},
                         {"role", "user"},
                         {"content", Json::array({{{"type", "input_text"}, {"text", *input}}})}}});
  if (!input->is_array()) refuse_field("input", "a string or an array of items is expected");
  if (input->empty()) refuse_field("input", "at least one item is expected");
  return *input;
}

// The function tools in the form of a chat request.
Json chat_tools(const Json& tools) {
  Json out = Json::array();
  for (size_t i = 0; i < tools.size(); ++i) {
    const std::string at = fmt::format("tools[{}]", i);
    const Json& tool = tools[i];
    if (!tool.is_object()) refuse_field(at, "an object is expected");
    if (const std::string& type = string_member(tool, "type", at); type != "function")
      refuse_unsupported(at, "tools of type " + type.substr(0, 100) + " are not supported; only functions are");
    Json function = {{"name", string_member(tool, "name", at)}};
    for (const char* member : {"description", "parameters"})
      if (const auto found = tool.find(member); found != tool.end() && !found->is_null()) function[member] = *found;
    out.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return out;
}

void read_tool_choice(const Json* choice, ChatRequest& request) {
  if (choice == nullptr) return;
  if (choice->is_string() && *choice == "auto") return;
  if (choice->is_string() && *choice == "none") {
    request.tool_choice = ToolChoice::kNone;
  } else if (choice->is_string() && *choice == "required") {
    require_call("tool_choice", request);
  } else if (choice->is_object()) {
    if (const std::string& type = string_member(*choice, "type", "tool_choice"); type != "function")
      refuse_unsupported("tool_choice", "type " + type.substr(0, 100) + " is not supported; only function is");
    require_call_of(string_member(*choice, "name", "tool_choice"), "tool_choice", request);
  } else {
    refuse_field("tool_choice", "none, auto, required or an object that names a function is expected");
  }
}

void check_metadata(const Json* metadata) {
  if (metadata == nullptr) return;
  if (metadata->size() > kMostMetadata)
    refuse_field("metadata", "{} members; at most {} are taken", metadata->size(), kMostMetadata);
  for (const auto& [name, value] : metadata->items())
    if (!value.is_string() || name.size() > 64 || value.get_ref<const std::string&>().size() > 512)
      refuse_field("metadata", "strings of at most 512 bytes under names of at most 64 are expected");
}

void refuse_what_is_not_there(Fields& fields) {
  if (fields.boolean("background").value_or(false))
    refuse_unsupported("background", "not supported; stream the response instead");
  for (const char* name : {"conversation", "prompt"})
    if (fields.any(name) != nullptr) refuse_unsupported(name, "not supported; send the items, or previous_response_id");
  if (fields.string("truncation").value_or("disabled") != "disabled")
    refuse_unsupported("truncation", "only disabled is supported; this server never shortens a context");
  if (const Json* include = fields.array("include"))
    for (const Json& one : *include)
      if (one == "message.output_text.logprobs")
        refuse_unsupported("include", "log probabilities are given by /v1/chat/completions");
  if (fields.integer("top_logprobs", 0, 20).value_or(0) > 0)
    refuse_unsupported("top_logprobs", "log probabilities are given by /v1/chat/completions");
}

}  // namespace

ResponsesRequest parse_responses_request(Json& body, const PreviousConversation& previous, const RequestLimits& limits,
                                         const EffortRules& rules, std::vector<std::string>& unknown) {
  Fields fields(body);
  ResponsesRequest request;
  Generation& generation = request.chat.generation;
  read_sampling(fields, limits, generation);
  if (generation.choices != 1) refuse_field("n", "a response is one; send the request several times");
  generation.max_tokens = fields.integer("max_output_tokens", 1, kMostTokens);
  refuse_what_is_not_there(fields);
  request.store = fields.boolean("store").value_or(true);
  request.previous_id = fields.string("previous_response_id").value_or("");
  check_metadata(fields.object("metadata"));

  auto inputs = std::make_shared<Json>(Json::object());
  Json format = {{"type", "text"}};
  if (const Json* text = fields.object("text")) {
    Fields inner(*text, "text.");
    if (const Json* asked = inner.object("format")) {
      read_response_format(*asked, "text.format", limits, generation.structured);
      format = *asked;
    }
    inner.accept({"verbosity"});
  }
  std::optional<std::string> effort;
  if (const Json* reasoning = fields.object("reasoning")) effort = Fields(*reasoning, "reasoning.").string("effort");
  if (const std::string word = template_effort(effort, "reasoning.effort", rules); !word.empty())
    (*inputs)["reasoning_effort"] = word;

  const Json* tools = fields.array("tools");
  if (tools != nullptr && !tools->empty()) {
    Json converted = chat_tools(*tools);
    request.chat.tools = read_tools(converted, limits);
    (*inputs)["tools"] = std::move(converted);
  }
  const Json* choice = fields.any("tool_choice");
  read_tool_choice(choice, request.chat);
  request.chat.parallel_tool_calls = fields.boolean("parallel_tool_calls").value_or(true);

  Messages messages;
  const auto instructions = fields.string("instructions");
  if (instructions && !instructions->empty()) messages.push({{"role", "system"}, {"content", *instructions}});
  Json conversation = Json::array();
  if (!request.previous_id.empty()) conversation = Json::parse(previous(request.previous_id));
  for (const Json& item : conversation) messages.add(item, "previous_response_id");
  Json items = items_of(fields.any("input"));
  for (size_t i = 0; i < items.size(); ++i) messages.add(items[i], fmt::format("input[{}]", i));
  for (Json& item : items) {
    if (!item.contains("type")) item["type"] = "message";
    if (!item.contains("id") || item["id"].is_null())
      item["id"] = random_id(item["type"] == "message" ? "msg_" : "item_");
    conversation.push_back(item);
  }
  Json& chat = (*inputs)["messages"] = messages.take();
  check_messages(chat);

  Json echo = Json::object();
  echo["instructions"] = instructions ? Json(*instructions) : Json();
  echo["max_output_tokens"] = generation.max_tokens ? Json(*generation.max_tokens) : Json();
  const Json* metadata = fields.object("metadata");
  echo["metadata"] = metadata != nullptr ? *metadata : Json::object();
  echo["parallel_tool_calls"] = request.chat.parallel_tool_calls;
  echo["previous_response_id"] = request.previous_id.empty() ? Json() : Json(request.previous_id);
  echo["reasoning"] = {{"effort", effort ? Json(*effort) : Json()}, {"summary", nullptr}};
  echo["store"] = request.store;
  echo["temperature"] = generation.sampling.temperature;
  echo["text"] = {{"format", std::move(format)}};
  echo["tool_choice"] = choice != nullptr ? *choice : Json("auto");
  echo["tools"] = tools != nullptr ? *tools : Json::array();
  echo["top_p"] = generation.sampling.top_p;
  echo["truncation"] = "disabled";
  fields.accept({"max_tool_calls", "user", "service_tier", "safety_identifier", "prompt_cache_key",
                 "prompt_cache_retention", "prompt_cache_options", "context_management"});
  unknown = fields.unknown();
  request.chat.inputs = std::move(inputs);
  request.echo = std::make_shared<const Json>(std::move(echo));
  request.input = std::make_shared<const Json>(std::move(items));
  request.conversation = std::make_shared<const Json>(std::move(conversation));
  return request;
}

}  // namespace verbatim::server
