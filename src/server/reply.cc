#include "server/reply.h"

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "server/json_text.h"

namespace verbatim::server {
namespace {

// A whole reply is read in pieces of so many tokens, so that its end is not one long stretch of work.
constexpr int64_t kCollectedTokens = 512;

class Collector final : public ReplyWriter {
 public:
  explicit Collector(size_t choices) { whole.choices.resize(choices); }

  void prompt_logprobs(int choice, std::vector<engine::GeneratedToken>& tokens, std::string&) override {
    move_to(at(choice).prompt_logprobs, tokens);
  }
  void tokens(int choice, std::vector<engine::GeneratedToken>& tokens, std::string&) override {
    move_to(at(choice).tokens, tokens);
  }
  void event(int choice, text::ReplyEvent& event, std::string&) override {
    using Kind = text::ReplyEvent::Kind;
    WholeReply::Choice& one = at(choice);
    switch (event.kind) {
      case Kind::kReasoning: one.reasoning += event.text; break;
      case Kind::kText: one.text += event.text; break;
      case Kind::kCallBegin: one.calls.push_back({std::move(event.id), std::move(event.text), {}}); break;
      case Kind::kCallArguments: one.calls.at(event.call).arguments += event.text; break;
      case Kind::kCallEnd: one.calls.at(event.call).complete = event.complete; break;
    }
  }
  void choice_end(int choice, ChoiceEnd& end, std::string&) override { at(choice).end = std::move(end); }
  void end(const ReplyUsage& usage, std::string&) override { whole.usage = usage; }
  void failed(const ApiError& problem, std::string&) override { error = problem; }

  WholeReply whole;
  std::optional<ApiError> error;

 private:
  WholeReply::Choice& at(int choice) { return whole.choices[static_cast<size_t>(choice)]; }
  static void move_to(std::vector<engine::GeneratedToken>& to, std::vector<engine::GeneratedToken>& from) {
    to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
  }
};

size_t choices_of(const std::vector<ReplyPlan>& plans) {
  size_t choices = 0;
  for (const ReplyPlan& plan : plans) choices += static_cast<size_t>(plan.request.choices);
  return choices;
}

text::ReplyOptions parser_options(const ReplyReading& reading, const ReplyPlan& plan) {
  text::ReplyOptions options{.start = plan.start, .stop = plan.stop, .call_id_prefix = plan.call_id_prefix};
  options.eos = plan.request.stop_tokens;
  if (!plan.ignore_eos) options.eos.insert(options.eos.end(), reading.eos.begin(), reading.eos.end());
  return options;
}

// Keeps the parsers of the replies it was asked about last, so that a token costs as much as it is long.
class StopChecker {
 public:
  StopChecker(std::shared_ptr<const ReplyReading> reading, const ReplyPlan& plan)
      : reading_(std::move(reading)),
        tools_(plan.tools),
        ends_after_call_(plan.ends_after_call),
        options_(parser_options(*reading_, plan)),
        most_known_(static_cast<size_t>(plan.request.choices)) {}

  bool operator()(std::span<const int32_t> generated) {
    Known& known = find(generated);
    const auto fresh = generated.subspan(known.ids.size());
    events_.clear();
    known.parser->feed(fresh, events_);
    known.ids.insert(known.ids.end(), fresh.begin(), fresh.end());
    if (known.parser->matched_stop()) return true;
    return ends_after_call_ && std::any_of(events_.begin(), events_.end(), [](const text::ReplyEvent& event) {
             return event.kind == text::ReplyEvent::Kind::kCallEnd && event.complete;
           });
  }

 private:
  struct Known {
    std::vector<int32_t> ids;
    std::unique_ptr<text::ReplyParser> parser;
  };

  Known& find(std::span<const int32_t> generated) {
    Known* best = nullptr;
    for (Known& one : known_)
      if (one.ids.size() <= generated.size() && (best == nullptr || one.ids.size() > best->ids.size()) &&
          std::equal(one.ids.begin(), one.ids.end(), generated.begin()))
        best = &one;
    if (best != nullptr) return *best;
    if (known_.size() < most_known_) known_.emplace_back();
    Known& fresh = known_[next_++ % known_.size()];
    fresh.ids.clear();
    fresh.parser = std::make_unique<text::ReplyParser>(reading_->vocabulary, *tools_, options_);
    return fresh;
  }

  std::shared_ptr<const ReplyReading> reading_;
  std::shared_ptr<const text::ToolSet> tools_;
  bool ends_after_call_;
  text::ReplyOptions options_;
  size_t most_known_, next_ = 0;
  std::vector<Known> known_;
  std::vector<text::ReplyEvent> events_;
};

}  // namespace

void ReplyWriter::prompt_logprobs(int, std::vector<engine::GeneratedToken>&, std::string&) {}
void ReplyWriter::tokens(int, std::vector<engine::GeneratedToken>&, std::string&) {}

engine::StopCheck make_stop_check(std::shared_ptr<const ReplyReading> reading, const ReplyPlan& plan) {
  auto checker = std::make_shared<StopChecker>(std::move(reading), plan);
  return [checker](std::span<const int32_t> generated) { return (*checker)(generated); };
}

Reply::Reply(const Context& context, std::vector<ReplyPlan> plans, std::shared_ptr<Exchange> exchange,
             std::unique_ptr<ReplyWriter> writer)
    : context_(context),
      plans_(std::move(plans)),
      exchange_(std::move(exchange)),
      writer_(std::move(writer)),
      submitted_(Clock::now()) {
  const size_t choices = choices_of(plans_);
  arrived_.resize(choices);
  taken_.resize(choices);
  for (size_t i = 0; i < plans_.size(); ++i) {
    first_choice_.push_back(readings_.size());
    for (int choice = 0; choice < plans_[i].request.choices; ++choice) {
      ReplyPlan plan = plans_[i];
      if (plans_[i].request.choices > 1) plan.call_id_prefix += fmt::format("{}_", choice);
      readings_.push_back({std::make_unique<text::ReplyParser>(context_.reading->vocabulary, *plan.tools,
                                                               parser_options(*context_.reading, plan)),
                           i});
    }
  }
}

void Reply::stream(const Context& context, std::vector<ReplyPlan> plans, const std::shared_ptr<Exchange>& exchange,
                   HttpResponse head, std::unique_ptr<ReplyWriter> writer) {
  const std::shared_ptr<Reply> reply(new Reply(context, std::move(plans), exchange, std::move(writer)));
  reply->submit();
  head.content_type = "text/event-stream; charset=utf-8";
  exchange->stream(std::move(head), [reply](std::string& out) { return reply->pull(out); });
}

void Reply::collect(const Context& context, std::vector<ReplyPlan> plans, const std::shared_ptr<Exchange>& exchange,
                    std::function<HttpResponse(WholeReply&)> whole,
                    std::function<HttpResponse(const ApiError&)> error) {
  auto collector = std::make_unique<Collector>(choices_of(plans));
  Collector* collected = collector.get();
  const std::shared_ptr<Reply> reply(new Reply(context, std::move(plans), exchange, std::move(collector)));
  reply->wake_tokens_ = kCollectedTokens;
  reply->submit();
  exchange->collect(
      [reply, collected, whole = std::move(whole), error = std::move(error)]() -> std::optional<HttpResponse> {
        std::string none;
        if (reply->pull(none)) return std::nullopt;
        return collected->error ? error(*collected->error) : whole(collected->whole);
      });
}

void Reply::submit() {
  const auto self = shared_from_this();
  exchange_->on_gone([self] { self->cancel(); });
  try {
    for (size_t i = 0; i < plans_.size(); ++i) {
      engine::Request request = plans_[i].request;
      if (!plans_[i].ignore_eos)
        request.stop_tokens.insert(request.stop_tokens.end(), context_.reading->eos.begin(),
                                   context_.reading->eos.end());
      if (!plans_[i].stop.empty() || plans_[i].ends_after_call)
        request.stop = make_stop_check(context_.reading, plans_[i]);
      const int64_t id = context_.engine.submit(std::move(request),
                                                [self, i](const engine::Event& event) { self->on_event(i, event); });
      const std::lock_guard lock(mutex_);
      requests_.push_back(id);
      if (is_cancelled_) context_.engine.cancel(id);
    }
  } catch (...) {
    cancel();
    throw;
  }
}

void Reply::cancel() {
  const std::lock_guard lock(mutex_);
  is_cancelled_ = true;
  for (const int64_t id : requests_) context_.engine.cancel(id);
}

// On the engine's thread.
void Reply::on_event(size_t plan, const engine::Event& event) {
  bool wakes = event.summary.has_value();
  {
    const std::lock_guard lock(mutex_);
    const engine::Request& request = plans_[plan].request;
    Arrived& arrived = arrived_[first_choice_[plan] + static_cast<size_t>(event.choice)];
    for (const engine::GeneratedToken& token : event.tokens) arrived.ids.push_back(token.id);
    if (request.logprobs >= 0 || plans_[plan].wants_tokens)
      arrived.tokens.insert(arrived.tokens.end(), event.tokens.begin(), event.tokens.end());
    arrived.prompt_logprobs.insert(arrived.prompt_logprobs.end(), event.prompt_logprobs.begin(),
                                   event.prompt_logprobs.end());
    if (event.summary) arrived.summary = event.summary;
    waiting_tokens_ += std::ssize(event.tokens);
    if (waiting_tokens_ > 0 && waiting_tokens_ >= wake_tokens_) wakes = true;
    if (wakes) waiting_tokens_ = 0;
  }
  if (wakes) exchange_->wake();
}

bool Reply::pull(std::string& out) {
  {
    const std::lock_guard lock(mutex_);
    arrived_.swap(taken_);
  }
  for (size_t choice = 0; choice < readings_.size() && !has_failed_; ++choice) read_choice(choice, out);
  if (has_failed_) return false;
  if (ended_ < readings_.size()) return true;
  RequestFigures& figures = exchange_->figures();
  figures.prompt_tokens = usage_.prompt_tokens;
  figures.cached_tokens = usage_.cached_tokens;
  figures.generated_tokens = usage_.generated_tokens;
  figures.reasoning_tokens = usage_.reasoning_tokens;
  figures.drafted_tokens = usage_.drafted_tokens;
  figures.accepted_tokens = usage_.accepted_tokens;
  writer_->end(usage_, out);
  return false;
}

void Reply::read_choice(size_t choice, std::string& out) {
  Arrived& taken = taken_[choice];
  Reading& reading = readings_[choice];
  const int number = static_cast<int>(choice);
  if (!taken.prompt_logprobs.empty()) writer_->prompt_logprobs(number, taken.prompt_logprobs, out);
  if (!taken.tokens.empty()) writer_->tokens(number, taken.tokens, out);
  if (!taken.ids.empty()) {
    events_.clear();
    reading.parser->feed(taken.ids, events_);
    for (text::ReplyEvent& event : events_) writer_->event(number, event, out);
  }
  if (taken.summary) finish_choice(choice, *taken.summary, out);
  taken.ids.clear();
  taken.tokens.clear();
  taken.prompt_logprobs.clear();
  taken.summary.reset();
}

void Reply::finish_choice(size_t choice, const engine::ReplySummary& summary, std::string& out) {
  Reading& reading = readings_[choice];
  if (reading.has_ended) return;
  reading.has_ended = true;
  ++ended_;
  const bool first_of_plan = choice == first_choice_[reading.plan];
  usage_.generated_tokens += summary.generated_tokens;
  usage_.reasoning_tokens += static_cast<int64_t>(reading.parser->reasoning_tokens());
  usage_.drafted_tokens += summary.drafted_tokens;
  usage_.accepted_tokens += summary.accepted_tokens;
  if (first_of_plan) {
    usage_.prompt_tokens += summary.prompt_tokens;
    usage_.cached_tokens += summary.cached_tokens;
  }
  RequestFigures& figures = exchange_->figures();
  if (choice == 0) {
    figures.token_hash = summary.token_hash;
    figures.first_token_s = summary.first_token_s;
  }
  if (summary.reason == engine::FinishReason::kCancelled) {
    const std::string why = context_.engine.failure();
    has_failed_ = true;
    figures.finish = "cancelled";
    cancel();
    context_.metrics.reply_ended(summary, "abort");
    writer_->failed({.status = why.empty() ? 503 : 500,
                     .message = why.empty() ? "the server stopped this reply" : "the engine stopped: " + why,
                     .code = why.empty() ? "cancelled" : "internal_error"},
                    out);
    return;
  }
  ChoiceEnd end;
  end.part = reading.parser->part();
  events_.clear();
  end.reason = reading.parser->finish(events_);
  for (text::ReplyEvent& event : events_) writer_->event(static_cast<int>(choice), event, out);
  if (end.reason == text::FinishReason::kLength && summary.reason == engine::FinishReason::kStop)
    end.reason = text::FinishReason::kToolCalls;  // ended by ends_after_call
  if (const auto stop = reading.parser->matched_stop()) end.stop = plans_[reading.plan].stop[*stop];
  end.reasoning_tokens = static_cast<int64_t>(reading.parser->reasoning_tokens());
  end.calls = reading.parser->calls();
  end.summary = summary;
  if (choice == 0) figures.finish = text::to_string(end.reason);
  context_.metrics.reply_ended(summary, text::to_string(end.reason));
  writer_->choice_end(static_cast<int>(choice), end, out);
}

void append_verbatim_block(std::string& out, const ChoiceEnd& end) {
  append_verbatim_block(out, std::vector<const ChoiceEnd*>{&end});
}

namespace {

void append_figures(std::string& out, const ChoiceEnd& end) {
  using Kind = text::ReplyEvent::Kind;
  const engine::ReplySummary& summary = end.summary;
  const double last_s = summary.token_times_s.empty() ? summary.first_token_s : summary.token_times_s.back();
  const double decode_s = last_s - summary.first_token_s;
  out += R"("token_hash":)";
  append_json_string(out, summary.token_hash);
  fmt::format_to(std::back_inserter(out),
                 R"(,"seed":{},"prompt_tokens":{},"cached_tokens":{},"generated_tokens":{},"reasoning_tokens":{},)"
                 R"("drafted_tokens":{},"accepted_tokens":{},"preemptions":{},"ended_in":"{}",)"
                 R"("first_token_ms":{:.3f},"total_ms":{:.3f},"decode_tokens_per_s":{:.3f})",
                 summary.seed, summary.prompt_tokens, summary.cached_tokens, summary.generated_tokens,
                 end.reasoning_tokens, summary.drafted_tokens, summary.accepted_tokens, summary.preemptions,
                 end.part == Kind::kReasoning ? "reasoning"
                 : end.part == Kind::kText    ? "text"
                                              : "tool_call",
                 summary.first_token_s * 1e3, last_s * 1e3,
                 decode_s > 0 ? static_cast<double>(summary.generated_tokens - 1) / decode_s : 0.0);
}

}  // namespace

void append_verbatim_block(std::string& out, const std::vector<const ChoiceEnd*>& ends) {
  out += '{';
  append_figures(out, *ends.front());
  if (ends.size() > 1) {
    out += R"(,"choices":[)";
    for (size_t i = 0; i < ends.size(); ++i) {
      out += i > 0 ? ",{" : "{";
      append_figures(out, *ends[i]);
      out += '}';
    }
    out += ']';
  }
  out += '}';
}

}  // namespace verbatim::server
