// Where drafts come from besides the next-n layer, and when drafting pays. Drafts never change a reply, only its time.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "ops/ops.h"

namespace verbatim::engine {

inline constexpr int kMaxDrafts = static_cast<int>(ops::kWindowRows) - 1;

// Copies from the text itself: the tokens that followed the latest earlier place where its last `kSuffix` stand.
class SuffixMatcher {
 public:
  static constexpr size_t kSuffix = 4;

  // The text so far grew to `tokens` (a prefix of it was given before).
  void update(std::span<const int32_t> tokens);
  // Up to `count` tokens that may follow `tokens` (as given to update); empty without a match.
  std::vector<int32_t> propose(std::span<const int32_t> tokens, int count) const;

 private:
  static uint64_t key(std::span<const int32_t> suffix);
  std::unordered_map<uint64_t, size_t> after_;  // suffix -> index of the token that followed it last, but for the end
  size_t seen_ = 0;
};

// How deep to draft, from measured acceptance and measured cost. One for all requests keeps costs and the typical
// acceptance; each request keeps its own acceptance.
class DraftPolicy {
 public:
  struct History {
    std::array<float, kMaxDrafts> acceptance{};  // of the draft at each depth, given that those before it were accepted
    int recorded = 0;                            // steps that acceptance was learnt from
    int unpaid_steps = 0;                        // in a row in which no depth would have paid
    bool off = false;                            // drafting was given up for this request
  };

  // `depth` 0..kMaxDrafts: the most drafts ever made.
  explicit DraftPolicy(int depth);

  History begin();  // for a new request, from what earlier ones accepted
  // The depth for the next step: the one with most expected tokens per second, 0 if drafting does not pay. Gives
  // drafting up for the request after kPatience steps of that.
  int depth(History& history) const;

  void record_acceptance(History& history, int drafted, int accepted);
  // A step that only decoded, of `sequences` each with `drafts` drafts, took `seconds` in all (drafting included).
  void record_cost(int64_t sequences, int drafts, double seconds);

  int most() const { return most_; }

 private:
  static constexpr int kPatience = 4;
  double cost(int drafts) const;
  int most_;
  std::array<float, kMaxDrafts> typical_;         // acceptance over all requests
  std::array<double, kMaxDrafts + 1> seconds_{};  // of a step per sequence, by drafts; 0: not measured
  int64_t requests_ = 0;
};

}  // namespace verbatim::engine
