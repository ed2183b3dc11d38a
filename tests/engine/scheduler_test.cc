// The scheduler with a model that returns at once: refusals, leaks, fairness, drafting policy, its own cost.
#include "engine/scheduler.h"

#include <gtest/gtest.h>
#include <time.h>

#include <algorithm>
#include <future>

#include "base/error.h"
#include "engine/engine.h"
#include "tests/engine/mixes.h"
#include "tests/engine/stub_model.h"

namespace verbatim::engine {
namespace {

Request simple(int64_t prompt, int64_t tokens, uint64_t text = 1) {
  Request request;
  request.prompt = model::random_ids(prompt, text);
  request.max_tokens = tokens;
  request.sampling.temperature = 0;
  return request;
}

std::vector<int32_t> expected_reply(const StubModel& model, const Request& request) {
  std::vector<int32_t> ids;
  int32_t last = request.prompt.back();
  for (int64_t i = 0; i < request.max_tokens; ++i) {
    last = model.follower(last, std::ssize(request.prompt) - 1 + i);
    ids.push_back(last);
  }
  return ids;
}

void run_to_end(Scheduler& scheduler) {
  for (int64_t step = 0; !scheduler.idle(); ++step) {
    ASSERT_LT(step, 1000000) << "no end in sight";
    scheduler.step();
  }
}

TEST(Scheduler, RefusesWhatMakesNoSenseOrNeverFits) {
  StubModel model({.pages = 10, .max_positions = 1000});
  Scheduler scheduler(model, {.queue_limit = 2});
  auto message = [&](const std::function<void(Request&)>& change) -> std::string {
    Request request = simple(5, 5);
    change(request);
    try {
      scheduler.submit(request, {});
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  };
  auto expect = [&](const char* part, const std::function<void(Request&)>& change) {
    const std::string text = message(change);
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  expect("empty prompt", [](Request& r) { r.prompt.clear(); });
  expect("prompt token 512; expected 0 to 511", [](Request& r) { r.prompt = {512}; });
  expect("prompt token -1", [](Request& r) { r.prompt = {-1}; });
  expect("max_tokens 0", [](Request& r) { r.max_tokens = 0; });
  expect("0 choices", [](Request& r) { r.choices = 0; });
  expect("temperature -1", [](Request& r) { r.sampling.temperature = -1; });
  expect("temperature nan", [](Request& r) { r.sampling.temperature = NAN; });
  expect("top_p 0", [](Request& r) { r.sampling.top_p = 0; });
  expect("min_p 2", [](Request& r) { r.sampling.min_p = 2; });
  expect("top_k -1", [](Request& r) { r.sampling.top_k = -1; });
  expect("repetition_penalty 0", [](Request& r) { r.sampling.repetition_penalty = 0; });
  expect("reasoning", [](Request& r) { r.reasoning_budget = 3; });
  expect("the context holds 1000", [](Request& r) { r.max_tokens = 996; });
  expect("there are 10", [](Request& r) { r.max_tokens = 700; });
  EXPECT_EQ(message([](Request&) {}), "accepted");
  EXPECT_EQ(message([](Request&) {}), "accepted");
  expect("the queue holds 2", [](Request&) {});
  run_to_end(scheduler);
  EXPECT_EQ(scheduler.stats().finished, 2);
  EXPECT_EQ(scheduler.stats().pages_free, 10);
}

TEST(Scheduler, OneRequestThatFillsEveryPage) {
  StubModel model({.pages = 10});
  Scheduler scheduler(model, {.drafts = 7, .snapshot_bytes = 1 << 20});
  const Request request = simple(300, 339);  // 640 - 1 tokens and the draft index after the last
  std::vector<int32_t> ids;
  scheduler.submit(request, [&](const Event& event) {
    for (const GeneratedToken& token : event.tokens) ids.push_back(token.id);
  });
  run_to_end(scheduler);
  EXPECT_EQ(ids, expected_reply(model, request));
}

// Ten thousand requests with cancellations on few pages and slots: right replies, and everything comes back.
TEST(Scheduler, NothingLeaks) {
  StubModel model({.vocabulary = 64, .max_rows = 128, .slots = 8, .pages = 20, .hits_in_ten = 6});
  Scheduler scheduler(model, {.queue_limit = 100000, .drafts = 5, .snapshot_bytes = 2000, .snapshot_every = 128});
  Random random(7);
  int64_t submitted = 0, ended = 0;
  std::vector<int64_t> alive;
  while (submitted < 10000 || !scheduler.idle()) {
    while (submitted < 10000 && scheduler.stats().waiting < 20) {
      Request request = simple(random.between(1, 300), random.between(1, 200), static_cast<uint64_t>(random.below(5)));
      for (int32_t& id : request.prompt) id %= 64;
      const bool check = request.choices == 1;
      auto ids = std::make_shared<std::vector<int32_t>>();
      auto expected = std::make_shared<std::vector<int32_t>>(expected_reply(model, request));
      alive.push_back(scheduler.submit(request, [&ended, ids, expected, check](const Event& event) {
        for (const GeneratedToken& token : event.tokens) ids->push_back(token.id);
        if (!event.summary) return;
        ++ended;
        if (check && event.summary->reason == FinishReason::kLength) {
          EXPECT_EQ(*ids, *expected);
        }
      }));
      ++submitted;
    }
    if (random.chance(10)) scheduler.cancel(alive[static_cast<size_t>(random.below(std::ssize(alive)))]);
    scheduler.step();
  }
  EXPECT_EQ(ended, 10000);
  const SchedulerStats stats = scheduler.stats();
  EXPECT_GT(stats.preemptions, 0);
  EXPECT_GT(stats.cancelled, 0);
  EXPECT_GT(stats.cached_tokens, 0);
  EXPECT_LE(stats.tree_snapshot_bytes, 2000);
  EXPECT_EQ(stats.pages_free + stats.tree_nodes, stats.pages_total);
  scheduler.clear_cache();
  EXPECT_EQ(scheduler.stats().pages_free, 20);
}

// A long prompt does not stop running replies: they get a token every step while it is worked through, and a step takes
// what its prompt_rows cost, however long the prompt is.
TEST(Scheduler, RepliesGoOnDuringALongPrompt) {
  StubModel model({.max_rows = 1024, .pages = 4096, .step_s = 1e-5, .row_s = 1e-6});
  Scheduler scheduler(model, {.prompt_rows = 128, .drafts = 0});
  std::vector<int> tokens(4, 0);
  for (size_t i = 0; i < 4; ++i)
    scheduler.submit(simple(5, 1000, i),
                     [&tokens, i](const Event& event) { tokens[i] += static_cast<int>(event.tokens.size()); });
  for (int step = 0; step < 3; ++step) scheduler.step();
  bool long_began = false;
  scheduler.submit(simple(12800, 1, 9), [&](const Event&) { long_began = true; });
  int steps = 0;
  double longest_s = 0;
  while (!long_began) {
    const std::vector<int> before = tokens;
    const double start_s = model.simulated_s;
    scheduler.step();
    longest_s = std::max(longest_s, model.simulated_s - start_s);
    ++steps;
    for (size_t i = 0; i < 4; ++i) EXPECT_EQ(tokens[i], before[i] + 1) << "step " << steps;
  }
  EXPECT_EQ(steps, 100);  // 12,800 / 128
  const double alone_s = 1e-5 + 4e-6;
  std::printf("between tokens: %.0f us alone, at most %.0f us beside a long prompt\n", 1e6 * alone_s, 1e6 * longest_s);
  EXPECT_NEAR(longest_s, alone_s + 128e-6, 1e-9);
}

TEST(Scheduler, BackgroundWaitsForTheForeground) {
  StubModel model({.slots = 1});
  Scheduler scheduler(model, {});
  std::vector<int> order;
  auto submit = [&](int name, int priority) {
    Request request = simple(5, 3);
    request.priority = priority;
    scheduler.submit(request, [&order, name](const Event& event) {
      if (event.summary) order.push_back(name);
    });
  };
  submit(1, 1), submit(2, 0), submit(3, 1), submit(4, 0);
  run_to_end(scheduler);
  EXPECT_EQ(order, (std::vector<int>{2, 4, 1, 3}));
}

TEST(Scheduler, CancellationFreesWithinOneStep) {
  StubModel model({});
  Scheduler scheduler(model, {.prompt_rows = 16});
  for (const int64_t steps : {0, 1, 3}) {  // waiting, inside its prompt, decoding
    int finished = 0;
    const int64_t id = scheduler.submit(simple(steps == 1 ? 2000 : 4, 500), [&](const Event& event) {
      if (event.summary) {
        EXPECT_EQ(event.summary->reason, FinishReason::kCancelled);
        ++finished;
      }
    });
    for (int64_t i = 0; i < steps; ++i) scheduler.step();
    scheduler.cancel(id);
    scheduler.step();
    EXPECT_EQ(finished, 1);
    EXPECT_TRUE(scheduler.idle());
    EXPECT_EQ(scheduler.stats().pages_free, scheduler.stats().pages_total);
  }
}

// With a next-n layer that is right nine times in ten, a step accepts what that promises:
// 1 + sum of 0.9^i for i = 1..7 = 5.7 tokens a step at depth 7.
TEST(Scheduler, GoodDraftsAreAccepted) {
  StubModel model({.hits_in_ten = 9, .step_s = 2e-4, .draft_s = 1e-6, .sleeps = false});
  Scheduler scheduler(model, {.drafts = 7, .draft_from_text = false, .clock_s = [&] { return model.simulated_s; }});
  scheduler.submit(simple(5, 2000), {});
  run_to_end(scheduler);
  const SchedulerStats stats = scheduler.stats();
  const double per_step = 2000.0 / static_cast<double>(stats.steps);
  std::printf("%.2f tokens a step, %lld of %lld drafts accepted\n", per_step,
              static_cast<long long>(stats.accepted_tokens), static_cast<long long>(stats.drafted_tokens));
  double expected = 1;
  for (int i = 1; i <= 7; ++i) expected += std::pow(0.9, i);
  EXPECT_GT(per_step, 0.9 * expected);
  EXPECT_LT(per_step, 1.2 * expected);
}

// With a useless one the policy gives drafting up: the model's time grows by under 3 %. A row of a window costs a
// twentieth of a step and a next-n step a tenth, about what they cost at the released sizes (KV and experts of the
// rows).
TEST(Scheduler, UselessDraftsAreTurnedOff) {
  auto model_s = [](int drafts, int requests, int64_t tokens) {
    StubModel useless({.hits_in_ten = 0, .step_s = 2e-4, .row_s = 1e-5, .draft_s = 2e-5, .sleeps = false});
    Scheduler scheduler(useless,
                        {.drafts = drafts, .draft_from_text = false, .clock_s = [&] { return useless.simulated_s; }});
    for (int i = 0; i < requests; ++i) {
      scheduler.submit(simple(5, tokens, static_cast<uint64_t>(i)), {});
      run_to_end(scheduler);
    }
    return useless.simulated_s;
  };
  for (const auto& [requests, tokens] : {std::pair{1, int64_t{2000}}, std::pair{20, int64_t{500}}}) {
    const double price = model_s(3, requests, tokens) / model_s(0, requests, tokens) - 1;
    std::printf("%d requests of %lld tokens: useless drafts cost %.2f %%\n", requests, static_cast<long long>(tokens),
                100 * price);
    EXPECT_GT(price, 0);
    EXPECT_LT(price, 0.03);
  }
}

// A draft ends before its first token that the mask forbids.
TEST(Scheduler, DraftsAreCutToTheMask) {
  StubModel model({.vocabulary = 500});
  const Request plain = simple(5, 200);
  const std::vector<int32_t> expected = expected_reply(model, plain);
  // Allows what the model says anyway, and nothing else.
  Request masked = plain;
  masked.mask = [&expected](std::span<const int32_t> generated, std::span<uint64_t> allowed) {
    std::fill(allowed.begin(), allowed.end(), 0);
    if (generated.size() >= expected.size()) return;
    const auto id = static_cast<size_t>(expected[generated.size()]);
    allowed[id / 64] |= uint64_t{1} << (id % 64);
  };
  for (const int right : {0, 2}) {
    Scheduler scheduler(
        model, {.drafts = 4, .draft_source = [&, right](std::span<const int32_t> tokens, int most) {
                  std::vector<int32_t> drafts;
                  const size_t at = tokens.size() - plain.prompt.size();
                  for (size_t i = 0; i < static_cast<size_t>(most) && at + i < expected.size(); ++i)
                    drafts.push_back(static_cast<int>(i) < right ? expected[at + i] : (expected[at + i] + 1) % 500);
                  return drafts;
                }});
    std::vector<int32_t> ids;
    scheduler.submit(masked, [&](const Event& event) {
      for (const GeneratedToken& token : event.tokens) ids.push_back(token.id);
    });
    run_to_end(scheduler);
    EXPECT_EQ(ids, expected);
    // No wrong draft was ever verified.
    EXPECT_EQ(scheduler.stats().accepted_tokens, scheduler.stats().drafted_tokens);
    EXPECT_EQ(scheduler.stats().drafted_tokens > 0, right > 0);
  }
}

// max_tokens 0: the prompt is scored, nothing is generated, and what was computed is kept for others.
TEST(Scheduler, ScoresAPromptAlone) {
  StubModel model({});
  Scheduler scheduler(model, {.prompt_rows = 50, .snapshot_bytes = 1 << 20});
  for (int twice = 0; twice < 2; ++twice) {
    Request request = simple(300, 0);
    request.prompt_logprobs = 1;
    std::vector<GeneratedToken> scores;
    std::optional<ReplySummary> summary;
    scheduler.submit(request, [&](const Event& event) {
      scores.insert(scores.end(), event.prompt_logprobs.begin(), event.prompt_logprobs.end());
      if (event.summary) summary = event.summary;
    });
    run_to_end(scheduler);
    ASSERT_EQ(scores.size(), 299u);
    for (size_t i = 0; i < scores.size(); ++i) {
      EXPECT_EQ(scores[i].id, request.prompt[i + 1]);
      EXPECT_EQ(scores[i].top[0].id, model.follower(request.prompt[i], static_cast<int64_t>(i)));
    }
    ASSERT_TRUE(summary);
    EXPECT_EQ(summary->reason, FinishReason::kLength);
    EXPECT_EQ(summary->generated_tokens, 0);
    EXPECT_EQ(summary->cached_tokens, 0);
  }
  std::optional<ReplySummary> summary;
  scheduler.submit(simple(300, 1), [&](const Event& event) { summary = event.summary; });
  run_to_end(scheduler);
  EXPECT_EQ(summary->cached_tokens, 256);
}

double thread_cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// CPU time of a step whose model returns at once: scheduler, sampler and the events' delivery (and the stub's own
// arithmetic). The bounds are the project's.
TEST(Scheduler, CostsLittle) {
  for (const auto& [sequences, bound_us] : {std::pair{int64_t{1}, 50.0}, std::pair{int64_t{64}, 400.0}}) {
    std::vector<double> costs;
    for (int repeat = 0; repeat < 5; ++repeat) {
      StubModel model({});
      Scheduler scheduler(model, {.drafts = 3, .snapshot_bytes = 1 << 20});
      for (int64_t i = 0; i < sequences; ++i)
        scheduler.submit(simple(40, 600, static_cast<uint64_t>(i)), [](const Event&) {});
      const double start = thread_cpu_seconds();
      run_to_end(scheduler);
      costs.push_back((thread_cpu_seconds() - start) * 1e6 / static_cast<double>(scheduler.stats().steps));
    }
    std::sort(costs.begin(), costs.end());
    std::printf("%lld sequences: %.1f us a step (median), %.1f to %.1f\n", static_cast<long long>(sequences), costs[2],
                costs.front(), costs.back());
    EXPECT_LT(costs[2], bound_us);
  }
}

// Many threads submit, cancel and read while the engine runs; every request gets exactly one last event.
TEST(Engine, ManyThreads) {
  StubModel model({.slots = 8, .pages = 200});
  std::atomic<int> ended{0}, tokens{0};
  {
    Engine engine(model, {.queue_limit = 100000, .drafts = 3, .snapshot_bytes = 10000});
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&, t] {
        for (int i = 0; i < 100; ++i) {
          const int64_t id = engine.submit(simple(1 + i, 20, static_cast<uint64_t>(t)), [&](const Event& event) {
            tokens += static_cast<int>(event.tokens.size());
            if (event.summary) ++ended;
          });
          if (i % 7 == 0) engine.cancel(id);
          engine.stats();
        }
      });
    for (std::thread& thread : threads) thread.join();
    engine.drain();
    EXPECT_EQ(ended, 400);
    EXPECT_THROW(engine.submit(simple(5, 5), {}), Error);  // draining
  }
  EXPECT_GT(tokens, 4 * 80 * 20);
}

TEST(Engine, AFailingModelEndsEveryRequest) {
  struct Failing : StepModel {
    explicit Failing(StubModel& model) : inner(model) {}
    const StepModelSizes& sizes() const override { return inner.sizes(); }
    void forward(std::span<const ops::Span> spans, std::span<const int32_t> ids) override {
      if (inner.forwards == 5) throw std::runtime_error("the device went away");
      inner.forward(spans, ids);
    }
    std::span<const float> logits(std::span<const int32_t> rows) override { return inner.logits(rows); }
    std::span<const int32_t> greedy(std::span<const int32_t> rows) override { return inner.greedy(rows); }
    void next_n(std::span<const ops::Span> s, std::span<const int32_t> i, std::span<const int32_t> h) override {
      inner.next_n(s, i, h);
    }
    void next_n_resumed(const ops::Span&, int32_t) override {}
    std::span<const int32_t> draft(std::span<const DraftChain> chains) override { return inner.draft(chains); }
    std::shared_ptr<const state::Snapshot> save(const ops::Span& a, int32_t h) override { return inner.save(a, h); }
    void restore(const state::Snapshot& s, int32_t slot, int64_t p) override { inner.restore(s, slot, p); }
    StubModel& inner;
  };
  StubModel stub({});
  Failing model(stub);
  Engine engine(model, {.drafts = 0});
  std::promise<FinishReason> ended;
  engine.submit(simple(5, 100), [&](const Event& event) {
    if (event.summary) ended.set_value(event.summary->reason);
  });
  EXPECT_EQ(ended.get_future().get(), FinishReason::kCancelled);
  engine.drain();
  EXPECT_EQ(engine.failure(), "the device went away");
  EXPECT_THROW(engine.submit(simple(5, 5), {}), Error);
}

}  // namespace
}  // namespace verbatim::engine
