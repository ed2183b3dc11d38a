#include "server/structured.h"

#include <algorithm>

#include "base/error.h"
#include "server/api_error.h"

namespace verbatim::server {
namespace {

// Lengths before texts, so that no two lists make one key.
void append_part(std::string& key, std::string_view text) {
  key += fmt::format("{}:", text.size());
  key += text;
}

template <typename Compile>
text::GrammarPointer compiled(const std::string& param, const Compile& compile) {
  try {
    return compile();
  } catch (const Error& error) {
    throw ApiFailure({.status = 400,
                      .message = fmt::format("{}: {}", param, error.what()),
                      .code = "invalid_schema",
                      .param = param});
  }
}

}  // namespace

StructuredOutputs::StructuredOutputs(text::TokenTablePointer tokens, text::ReplyVocabulary vocabulary,
                                     std::vector<int32_t> eos, text::GrammarLimits limits)
    : tokens_(std::move(tokens)), vocabulary_(std::move(vocabulary)), eos_(std::move(eos)), limits_(limits) {}

text::MaskOptions StructuredOutputs::options(text::ReplyStart start) const {
  text::MaskOptions options{.end_tokens = eos_};
  options.has_reasoning = start == text::ReplyStart::kReasoning;
  options.reasoning_end_token = vocabulary_.tags[static_cast<size_t>(text::ReplyTag::kThinkEnd)];
  options.forbidden_in_reasoning = {vocabulary_.tags[static_cast<size_t>(text::ReplyTag::kCallBegin)]};
  return options;
}

text::GrammarPointer StructuredOutputs::form(const StructuredOutput& structured) {
  using Kind = StructuredOutput::Kind;
  if (structured.kind == Kind::kGrammar)
    refuse_field(structured.param, "grammars are not supported; use a JSON schema, a regex or choices");
  std::string key = fmt::format("{};", static_cast<int>(structured.kind));
  append_part(key, structured.text);
  for (const std::string& choice : structured.choices) append_part(key, choice);
  return compiled(structured.param, [&] {
    return cache_.get(key, [&] {
      switch (structured.kind) {
        case Kind::kJsonObject: return text::compile_json_object(tokens_, limits_);
        case Kind::kRegex: return text::compile_regex(tokens_, structured.text, limits_);
        case Kind::kChoice: return text::compile_choice(tokens_, structured.choices, limits_);
        default: return text::compile_json_schema(tokens_, structured.text, limits_);
      }
    });
  });
}

text::GrammarPointer StructuredOutputs::calls(const ChatRequest& request) {
  text::ToolCallOptions options;
  const bool is_named = request.tool_choice == ToolChoice::kNamed;
  if (is_named) options.named = request.named_tool;
  options.max_calls = is_named || !request.parallel_tool_calls ? 1 : 0;
  std::string key = fmt::format("calls {};", options.max_calls);
  append_part(key, options.named);
  for (const text::OfferedTool& tool : request.tools) {
    append_part(key, tool.name);
    append_part(key, tool.parameters);
  }
  return compiled("tools", [&] {
    return cache_.get(key, [&] { return text::compile_tool_calls(tokens_, request.tools, options, limits_); });
  });
}

engine::TokenMask StructuredOutputs::mask(const ChatRequest& request, text::ReplyStart start) {
  const StructuredOutput& structured = request.generation.structured;
  const bool must_call = request.tool_choice == ToolChoice::kRequired || request.tool_choice == ToolChoice::kNamed;
  const bool has_form = structured.kind != StructuredOutput::Kind::kNone;
  if (!must_call && !has_form) return nullptr;
  if (request.generation.ignore_eos) refuse_field("ignore_eos", "not together with structured output");
  if (must_call) {  // a reply of calls alone has no text that could have a form
    if (has_form) refuse_field(structured.param, "not together with a tool_choice that forces a call");
    return text::make_mask(calls(request), options(start));
  }
  text::TokenMaskFunction text_mask = text::make_mask(form(structured), options(start));
  if (request.tools.empty() || request.tool_choice == ToolChoice::kNone) return text_mask;

  // Tools may be called instead: what comes first after reasoning decides which of the two forms it is.
  const text::TokenMaskFunction call_mask = text::make_mask(calls(request), options(start));
  const text::MaskOptions shared = options(start);
  const int32_t begins_call = vocabulary_.tags[static_cast<size_t>(text::ReplyTag::kCallBegin)];
  return [text_mask, call_mask, shared, begins_call](std::span<const int32_t> generated, std::span<uint64_t> allowed) {
    auto first = generated.begin();
    if (shared.has_reasoning) {
      first = std::find(generated.begin(), generated.end(), shared.reasoning_end_token);
      if (first == generated.end()) return text_mask(generated, allowed);
      ++first;
    }
    if (first != generated.end())
      return *first == begins_call ? call_mask(generated, allowed) : text_mask(generated, allowed);
    std::vector<uint64_t> calls_allowed(allowed.size());
    text_mask(generated, allowed);
    call_mask(generated, calls_allowed);
    for (size_t i = 0; i < allowed.size(); ++i) allowed[i] |= calls_allowed[i];
  };
}

engine::TokenMask StructuredOutputs::mask(const Generation& generation) {
  if (generation.structured.kind == StructuredOutput::Kind::kNone) return nullptr;
  if (generation.ignore_eos) refuse_field("ignore_eos", "not together with structured output");
  return text::make_mask(form(generation.structured), options(text::ReplyStart::kPlain));
}

}  // namespace verbatim::server
