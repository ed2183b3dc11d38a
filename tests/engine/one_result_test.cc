// The promise: whatever runs beside it, a reply is that of its request alone. In full (500 mixes) behind the label
// `long`; ONE_RESULT_MIXES of the build says how many run here.
#include <gtest/gtest.h>

#include "tests/engine/mixes.h"

namespace verbatim::engine {
namespace {

constexpr uint64_t kMixes = VERBATIM_MIXES;

// The mix without request i.
Mix without(const Mix& mix, size_t i) {
  Mix smaller = mix;
  auto erase = [i](auto& list) { list.erase(list.begin() + static_cast<std::ptrdiff_t>(i)); };
  erase(smaller.requests);
  erase(smaller.submit_at);
  erase(smaller.cancel_at);
  return smaller;
}

TEST(OneResult, EveryReplyOfEveryMixIsThatOfItsRequestAlone) {
  const model::Loaded loaded(model::tiny("tiny-nvfp4"));
  SchedulerStats sum;
  int64_t replies = 0;
  for (uint64_t seed = 1; seed <= kMixes; ++seed) {
    Mix mix = random_mix(seed);
    const Forced forced = seed % 4 == 1 ? Forced::kRight : seed % 4 == 2 ? Forced::kWrong : Forced::kNo;
    auto differs = [&](const Mix& candidate, std::string& difference, SchedulerStats* stats) {
      const auto alone = run_alone(candidate, loaded.model);
      const auto together = run_mix(candidate, loaded.model, forced_drafts(forced, candidate, alone), stats);
      return !same_replies(candidate, together, alone, difference);
    };
    SchedulerStats stats;
    std::string difference;
    if (differs(mix, difference, &stats)) {
      // The smallest mix that still differs.
      for (size_t i = 0; i < mix.requests.size();) {
        std::string smaller_difference;
        const Mix smaller = without(mix, i);
        if (!smaller.requests.empty() && differs(smaller, smaller_difference, nullptr)) {
          mix = smaller;
          difference = smaller_difference;
          i = 0;
        } else {
          ++i;
        }
      }
      FAIL() << difference << "\nin the mix of " << mix.text();
    }
    for (const Request& request : mix.requests) replies += request.choices;
    sum.preemptions += stats.preemptions;
    sum.cached_tokens += stats.cached_tokens;
    sum.drafted_tokens += stats.drafted_tokens;
    sum.accepted_tokens += stats.accepted_tokens;
    sum.cancelled += stats.cancelled;
    sum.generated_tokens += stats.generated_tokens;
  }
  std::printf(
      "%llu mixes, %lld replies, %lld tokens; %lld preemptions, %lld cached tokens, %lld of %lld drafts "
      "accepted, %lld cancelled\n",
      static_cast<unsigned long long>(kMixes), static_cast<long long>(replies),
      static_cast<long long>(sum.generated_tokens), static_cast<long long>(sum.preemptions),
      static_cast<long long>(sum.cached_tokens), static_cast<long long>(sum.accepted_tokens),
      static_cast<long long>(sum.drafted_tokens), static_cast<long long>(sum.cancelled));
  // The mixes did what they are for.
  EXPECT_GT(sum.preemptions, 0);
  EXPECT_GT(sum.cached_tokens, 0);
  EXPECT_GT(sum.accepted_tokens, 0);
  EXPECT_LT(sum.accepted_tokens, sum.drafted_tokens);
  EXPECT_GT(sum.cancelled, 0);
}

}  // namespace
}  // namespace verbatim::engine
