// What ships (activations rounded to bfloat16) against the CPU, layer by layer: both get the CPU's streams, router
// choices and pool choices. Bounds are the project's: streams within 6e-3, outputs of sublayers within 1e-2, with
// rounding to NVFP4 within 0.15 (an activation near a boundary of a code may fall on its other side).
#include <gtest/gtest.h>

#include "ops/devices.h"
#include "tests/cuda/host_ops.h"
#include "tests/model/ops_proxy.h"
#include "tests/model/tiny_models.h"

namespace verbatim::model {
namespace {

// What a layer's pass chose and made on the CPU.
struct Record {
  std::vector<int32_t> chosen, pools, counts;
  std::vector<float> weights;
  std::vector<std::vector<float>> outputs;  // of the two sublayers
};

// A layer on given streams. On the CPU it fills `record`; with `given` it replaces the choices by those recorded there.
class OneLayer : public OpsProxy {
 public:
  OneLayer(ops::Ops& inner, std::span<const float> streams, const Record* given)
      : OpsProxy(inner), streams_(streams), given_(given) {}

  void embed(const Matrix&, const int32_t*, int64_t, int64_t, float* out) override {
    std::copy(streams_.begin(), streams_.end(), out);
  }
  void select_pools(const ops::IndexShape& shape, const float* q, const float* head_weights,
                    std::span<const ops::Span> spans, const ops::LatentCache& cache,
                    const ops::Selection& selection) override {
    inner_.select_pools(shape, q, head_weights, spans, cache, selection);
    const int64_t rows = spans[0].rows, budget = shape.budget_pools();
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t i = 0; i < budget; ++i)
        record.pools.push_back(i < selection.counts[r] ? selection.pools[r * budget + i] : -1);
    record.counts.assign(selection.counts, selection.counts + rows);
    if (given_ == nullptr) return;
    std::copy(given_->pools.begin(), given_->pools.end(), selection.pools);
    std::copy(given_->counts.begin(), given_->counts.end(), selection.counts);
  }
  void route(const float* logits, const float* bias, int64_t rows, int64_t experts, int64_t top, float scale,
             int32_t* chosen, float* weights) override {
    inner_.route(logits, bias, rows, experts, top, scale, chosen, weights);
    record.chosen.assign(chosen, chosen + rows * top);
    record.weights.assign(weights, weights + rows * top);
    if (given_ == nullptr) return;
    std::copy(given_->chosen.begin(), given_->chosen.end(), chosen);
    std::copy(given_->weights.begin(), given_->weights.end(), weights);
  }
  void hyper_leave(const ops::HyperShape& shape, const float* maps, const float* y, int64_t rows,
                   float* streams) override {
    record.outputs.emplace_back(y, y + rows * shape.width);
    inner_.hyper_leave(shape, maps, y, rows, streams);
  }

  Record record;

 private:
  std::span<const float> streams_;
  const Record* given_;
};

struct Layered {
  std::vector<float> streams;
  Record record;
};

Layered run_layer(ops::Ops& ops, const Model& one, std::span<const int32_t> ids, std::span<const float> streams,
                  const Record* given) {
  const auto rows = static_cast<int64_t>(ids.size());
  OneLayer proxy(ops, streams, given);
  state::Storage storage(proxy, one.config, 1, state::pages_for(rows));
  std::vector<int32_t> pages;
  for (int64_t i = 0; i < state::pages_for(rows); ++i) pages.push_back(static_cast<int32_t>(i));
  const state::Sequence sequence(0, pages);
  Workspace workspace(proxy, one.config, rows);
  const ops::Span span = sequence.next(0, rows, rows);
  Layered result;
  forward(proxy, one, storage.state(), {&span, 1}, ids, workspace, [&](int64_t, const float* x) {
    result.streams.assign(x, x + rows * one.config.streams * one.config.hidden);
  });
  result.record = std::move(proxy.record);
  return result;
}

int64_t differences(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
  int64_t count = 0;
  for (size_t i = 0; i < a.size(); ++i) count += a[i] != b[i] ? 1 : 0;
  return count;
}

TEST(Layers, AsShippedNearTheCpu) {
  if (ops::cuda_devices().empty()) GTEST_SKIP() << "this machine has no CUDA device";
  const auto device = ops::make_cuda_ops({.activations = ops::Activations::kBf16});
  ops::HostOps cuda(*device);
  Cpu cpu;
  for (const auto& [directory, precision] :
       {std::pair{"tiny-bf16", Precision::kFull}, std::pair{"tiny-nvfp4", Precision::kFull},
        std::pair{"tiny-fp8", Precision::kFull}, std::pair{"tiny-nvfp4", Precision::kCheckpoint},
        std::pair{"tiny-w4a4-experts", Precision::kCheckpoint}}) {
    const Loaded loaded(tiny(directory), precision);
    const Config& c = loaded.model.config;
    const std::vector<int32_t> ids = random_ids(130, 5);
    std::vector<float> streams(ids.size() * static_cast<size_t>(c.streams * c.hidden));
    cpu.ops->embed(loaded.model.weights.embedding, ids.data(), static_cast<int64_t>(ids.size()), c.streams,
                   streams.data());
    double worst_streams = 0, worst_output = 0;
    int64_t experts = 0, pools = 0;
    for (int64_t layer = 0; layer < c.layers; ++layer) {
      Model one;
      one.config = c;
      one.config.layers = 1;
      one.config.next_n_layers = 0;
      one.config.mixers = {c.mixer(layer)};
      one.config.ffns = {c.ffn(layer)};
      one.precision = precision;
      one.weights.layers = {loaded.model.weights.layers[static_cast<size_t>(layer)]};
      one.weights.norm = loaded.model.weights.norm;
      const Layered want = run_layer(*cpu.ops, one, ids, streams, nullptr);
      const Layered got = run_layer(cuda, one, ids, streams, &want.record);
      worst_streams = std::max(worst_streams, relative_error(got.streams, want.streams));
      for (size_t i = 0; i < 2; ++i)
        worst_output = std::max(worst_output, relative_error(got.record.outputs[i], want.record.outputs[i]));
      experts += differences(got.record.chosen, want.record.chosen);
      pools += differences(got.record.pools, want.record.pools);
      streams = want.streams;
    }
    const bool rounds = precision == Precision::kCheckpoint;
    std::printf("%s%s: streams %.1e, sublayer outputs %.1e; the router chose otherwise %ld times, the indexer %ld\n",
                directory, rounds ? " (W4A4)" : "", worst_streams, worst_output, static_cast<long>(experts),
                static_cast<long>(pools));
    EXPECT_LT(worst_streams, rounds ? 0.15 : 6e-3) << directory;
    EXPECT_LT(worst_output, rounds ? 0.15 : 1e-2) << directory;
  }
}

}  // namespace
}  // namespace verbatim::model
