#include "server/openai_request.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "server/api_error.h"

namespace verbatim::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMostIds = INT32_MAX;
constexpr double kMostTemperature = 100;

std::string schema_text(const Json& schema, const std::string& param, const RequestLimits& limits) {
  std::string text = schema.is_string() ? schema.get<std::string>() : schema.dump();
  if (std::ssize(text) > limits.schema_bytes)
    refuse_field(param, "{} bytes; at most {} are taken", text.size(), limits.schema_bytes);
  return text;
}

void read_logit_bias(Fields& fields, const RequestLimits& limits, engine::SamplingOptions& sampling) {
  const Json* biases = fields.object("logit_bias");
  if (biases == nullptr) return;
  const std::string param = fields.path("logit_bias");
  if (std::ssize(*biases) > limits.logit_biases)
    refuse_field(param, "{} entries; at most {} are taken", biases->size(), limits.logit_biases);
  for (const auto& [key, value] : biases->items()) {
    int32_t id = -1;
    const auto [end, problem] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (problem != std::errc() || end != key.data() + key.size() || id < 0)
      refuse_field(param, "the keys must be token ids");
    if (!value.is_number() || !(value.get<double>() >= -100 && value.get<double>() <= 100))
      refuse_field(param, "the value for token {} must be a number from -100 to 100", id);
    sampling.logit_bias[id] = value.get<float>();
  }
}

void read_stream(Fields& fields, Generation& generation) {
  generation.stream = fields.boolean("stream").value_or(false);
  if (const Json* options = fields.object("stream_options")) {
    Fields inner(*options, "stream_options.");
    generation.include_usage = inner.boolean("include_usage").value_or(false);
    inner.boolean("continuous_usage_stats");
    if (!generation.stream) refuse_field("stream_options", "only with \"stream\": true");
  }
}

void read_tool_choice(Fields& fields, ChatRequest& request) {
  request.parallel_tool_calls = fields.boolean("parallel_tool_calls").value_or(true);
  const Json* choice = fields.any("tool_choice");
  if (choice == nullptr) return;
  const std::string param = "tool_choice";
  if (choice->is_string()) {
    const auto& word = choice->get_ref<const std::string&>();
    if (word == "auto") {
      request.tool_choice = ToolChoice::kAuto;
    } else if (word == "none") {
      request.tool_choice = ToolChoice::kNone;
    } else if (word == "required") {
      require_call(param, request);
    } else {
      refuse_field(param, "none, auto, required or an object that names a function is expected");
    }
  } else if (choice->is_object()) {
    if (const std::string type = string_member(*choice, "type", param); type != "function")
      refuse_field(param + ".type", "only function is supported");
    const auto function = choice->find("function");
    if (function == choice->end() || !function->is_object()) refuse_field(param + ".function", "an object is expected");
    require_call_of(string_member(*function, "name", param + ".function"), param, request);
  } else {
    refuse_field(param, "none, auto, required or an object that names a function is expected");
  }
}

void check_media_part(const Json& part, const std::string& where) {
  if (!part.is_object()) return;
  const auto type = part.find("type");
  if (type == part.end() || !type->is_string()) return;
  const auto& name = type->get_ref<const std::string&>();
  if (name != "image" && name != "image_url" && name != "input_image" && name != "video" && name != "video_url") return;
  const Json* url = nullptr;
  for (const char* key : {"image_url", "video_url", "url", "image", "video"}) {
    const auto found = part.find(key);
    if (found == part.end()) continue;
    url = &*found;
    if (url->is_object() && url->contains("url")) url = &url->at("url");
    break;
  }
  if (url == nullptr || !url->is_string()) refuse_field(where, "an image or video part without a URL");
  if (!url->get_ref<const std::string&>().starts_with("data:"))
    refuse_field(where, "only data: URLs are taken; this server fetches nothing and reads no file");
  throw ApiFailure({.status = 400,
                    .message = where + ": images and videos are not read by this server; send text",
                    .code = "unsupported",
                    .param = where});
}

}  // namespace

std::vector<int32_t> read_token_ids(const Json& ids, const std::string& param, int64_t limit) {
  std::vector<int32_t> out;
  out.reserve(ids.size());
  for (const Json& id : ids) {
    if (!id.is_number_integer()) refuse_field(param, "token ids, integers, are expected");
    const auto value = id.get<int64_t>();
    if (value < 0 || value >= limit) refuse_field(param, "token {}; ids are 0 to {}", value, limit - 1);
    out.push_back(static_cast<int32_t>(value));
  }
  return out;
}

const std::string& string_member(const Json& object, const char* name, const std::string& param) {
  if (!object.is_object()) refuse_field(param, "an object is expected");
  const auto found = object.find(name);
  if (found == object.end() || !found->is_string()) refuse_field(param + "." + name, "a string is expected");
  return found->get_ref<const std::string&>();
}

void require_call(const std::string& param, ChatRequest& request) {
  request.tool_choice = ToolChoice::kRequired;
  if (request.tools.empty()) refuse_field(param, "a call is required, but no tools are offered");
}

void require_call_of(const std::string& tool, const std::string& param, ChatRequest& request) {
  request.tool_choice = ToolChoice::kNamed;
  request.named_tool = tool;
  if (std::none_of(request.tools.begin(), request.tools.end(),
                   [&](const text::OfferedTool& offered) { return offered.name == tool; }))
    refuse_field(param, "no tool of that name is offered");
}

std::string template_effort(const std::optional<std::string>& asked, const std::string& param,
                            const EffortRules& rules) {
  if (!asked) return rules.default_effort;
  if (rules.as_template) return *asked;
  if (*asked == "none" || *asked == "minimal" || *asked == "low") return "low";
  if (*asked == "medium" || *asked == "high") return "high";
  if (*asked == "max" || *asked == "xhigh") return "max";
  refuse_field(param, "none, minimal, low, medium, high, xhigh or max is expected");
}

void read_stop(Fields& fields, const char* name, const RequestLimits& limits, Generation& generation) {
  const Json* stop = fields.any(name);
  if (stop == nullptr) return;
  const std::string param = fields.path(name);
  std::vector<const Json*> list;
  if (stop->is_array()) {
    for (const Json& one : *stop) list.push_back(&one);
  } else {
    list.push_back(stop);
  }
  if (std::ssize(list) > limits.stops)
    refuse_field(param, "{} strings; at most {} are taken", list.size(), limits.stops);
  for (const Json* one : list) {
    if (!one->is_string()) refuse_field(param, "a string or an array of strings is expected");
    const auto& text = one->get_ref<const std::string&>();
    if (text.empty()) refuse_field(param, "an empty string");
    if (std::ssize(text) > limits.stop_bytes)
      refuse_field(param, "a string of {} bytes; at most {} are taken", text.size(), limits.stop_bytes);
    generation.stop.push_back(text);
  }
}

void read_sampling(Fields& fields, const RequestLimits& limits, Generation& generation) {
  engine::SamplingOptions& sampling = generation.sampling;
  const auto number = [&](const char* name, double least, double most, float& to) {
    if (const auto value = fields.number(name, least, most)) to = static_cast<float>(*value);
  };
  generation.model = fields.string("model").value_or("");
  number("temperature", 0, kMostTemperature, sampling.temperature);
  number("top_p", 0, 1, sampling.top_p);
  if (sampling.top_p <= 0) refuse_field(fields.path("top_p"), "0; expected above 0, at most 1");
  number("min_p", 0, 1, sampling.min_p);
  number("frequency_penalty", -2, 2, sampling.frequency_penalty);
  number("presence_penalty", -2, 2, sampling.presence_penalty);
  number("repetition_penalty", 0, 100, sampling.repetition_penalty);
  if (sampling.repetition_penalty <= 0) refuse_field(fields.path("repetition_penalty"), "0; expected above 0");
  if (const auto value = fields.integer("top_k", -1, INT32_MAX))
    sampling.top_k = static_cast<int32_t>(std::max<int64_t>(*value, 0));
  if (const auto value = fields.integer("seed", INT64_MIN, INT64_MAX)) sampling.seed = static_cast<uint64_t>(*value);
  read_logit_bias(fields, limits, sampling);
  read_stop(fields, "stop", limits, generation);
  if (const Json* ids = fields.array("stop_token_ids")) {
    if (std::ssize(*ids) > limits.logit_biases)
      refuse_field(fields.path("stop_token_ids"), "{} ids; at most {} are taken", ids->size(), limits.logit_biases);
    generation.stop_tokens = read_token_ids(*ids, fields.path("stop_token_ids"), kMostIds);
  }
  generation.ignore_eos = fields.boolean("ignore_eos").value_or(false);
  generation.priority = static_cast<int>(fields.integer("priority", INT32_MIN, INT32_MAX).value_or(0));
  generation.thinking_budget = fields.integer("thinking_budget", 0, kMostTokens);
  generation.draft = fields.boolean("draft").value_or(true);
  generation.choices = static_cast<int>(fields.integer("n", 1, limits.choices).value_or(1));
  if (const auto value = fields.integer("prompt_logprobs", 0, limits.top_logprobs))
    generation.prompt_logprobs = static_cast<int>(*value);
  read_stream(fields, generation);
}

void read_response_format(const Json& format, const std::string& param, const RequestLimits& limits,
                          StructuredOutput& structured) {
  const std::string type = string_member(format, "type", param);
  if (type == "text") return;
  structured.param = param;
  if (type == "json_object") {
    structured.kind = StructuredOutput::Kind::kJsonObject;
  } else if (type == "json_schema") {
    structured.kind = StructuredOutput::Kind::kJsonSchema;
    // Chat wraps the schema in "json_schema"; Responses does not.
    const auto wrapped = format.find("json_schema");
    const Json& holder = wrapped != format.end() ? *wrapped : format;
    if (!holder.is_object()) refuse_field(param + ".json_schema", "an object is expected");
    const auto schema = holder.find("schema");
    if (schema == holder.end() || !(schema->is_object() || schema->is_boolean()))
      refuse_field(param + ".json_schema.schema", "a JSON schema is expected");
    structured.text = schema_text(*schema, param, limits);
  } else {
    refuse_field(param + ".type", "text, json_object or json_schema is expected");
  }
}

void read_guided(Fields& fields, const RequestLimits& limits, StructuredOutput& structured) {
  using Kind = StructuredOutput::Kind;
  const auto take = [&](Fields& from, const char* name, Kind kind) {
    const Json* value = from.any(name);
    if (value == nullptr) return;
    const std::string param = from.path(name);
    if (structured.kind != Kind::kNone) refuse_field(param, "the reply's form is given twice ({})", structured.param);
    structured.kind = kind;
    structured.param = param;
    if (kind == Kind::kChoice) {
      if (!value->is_array() || value->empty()) refuse_field(param, "an array of strings is expected");
      int64_t bytes = 0;
      for (const Json& one : *value) {
        if (!one.is_string()) refuse_field(param, "an array of strings is expected");
        structured.choices.push_back(one.get<std::string>());
        bytes += std::ssize(structured.choices.back());
      }
      if (bytes > limits.schema_bytes)
        refuse_field(param, "{} bytes; at most {} are taken", bytes, limits.schema_bytes);
    } else if (kind == Kind::kJsonObject) {
      if (!value->is_boolean()) refuse_field(param, "a boolean is expected");
      if (!value->get<bool>()) structured = {};
    } else {
      if (!value->is_string() && !(kind == Kind::kJsonSchema && value->is_object()))
        refuse_field(param, "{} is expected", kind == Kind::kJsonSchema ? "a JSON schema" : "a string");
      structured.text = schema_text(*value, param, limits);
    }
  };
  take(fields, "guided_json", Kind::kJsonSchema);
  take(fields, "guided_regex", Kind::kRegex);
  take(fields, "guided_choice", Kind::kChoice);
  take(fields, "guided_grammar", Kind::kGrammar);
  fields.accept({"guided_decoding_backend", "guided_whitespace_pattern"});
  if (const Json* outputs = fields.object("structured_outputs")) {
    Fields inner(*outputs, "structured_outputs.");
    take(inner, "json", Kind::kJsonSchema);
    take(inner, "regex", Kind::kRegex);
    take(inner, "choice", Kind::kChoice);
    take(inner, "grammar", Kind::kGrammar);
    take(inner, "json_object", Kind::kJsonObject);
    if (inner.any("structural_tag") != nullptr)
      refuse_field("structured_outputs.structural_tag", "not supported; use json, regex or choice");
  }
}

std::vector<text::OfferedTool> read_tools(const Json& tools, const RequestLimits& limits) {
  if (std::ssize(tools) > limits.tools)
    refuse_field("tools", "{} tools; at most {} are taken", tools.size(), limits.tools);
  std::vector<text::OfferedTool> offered;
  for (size_t i = 0; i < tools.size(); ++i) {
    const std::string param = fmt::format("tools[{}]", i);
    const Json& tool = tools[i];
    if (!tool.is_object()) refuse_field(param, "an object is expected");
    if (const std::string type = string_member(tool, "type", param); type != "function")
      refuse_field(param + ".type", "only tools of type function are supported");
    const auto function = tool.find("function");
    if (function == tool.end() || !function->is_object()) refuse_field(param + ".function", "an object is expected");
    const std::string name = string_member(*function, "name", param + ".function");
    if (name.empty() || name.size() > 256) refuse_field(param + ".function.name", "1 to 256 bytes are expected");
    if (const auto description = function->find("description");
        description != function->end() && !description->is_null() && !description->is_string())
      refuse_field(param + ".function.description", "a string is expected");
    std::string parameters;
    if (const auto schema = function->find("parameters"); schema != function->end() && !schema->is_null()) {
      if (!schema->is_object()) refuse_field(param + ".function.parameters", "a JSON schema, an object, is expected");
      parameters = schema_text(*schema, param + ".function.parameters", limits);
    }
    offered.push_back({name, std::move(parameters)});
  }
  return offered;
}

void check_messages(const Json& messages) {
  if (messages.empty()) refuse_field("messages", "at least one is expected");
  std::vector<std::string> open_calls;
  bool has_calls = false;
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string where = fmt::format("messages[{}]", i);
    const Json& message = messages[i];
    if (!message.is_object()) refuse_field(where, "an object is expected");
    const std::string role = string_member(message, "role", where);
    if (const auto content = message.find("content"); content != message.end() && content->is_array())
      for (size_t part = 0; part < content->size(); ++part)
        check_media_part((*content)[part], fmt::format("{}.content[{}]", where, part));
    if (role == "tool") {
      if (!has_calls) refuse_field(where, "a tool result that follows no assistant message with tool_calls");
      const auto id = message.find("tool_call_id");
      if (id == message.end() || id->is_null()) continue;
      if (!id->is_string()) refuse_field(where + ".tool_call_id", "a string is expected");
      if (!open_calls.empty() && std::find(open_calls.begin(), open_calls.end(), *id) == open_calls.end())
        refuse_field(where + ".tool_call_id", "no call of the assistant message before has this id");
    } else {
      has_calls = false;
      open_calls.clear();
      const auto calls = message.find("tool_calls");
      if (role != "assistant" || calls == message.end() || !calls->is_array()) continue;
      has_calls = !calls->empty();
      for (const Json& call : *calls)
        if (call.is_object() && call.contains("id") && call["id"].is_string()) open_calls.push_back(call["id"]);
    }
  }
}

ChatRequest parse_chat_request(Json& body, const RequestLimits& limits, const EffortRules& rules,
                               std::vector<std::string>& unknown) {
  Fields fields(body);
  ChatRequest request;
  read_sampling(fields, limits, request.generation);
  Generation& generation = request.generation;
  generation.max_tokens = fields.integer("max_completion_tokens", 1, kMostTokens);
  if (const auto value = fields.integer("max_tokens", 1, kMostTokens); value && !generation.max_tokens)
    generation.max_tokens = value;
  const auto top = fields.integer("top_logprobs", 0, limits.top_logprobs);
  if (fields.boolean("logprobs").value_or(false)) {
    generation.logprobs = static_cast<int>(top.value_or(0));
  } else if (top.value_or(0) > 0) {
    refuse_field("top_logprobs", "only with \"logprobs\": true");
  }
  if (const Json* format = fields.object("response_format"))
    read_response_format(*format, "response_format", limits, generation.structured);
  read_guided(fields, limits, generation.structured);
  for (const char* old : {"functions", "function_call"})
    if (fields.any(old) != nullptr) refuse_field(old, "no longer supported; send tools and tool_choice");
  if (const Json* modalities = fields.array("modalities"))
    for (const Json& one : *modalities)
      if (one != "text") refuse_field("modalities", "only text is supported");
  if (fields.any("audio") != nullptr) refuse_field("audio", "not supported; only text is");

  const Json* messages = fields.array("messages");
  if (messages == nullptr) refuse_field("messages", "it is missing; an array of messages is expected");
  check_messages(*messages);
  if (const Json* tools = fields.array("tools")) request.tools = read_tools(*tools, limits);
  read_tool_choice(fields, request);

  auto inputs = std::make_shared<Json>(Json::object());
  const std::string effort = template_effort(fields.string("reasoning_effort"), "reasoning_effort", rules);
  if (!effort.empty()) (*inputs)["reasoning_effort"] = effort;
  if (const auto value = fields.boolean("clear_thinking")) (*inputs)["clear_thinking"] = *value;
  if (const auto value = fields.boolean("add_generation_prompt")) (*inputs)["add_generation_prompt"] = *value;
  fields.object("chat_template_kwargs");
  if (const Json* documents = fields.array("documents"))
    for (const Json& one : *documents)
      if (!one.is_object()) refuse_field("documents", "an array of objects is expected");
  fields.accept({"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prediction",
                 "verbosity", "skip_special_tokens", "include_reasoning", "separate_reasoning"});
  unknown = fields.unknown();
  for (const char* name : {"messages", "tools", "documents", "chat_template_kwargs"})
    if (const auto found = body.find(name); found != body.end() && !found->is_null() && !found->empty())
      (*inputs)[name] = std::move(*found);
  request.inputs = std::move(inputs);
  return request;
}

CompletionRequest parse_completion_request(Json& body, const RequestLimits& limits, std::vector<std::string>& unknown) {
  Fields fields(body);
  CompletionRequest request;
  read_sampling(fields, limits, request.generation);
  Generation& generation = request.generation;
  request.echo = fields.boolean("echo").value_or(false);
  if (const auto value = fields.integer("logprobs", 0, limits.top_logprobs))
    generation.logprobs = static_cast<int>(*value);
  request.lists_prompt_logprobs = generation.prompt_logprobs >= 0;
  const bool scores = request.echo || request.lists_prompt_logprobs;
  generation.max_tokens = fields.integer("max_tokens", scores ? 0 : 1, kMostTokens).value_or(16);
  if (generation.max_tokens == 0) generation.prompt_logprobs = std::max(generation.prompt_logprobs, 0);
  if (request.echo && generation.logprobs >= 0)
    generation.prompt_logprobs = std::max(generation.prompt_logprobs, generation.logprobs);
  if (const auto best_of = fields.integer("best_of", 1, limits.choices); best_of && *best_of != generation.choices)
    refuse_field("best_of", "not supported beyond n");
  if (const auto suffix = fields.string("suffix"); suffix && !suffix->empty())
    refuse_field("suffix", "not supported: the model has no fill-in-the-middle form here; send the prompt alone");
  if (const Json* format = fields.object("response_format"))
    read_response_format(*format, "response_format", limits, generation.structured);
  read_guided(fields, limits, generation.structured);
  fields.accept({"user", "metadata", "add_special_tokens", "skip_special_tokens", "service_tier"});

  const Json* prompt = fields.any("prompt");
  if (prompt == nullptr)
    refuse_field("prompt", "it is missing; a string, token ids, or an array of either is expected");
  const auto add = [&request](const Json& one) {
    if (one.is_string()) {
      request.prompts.emplace_back(one.get<std::string>());
    } else if (one.is_array()) {
      request.prompts.emplace_back(read_token_ids(one, "prompt", kMostIds));
    } else {
      refuse_field("prompt", "a string, token ids, or an array of either is expected");
    }
  };
  if (prompt->is_array() && !prompt->empty() && !prompt->front().is_number()) {
    if (std::ssize(*prompt) > limits.prompts)
      refuse_field("prompt", "{} prompts; at most {} are taken", prompt->size(), limits.prompts);
    for (const Json& one : *prompt) add(one);
  } else {
    add(*prompt);
  }
  unknown = fields.unknown();
  return request;
}

}  // namespace verbatim::server
