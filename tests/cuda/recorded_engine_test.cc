// The engine on a device with its steps recorded, against the same engine whose steps are always launched anew.
#include <gtest/gtest.h>

#include "engine/backend_model.h"
#include "engine/scheduler.h"
#include "ops/cuda_backend.h"
#include "ops/devices.h"
#include "tests/engine/mix_check.h"
#include "tests/model/ops_proxy.h"
#include "tests/model/tiny_models.h"

namespace verbatim::engine {
namespace {

// Forwards every operator, but lets no step be recorded.
class EagerOps : public model::OpsProxy {
 public:
  using OpsProxy::OpsProxy;
  void gather(const float* from, const int32_t* rows, int64_t count, int64_t width, float* to) override {
    inner_.gather(from, rows, count, width, to);
  }
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

// Every mix of requests equals its requests alone, as shipped: weights and states in device memory, steps recorded.
TEST(RecordedEngine, EveryReplyOfEveryMixIsThatOfItsRequestAlone) {
  if (ops::cuda_devices().empty()) GTEST_SKIP() << "this machine has no CUDA device";
  const auto device = ops::make_cuda_ops({.records_steps = true});
  check_mixes(Models(device.get()), VERBATIM_MIXES, device.get());
}

}  // namespace
}  // namespace verbatim::engine
