#include "engine/drafter.h"

#include <algorithm>

namespace verbatim::engine {

uint64_t SuffixMatcher::key(std::span<const int32_t> suffix) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const int32_t token : suffix) hash = (hash ^ static_cast<uint32_t>(token)) * 0x100000001b3;
  return hash;
}

void SuffixMatcher::update(std::span<const int32_t> tokens) {
  // The suffix that ends the text is not entered: it would match itself.
  for (size_t end = std::max(seen_, kSuffix); end < tokens.size(); ++end)
    after_[key(tokens.subspan(end - kSuffix, kSuffix))] = end;
  seen_ = std::max(seen_, tokens.size());
}

std::vector<int32_t> SuffixMatcher::propose(std::span<const int32_t> tokens, int count) const {
  if (tokens.size() < kSuffix) return {};
  const auto suffix = tokens.last(kSuffix);
  const auto found = after_.find(key(suffix));
  if (found == after_.end()) return {};
  const size_t from = found->second;
  if (!std::equal(suffix.begin(), suffix.end(), tokens.begin() + static_cast<std::ptrdiff_t>(from - kSuffix)))
    return {};
  const size_t length = std::min(static_cast<size_t>(count), tokens.size() - from);
  return {tokens.begin() + static_cast<std::ptrdiff_t>(from),
          tokens.begin() + static_cast<std::ptrdiff_t>(from + length)};
}

DraftPolicy::DraftPolicy(int depth) : most_(std::clamp(depth, 0, kMaxDrafts)) { typical_.fill(0.6f); }

DraftPolicy::History DraftPolicy::begin() {
  History history;
  history.acceptance = typical_;
  // Where drafting has not paid lately, one request in sixteen tries again.
  ++requests_;
  history.off = most_ == 0;
  if (!history.off && depth(history) == 0) history.off = requests_ % 16 != 0;
  if (!history.off) history.unpaid_steps = 0;
  return history;
}

double DraftPolicy::cost(int drafts) const {
  if (seconds_[static_cast<size_t>(drafts)] > 0) return seconds_[static_cast<size_t>(drafts)];
  // From the nearest depths that were measured. Past them a draft is taken to cost a fiftieth of a step: little, so
  // that it is tried, and then measured.
  int below = drafts, above = drafts;
  while (below > 0 && seconds_[static_cast<size_t>(below)] == 0) --below;
  while (above < kMaxDrafts && seconds_[static_cast<size_t>(above)] == 0) ++above;
  const double low = seconds_[static_cast<size_t>(below)], high = seconds_[static_cast<size_t>(above)];
  if (low > 0 && high > 0) return low + (high - low) * (drafts - below) / (above - below);
  if (low > 0) return low * (1.0 + 0.02 * (drafts - below));
  if (high > 0) return high / (1.0 + 0.02 * (above - drafts));
  return 1.0 + 0.02 * drafts;
}

int DraftPolicy::depth(History& history) const {
  if (history.off) return 0;
  int best = 0;
  double price = cost(0), tokens = 1.0, all_before = 1.0;
  double most_tokens_per_s = tokens / price;
  for (int drafts = 1; drafts <= most_; ++drafts) {
    all_before *= static_cast<double>(history.acceptance[static_cast<size_t>(drafts - 1)]);
    tokens += all_before;
    // A deeper window costs more, whatever a noisy clock says.
    price = std::max(1.005 * price, cost(drafts));
    if (tokens / price > most_tokens_per_s) {
      most_tokens_per_s = tokens / price;
      best = drafts;
    }
  }
  history.unpaid_steps = best > 0 ? 0 : history.unpaid_steps + 1;
  if (history.unpaid_steps > kPatience) history.off = true;
  return best;
}

void DraftPolicy::record_acceptance(History& history, int drafted, int accepted) {
  // Quickly at first: half of it from the first step, less from each later one.
  const float rate = std::max(0.1f, 1.0f / static_cast<float>(2 + history.recorded));
  if (drafted > 0) ++history.recorded;
  for (int i = 0; i < drafted && i <= accepted; ++i) {
    const float hit = i < accepted ? 1.0f : 0.0f;
    float& own = history.acceptance[static_cast<size_t>(i)];
    float& typical = typical_[static_cast<size_t>(i)];
    own += rate * (hit - own);
    typical += 0.02f * (hit - typical);
  }
}

void DraftPolicy::record_cost(int64_t sequences, int drafts, double seconds) {
  double& known = seconds_[static_cast<size_t>(std::clamp(drafts, 0, kMaxDrafts))];
  const double each = seconds / static_cast<double>(std::max<int64_t>(sequences, 1));
  known = known == 0 ? each : known + 0.1 * (each - known);
}

}  // namespace verbatim::engine
