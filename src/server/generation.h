// What a client asks for, whatever protocol it asked in.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "engine/request.h"
#include "text/tool_schema.h"

namespace verbatim::server {

// The most of what a request may ask for; each has a flag of `serve`.
struct RequestLimits {
  int choices = 16;
  int top_logprobs = 20;
  int stops = 16;
  int64_t stop_bytes = 256;  // of each
  int64_t logit_biases = 1024;
  int64_t tools = 1024;
  int json_depth = 64;
  int64_t schema_bytes = 256 << 10;
  int64_t prompts = 64;  // of one completion request
};

// A reply's form. The text is a JSON schema, a regular expression or a grammar.
struct StructuredOutput {
  enum class Kind { kNone, kJsonObject, kJsonSchema, kRegex, kChoice, kGrammar };
  Kind kind = Kind::kNone;
  std::string text;
  std::vector<std::string> choices;
  std::string param;  // the field that asked for it, for refusals
};

struct Generation {
  std::string model;  // as asked for; empty: the first
  engine::SamplingOptions sampling;
  std::optional<int64_t> max_tokens;  // none: what the context leaves
  int choices = 1;
  std::vector<std::string> stop;
  std::vector<int32_t> stop_tokens;  // beside the model's own
  bool ignore_eos = false;
  int priority = 0;
  bool draft = true;
  int logprobs = -1, prompt_logprobs = -1;
  std::optional<int64_t> thinking_budget;
  StructuredOutput structured;
  bool stream = false, include_usage = false;
};

enum class ToolChoice { kAuto, kNone, kRequired, kNamed };

struct ChatRequest {
  // What text::chat_inputs takes: messages, tools, documents, reasoning_effort, chat_template_kwargs ...
  std::shared_ptr<nlohmann::ordered_json> inputs;
  std::vector<text::OfferedTool> tools;
  ToolChoice tool_choice = ToolChoice::kAuto;
  std::string named_tool;
  bool parallel_tool_calls = true;
  Generation generation;
};

struct CompletionRequest {
  std::vector<std::variant<std::string, std::vector<int32_t>>> prompts;
  bool echo = false;
  bool lists_prompt_logprobs = false;  // asked for by name, not only for an echo's sake
  Generation generation;
};

}  // namespace verbatim::server
