// What ships (activations rounded to bfloat16) against the CPU, layer by layer: both get the CPU's streams, router
// choices and pool choices. Bounds are the project's: streams within 6e-3, outputs of sublayers within 1e-2, with
// rounding to NVFP4 within 0.15 (an activation near a boundary of a code may fall on its other side).
#include <gtest/gtest.h>

#include "ops/devices.h"
#include "tests/cuda/choices.h"
#include "tests/cuda/host_ops.h"

namespace verbatim::model {
namespace {

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
    cpu.ops->embed(loaded.model.weights.embedding, ids, c.streams, streams.data());
    double worst_streams = 0, worst_output = 0;
    Choices experts, pools;
    for (int64_t layer = 0; layer < c.layers; ++layer) {
      const Model one = layer_of(loaded.model, layer);
      const Layered want = run_layer(*cpu.ops, one, streams, nullptr);
      const Layered got = run_layer(cuda, one, streams, &want.record);
      worst_streams = std::max(worst_streams, relative_error(got.streams, want.streams));
      for (size_t i = 0; i < 2; ++i)
        worst_output = std::max(worst_output, relative_error(got.record.outputs[i], want.record.outputs[i]));
      if (one.config.ffn(0) == FfnKind::kSparse) experts.add(router_choices(got.record, want.record, one));
      if (one.config.mixer(0) == MixerKind::kSparse) pools.add(pool_choices(got.record, want.record, one));
      streams = want.streams;
    }
    const bool rounds = precision == Precision::kCheckpoint;
    std::printf(
        "%s%s: streams %.1e, sublayer outputs %.1e; chosen otherwise: %ld of %ld experts (at most %.2f of the bound), "
        "%ld of %ld pools (%.2f)\n",
        directory, rounds ? " (W4A4)" : "", worst_streams, worst_output, static_cast<long>(experts.different),
        static_cast<long>(experts.made), experts.worst, static_cast<long>(pools.different),
        static_cast<long>(pools.made), pools.worst);
    EXPECT_LE(experts.worst, 1) << directory;
    EXPECT_LE(pools.worst, 1) << directory;
    EXPECT_LT(worst_streams, rounds ? 0.15 : 6e-3) << directory;
    EXPECT_LT(worst_output, rounds ? 0.15 : 1e-2) << directory;
  }
}

// Whole models of random weights amplify every rounding, so their logits are told, not bounded.
TEST(Layers, WholeModelsBesideTheCpu) {
  if (ops::cuda_devices().empty()) GTEST_SKIP() << "this machine has no CUDA device";
  Cpu cpu;
  for (const auto& [directory, precision] :
       {std::pair{"tiny-bf16", Precision::kFull}, std::pair{"tiny-nvfp4", Precision::kFull},
        std::pair{"tiny-fp8", Precision::kFull}, std::pair{"tiny-nvfp4", Precision::kCheckpoint},
        std::pair{"tiny-w4a4-experts", Precision::kCheckpoint}}) {
    const std::vector<int32_t> ids = random_ids(300, 9);
    const Loaded host(tiny(directory), precision);
    const std::vector<float> want = prompt_logits(*cpu.ops, host.model, ids);
    const auto device = ops::make_cuda_ops({});
    Loaded there(tiny(directory), precision);
    upload_weights(*device, there.model);
    const std::vector<float> got = prompt_logits(*device, there.model, ids);
    ASSERT_EQ(got.size(), want.size());
    const size_t width = want.size() / ids.size();
    double divergence = 0;
    int64_t same = 0;
    for (size_t row = 0; row < ids.size(); ++row) {
      const auto p = std::span(want).subspan(row * width, width), q = std::span(got).subspan(row * width, width);
      const auto normaliser = [](std::span<const float> x) {
        double sum = 0;
        for (const float each : x) sum += std::exp(static_cast<double>(each));
        return std::log(sum);
      };
      const double p_sum = normaliser(p), q_sum = normaliser(q);
      for (size_t i = 0; i < width; ++i) {
        const double log_p = static_cast<double>(p[i]) - p_sum, log_q = static_cast<double>(q[i]) - q_sum;
        divergence += std::exp(log_p) * (log_p - log_q) / static_cast<double>(ids.size());
      }
      same += std::max_element(p.begin(), p.end()) - p.begin() == std::max_element(q.begin(), q.end()) - q.begin();
    }
    std::printf("%s%s, whole: KL from the CPU %.2e, the same most likely token in %ld of %zu rows, logits %.1e apart\n",
                directory, precision == Precision::kCheckpoint ? " (W4A4)" : "", divergence, static_cast<long>(same),
                ids.size(), relative_error(got, want));
    EXPECT_TRUE(std::isfinite(divergence)) << directory;
  }
}

}  // namespace
}  // namespace verbatim::model
