// The next token as a pure function of (logits of the row, options, tokens before it, seed, choice). Nothing else: not
// the time, not the batch, not whether the row was drafted.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/request.h"
#include "ops/sampling.h"

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

// True if the logits themselves are not needed, so that the backend may choose the token (Sampler::describe).
bool may_choose_on_backend(const Request& request);

class Sampler {
 public:
  // What Ops::sample() is told of a row, with `generated` tokens before it; adjustments (none without penalties or
  // bias) are appended as those of row `row`.
  static ops::SampleRow describe(const SamplingContext& context);
  void adjust(const SamplingContext& context, int32_t row, std::vector<ops::LogitAdjustment>& adjustments);

  // The token, as ops/sampling.h chooses it from the adjusted and masked logits. `logits` [V] are not changed. With a
  // mask that allows nothing, the first id of request.stop_tokens, or 0.
  int32_t sample(std::span<const float> logits, const SamplingContext& context);

  // Fills in log probability of `token` and the `k` most likely ones, from the unadjusted logits.
  void log_probabilities(std::span<const float> logits, int32_t limit, int k, GeneratedToken& token);

 private:
  std::vector<float> adjusted_;
  std::vector<uint64_t> mask_;
  std::vector<int32_t> order_;
  std::vector<ops::LogitAdjustment> adjustments_;
  ops::SampleSpace space_;
};

// FNV-1a over the bits of the logits.
uint64_t hash_logits(std::span<const float> logits);

// Natural logarithm of a positive normal number, absolute error below 1e-13 * max(1, |ln x|): the same bits
// everywhere (no libm).
double sampling_log(double x);

}  // namespace verbatim::engine
