// What the engine is asked for and what it answers. No tensors.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace verbatim::engine {

struct SamplingOptions {
  float temperature = 1.0f;  // 0: greedy
  float top_p = 1.0f;        // (0, 1]
  int32_t top_k = 0;         // 0: all
  float min_p = 0.0f;        // [0, 1]
  float repetition_penalty = 1.0f, frequency_penalty = 0.0f, presence_penalty = 0.0f;
  std::map<int32_t, float> logit_bias;
  std::optional<uint64_t> seed;  // none: drawn from the system and returned with the reply
};

// Tokens allowed next, one bit an id (bit i of word i / 64), after `generated`. Must be a pure function of it: drafts
// are checked by calling it with drafted tokens.
using TokenMask = std::function<void(std::span<const int32_t> generated, std::span<uint64_t> allowed)>;

// True if the reply ends with (and including) the last of `generated`: stop strings. A pure function likewise.
using StopCheck = std::function<bool(std::span<const int32_t> generated)>;

struct Request {
  std::vector<int32_t> prompt;
  int64_t max_tokens = 16;  // 0: score the prompt alone (needs prompt_logprobs)
  int choices = 1;          // n: they share the prompt
  SamplingOptions sampling;
  std::vector<int32_t> stop_tokens;  // each ends the reply; the token is part of it
  StopCheck stop;
  TokenMask mask;
  // Reasoning that is not closed after `reasoning_budget` tokens is closed by force. -1: no budget.
  int64_t reasoning_budget = -1;
  int32_t reasoning_end_token = -1;
  int priority = 0;   // 1: background, served when nothing at 0 waits
  bool draft = true;  // false: never draft for this request
  int logprobs = -1;  // k: report the log probability of each token and of the k most likely
  // k: report the same for each prompt token but the first. The whole prompt is then computed, whatever is cached.
  int prompt_logprobs = -1;
  bool hash_logits = false;  // report a hash of the logits' bits behind each token
};

enum class FinishReason { kStop, kLength, kCancelled };
const char* finish_name(FinishReason reason);  // "stop", "length", "cancelled"

struct TokenLogprob {
  int32_t id = 0;
  float logprob = 0;
};

struct GeneratedToken {
  int32_t id = 0;
  float logprob = 0;              // of the unadjusted logits, if asked for
  std::vector<TokenLogprob> top;  // likewise, most likely first
  uint64_t logits_hash = 0;       // FNV-1a over the logits' bits, if asked for
};

// Of one choice, given with its last event.
struct ReplySummary {
  FinishReason reason = FinishReason::kLength;
  std::string token_hash;  // of the generated ids (base/sha256.h)
  uint64_t seed = 0;
  int64_t prompt_tokens = 0, cached_tokens = 0, generated_tokens = 0;
  int64_t drafted_tokens = 0, accepted_tokens = 0, preemptions = 0;
  double first_token_s = 0;           // from submission
  std::vector<double> token_times_s;  // of each generated token, from submission
};

struct Event {
  int64_t request = 0;
  int choice = 0;
  std::vector<GeneratedToken> tokens;  // new since the last event
  // Of prompt tokens, if asked for: in order, in pieces, all before the first token; given to choice 0 alone.
  std::vector<GeneratedToken> prompt_logprobs;
  std::optional<ReplySummary> summary;  // set on the last one
};

// Called on the engine's thread; must not block and must not call the engine's blocking functions.
using EventSink = std::function<void(const Event&)>;

}  // namespace verbatim::engine
