#include "engine/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace verbatim::engine {

namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr double kLn2High = 0x1.62e42fefa3800p-1, kLn2Low = 0x1.ef35793c76730p-45;

uint64_t mix(uint64_t x) {  // splitmix64's finaliser
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9;
  x ^= x >> 27;
  x *= 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// 64 random bits from (seed, choice, number of tokens generated before).
uint64_t draw(const SamplingContext& context) {
  uint64_t state = mix(context.seed + 0x9e3779b97f4a7c15);
  state = mix(state ^ (static_cast<uint64_t>(context.choice) + 0xd1b54a32d192ed03));
  return mix(state + static_cast<uint64_t>(context.generated.size()) * 0x9e3779b97f4a7c15);
}

bool has_penalties(const SamplingOptions& s) {
  return s.repetition_penalty != 1.0f || s.frequency_penalty != 0.0f || s.presence_penalty != 0.0f;
}

}  // namespace

const char* finish_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop: return "stop";
    case FinishReason::kLength: return "length";
    case FinishReason::kCancelled: return "cancelled";
  }
  return "";
}

double sampling_log(double x) {
  const auto bits = std::bit_cast<uint64_t>(x);
  auto exponent = static_cast<int64_t>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0xfffffffffffff) | (uint64_t{1023} << 52));
  if (m > 1.4142135623730951) {
    m /= 2;
    ++exponent;
  }
  // ln m = 2 atanh(z), z = (m - 1) / (m + 1), |z| < 0.172: the term past z^23 is below 1e-19.
  const double z = (m - 1) / (m + 1), square = z * z;
  double sum = 0;
  for (int k = 23; k >= 1; k -= 2) sum = sum * square + 1.0 / k;
  const auto n = static_cast<double>(exponent);
  return n * kLn2High + (n * kLn2Low + 2 * z * sum);
}

uint64_t hash_logits(std::span<const float> logits) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const float logit : logits) hash = (hash ^ std::bit_cast<uint32_t>(logit)) * 0x100000001b3;
  return hash;
}

bool may_choose_on_backend(const Request& request) {
  return !request.mask && request.logprobs < 0 && !request.hash_logits;
}

ops::SampleRow Sampler::describe(const SamplingContext& context) {
  const SamplingOptions& s = context.request->sampling;
  ops::SampleRow row;
  row.temperature = s.temperature;
  row.top_p = s.top_p;
  row.min_p = s.min_p;
  row.top_k = s.top_k;
  row.random = draw(context);
  // Without a mask only NaN or a bias of -infinity leave nothing.
  if (context.request->mask && !context.request->stop_tokens.empty())
    row.otherwise = context.request->stop_tokens.front();
  return row;
}

void Sampler::adjust(const SamplingContext& context, int32_t row, std::vector<ops::LogitAdjustment>& adjustments) {
  const SamplingOptions& s = context.request->sampling;
  std::unordered_map<int32_t, ops::LogitAdjustment> by_id;
  const auto of = [&](int32_t id) -> ops::LogitAdjustment* {
    if (id < 0 || id >= context.vocabulary_limit) return nullptr;
    ops::LogitAdjustment& own = by_id[id];
    own.row = row;
    own.id = id;
    return &own;
  };
  if (has_penalties(s)) {
    std::unordered_map<int32_t, int32_t> reply;
    for (const int32_t id : context.generated) ++reply[id];
    if (s.repetition_penalty != 1.0f) {
      for (const auto& [id, count] : context.prompt_counts->counts())
        if (ops::LogitAdjustment* own = of(id)) own->repetition = s.repetition_penalty;
    }
    for (const auto& [id, count] : reply) {
      ops::LogitAdjustment* own = of(id);
      if (own == nullptr) continue;
      own->repetition = s.repetition_penalty;
      own->subtract = s.frequency_penalty * static_cast<float>(count) + s.presence_penalty;
    }
  }
  for (const auto& [id, bias] : s.logit_bias)
    if (ops::LogitAdjustment* own = of(id)) own->add = bias;
  for (const auto& [id, own] : by_id) adjustments.push_back(own);
}

int32_t Sampler::sample(std::span<const float> logits, const SamplingContext& context) {
  const auto limit = static_cast<size_t>(context.vocabulary_limit);
  adjusted_.assign(logits.begin(), logits.begin() + static_cast<std::ptrdiff_t>(limit));
  adjustments_.clear();
  adjust(context, 0, adjustments_);
  for (const ops::LogitAdjustment& each : adjustments_) {
    float& logit = adjusted_[static_cast<size_t>(each.id)];
    logit = ops::adjusted_logit(logit, each);
  }
  if (context.request->mask) {
    mask_.assign((limit + 63) / 64, 0);
    context.request->mask(context.generated, mask_);
    for (size_t i = 0; i < limit; ++i)
      if ((mask_[i / 64] >> (i % 64) & 1) == 0) adjusted_[i] = kMinusInfinity;
  }
  return ops::sample_row(adjusted_, describe(context), space_);
}

void Sampler::log_probabilities(std::span<const float> logits, int32_t limit, int k, GeneratedToken& token) {
  const auto row = logits.first(static_cast<size_t>(limit));
  const auto most = static_cast<double>(row[static_cast<size_t>(ops::largest_logit(row))]);
  double sum = 0;
  for (const float logit : row) sum += ops::sampling_exp(static_cast<double>(logit) - most);
  const double normaliser = most + sampling_log(sum);
  auto logprob = [&](int32_t id) {
    if (id >= limit) return kMinusInfinity;  // in prompts alone
    return static_cast<float>(static_cast<double>(row[static_cast<size_t>(id)]) - normaliser);
  };
  token.logprob = logprob(token.id);
  order_.resize(row.size());
  for (size_t i = 0; i < order_.size(); ++i) order_[i] = static_cast<int32_t>(i);
  const auto top = std::min<std::ptrdiff_t>(k, std::ssize(order_));
  std::partial_sort(order_.begin(), order_.begin() + top, order_.end(), [&](int32_t a, int32_t b) {
    const float la = row[static_cast<size_t>(a)], lb = row[static_cast<size_t>(b)];
    return la != lb ? la > lb : a < b;
  });
  token.top.clear();
  for (std::ptrdiff_t i = 0; i < top; ++i)
    token.top.push_back({order_[static_cast<size_t>(i)], logprob(order_[static_cast<size_t>(i)])});
}

}  // namespace verbatim::engine
