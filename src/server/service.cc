#include "server/service.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>

#include "base/error.h"
#include "server/api_error.h"
#include "text/chat_inputs.h"

namespace verbatim::server {
namespace {

// Small enough for every JSON reader, JavaScript's too, to hand back unchanged.
uint64_t random_seed() {
  std::random_device device;
  return (uint64_t{device()} << 32 | device()) >> 11;
}

text::GrammarLimits grammar_limits(const ServiceOptions& options) {
  text::GrammarLimits limits = options.grammar;
  limits.schema_bytes = static_cast<size_t>(options.limits.schema_bytes);
  return limits;
}

}  // namespace

std::string random_id(std::string_view prefix) {
  std::random_device device;
  return fmt::format("{}{:08x}{:08x}{:08x}", prefix, device(), device(), device());
}

Service::Service(ServedModel model, engine::Engine& engine, ServiceOptions options)
    : model_(std::move(model)),
      reading_(std::make_shared<ReplyReading>(
          ReplyReading{text::ReplyVocabulary::of(model_.tokenizer, "tokenizer.json"), model_.eos})),
      engine_(engine),
      options_(std::move(options)),
      structured_(text::TokenTable::build(model_.tokenizer), reading_->vocabulary, model_.eos,
                  grammar_limits(options_)) {}

void Service::check_model(const std::string& name) const {
  if (name.empty() || std::find(model_.names.begin(), model_.names.end(), name) != model_.names.end()) return;
  throw ApiFailure({.status = 404,
                    .message = fmt::format("The model `{}` does not exist; this server has `{}`", name.substr(0, 200),
                                           model_.names.front()),
                    .code = "model_not_found",
                    .param = "model"});
}

std::vector<int32_t> Service::chat_prompt(const ChatRequest& request) const {
  try {
    return text::prompt_ids(model_.tokenizer, model_.chat_template.render(text::chat_inputs(*request.inputs)));
  } catch (const Error& error) {
    throw ApiFailure({.status = 400,
                      .message = error.what(),
                      .code = error.kind() == ErrorKind::kUnsupported ? "unsupported" : "invalid_messages",
                      .param = "messages"});
  }
}

engine::Request Service::engine_request(const Generation& generation, std::vector<int32_t> prompt) const {
  const int64_t context = model_.context_tokens;
  const int64_t prompt_tokens = std::ssize(prompt);
  const auto overflow = [&](const std::string& detail) {
    throw ApiFailure({.status = 400,
                      .message = fmt::format("This server's maximum context length is {} tokens. {}", context, detail),
                      .code = "context_length_exceeded",
                      .param = "messages"});
  };
  if (prompt_tokens >= context)
    overflow(fmt::format("The prompt has {} tokens, which leaves none for a reply.", prompt_tokens));
  if (generation.max_tokens && *generation.max_tokens > context - prompt_tokens)
    overflow(fmt::format("{} tokens were asked for: {} of the prompt and {} for the reply.",
                         prompt_tokens + *generation.max_tokens, prompt_tokens, *generation.max_tokens));
  engine::Request request;
  request.prompt = std::move(prompt);
  request.max_tokens = generation.max_tokens.value_or(context - prompt_tokens);
  request.choices = generation.choices;
  request.sampling = generation.sampling;
  if (!request.sampling.seed) request.sampling.seed = random_seed();
  request.stop_tokens = generation.stop_tokens;
  if (generation.thinking_budget) {
    request.reasoning_budget = *generation.thinking_budget;
    request.reasoning_end_token = reading_->vocabulary.tags[static_cast<size_t>(text::ReplyTag::kThinkEnd)];
  }
  request.priority = generation.priority > 0 ? 1 : 0;
  request.draft = generation.draft;
  request.logprobs = generation.logprobs;
  request.prompt_logprobs = generation.prompt_logprobs;
  const auto vocabulary = model_.tokenizer.size();
  for (const auto& [id, bias] : request.sampling.logit_bias)
    if (id >= vocabulary) refuse_field("logit_bias", "token {}; the vocabulary ends at {}", id, vocabulary - 1);
  for (const int32_t id : request.stop_tokens)
    if (id >= vocabulary) refuse_field("stop_token_ids", "token {}; the vocabulary ends at {}", id, vocabulary - 1);
  return request;
}

ReplyPlan Service::plan(const ChatRequest& request, const std::string& id) {
  ReplyPlan plan;
  try {
    plan.tools = std::make_shared<text::ToolSet>(request.tools);
  } catch (const Error& error) {
    throw ApiFailure({.status = 400, .message = error.what(), .code = "invalid_value", .param = "tools"});
  }
  plan.request = engine_request(request.generation, chat_prompt(request));
  plan.start = text::reply_start(plan.request.prompt, reading_->vocabulary);
  plan.request.mask = structured_.mask(request, plan.start);
  plan.stop = request.generation.stop;
  plan.ignore_eos = request.generation.ignore_eos;
  plan.ends_after_call = !request.parallel_tool_calls && !request.tools.empty();
  plan.call_id_prefix = fmt::format("call_{}_", id.substr(id.size() - std::min<size_t>(id.size(), 12)));
  if (request.tool_choice == ToolChoice::kNone)  // the call's tag is never chosen
    plan.request.sampling.logit_bias[reading_->vocabulary.tags[static_cast<size_t>(text::ReplyTag::kCallBegin)]] =
        -1e9f;
  return plan;
}

std::vector<ReplyPlan> Service::plan(const CompletionRequest& request) {
  static const auto kNoTools = std::make_shared<const text::ToolSet>();
  std::vector<ReplyPlan> plans;
  for (const auto& prompt : request.prompts) {
    std::vector<int32_t> ids;
    if (const auto* text = std::get_if<std::string>(&prompt)) {
      ids = model_.tokenizer.encode(*text, true);
    } else {
      ids = std::get<std::vector<int32_t>>(prompt);
      for (const int32_t id : ids)
        if (id >= model_.tokenizer.size())
          refuse_field("prompt", "token {}; the vocabulary ends at {}", id, model_.tokenizer.size() - 1);
    }
    if (ids.empty()) refuse_field("prompt", "it is empty; at least one token is expected");
    ReplyPlan plan;
    plan.request = engine_request(request.generation, std::move(ids));
    plan.start = text::ReplyStart::kPlain;
    plan.request.mask = structured_.mask(request.generation);
    plan.stop = request.generation.stop;
    plan.ignore_eos = request.generation.ignore_eos;
    plan.tools = kNoTools;
    plans.push_back(std::move(plan));
  }
  return plans;
}

}  // namespace verbatim::server
