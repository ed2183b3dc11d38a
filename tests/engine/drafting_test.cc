// Drafting with real next-n layers: one that is right by construction, one that is useless, stored and packed experts.
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/formats.h"
#include "ops/ops_proxy.h"
#include "tests/engine/draft_chains.h"
#include "tests/engine/mixes.h"

namespace verbatim::engine {
namespace {

// tiny-bf16 with every sublayer's output projection zero: the streams stay the token's embedding, so the next token is
// a function of the last. Its next-n layer passes the embedding of the next token on (eh_proj = [1 | 0]) through the
// model's own final norm: what it drafts is what the model will say.
class Prophet {
 public:
  Prophet() : loaded_(model::tiny("tiny-bf16")) {
    model::Model& m = loaded_.model;
    const auto D = static_cast<size_t>(m.config.hidden);
    zeros_.assign(D * 4096, 0);
    identity_.assign(D * 2 * D, 0);
    for (size_t i = 0; i < D; ++i) identity_[i * 2 * D + i] = float_to_bf16(1.0f);
    ones_.assign(D, 1.0f);
    for (model::Layer& layer : m.weights.layers) {
      clear(layer.mixer == model::MixerKind::kLinear ? layer.linear.o : layer.sparse.o);
      if (layer.ffn == model::FfnKind::kDense)
        clear(layer.mlp.down);
      else
        clear(layer.moe);
    }
    model::NextN& next_n = *m.weights.next_n;
    clear(next_n.sparse.o);
    clear(next_n.moe);
    next_n.project.data = reinterpret_cast<const std::byte*>(identity_.data());
    next_n.embedding_norm = ones_.data();
    next_n.head_norm = m.weights.norm;
  }
  const model::Model& model() const { return loaded_.model; }

 private:
  void clear(ops::Matrix& matrix) { matrix.data = reinterpret_cast<const std::byte*>(zeros_.data()); }
  void clear(model::Moe& moe) {
    clear(moe.shared.down);
    for (ops::ExpertWeights& expert : moe.experts) clear(expert.down);
  }
  model::Loaded loaded_;
  std::vector<uint16_t> zeros_, identity_;
  std::vector<float> ones_;
};

Mix one_request(int64_t tokens, int drafts) {
  Mix mix;
  mix.model = {.max_rows = 128, .slots = 1, .pages = 20};
  mix.scheduler.drafts = drafts;
  mix.scheduler.draft_from_text = false;
  Request request;
  request.prompt = model::random_ids(30, 5);
  request.max_tokens = tokens;
  request.hash_logits = true;
  request.sampling.temperature = 0;
  mix.requests = {request};
  mix.submit_at = {0};
  mix.cancel_at = {-1};
  return mix;
}

TEST(Drafting, ALayerThatKnowsTheFutureIsAlwaysAccepted) {
  const Prophet prophet;
  for (const int drafts : {1, 3, 7}) {
    const Mix mix = one_request(401, drafts);
    SchedulerStats stats;
    const auto together = run_mix(mix, prophet.model(), {}, &stats);
    std::string difference;
    EXPECT_TRUE(same_replies(mix, together, run_alone(mix, prophet.model()), difference)) << difference;
    EXPECT_EQ(stats.accepted_tokens, stats.drafted_tokens);
    // The first token comes with the prompt; then 1 + drafts tokens a step once that depth is chosen.
    const double per_step = 400.0 / static_cast<double>(stats.steps - 1);
    std::printf("at most %d drafts: %.2f tokens a step\n", drafts, per_step);
    EXPECT_GT(per_step, 0.6 * (1 + drafts));
  }
}

// Counts the times that the host waits for numbers from the backend.
class ReadCounter final : public ops::OpsProxy {
 public:
  using OpsProxy::OpsProxy;
  void copy_out(void* to, const void* from, size_t bytes) override {
    ++reads;
    inner_.copy_out(to, from, bytes);
  }
  int64_t reads = 0;
};

// A step reads the ids behind the head and the drafts for the next one, however many those are.
TEST(Drafting, AStepReadsIdsTwice) {
  const Prophet prophet;
  for (const int drafts : {0, 1, 3, 7}) {
    model::Cpu cpu;
    ReadCounter counter(*cpu.ops);
    BackendModel backend(counter, prophet.model(), {.max_rows = 128, .slots = 3, .pages = 20});
    double now_s = 0;  // every step costs the same: the deepest drafts pay
    Scheduler scheduler(backend, {.drafts = drafts, .draft_from_text = false, .clock_s = [&] { return now_s += 1; }});
    for (uint64_t i = 0; i < 3; ++i) {
      Request request;
      request.prompt = model::random_ids(10 + static_cast<int64_t>(i), i + 1);
      request.max_tokens = 150 + 50 * static_cast<int64_t>(i);  // they end, and so leave the chains, one by one
      scheduler.submit(request, {});
    }
    int64_t most_drafted = 0, drafted = 0;
    while (!scheduler.idle()) {
      counter.reads = 0;
      scheduler.step();
      EXPECT_LE(counter.reads, drafts == 0 ? 1 : 2) << drafts << " drafts";
      most_drafted = std::max(most_drafted, scheduler.stats().drafted_tokens - drafted);
      drafted = scheduler.stats().drafted_tokens;
    }
    EXPECT_GE(most_drafted, 2 * drafts);  // of three sequences together: they are made
  }
}

TEST(Drafting, AChainIsTheLayersStepsOneByOne) {
  model::Loaded loaded(model::tiny("tiny-nvfp4"));
  const model::Cpu cpu;
  for (const bool shared : {false, true}) {
    loaded.model.config.index_share_for_drafts = shared;
    check_draft_chains(*cpu.ops, loaded.model);
  }
}

TEST(Drafting, RefusesChainsThatNoWindowHolds) {
  const model::Loaded loaded(model::tiny("tiny-bf16"));
  const model::Cpu cpu;
  BackendModel backend(*cpu.ops, loaded.model, {.max_rows = 8, .slots = 1, .pages = 1});
  for (const int drafts : {0, static_cast<int>(ops::kWindowRows)}) {
    const DraftChain chain{0, drafts, {}};
    EXPECT_THROW(backend.draft({&chain, 1}), Error) << drafts;
  }
  EXPECT_THROW(backend.draft(std::vector<DraftChain>(2)), Error);  // of one slot
  EXPECT_TRUE(backend.draft({}).empty());
}

// Random weights: the next-n layer guesses nothing. Drafting goes off, and the model is run as often as without it.
TEST(Drafting, AUselessLayerIsTurnedOff) {
  const model::Loaded loaded(model::tiny("tiny-bf16"));
  const Mix mix = one_request(1000, 3);
  SchedulerStats stats;
  run_mix(mix, loaded.model, {}, &stats);
  std::printf("%lld drafts, %lld accepted, in %lld steps\n", static_cast<long long>(stats.drafted_tokens),
              static_cast<long long>(stats.accepted_tokens), static_cast<long long>(stats.steps));
  EXPECT_LT(stats.drafted_tokens, 3 * 30);  // 3 drafts in 3 % of the steps
}

// Packed experts draft other tokens and the same replies come out.
TEST(Drafting, PackedExpertsGiveTheSameReplies) {
  const model::Loaded stored(model::tiny("tiny-bf16"));
  model::Loaded packed(model::tiny("tiny-bf16"));
  ThreadPool pool(2);
  model::pack_next_n_experts(packed.model, packed.checkpoint, pool);
  EXPECT_EQ(packed.model.weights.next_n->moe.experts[0].gate.form, ops::WeightForm::kNvfp4);
  EXPECT_EQ(stored.model.weights.next_n->moe.experts[0].gate.form, ops::WeightForm::kBf16);
  for (uint64_t seed = 902; seed < 904; ++seed) {
    Mix mix = random_mix(seed);
    mix.scheduler.drafts = 5;
    mix.scheduler.draft_from_text = false;
    mix.cancel_at.assign(mix.requests.size(), -1);
    SchedulerStats with_stored, with_packed;
    const auto alone = run_alone(mix, stored.model);
    std::string difference;
    EXPECT_TRUE(same_replies(mix, run_mix(mix, stored.model, {}, &with_stored), alone, difference)) << difference;
    EXPECT_TRUE(same_replies(mix, run_mix(mix, packed.model, {}, &with_packed), alone, difference)) << difference;
    std::printf("accepted: stored %lld of %lld, packed %lld of %lld\n",
                static_cast<long long>(with_stored.accepted_tokens), static_cast<long long>(with_stored.drafted_tokens),
                static_cast<long long>(with_packed.accepted_tokens),
                static_cast<long long>(with_packed.drafted_tokens));
  }
}

}  // namespace
}  // namespace verbatim::engine
