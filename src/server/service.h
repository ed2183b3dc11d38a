// The model as the routes see it: requests become plans for the engine, plans become replies.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "server/generation.h"
#include "server/metrics.h"
#include "server/openai_request.h"
#include "server/reply.h"
#include "server/structured.h"
#include "text/prompt.h"
#include "text/tokenizer.h"

namespace verbatim::server {

struct ServedModel {
  text::Tokenizer tokenizer;
  text::ChatTemplate chat_template;
  std::vector<int32_t> eos;
  std::vector<std::string> names;  // the first is what replies say; the others are aliases
  int64_t context_tokens = 0;      // of a prompt and its reply: what the model and its pages allow
  int64_t created_s = 0;           // Unix time
};

struct ServiceOptions {
  RequestLimits limits;
  EffortRules effort;
  text::GrammarLimits grammar;  // schema_bytes is taken from limits
};

// May be used from any number of threads.
class Service {
 public:
  // Throws Error(kUnsupported) if the tokenizer lacks a reply's tags. `engine` must outlive it.
  Service(ServedModel model, engine::Engine& engine, ServiceOptions options);

  const ServedModel& model() const { return model_; }
  const ServiceOptions& options() const { return options_; }
  engine::Engine& engine() { return engine_; }
  Metrics& metrics() { return metrics_; }
  Reply::Context context() { return {engine_, reading_, metrics_}; }

  // Throws ApiFailure, 404, unless the name is served (empty is).
  void check_model(const std::string& name) const;
  // Throws ApiFailure: 400 for messages that make no prompt.
  std::vector<int32_t> chat_prompt(const ChatRequest& request) const;
  // Throw ApiFailure: 400, context_length_exceeded and others. Heavy: not on a connection's thread. `id` is unique to
  // the reply.
  ReplyPlan plan(const ChatRequest& request, const std::string& id);
  std::vector<ReplyPlan> plan(const CompletionRequest& request);

 private:
  engine::Request engine_request(const Generation& generation, std::vector<int32_t> prompt) const;

  const ServedModel model_;
  const std::shared_ptr<const ReplyReading> reading_;
  engine::Engine& engine_;
  const ServiceOptions options_;
  StructuredOutputs structured_;
  Metrics metrics_;
};

// chatcmpl-<random hex>
std::string random_id(std::string_view prefix);

}  // namespace verbatim::server
