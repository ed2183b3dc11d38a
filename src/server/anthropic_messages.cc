// POST /v1/messages, POST /v1/messages/count_tokens
#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <span>

#include "base/sha256.h"
#include "server/anthropic_request.h"
#include "server/json_text.h"
#include "server/routes.h"

namespace verbatim::server {
namespace {

struct ReplyName {
  std::string id, model;
  ThinkingShown thinking = ThinkingShown::kNo;
};

// Ends a thinking block. It says nothing that the text does not; clients hand it back as they got it.
std::string signature_of(std::string_view thinking) {
  Sha256 hash;
  hash.update(std::as_bytes(std::span(thinking)));
  return to_hex(hash.finish());
}

void append_stop(std::string& out, const ChoiceEnd& end) {
  const char* reason = end.reason == text::FinishReason::kToolCalls ? "tool_use"
                       : end.reason == text::FinishReason::kLength  ? "max_tokens"
                       : end.stop                                   ? "stop_sequence"
                                                                    : "end_turn";
  fmt::format_to(std::back_inserter(out), R"("stop_reason":"{}","stop_sequence":)", reason);
  if (end.stop && end.reason == text::FinishReason::kStop) {
    append_json_string(out, *end.stop);
  } else {
    out += "null";
  }
}

// Tokens found in the cache are no input tokens here.
void append_usage(std::string& out, const ReplyUsage& usage) {
  fmt::format_to(std::back_inserter(out),
                 R"("usage":{{"input_tokens":{},"cache_creation_input_tokens":0,"cache_read_input_tokens":{},)"
                 R"("output_tokens":{},"output_tokens_details":{{"thinking_tokens":{}}}}})",
                 usage.prompt_tokens - usage.cached_tokens, usage.cached_tokens, usage.generated_tokens,
                 usage.reasoning_tokens);
}

void append_head(std::string& out, const ReplyName& name) {
  out += R"({"id":)";
  append_json_string(out, name.id);
  out += R"(,"type":"message","role":"assistant","model":)";
  append_json_string(out, name.model);
}

class MessageStream final : public ReplyWriter {
 public:
  explicit MessageStream(ReplyName name) : name_(std::move(name)) {}

  // What is sent before the first token.
  std::string opening(int64_t prompt_tokens) const {
    std::string out = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":";
    append_head(out, name_);
    out += R"(,"content":[],"stop_reason":null,"stop_sequence":null,)";
    append_usage(out, {.prompt_tokens = prompt_tokens});
    out += "}}\n\nevent: ping\ndata: {\"type\":\"ping\"}\n\n";
    return out;
  }

  void event(int, text::ReplyEvent& event, std::string& out) override {
    using Kind = text::ReplyEvent::Kind;
    switch (event.kind) {
      case Kind::kReasoning:
        if (name_.thinking == ThinkingShown::kNo) return;
        open(Block::kThinking, R"({"type":"thinking","thinking":"","signature":""})", out);
        thinking_ += event.text;
        if (name_.thinking == ThinkingShown::kYes) delta("thinking_delta", "thinking", event.text, out);
        break;
      case Kind::kText:
        open(Block::kText, R"({"type":"text","text":""})", out);
        delta("text_delta", "text", event.text, out);
        break;
      case Kind::kCallBegin: {
        close(out);
        std::string block = R"({"type":"tool_use","id":)";
        append_json_string(block, event.id);
        block += R"(,"name":)";
        append_json_string(block, event.text);
        block += R"(,"input":{}})";
        open(Block::kCall, block, out);
        break;
      }
      case Kind::kCallArguments: delta("input_json_delta", "partial_json", event.text, out); break;
      case Kind::kCallEnd: close(out); break;
    }
  }

  void choice_end(int, ChoiceEnd& end, std::string& out) override {
    close(out);
    end_ = std::move(end);
  }

  void end(const ReplyUsage& usage, std::string& out) override {
    out += "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{";
    append_stop(out, end_);
    out += "},";
    append_usage(out, usage);
    out += R"(,"verbatim":)";
    append_verbatim_block(out, end_);
    out += "}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
  }

  void failed(const ApiError& error, std::string& out) override {
    out += "event: error\ndata: " + error_json(error, ErrorShape::kAnthropic) + "\n\n";
  }

 private:
  enum class Block { kNone, kThinking, kText, kCall };

  void open(Block block, std::string_view start, std::string& out) {
    if (open_ == block && block != Block::kCall) return;
    close(out);
    open_ = block;
    fmt::format_to(std::back_inserter(out),
                   "event: content_block_start\ndata: "
                   "{{\"type\":\"content_block_start\",\"index\":{},\"content_block\":{}}}\n\n",
                   index_, start);
  }
  void delta(std::string_view type, std::string_view member, std::string_view text, std::string& out) {
    fmt::format_to(std::back_inserter(out),
                   "event: content_block_delta\ndata: {{\"type\":\"content_block_delta\",\"index\":{},\"delta\":"
                   "{{\"type\":\"{}\",\"{}\":",
                   index_, type, member);
    append_json_string(out, text);
    out += "}}\n\n";
  }
  void close(std::string& out) {
    if (open_ == Block::kNone) return;
    if (open_ == Block::kThinking) {
      delta("signature_delta", "signature", signature_of(thinking_), out);
      thinking_.clear();
    }
    fmt::format_to(std::back_inserter(out),
                   "event: content_block_stop\ndata: {{\"type\":\"content_block_stop\",\"index\":{}}}\n\n", index_);
    open_ = Block::kNone;
    ++index_;
  }

  const ReplyName name_;
  Block open_ = Block::kNone;
  int64_t index_ = 0;
  std::string thinking_;  // of the open block
  ChoiceEnd end_;
};

std::string whole_message(const ReplyName& name, const WholeReply& reply) {
  const WholeReply::Choice& choice = reply.choices.front();
  std::string out;
  append_head(out, name);
  out += R"(,"content":[)";
  const size_t begin = out.size();
  const auto block = [&out, begin](std::string_view type, std::string_view member, std::string_view text) {
    if (out.size() > begin) out += ',';
    fmt::format_to(std::back_inserter(out), R"({{"type":"{}","{}":)", type, member);
    append_json_string(out, text);
  };
  if (name.thinking != ThinkingShown::kNo && !choice.reasoning.empty()) {
    block("thinking", "thinking", name.thinking == ThinkingShown::kYes ? choice.reasoning : "");
    out += R"(,"signature":)";
    append_json_string(out, signature_of(choice.reasoning));
    out += '}';
  }
  if (!choice.text.empty()) {
    block("text", "text", choice.text);
    out += '}';
  }
  for (const WholeReply::Call& call : choice.calls) {
    block("tool_use", "id", call.id);
    out += R"(,"name":)";
    append_json_string(out, call.name);
    // A call that max_tokens cut has no arguments that could be told; stop_reason says so.
    out += R"(,"input":)" + (call.complete ? call.arguments : "{}") + "}";
  }
  out += "],";
  append_stop(out, choice.end);
  out += ',';
  append_usage(out, reply.usage);
  out += R"(,"verbatim":)";
  append_verbatim_block(out, choice.end);
  out += '}';
  return out;
}

// In the words by which agents recognise that they must shorten the conversation.
[[noreturn]] void refuse_length(const Service& service, const ChatRequest& request, ApiError error) {
  const int64_t prompt = std::ssize(service.chat_prompt(request)), context = service.model().context_tokens;
  error.message =
      prompt >= context
          ? fmt::format("prompt is too long: {} tokens > {} maximum", prompt, context)
          : fmt::format(
                "input length and `max_tokens` exceed context limit: {} + {} > {}, decrease input length or "
                "`max_tokens` and try again",
                prompt, request.generation.max_tokens.value_or(0), context);
  throw ApiFailure(std::move(error));
}

MessagesRequest parse(Service& service, const std::shared_ptr<Exchange>& exchange, bool counts_only) {
  nlohmann::ordered_json body = parse_body(exchange->request().body, {.depth = service.options().limits.json_depth});
  exchange->drop_body();
  std::vector<std::string> unknown;
  MessagesRequest request =
      parse_messages_request(body, counts_only, service.options().limits, service.options().effort, unknown);
  log_unknown_fields(exchange->request(), unknown);
  service.check_model(request.chat.generation.model);
  return request;
}

void messages(Service& service, const std::shared_ptr<Exchange>& exchange) {
  const MessagesRequest request = parse(service, exchange, false);
  const Generation& generation = request.chat.generation;
  const ReplyName name{.id = random_id("msg_"),
                       .model = generation.model.empty() ? service.model().names.front() : generation.model,
                       .thinking = request.thinking};
  std::vector<ReplyPlan> plans;
  try {
    plans.push_back(service.plan(request.chat, name.id));
  } catch (const ApiFailure& failure) {
    if (failure.error().code != "context_length_exceeded") throw;
    refuse_length(service, request.chat, failure.error());
  }
  plans.front().call_id_prefix = fmt::format("toolu_{}_", name.id.substr(name.id.size() - 12));
  const std::vector<Header> headers = {{"request-id", exchange->request().id}};
  if (generation.stream) {
    auto writer = std::make_unique<MessageStream>(name);
    HttpResponse head{.body = writer->opening(std::ssize(plans.front().request.prompt)), .headers = headers};
    Reply::stream(service.context(), std::move(plans), exchange, std::move(head), std::move(writer));
  } else {
    Reply::collect(
        service.context(), std::move(plans), exchange,
        [name, headers](WholeReply& reply) {
          return HttpResponse{.body = whole_message(name, reply), .headers = headers};
        },
        [](const ApiError& error) { return error_response(error, ErrorShape::kAnthropic); });
  }
}

void count_tokens(Service& service, const std::shared_ptr<Exchange>& exchange) {
  const MessagesRequest request = parse(service, exchange, true);
  const size_t tokens = service.chat_prompt(request.chat).size();
  exchange->respond(
      {.body = fmt::format(R"({{"input_tokens":{}}})", tokens), .headers = {{"request-id", exchange->request().id}}});
}

}  // namespace

void add_message_routes(Router& router, Service& service) {
  const auto add = [&](const char* path, void (*handle)(Service&, const std::shared_ptr<Exchange>&)) {
    Route route{"POST", path,
                [&service, handle](const std::shared_ptr<Exchange>& exchange) { handle(service, exchange); }};
    route.errors = ErrorShape::kAnthropic;
    router.add(std::move(route));
  };
  add("/v1/messages", messages);
  add("/v1/messages/count_tokens", count_tokens);
}

}  // namespace verbatim::server
