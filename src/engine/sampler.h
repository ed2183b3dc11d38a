// The next token as a pure function of (logits of the row, options, tokens before it, seed, choice). Nothing else: not
// the time, not the batch, not whether the row was drafted.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/request.h"

namespace verbatim::engine {

// How often each token stands in a text, for penalties.
class TokenCounts {
 public:
  void add(int32_t id) { ++counts_[id]; }
  const std::unordered_map<int32_t, int32_t>& counts() const { return counts_; }

 private:
  std::unordered_map<int32_t, int32_t> counts_;
};

// What a row is sampled under. Penalties: repetition divides positive and multiplies negative logits of tokens of
// prompt or reply; frequency and presence subtract by the reply's counts. Order: repetition, frequency and presence,
// bias, mask.
struct SamplingContext {
  const Request* request = nullptr;
  uint64_t seed = 0;
  int choice = 0;
  std::span<const int32_t> generated;          // before this token
  const TokenCounts* prompt_counts = nullptr;  // used by penalties alone; may be null without them
  int32_t vocabulary_limit = 0;                // ids at or above are never sampled
};

// True if the token is the index of the largest logit below the limit: then the device may find it.
bool is_plain_greedy(const Request& request);

class Sampler {
 public:
  // The token. `logits` [V] are not changed. Ties go to the lower id. With a mask that allows nothing, the first id of
  // request.stop_tokens, or 0.
  //   Probabilities become 40-bit integers exp(logit / T - max) * 2^40 before top_k, min_p and top_p, which keep the
  //   most likely tokens (lower id first on ties); a counter-based number picks among them in order of id.
  int32_t sample(std::span<const float> logits, const SamplingContext& context);

  // Fills in log probability of `token` and the `k` most likely ones, from the unadjusted logits.
  void log_probabilities(std::span<const float> logits, int32_t limit, int k, GeneratedToken& token);

 private:
  void adjust(std::span<const float> logits, const SamplingContext& context);
  std::vector<float> adjusted_;
  std::vector<uint64_t> weights_, mask_;
  std::vector<int32_t> order_;
};

// FNV-1a over the bits of the logits.
uint64_t hash_logits(std::span<const float> logits);

// exp(x) for x <= 0 in double, relative error below 1e-13, 0 below -700: the same bits everywhere (no libm).
double sampling_exp(double x);
// Natural logarithm of a positive normal number, absolute error below 1e-13 * max(1, |ln x|): likewise.
double sampling_log(double x);

}  // namespace verbatim::engine
