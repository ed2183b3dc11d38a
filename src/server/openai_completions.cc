// POST /v1/completions
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "server/openai_text.h"
#include "server/routes.h"
#include "text/stream_decoder.h"

namespace verbatim::server {
namespace {

// What one choice says before the model does.
struct Echo {
  std::vector<int32_t> prompt;
  std::string text;
};

struct CompletionName {
  std::string id, model;
  int64_t created = 0;
  int logprobs = -1;
  bool include_usage = false, echoes = false, lists_prompt_logprobs = false;
  int choices_per_prompt = 1;
  std::vector<Echo> echo;  // by prompt; empty unless asked for
};

// The arrays of a completion's "logprobs", which grow token by token.
class LogprobLists {
 public:
  void add(const text::Tokenizer& tokenizer, const engine::GeneratedToken& token, int top, bool is_first_of_prompt) {
    const char* comma = tokens_.empty() ? "" : ",";
    const std::string_view piece = tokenizer.piece(token.id);
    tokens_ += comma;
    append_json_bytes_as_string(tokens_, piece);
    logprobs_ += comma;
    top_ += comma;
    if (is_first_of_prompt) {
      logprobs_ += "null";
      top_ += "null";
    } else {
      append_json_number(logprobs_, token.logprob);
      top_ += '{';
      const size_t listed = std::min(token.top.size(), static_cast<size_t>(std::max(top, 0)));
      for (size_t i = 0; i < listed; ++i) {
        if (i > 0) top_ += ',';
        append_json_bytes_as_string(top_, tokenizer.piece(token.top[i].id));
        top_ += ':';
        append_json_number(top_, token.top[i].logprob);
      }
      top_ += '}';
    }
    offsets_ += comma;
    append_json_integer(offsets_, static_cast<int64_t>(offset_));
    offset_ += piece.size();
  }
  void add_prompt(const text::Tokenizer& tokenizer, const std::vector<int32_t>& prompt,
                  const std::vector<engine::GeneratedToken>& scored, int top) {
    if (prompt.empty()) return;
    engine::GeneratedToken first;
    first.id = prompt.front();
    add(tokenizer, first, top, true);
    for (const engine::GeneratedToken& token : scored) add(tokenizer, token, top, false);
  }
  // {"tokens", "token_logprobs", "top_logprobs", "text_offset"} of what came since the last call; offsets, in bytes,
  // go on.
  std::string take() {
    std::string out = fmt::format(R"({{"tokens":[{}],"token_logprobs":[{}],"top_logprobs":[{}],"text_offset":[{}]}})",
                                  tokens_, logprobs_, top_, offsets_);
    for (std::string* list : {&tokens_, &logprobs_, &top_, &offsets_}) list->clear();
    return out;
  }
  bool empty() const { return tokens_.empty(); }

 private:
  std::string tokens_, logprobs_, top_, offsets_;
  size_t offset_ = 0;
};

std::string object_head(const CompletionName& name) {
  std::string out = R"({"id":)";
  append_json_string(out, name.id);
  fmt::format_to(std::back_inserter(out), R"(,"object":"text_completion","created":{},"model":)", name.created);
  append_json_string(out, name.model);
  out += R"(,"choices":[)";
  return out;
}

class CompletionStream final : public ReplyWriter {
 public:
  CompletionStream(const Service& service, CompletionName name, int choices)
      : tokenizer_(service.model().tokenizer),
        name_(std::move(name)),
        head_("data: " + object_head(name_)),
        lists_(static_cast<size_t>(choices)),
        ends_(static_cast<size_t>(choices)) {}

  // Prompts that are echoed without their log probabilities.
  std::string opening() {
    std::string out;
    if (!name_.echoes || name_.logprobs >= 0) return out;
    for (size_t choice = 0; choice < ends_.size(); ++choice) {
      begin(static_cast<int>(choice), echo(static_cast<int>(choice)).text, out);
      finish(static_cast<int>(choice), {}, out);
      out += "]}\n\n";
    }
    return out;
  }

  void prompt_logprobs(int choice, std::vector<engine::GeneratedToken>& tokens, std::string&) override {
    if (!name_.echoes || name_.logprobs < 0) return;
    auto& scored = scored_[choice / name_.choices_per_prompt];
    scored.insert(scored.end(), tokens.begin(), tokens.end());
  }
  void tokens(int choice, std::vector<engine::GeneratedToken>& tokens, std::string& out) override {
    echo_scored(choice, out);
    for (const engine::GeneratedToken& token : tokens)
      lists_[static_cast<size_t>(choice)].add(tokenizer_, token, name_.logprobs, false);
  }
  void event(int choice, text::ReplyEvent& event, std::string& out) override {
    begin(choice, event.text, out);
    finish(choice, {}, out);
    out += "]}\n\n";
  }
  void choice_end(int choice, ChoiceEnd& end, std::string& out) override {
    echo_scored(choice, out);
    begin(choice, "", out);
    finish(choice, end, out);
    out += ']';
    ends_[static_cast<size_t>(choice)] = std::move(end);
    if (++ended_ == ends_.size()) append_verbatim_member(out, ends_);
    out += "}\n\n";
  }
  void end(const ReplyUsage& usage, std::string& out) override {
    if (name_.include_usage) {
      out += head_ + "],";
      append_usage_member(out, usage);
      out += "}\n\n";
    }
    out += "data: [DONE]\n\n";
  }
  void failed(const ApiError& error, std::string& out) override {
    out += "data: " + error_json(error, ErrorShape::kOpenAi) + "\n\ndata: [DONE]\n\n";
  }

 private:
  const Echo& echo(int choice) const { return name_.echo[static_cast<size_t>(choice / name_.choices_per_prompt)]; }
  // The prompt with its log probabilities, which are all there before the first token.
  void echo_scored(int choice, std::string& out) {
    if (!name_.echoes || name_.logprobs < 0 || !echoed_.insert(choice).second) return;
    const Echo& prompt = echo(choice);
    lists_[static_cast<size_t>(choice)].add_prompt(tokenizer_, prompt.prompt,
                                                   scored_[choice / name_.choices_per_prompt], name_.logprobs);
    begin(choice, prompt.text, out);
    finish(choice, {}, out);
    out += "]}\n\n";
  }
  void begin(int choice, std::string_view text, std::string& out) const {
    out += head_;
    fmt::format_to(std::back_inserter(out), R"({{"index":{},"text":)", choice);
    append_json_string(out, text);
  }
  void finish(int choice, const std::optional<ChoiceEnd>& end, std::string& out) {
    LogprobLists& lists = lists_[static_cast<size_t>(choice)];
    out += R"(,"logprobs":)";
    out += lists.empty() ? "null" : lists.take();
    append_finish(out, end);
    out += '}';
  }

  const text::Tokenizer& tokenizer_;
  const CompletionName name_;
  const std::string head_;
  std::vector<LogprobLists> lists_;
  std::vector<ChoiceEnd> ends_;
  std::map<int, std::vector<engine::GeneratedToken>> scored_;  // by prompt
  std::set<int> echoed_;
  size_t ended_ = 0;
};

std::string whole_completion(const Service& service, const CompletionName& name, WholeReply& reply) {
  const text::Tokenizer& tokenizer = service.model().tokenizer;
  std::string out = object_head(name);
  std::vector<ChoiceEnd> ends;
  for (size_t i = 0; i < reply.choices.size(); ++i) {
    WholeReply::Choice& choice = reply.choices[i];
    const size_t prompt = i / static_cast<size_t>(name.choices_per_prompt);
    const auto& scored = reply.choices[prompt * static_cast<size_t>(name.choices_per_prompt)].prompt_logprobs;
    if (i > 0) out += ',';
    fmt::format_to(std::back_inserter(out), R"({{"index":{},"text":)", i);
    append_json_string(out, name.echoes ? name.echo[prompt].text + choice.text : choice.text);
    out += R"(,"logprobs":)";
    if (name.logprobs >= 0) {
      LogprobLists lists;
      if (name.echoes) lists.add_prompt(tokenizer, name.echo[prompt].prompt, scored, name.logprobs);
      for (const engine::GeneratedToken& token : choice.tokens) lists.add(tokenizer, token, name.logprobs, false);
      out += lists.take();
    } else {
      out += "null";
    }
    if (name.lists_prompt_logprobs) {
      out += R"(,"prompt_logprobs":)";
      append_prompt_logprobs(out, tokenizer, scored);
    }
    append_finish(out, choice.end);
    out += '}';
    ends.push_back(std::move(choice.end));
  }
  out += "],";
  append_usage_member(out, reply.usage);
  append_verbatim_member(out, ends);
  out += '}';
  return out;
}

void complete(Service& service, const std::shared_ptr<Exchange>& exchange) {
  nlohmann::ordered_json body = parse_body(exchange->request().body, {.depth = service.options().limits.json_depth});
  exchange->drop_body();
  std::vector<std::string> unknown;
  const CompletionRequest request = parse_completion_request(body, service.options().limits, unknown);
  log_unknown_fields(exchange->request(), unknown);
  const Generation& generation = request.generation;
  service.check_model(generation.model);
  if (generation.stream && request.lists_prompt_logprobs)
    refuse_field("prompt_logprobs", "only without \"stream\": true");
  CompletionName name{.id = random_id("cmpl-"),
                      .model = generation.model.empty() ? service.model().names.front() : generation.model,
                      .created = unix_time(),
                      .logprobs = generation.logprobs,
                      .include_usage = generation.include_usage,
                      .echoes = request.echo,
                      .lists_prompt_logprobs = request.lists_prompt_logprobs,
                      .choices_per_prompt = generation.choices,
                      .echo = {}};
  std::vector<ReplyPlan> plans = service.plan(request);
  if (request.echo) {
    for (const ReplyPlan& plan : plans) {
      text::StreamDecoder decoder;
      std::string text = decoder.push(service.model().tokenizer.decode(plan.request.prompt, false));
      text += decoder.flush();
      name.echo.push_back({plan.request.prompt, std::move(text)});
    }
  }
  const int choices = static_cast<int>(plans.size()) * generation.choices;
  if (generation.stream) {
    auto writer = std::make_unique<CompletionStream>(service, std::move(name), choices);
    HttpResponse head{.body = writer->opening()};
    Reply::stream(service.context(), std::move(plans), exchange, std::move(head), std::move(writer));
  } else {
    Reply::collect(
        service.context(), std::move(plans), exchange,
        [&service, name](WholeReply& reply) { return HttpResponse{.body = whole_completion(service, name, reply)}; },
        [](const ApiError& error) { return error_response(error, ErrorShape::kOpenAi); });
  }
}

}  // namespace

void add_completion_routes(Router& router, Service& service) {
  router.add({"POST", "/v1/completions",
              [&service](const std::shared_ptr<Exchange>& exchange) { complete(service, exchange); }});
}

}  // namespace verbatim::server
