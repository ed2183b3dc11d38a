#include "engine/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace verbatim::engine {

namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr double kLn2High = 0x1.62e42fefa3800p-1, kLn2Low = 0x1.ef35793c76730p-45;

__extension__ using Wide = unsigned __int128;

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

int32_t argmax(std::span<const float> logits) {
  size_t best = 0;
  float most = kMinusInfinity;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] > most) {
      most = logits[i];
      best = i;
    }
  }
  return static_cast<int32_t>(best);
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

double sampling_exp(double x) {
  if (!(x > -700.0)) return 0.0;
  const double n = std::nearbyint(x * 0x1.71547652b82fep+0);  // 1 / ln 2
  const double r = (x - n * kLn2High) - n * kLn2Low;
  // Taylor to r^13 on |r| <= ln2 / 2: the next term is below 5e-18.
  double sum = 1.0;
  for (int k = 13; k >= 1; --k) sum = 1.0 + sum * r / k;
  return sum * std::bit_cast<double>(static_cast<uint64_t>(static_cast<int64_t>(n) + 1023) << 52);
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

bool is_plain_greedy(const Request& request) {
  const SamplingOptions& s = request.sampling;
  return s.temperature == 0.0f && !has_penalties(s) && s.logit_bias.empty() && !request.mask && request.logprobs < 0 &&
         !request.hash_logits;
}

void Sampler::adjust(std::span<const float> logits, const SamplingContext& context) {
  const SamplingOptions& s = context.request->sampling;
  const auto limit = static_cast<size_t>(context.vocabulary_limit);
  adjusted_.assign(logits.begin(), logits.begin() + static_cast<std::ptrdiff_t>(limit));
  if (has_penalties(s)) {
    std::unordered_map<int32_t, int32_t> reply;
    for (const int32_t id : context.generated) ++reply[id];
    auto repeat = [&](int32_t id) {
      float& logit = adjusted_[static_cast<size_t>(id)];
      logit = logit > 0 ? logit / s.repetition_penalty : logit * s.repetition_penalty;
    };
    auto inside = [&](int32_t id) { return id >= 0 && static_cast<size_t>(id) < limit; };
    if (s.repetition_penalty != 1.0f) {
      for (const auto& [id, count] : context.prompt_counts->counts())
        if (inside(id) && !reply.contains(id)) repeat(id);
      for (const auto& [id, count] : reply)
        if (inside(id)) repeat(id);
    }
    for (const auto& [id, count] : reply)
      if (inside(id))
        adjusted_[static_cast<size_t>(id)] -= s.frequency_penalty * static_cast<float>(count) + s.presence_penalty;
  }
  for (const auto& [id, bias] : s.logit_bias)
    if (id >= 0 && static_cast<size_t>(id) < limit) adjusted_[static_cast<size_t>(id)] += bias;
  if (context.request->mask) {
    mask_.assign((limit + 63) / 64, 0);
    context.request->mask(context.generated, mask_);
    for (size_t i = 0; i < limit; ++i)
      if ((mask_[i / 64] >> (i % 64) & 1) == 0) adjusted_[i] = kMinusInfinity;
  }
}

int32_t Sampler::sample(std::span<const float> logits, const SamplingContext& context) {
  const SamplingOptions& s = context.request->sampling;
  adjust(logits, context);
  const int32_t best = argmax(adjusted_);
  const float most = adjusted_[static_cast<size_t>(best)];
  if (!(most > kMinusInfinity)) return context.request->stop_tokens.empty() ? 0 : context.request->stop_tokens.front();
  if (s.temperature == 0.0f) return best;

  const size_t count = adjusted_.size();
  const double per_temperature = 1.0 / static_cast<double>(s.temperature);
  weights_.resize(count);
  for (size_t i = 0; i < count; ++i) {
    const double x = (static_cast<double>(adjusted_[i]) - static_cast<double>(most)) * per_temperature;
    weights_[i] = static_cast<uint64_t>(sampling_exp(x) * 0x1p40);
  }
  const uint64_t largest = weights_[static_cast<size_t>(best)];
  const auto floor_weight =
      std::max<uint64_t>(1, static_cast<uint64_t>(static_cast<double>(s.min_p) * static_cast<double>(largest)));
  const bool cut = s.top_k > 0 || s.top_p < 1.0f;
  uint64_t total = 0;
  if (cut) {
    order_.clear();
    for (size_t i = 0; i < count; ++i)
      if (weights_[i] >= floor_weight) order_.push_back(static_cast<int32_t>(i));
    std::sort(order_.begin(), order_.end(), [&](int32_t a, int32_t b) {
      const uint64_t wa = weights_[static_cast<size_t>(a)], wb = weights_[static_cast<size_t>(b)];
      return wa != wb ? wa > wb : a < b;
    });
    if (s.top_k > 0 && order_.size() > static_cast<size_t>(s.top_k)) order_.resize(static_cast<size_t>(s.top_k));
    for (const int32_t id : order_) total += weights_[static_cast<size_t>(id)];
    if (s.top_p < 1.0f) {
      // The fewest tokens whose weights reach top_p of the total.
      const auto wanted = static_cast<uint64_t>(std::ceil(static_cast<double>(total) * static_cast<double>(s.top_p)));
      uint64_t sum = 0;
      size_t kept = 0;
      while (kept < order_.size() && (kept == 0 || sum < wanted)) sum += weights_[static_cast<size_t>(order_[kept++])];
      order_.resize(kept);
      total = sum;
    }
    std::sort(order_.begin(), order_.end());
  } else {
    for (size_t i = 0; i < count; ++i)
      if (weights_[i] >= floor_weight) total += weights_[i];
  }
  uint64_t target = static_cast<uint64_t>(static_cast<Wide>(draw(context)) * total >> 64);
  auto passes = [&](size_t id) {
    if (weights_[id] > target) return true;
    target -= weights_[id];
    return false;
  };
  if (cut) {
    for (const int32_t id : order_)
      if (passes(static_cast<size_t>(id))) return id;
  } else {
    for (size_t i = 0; i < count; ++i)
      if (weights_[i] >= floor_weight && passes(i)) return static_cast<int32_t>(i);
  }
  return best;
}

void Sampler::log_probabilities(std::span<const float> logits, int32_t limit, int k, GeneratedToken& token) {
  const auto row = logits.first(static_cast<size_t>(limit));
  const auto most = static_cast<double>(row[static_cast<size_t>(argmax(row))]);
  double sum = 0;
  for (const float logit : row) sum += sampling_exp(static_cast<double>(logit) - most);
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
