// POST /v1/chat/completions
#include <algorithm>
#include <nlohmann/json.hpp>

#include "server/openai_text.h"
#include "server/routes.h"

namespace verbatim::server {
namespace {

struct ReplyName {
  std::string id, model;
  int64_t created = 0;
  bool logprobs = false;
  int top_logprobs = 0;
  bool include_usage = false;
};

class ChatStream final : public ReplyWriter {
 public:
  ChatStream(const Service& service, ReplyName name, int choices)
      : tokenizer_(service.model().tokenizer),
        name_(std::move(name)),
        logprobs_(static_cast<size_t>(choices)),
        ends_(static_cast<size_t>(choices)) {
    head_ = R"(data: {"id":)";
    append_json_string(head_, name_.id);
    fmt::format_to(std::back_inserter(head_), R"(,"object":"chat.completion.chunk","created":{},"model":)",
                   name_.created);
    append_json_string(head_, name_.model);
    head_ += R"(,"choices":[)";
  }

  // What is sent before the first token.
  std::string opening() const {
    std::string out;
    for (size_t choice = 0; choice < ends_.size(); ++choice)
      fmt::format_to(std::back_inserter(out),
                     R"({}{{"index":{},"delta":{{"role":"assistant","content":""}},"logprobs":null,)"
                     R"("finish_reason":null}}]}})"
                     "\n\n",
                     head_, choice);
    return out;
  }

  void tokens(int choice, std::vector<engine::GeneratedToken>& tokens, std::string&) override {
    std::string& waiting = logprobs_[static_cast<size_t>(choice)];
    for (const engine::GeneratedToken& token : tokens) {
      if (!waiting.empty()) waiting += ',';
      append_chat_logprob(waiting, tokenizer_, token, name_.top_logprobs);
    }
  }

  void event(int choice, text::ReplyEvent& event, std::string& out) override {
    using Kind = text::ReplyEvent::Kind;
    if (event.kind == Kind::kCallEnd) return;
    begin_chunk(choice, out);
    switch (event.kind) {
      case Kind::kReasoning:
        out += R"("reasoning_content":)";
        append_json_string(out, event.text);
        out += R"(,"reasoning":)";
        append_json_string(out, event.text);
        break;
      case Kind::kText:
        out += R"("content":)";
        append_json_string(out, event.text);
        break;
      case Kind::kCallBegin:
        fmt::format_to(std::back_inserter(out), R"("tool_calls":[{{"index":{},"id":)", event.call);
        append_json_string(out, event.id);
        out += R"(,"type":"function","function":{"name":)";
        append_json_string(out, event.text);
        out += R"(,"arguments":""}}])";
        break;
      default:
        fmt::format_to(std::back_inserter(out), R"("tool_calls":[{{"index":{},"function":{{"arguments":)", event.call);
        append_json_string(out, event.text);
        out += "}}]";
        break;
    }
    end_chunk(choice, out, {});
    out += "]}\n\n";
  }

  void choice_end(int choice, ChoiceEnd& end, std::string& out) override {
    begin_chunk(choice, out);
    end_chunk(choice, out, end);
    out += ']';
    ends_[static_cast<size_t>(choice)] = std::move(end);
    if (++ended_ == ends_.size()) append_verbatim_member(out, ends_);
    out += "}\n\n";
  }

  void end(const ReplyUsage& usage, std::string& out) override {
    if (name_.include_usage) {
      out += head_;
      out += "],";
      append_usage_member(out, usage);
      out += "}\n\n";
    }
    out += "data: [DONE]\n\n";
  }

  void failed(const ApiError& error, std::string& out) override {
    out += "data: " + error_json(error, ErrorShape::kOpenAi) + "\n\ndata: [DONE]\n\n";
  }

 private:
  void begin_chunk(int choice, std::string& out) const {
    out += head_;
    fmt::format_to(std::back_inserter(out), R"({{"index":{},"delta":{{)", choice);
  }
  void end_chunk(int choice, std::string& out, const std::optional<ChoiceEnd>& end) {
    out += R"(},"logprobs":)";
    std::string& waiting = logprobs_[static_cast<size_t>(choice)];
    if (waiting.empty()) {
      out += "null";
    } else {
      out += R"({"content":[)" + waiting + R"(],"refusal":null})";
      waiting.clear();
    }
    append_finish(out, end);
    out += '}';
  }

  const text::Tokenizer& tokenizer_;
  const ReplyName name_;
  std::string head_;                   // of every chunk, up to its choices
  std::vector<std::string> logprobs_;  // of tokens whose text is still to come
  std::vector<ChoiceEnd> ends_;
  size_t ended_ = 0;
};

std::string whole_chat(const Service& service, const ReplyName& name, WholeReply& reply) {
  const text::Tokenizer& tokenizer = service.model().tokenizer;
  std::string out = R"({"id":)";
  append_json_string(out, name.id);
  fmt::format_to(std::back_inserter(out), R"(,"object":"chat.completion","created":{},"model":)", name.created);
  append_json_string(out, name.model);
  out += R"(,"choices":[)";
  std::vector<ChoiceEnd> ends;
  for (size_t i = 0; i < reply.choices.size(); ++i) {
    WholeReply::Choice& choice = reply.choices[i];
    if (i > 0) out += ',';
    fmt::format_to(std::back_inserter(out), R"({{"index":{},"message":{{"role":"assistant","content":)", i);
    if (choice.text.empty() && !choice.calls.empty()) {
      out += "null";
    } else {
      append_json_string(out, choice.text);
    }
    out += R"(,"refusal":null)";
    for (const char* member : {R"(,"reasoning_content":)", R"(,"reasoning":)"}) {
      out += member;
      if (choice.reasoning.empty()) {
        out += "null";
      } else {
        append_json_string(out, choice.reasoning);
      }
    }
    if (!choice.calls.empty()) {
      out += R"(,"tool_calls":[)";
      for (size_t call = 0; call < choice.calls.size(); ++call) {
        if (call > 0) out += ',';
        out += R"({"id":)";
        append_json_string(out, choice.calls[call].id);
        out += R"(,"type":"function","function":{"name":)";
        append_json_string(out, choice.calls[call].name);
        out += R"(,"arguments":)";
        append_json_string(out, choice.calls[call].arguments);
        out += "}}";
      }
      out += ']';
    }
    out += R"(},"logprobs":)";
    if (name.logprobs) {
      out += R"({"content":[)";
      for (size_t token = 0; token < choice.tokens.size(); ++token) {
        if (token > 0) out += ',';
        append_chat_logprob(out, tokenizer, choice.tokens[token], name.top_logprobs);
      }
      out += R"(],"refusal":null})";
    } else {
      out += "null";
    }
    append_finish(out, choice.end);
    out += '}';
    ends.push_back(std::move(choice.end));
  }
  out += "],";
  append_usage_member(out, reply.usage);
  append_verbatim_member(out, ends);
  if (!reply.choices.front().prompt_logprobs.empty()) {
    out += R"(,"prompt_logprobs":)";
    append_prompt_logprobs(out, tokenizer, reply.choices.front().prompt_logprobs);
  }
  out += '}';
  return out;
}

void chat(Service& service, const std::shared_ptr<Exchange>& exchange) {
  nlohmann::ordered_json body = parse_body(exchange->request().body, {.depth = service.options().limits.json_depth});
  exchange->drop_body();
  std::vector<std::string> unknown;
  const ChatRequest request = parse_chat_request(body, service.options().limits, service.options().effort, unknown);
  log_unknown_fields(exchange->request(), unknown);
  const Generation& generation = request.generation;
  service.check_model(generation.model);
  if (generation.stream && generation.prompt_logprobs >= 0)
    refuse_field("prompt_logprobs", "only without \"stream\": true");
  const ReplyName name{.id = random_id("chatcmpl-"),
                       .model = generation.model.empty() ? service.model().names.front() : generation.model,
                       .created = unix_time(),
                       .logprobs = generation.logprobs >= 0,
                       .top_logprobs = generation.logprobs,
                       .include_usage = generation.include_usage};
  std::vector<ReplyPlan> plans;
  plans.push_back(service.plan(request, name.id));
  if (generation.stream) {
    auto writer = std::make_unique<ChatStream>(service, name, generation.choices);
    HttpResponse head{.body = writer->opening()};
    Reply::stream(service.context(), std::move(plans), exchange, std::move(head), std::move(writer));
  } else {
    Reply::collect(
        service.context(), std::move(plans), exchange,
        [&service, name](WholeReply& reply) { return HttpResponse{.body = whole_chat(service, name, reply)}; },
        [](const ApiError& error) { return error_response(error, ErrorShape::kOpenAi); });
  }
}

}  // namespace

void add_chat_routes(Router& router, Service& service) {
  router.add({"POST", "/v1/chat/completions",
              [&service](const std::shared_ptr<Exchange>& exchange) { chat(service, exchange); }});
}

}  // namespace verbatim::server
