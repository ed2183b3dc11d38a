// The engine on a device with its steps recorded, against the same engine whose steps are always launched anew.
#include <gtest/gtest.h>

#include <chrono>

#include "engine/backend_model.h"
#include "engine/scheduler.h"
#include "ops/cuda_backend.h"
#include "ops/devices.h"
#include "tests/engine/draft_chains.h"
#include "tests/engine/mix_check.h"
#include "tests/model/ops_proxy.h"
#include "tests/model/tiny_models.h"

namespace verbatim::engine {
namespace {

// Forwards every operator, but lets no step be recorded.
class EagerOps : public model::OpsProxy {
 public:
  using OpsProxy::OpsProxy;
};

std::vector<std::vector<int32_t>> replies(ops::Ops& ops, const model::Model& model, int drafts) {
  BackendModel backend(ops, model, {.max_rows = 64, .slots = 4, .pages = 40});
  Scheduler scheduler(backend, {.prompt_rows = 64, .drafts = drafts});
  std::vector<std::vector<int32_t>> all(5);
  for (size_t i = 0; i < all.size(); ++i) {
    Request request;
    request.prompt = model::random_ids(static_cast<int64_t>(10 + 17 * i), i + 1);
    request.max_tokens = 30;
    request.sampling.temperature = i % 2 == 0 ? 0.0f : 0.8f;
    request.sampling.seed = 4;
    scheduler.submit(request, [&all, i](const Event& event) {
      for (const GeneratedToken& token : event.tokens) all[i].push_back(token.id);
    });
  }
  while (!scheduler.idle()) scheduler.step();
  return all;
}

TEST(RecordedEngine, GivesTheRepliesOfStepsLaunchedAnew) {
  if (ops::cuda_devices().empty()) GTEST_SKIP() << "this machine has no CUDA device";
  const auto device = ops::make_cuda_ops({.records_steps = true});
  model::Loaded loaded(model::tiny("tiny-nvfp4"));
  model::upload_weights(*device, loaded.model);
  EagerOps eager(*device);
  const auto want = replies(eager, loaded.model, 0);
  for (const std::vector<int32_t>& reply : want) EXPECT_EQ(reply.size(), 30u);
  for (const int drafts : {0, 3}) {
    EXPECT_EQ(replies(*device, loaded.model, drafts), want) << drafts << " drafts";
    EXPECT_EQ(replies(*device, loaded.model, drafts), want) << drafts << " drafts, again";
  }
}

TEST(RecordedEngine, AChainOfDraftsIsTheLayersStepsOneByOne) {
  if (ops::cuda_devices().empty()) GTEST_SKIP() << "this machine has no CUDA device";
  for (const bool records : {false, true}) {
    for (const bool shared : {false, true}) {
      const auto device = ops::make_cuda_ops({.records_steps = records});
      model::Loaded loaded(model::tiny("tiny-nvfp4"));
      loaded.model.config.index_share_for_drafts = shared;
      model::upload_weights(*device, loaded.model);
      check_draft_chains(*device, loaded.model);
    }
  }
}

// Told only: chains of drafts at the released widths, from the next-n rows to the ids on the host.
TEST(RecordedEngine, TimesOfDrafts) {
  if (ops::cuda_devices().empty()) GTEST_SKIP() << "this machine has no CUDA device";
  constexpr int64_t kPages = 3;
  constexpr int kRepeats = 21;
  ThreadPool pool(4);
  const auto device = ops::make_cuda_ops({.records_steps = true});
  const model::Model model = model::synthetic_model(
      *device, {.size = model::SynthSize::kReleased, .form = model::SynthForm::kNvfp4, .layers = 5, .experts = 192},
      true, 1, pool);
  for (const int64_t count : {1, 4, 16}) {
    BackendModel backend(*device, model, {.max_rows = 64, .slots = count, .pages = kPages * count});
    std::vector<state::Sequence> sequences;
    std::vector<int32_t> rows;
    for (int64_t i = 0; i < count; ++i) {
      rows.push_back(static_cast<int32_t>(i));
      std::vector<int32_t> pages;
      for (int64_t page = 0; page < kPages; ++page) pages.push_back(static_cast<int32_t>(kPages * i + page));
      sequences.emplace_back(rows.back(), pages, ops::kPageTokens);
    }
    for (const int drafts : {1, 3, 7}) {
      std::vector<double> microseconds;
      for (int repeat = 0; repeat < kRepeats; ++repeat) {
        std::vector<ops::Span> spans;
        std::vector<DraftChain> chains;
        for (const int32_t row : rows) {
          state::Sequence& sequence = sequences[static_cast<size_t>(row)];
          const ops::Span span = sequence.next(row, 1, 1);
          sequence.accept(span, 1);
          spans.push_back(span);
          chains.push_back({row, drafts, span});
          ++chains.back().span.position;
        }
        const auto ids = model::random_ids(count, static_cast<uint64_t>(repeat));
        backend.forward(spans, ids);
        device->synchronise();
        const auto start = std::chrono::steady_clock::now();
        backend.next_n(spans, ids, rows);
        EXPECT_EQ(std::ssize(backend.draft(chains)), count * drafts);
        microseconds.push_back(
            std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
      }
      std::sort(microseconds.begin(), microseconds.end());
      std::printf("%2ld sequences, %d drafts: %.0f us\n", static_cast<long>(count), drafts,
                  microseconds[microseconds.size() / 2]);
    }
  }
}

// Every mix of requests equals its requests alone, as shipped: weights and states in device memory, steps recorded.
TEST(RecordedEngine, EveryReplyOfEveryMixIsThatOfItsRequestAlone) {
  if (ops::cuda_devices().empty()) GTEST_SKIP() << "this machine has no CUDA device";
  const auto device = ops::make_cuda_ops({.records_steps = true});
  check_mixes(Models(device.get()), VERBATIM_MIXES, device.get());
}

}  // namespace
}  // namespace verbatim::engine
