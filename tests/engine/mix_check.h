// Many mixes on several models: every reply is that of its request alone.
#pragma once

#include <unistd.h>

#include "model/synth.h"
#include "tests/engine/mixes.h"

namespace verbatim::engine {

// The mix without request i.
inline Mix without(const Mix& mix, size_t i) {
  Mix smaller = mix;
  auto erase = [i](auto& list) { list.erase(list.begin() + static_cast<std::ptrdiff_t>(i)); };
  erase(smaller.requests);
  erase(smaller.submit_at);
  erase(smaller.cancel_at);
  return smaller;
}

// The tiny checkpoints, one of them with its own math, and synthetic ones of other depths and numbers of experts.
class Models {
 public:
  // On a device the models' weights are uploaded to it.
  explicit Models(ops::Ops* device = nullptr)
      : directory_(std::filesystem::path(testing::TempDir()) / fmt::format("one_result_{}", getpid())) {
    models_.push_back(std::make_unique<model::Loaded>(model::tiny("tiny-nvfp4")));
    models_.push_back(std::make_unique<model::Loaded>(model::tiny("tiny-bf16")));
    models_.push_back(std::make_unique<model::Loaded>(model::tiny("tiny-w4a4-experts"), model::Precision::kCheckpoint));
    ThreadPool pool(2);
    for (const auto& [layers, experts, form] :
         {std::tuple{5, 8, model::SynthForm::kNvfp4}, {13, 40, model::SynthForm::kBf16}}) {
      const auto path = directory_ / std::to_string(layers);
      model::synthesise(path, {.form = form, .layers = layers, .experts = experts, .seed = 3}, pool);
      models_.push_back(std::make_unique<model::Loaded>(path));
    }
    if (device != nullptr)
      for (const auto& each : models_) model::upload_weights(*device, each->model);
  }
  ~Models() { std::filesystem::remove_all(directory_); }
  Models(const Models&) = delete;
  Models& operator=(const Models&) = delete;
  // Half of the mixes run on tiny-nvfp4.
  const model::Model& of(uint64_t seed) const { return models_[seed % 2 == 0 ? 0 : seed / 2 % models_.size()]->model; }

 private:
  std::filesystem::path directory_;
  std::vector<std::unique_ptr<model::Loaded>> models_;
};

// Fails for the first mix of which a reply differs, with the smallest mix that still does; else prints what they did.
inline void check_mixes(const Models& models, uint64_t mixes, ops::Ops* device = nullptr) {
  SchedulerStats sum;
  int64_t replies = 0;
  for (uint64_t seed = 1; seed <= mixes; ++seed) {
    Mix mix = random_mix(seed);
    const Forced forced = seed % 5 == 1 ? Forced::kRight : seed % 5 == 2 ? Forced::kWrong : Forced::kNo;
    const model::Model& model = models.of(seed);
    auto differs = [&](const Mix& candidate, std::string& difference, SchedulerStats* stats) {
      const auto alone = run_alone(candidate, model, device);
      const auto together = run_mix(candidate, model, forced_drafts(forced, candidate, alone), stats, device);
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
      static_cast<unsigned long long>(mixes), static_cast<long long>(replies),
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

}  // namespace verbatim::engine
