#include "ops/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/ops.h"

namespace verbatim::ops {

namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

__extension__ using Wide = unsigned __int128;

}  // namespace

int32_t largest_logit(std::span<const float> logits) {
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

int32_t sample_row(std::span<const float> logits, const SampleRow& how, SampleSpace& space) {
  const int32_t best = largest_logit(logits);
  const float most = logits[static_cast<size_t>(best)];
  if (!(most > kMinusInfinity)) return how.otherwise;
  if (how.temperature == 0.0f) return best;

  auto& [weights, order] = space;
  const size_t count = logits.size();
  const double per = per_temperature(how);
  weights.resize(count);
  for (size_t i = 0; i < count; ++i) weights[i] = sampling_weight(logits[i], most, per);
  const uint64_t least = least_weight(how, weights[static_cast<size_t>(best)]);
  const bool cut = how.top_k > 0 || how.top_p < 1.0f;
  uint64_t total = 0;
  if (cut) {
    order.clear();
    for (size_t i = 0; i < count; ++i)
      if (weights[i] >= least) order.push_back(static_cast<int32_t>(i));
    std::sort(order.begin(), order.end(), [&weights = weights](int32_t a, int32_t b) {
      const uint64_t wa = weights[static_cast<size_t>(a)], wb = weights[static_cast<size_t>(b)];
      return wa != wb ? wa > wb : a < b;
    });
    if (how.top_k > 0 && order.size() > static_cast<size_t>(how.top_k)) order.resize(static_cast<size_t>(how.top_k));
    for (const int32_t id : order) total += weights[static_cast<size_t>(id)];
    if (how.top_p < 1.0f) {
      const auto wanted = static_cast<uint64_t>(std::ceil(static_cast<double>(total) * static_cast<double>(how.top_p)));
      uint64_t sum = 0;
      size_t kept = 0;
      while (kept < order.size() && (kept == 0 || sum < wanted)) sum += weights[static_cast<size_t>(order[kept++])];
      order.resize(kept);
      total = sum;
    }
    std::sort(order.begin(), order.end());
  } else {
    for (size_t i = 0; i < count; ++i)
      if (weights[i] >= least) total += weights[i];
  }
  auto target = static_cast<uint64_t>(static_cast<Wide>(how.random) * total >> 64);
  const auto passes = [&target, &weights = weights](size_t id) {
    if (weights[id] > target) return true;
    target -= weights[id];
    return false;
  };
  if (cut) {
    for (const int32_t id : order)
      if (passes(static_cast<size_t>(id))) return id;
  } else {
    for (size_t i = 0; i < count; ++i)
      if (weights[i] >= least && passes(i)) return static_cast<int32_t>(i);
  }
  return best;
}

void Ops::sample(float* logits, int64_t rows, int64_t stride, int64_t limit, std::span<const SampleRow> how,
                 std::span<const LogitAdjustment> adjustments, int32_t* ids) {
  std::vector<float> row(static_cast<size_t>(limit));
  std::vector<int32_t> chosen(static_cast<size_t>(rows));
  SampleSpace space;
  for (int64_t r = 0; r < rows; ++r) {
    copy_out(row.data(), logits + r * stride, row.size() * sizeof(float));
    for (const LogitAdjustment& each : adjustments)
      if (each.row == r) row[static_cast<size_t>(each.id)] = adjusted_logit(row[static_cast<size_t>(each.id)], each);
    chosen[static_cast<size_t>(r)] = sample_row(row, how[static_cast<size_t>(r)], space);
  }
  copy_in(ids, chosen.data(), chosen.size() * sizeof(int32_t));
}

}  // namespace verbatim::ops
