// Random mixes of requests, run together in every way the engine can, and each alone, undrafted and uncached.
#pragma once

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/backend_model.h"
#include "engine/scheduler.h"
#include "tests/model/tiny_models.h"

namespace verbatim::engine {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 2654435769u + 1) {}
  int64_t below(int64_t n) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<int64_t>((state_ >> 33) % static_cast<uint64_t>(n));
  }
  int64_t between(int64_t low, int64_t high) { return low + below(high - low + 1); }
  bool chance(int64_t one_in) { return below(one_in) == 0; }
  template <typename T>
  T pick(std::initializer_list<T> values) {
    return values.begin()[below(static_cast<int64_t>(values.size()))];
  }

 private:
  uint64_t state_;
};

// What a reply is compared by.
struct Reply {
  std::vector<int32_t> ids;
  std::vector<uint64_t> logits;
  std::vector<GeneratedToken> prompt;  // log probabilities, if asked for
  ReplySummary summary;
  bool done = false;
};

struct Mix {
  uint64_t seed = 0;
  int threads = 1;
  BackendModelOptions model;
  SchedulerOptions scheduler;
  std::vector<Request> requests;
  std::vector<int64_t> submit_at, cancel_at;  // steps; cancel -1: never
  bool warm = false;                          // the same requests ran before

  std::string text() const {
    std::string out =
        fmt::format("seed {}: {} threads, {} rows, {} slots, {} pages, drafts {}, snapshots {} bytes every {}", seed,
                    threads, scheduler.step_rows, model.slots, model.pages, scheduler.drafts, scheduler.snapshot_bytes,
                    scheduler.snapshot_every);
    for (size_t i = 0; i < requests.size(); ++i)
      out += fmt::format("\n  request {}: prompt {}, tokens {}, choices {}, T {}, at step {}, cancelled at {}", i,
                         requests[i].prompt.size(), requests[i].max_tokens, requests[i].choices,
                         requests[i].sampling.temperature, submit_at[i], cancel_at[i]);
    return out;
  }
};

inline Request random_request(Random& random, uint64_t text) {
  Request request;
  const int64_t length = random.pick<int64_t>({random.between(1, 20), random.between(20, 140), random.between(60, 70),
                                               random.between(120, 135), random.between(1, 600)});
  // Few different texts, so that requests share prefixes of every length.
  request.prompt = model::random_ids(length, text);
  if (random.chance(3) && length > 4) {
    const auto repeated = request.prompt;  // something for drafts from the text
    for (size_t i = 0; i + 1 < request.prompt.size(); ++i)
      if (i >= repeated.size() / 2) request.prompt[i] = repeated[i - repeated.size() / 2];
  }
  request.max_tokens = random.between(1, 40);
  request.choices = random.chance(6) ? 2 : 1;
  request.hash_logits = true;
  request.draft = !random.chance(8);
  request.priority = random.chance(5) ? 1 : 0;
  request.stop_tokens = {1, 2};
  SamplingOptions& s = request.sampling;
  s.temperature = random.chance(2) ? 0.0f : random.pick({0.3f, 1.0f, 1.7f});
  s.seed = static_cast<uint64_t>(random.below(1000));
  if (random.chance(4)) s.top_p = 0.9f;
  if (random.chance(4)) s.top_k = 20;
  if (random.chance(5)) s.min_p = 0.05f;
  if (random.chance(4)) s.repetition_penalty = 1.3f;
  if (random.chance(4)) s.frequency_penalty = 0.5f;
  if (random.chance(4)) s.presence_penalty = -0.4f;
  if (random.chance(5)) s.logit_bias = {{7, 3.0f}, {9, -2.0f}};
  if (random.chance(6)) {
    request.reasoning_budget = random.between(0, 10);
    request.reasoning_end_token = 77;
  }
  if (random.chance(6))
    request.mask = [](std::span<const int32_t> generated, std::span<uint64_t> allowed) {
      // Every third token must be even.
      for (uint64_t& word : allowed) word = generated.size() % 3 == 2 ? 0x5555555555555555u : ~uint64_t{0};
    };
  if (random.chance(8)) request.prompt_logprobs = static_cast<int>(random.below(3));
  if (random.chance(6)) request.stop = [](std::span<const int32_t> generated) { return generated.back() % 50 == 3; };
  // Then no logits are needed, and a backend may choose the tokens.
  if (random.chance(3)) request.hash_logits = false;
  return request;
}

inline Mix random_mix(uint64_t seed) {
  Random random(seed);
  Mix mix;
  mix.seed = seed;
  mix.threads = static_cast<int>(random.between(1, 2));
  mix.scheduler.step_rows =
      random.pick<int64_t>({random.between(1, 8), random.between(8, 64), random.between(64, 512)});
  mix.scheduler.prompt_rows = random.pick<int64_t>({1, 7, 64, 512});
  mix.scheduler.drafts = static_cast<int>(random.between(0, 7));
  mix.scheduler.draft_from_text = random.chance(2);
  mix.scheduler.snapshot_bytes = random.pick<int64_t>({0, 300000, 2000000, 100000000});
  mix.scheduler.snapshot_every = random.pick<int64_t>({64, 128, 4096});
  mix.model.max_rows = 512;
  mix.model.slots = random.between(1, 16);
  mix.warm = random.chance(3);
  const int64_t count = random.between(1, 16);
  int64_t most_pages = 1;
  for (int64_t i = 0; i < count; ++i) {
    mix.requests.push_back(random_request(random, static_cast<uint64_t>(random.between(1, 3))));
    most_pages = std::max(
        most_pages, state::pages_for(std::ssize(mix.requests.back().prompt) + mix.requests.back().max_tokens + 1));
    mix.submit_at.push_back(random.chance(2) ? 0 : random.below(30));
    mix.cancel_at.push_back(random.chance(7) ? random.below(40) : -1);
  }
  // Often too few pages for all at once: eviction and preemption.
  mix.model.pages = most_pages + random.pick<int64_t>({0, 1, 3, 10, 60});
  // Right and wrong drafts by force need to know the replies; see run_mix.
  return mix;
}

enum class Forced { kNo, kRight, kWrong };

// Runs the mix; replies[i][choice]. On `device`, which keeps the model's weights, or else on the backend under test.
inline std::vector<std::vector<Reply>> run_mix(const Mix& mix, const model::Model& model, DraftSource drafts,
                                               SchedulerStats* stats = nullptr, ops::Ops* device = nullptr) {
  std::optional<model::Cpu> cpu;
  if (device == nullptr) cpu.emplace(mix.threads);
  BackendModel backend(device == nullptr ? *cpu->ops : *device, model, mix.model);
  SchedulerOptions options = mix.scheduler;
  options.draft_source = std::move(drafts);
  Scheduler scheduler(backend, options);
  std::vector<std::vector<Reply>> replies(mix.requests.size());
  for (int round = mix.warm ? 0 : 1; round < 2; ++round) {
    std::vector<int64_t> ids(mix.requests.size(), 0);
    for (size_t i = 0; i < mix.requests.size(); ++i)
      replies[i].assign(static_cast<size_t>(mix.requests[i].choices), {});
    int64_t submitted = 0;
    for (int64_t step = 0; submitted < std::ssize(mix.requests) || !scheduler.idle(); ++step) {
      if (step > 200000) {
        ADD_FAILURE() << "no end in sight\n" << mix.text();
        return replies;
      }
      for (size_t i = 0; i < mix.requests.size(); ++i) {
        if (mix.submit_at[i] == step) {
          ++submitted;
          ids[i] = scheduler.submit(mix.requests[i], [&replies, i](const Event& event) {
            Reply& reply = replies[i][static_cast<size_t>(event.choice)];
            EXPECT_FALSE(reply.done) << "an event after the last";
            if (!event.prompt_logprobs.empty()) {
              EXPECT_TRUE(reply.ids.empty() && event.choice == 0);
              reply.prompt.insert(reply.prompt.end(), event.prompt_logprobs.begin(), event.prompt_logprobs.end());
            }
            for (const GeneratedToken& token : event.tokens) {
              reply.ids.push_back(token.id);
              reply.logits.push_back(token.logits_hash);
            }
            if (event.summary) {
              reply.summary = *event.summary;
              reply.done = true;
            }
          });
        }
        if (mix.cancel_at[i] == step && ids[i] > 0) scheduler.cancel(ids[i]);
      }
      scheduler.step();
    }
  }
  if (stats != nullptr) *stats = scheduler.stats();
  // Nothing leaks: once the tree forgets, every page is free.
  scheduler.clear_cache();
  EXPECT_EQ(scheduler.stats().pages_free, mix.model.pages) << mix.text();
  EXPECT_EQ(scheduler.stats().tree_nodes, 0);
  EXPECT_EQ(scheduler.stats().tree_snapshot_bytes, 0);
  return replies;
}

// Each request alone: one at a time in a fresh engine, no drafts, no cache.
inline std::vector<std::vector<Reply>> run_alone(const Mix& mix, const model::Model& model,
                                                 ops::Ops* device = nullptr) {
  std::vector<std::vector<Reply>> replies;
  for (const Request& request : mix.requests) {
    Mix alone;
    alone.model.max_rows = 1024;
    alone.model.slots = request.choices;
    alone.model.pages = request.choices * state::pages_for(std::ssize(request.prompt) + request.max_tokens + 1);
    alone.scheduler.drafts = 0;
    alone.scheduler.step_rows = 1024;
    alone.scheduler.prompt_rows = 1024;
    alone.requests = {request};
    alone.submit_at = {0};
    alone.cancel_at = {-1};
    replies.push_back(run_mix(alone, model, {}, nullptr, device).front());
  }
  return replies;
}

inline bool same_logprobs(const GeneratedToken& a, const GeneratedToken& b) {
  auto bits = [](float value) { return std::bit_cast<uint32_t>(value); };
  return a.id == b.id && bits(a.logprob) == bits(b.logprob) &&
         std::equal(a.top.begin(), a.top.end(), b.top.begin(), b.top.end(),
                    [&](const TokenLogprob& x, const TokenLogprob& y) {
                      return x.id == y.id && bits(x.logprob) == bits(y.logprob);
                    });
}

// True if every reply of the mix is that of its request alone (a beginning of it, where it was cancelled).
inline bool same_replies(const Mix& mix, const std::vector<std::vector<Reply>>& together,
                         const std::vector<std::vector<Reply>>& alone, std::string& difference) {
  for (size_t i = 0; i < mix.requests.size(); ++i)
    for (size_t choice = 0; choice < alone[i].size(); ++choice) {
      const Reply &a = together[i][choice], &b = alone[i][choice];
      const bool cancelled = a.summary.reason == FinishReason::kCancelled && mix.cancel_at[i] >= 0;
      const size_t count = cancelled ? a.ids.size() : b.ids.size();
      const bool same = a.done && a.ids.size() == count && count <= b.ids.size() &&
                        std::equal(a.ids.begin(), a.ids.end(), b.ids.begin()) &&
                        std::equal(a.logits.begin(), a.logits.end(), b.logits.begin()) &&
                        (cancelled || std::equal(a.prompt.begin(), a.prompt.end(), b.prompt.begin(), b.prompt.end(),
                                                 same_logprobs)) &&
                        (cancelled || a.summary.reason == b.summary.reason);
      if (same) continue;
      size_t at = 0;
      while (at < a.ids.size() && at < b.ids.size() && a.ids[at] == b.ids[at] && a.logits[at] == b.logits[at]) ++at;
      difference = fmt::format("request {} choice {} differs at token {} of {} ({} alone)", i, choice, at, a.ids.size(),
                               b.ids.size());
      return false;
    }
  return true;
}

// Drafts that are always right or always wrong, from the replies alone.
inline DraftSource forced_drafts(Forced forced, const Mix& mix, const std::vector<std::vector<Reply>>& alone) {
  if (forced == Forced::kNo) return {};
  std::vector<std::vector<int32_t>> texts;
  for (size_t i = 0; i < mix.requests.size(); ++i)
    for (const Reply& reply : alone[i]) {
      texts.push_back(mix.requests[i].prompt);
      texts.back().insert(texts.back().end(), reply.ids.begin(), reply.ids.end());
    }
  return [texts, forced](std::span<const int32_t> tokens, int most) -> std::vector<int32_t> {
    for (const auto& text : texts) {
      if (text.size() <= tokens.size() || !std::equal(tokens.begin(), tokens.end(), text.begin())) continue;
      const size_t count = std::min(static_cast<size_t>(most), text.size() - tokens.size());
      std::vector<int32_t> drafts(text.begin() + std::ssize(tokens),
                                  text.begin() + std::ssize(tokens) + static_cast<std::ptrdiff_t>(count));
      // Wrong in the last place at least: some are accepted, some taken back.
      if (forced == Forced::kWrong)
        for (size_t d = tokens.size() % 3; d < drafts.size(); ++d) drafts[d] = (drafts[d] + 1) % 490;
      return drafts;
    }
    return {};
  };
}

}  // namespace verbatim::engine
