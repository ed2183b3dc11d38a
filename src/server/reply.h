// From the engine's tokens to a client: each choice's tokens become typed events, which a protocol's writer turns into
// its own form. Protocols differ in their writers alone.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "server/api_error.h"
#include "server/http.h"
#include "server/metrics.h"
#include "text/reply_parser.h"

namespace verbatim::server {

// What is shared by all replies of a server: how tokens are read.
struct ReplyReading {
  text::ReplyVocabulary vocabulary;
  std::vector<int32_t> eos;
};

// How one choice ended.
struct ChoiceEnd {
  text::FinishReason reason = text::FinishReason::kLength;
  std::optional<std::string> stop;                              // the stop string that ended it
  text::ReplyEvent::Kind part = text::ReplyEvent::Kind::kText;  // where it ended: kReasoning says it never answered
  int64_t reasoning_tokens = 0;
  size_t calls = 0;
  engine::ReplySummary summary;
};

// Of all choices together; cached tokens and prompts count once a prompt.
struct ReplyUsage {
  int64_t prompt_tokens = 0, cached_tokens = 0, generated_tokens = 0, reasoning_tokens = 0;
  int64_t drafted_tokens = 0, accepted_tokens = 0;
};

// Turns a reply into bytes. Called on the connection's thread, in the reply's order for each choice; `out` gets what
// the client is to see next (a writer for whole replies appends at the end alone).
class ReplyWriter {
 public:
  virtual ~ReplyWriter() = default;
  virtual void prompt_logprobs(int choice, std::vector<engine::GeneratedToken>& tokens, std::string& out);
  // Tokens behind the events that follow; only if log probabilities (or ids, wants_tokens()) were asked for.
  virtual void tokens(int choice, std::vector<engine::GeneratedToken>& tokens, std::string& out);
  virtual void event(int choice, text::ReplyEvent& event, std::string& out) = 0;
  virtual void choice_end(int choice, ChoiceEnd& end, std::string& out) = 0;
  // All choices have ended.
  virtual void end(const ReplyUsage& usage, std::string& out) = 0;
  // Instead of all that is missing: the server broke the reply off.
  virtual void failed(const ApiError& error, std::string& out) = 0;
};

// A whole reply, collected.
struct WholeReply {
  struct Call {
    std::string id, name, arguments;
    bool complete = true;
  };
  struct Choice {
    std::string reasoning, text;
    std::vector<Call> calls;
    std::vector<engine::GeneratedToken> tokens, prompt_logprobs;  // if asked for
    ChoiceEnd end;
  };
  std::vector<Choice> choices;
  ReplyUsage usage;
};

// One submission to the engine and how its replies are read.
struct ReplyPlan {
  engine::Request request;
  text::ReplyStart start = text::ReplyStart::kReasoning;
  std::vector<std::string> stop;
  bool ignore_eos = false;
  bool ends_after_call = false;  // at most one call
  std::shared_ptr<const text::ToolSet> tools;
  std::string call_id_prefix;
  bool wants_tokens = false;  // the writer gets every token, not only for log probabilities
};

class Reply : public std::enable_shared_from_this<Reply> {
 public:
  struct Context {
    engine::Engine& engine;
    std::shared_ptr<const ReplyReading> reading;
    Metrics& metrics;
  };
  // Submits the plans (choices are numbered through, plan after plan) and answers `exchange` with a stream whose head
  // is `head`. Throws what Engine::submit throws, before anything was answered. The reply ends early if the client
  // goes.
  static void stream(const Context& context, std::vector<ReplyPlan> plans, const std::shared_ptr<Exchange>& exchange,
                     HttpResponse head, std::unique_ptr<ReplyWriter> writer);
  // The same with one response: `whole` makes it of the collected reply, `error` of a failure.
  static void collect(const Context& context, std::vector<ReplyPlan> plans, const std::shared_ptr<Exchange>& exchange,
                      std::function<HttpResponse(WholeReply&)> whole,
                      std::function<HttpResponse(const ApiError&)> error);

 private:
  Reply(const Context& context, std::vector<ReplyPlan> plans, std::shared_ptr<Exchange> exchange,
        std::unique_ptr<ReplyWriter> writer);
  void submit();
  void cancel();
  void on_event(size_t plan, const engine::Event& event);
  bool pull(std::string& out);
  void read_choice(size_t choice, std::string& out);
  void finish_choice(size_t choice, const engine::ReplySummary& summary, std::string& out);

  struct Arrived {
    std::vector<int32_t> ids;
    std::vector<engine::GeneratedToken> tokens, prompt_logprobs;
    std::optional<engine::ReplySummary> summary;
  };
  struct Reading {
    std::unique_ptr<text::ReplyParser> parser;
    size_t plan = 0;
    bool has_ended = false;
  };

  const Context context_;
  const std::vector<ReplyPlan> plans_;
  std::vector<size_t> first_choice_;  // of each plan
  const std::shared_ptr<Exchange> exchange_;
  const std::unique_ptr<ReplyWriter> writer_;
  const Clock::time_point submitted_;
  int64_t wake_tokens_ = 0;  // wake the connection once so many have come; 0: at once

  std::mutex mutex_;  // what follows
  std::vector<Arrived> arrived_;
  int64_t waiting_tokens_ = 0;
  std::vector<int64_t> requests_;  // the engine's ids
  bool is_cancelled_ = false;

  // On the connection's thread.
  std::vector<Arrived> taken_;
  std::vector<Reading> readings_;
  std::vector<text::ReplyEvent> events_;
  ReplyUsage usage_;
  size_t ended_ = 0;
  bool has_failed_ = false;
};

// Whether a reply ends with a stop string, for the engine: reads the reply as the writer's parser does.
engine::StopCheck make_stop_check(std::shared_ptr<const ReplyReading> reading, const ReplyPlan& plan);

// {"token_hash": ..., "drafted_tokens": ...}: the figures of one choice, to stand as "verbatim" in a reply.
void append_verbatim_block(std::string& out, const ChoiceEnd& end);
// The same of several: the first one's, with "choices" listing all if there are more.
void append_verbatim_block(std::string& out, const std::vector<const ChoiceEnd*>& ends);

}  // namespace verbatim::server
