// As shipped, single layers of the released shape with all 288 experts against the CPU: both are fed the same streams,
// states and caches, CUDA the CPU's choices too. Products and experts are also held, output by output, to bounds
// derived from the inputs that they were given.
#include <gtest/gtest.h>

#include <chrono>
#include <deque>
#include <optional>

#include "base/synthetic.h"
#include "model/synth.h"
#include "ops/devices.h"
#include "tests/cuda/choices.h"
#include "tests/cuda/host_ops.h"

namespace verbatim::model {
namespace {

constexpr int64_t kRows = 3, kPosition = 8192, kThreads = 16;
constexpr double kBf16Roundoff = 0x1p-9, kRoundoff = 0x1p-24;

// Dots of a weight row with x, and with the absolute values of both.
struct Dots {
  double value = 0, magnitude = 0;
};
Dots dots(const Matrix& w, size_t row, const float* x) {
  Dots d;
  for (size_t k = 0; k < static_cast<size_t>(w.columns); ++k) {
    const double term = weight_value(w, row, k) * static_cast<double>(x[k]);
    d.value += term;
    d.magnitude += std::abs(term);
  }
  return d;
}

double silu(double x) { return x / (1 + std::exp(-x)); }

// CUDA's operators, of which products' and experts' outputs (every so many) are compared with float64 under bounds:
// rounding an activation to bfloat16 moves it by 2^-9 of itself, and each of K sums by 2^-24 of what is summed (a
// factor of two for the second order and the slices' sums). Activations of three terms are exact.
class Bounded final : public OpsProxy {
 public:
  Bounded(ops::Ops& inner, ThreadPool& pool) : OpsProxy(inner), pool_(pool) {}
  int64_t cache_element_bytes() const override { return inner_.cache_element_bytes(); }
  void matmul(const Matrix& w, const float* x, int64_t x_stride, int64_t rows, int parts, float* y,
              int64_t y_stride) override {
    inner_.matmul(w, x, x_stride, rows, parts, y, y_stride);
    check(w, x, x_stride, rows, y, y_stride);
  }
  void matmul_group(std::span<const Product> products, const float* x, int64_t x_stride, int64_t rows) override {
    inner_.matmul_group(products, x, x_stride, rows);
    for (const Product& each : products) check(*each.weight, x, x_stride, rows, each.y, each.y_stride);
  }
  void experts(std::span<const ops::ExpertWeights> experts, const ops::ExpertWeights& shared, float limit,
               const float* x, int64_t rows, int64_t top, const int32_t* chosen, const float* weights, int parts,
               float* y) override {
    inner_.experts(experts, shared, limit, x, rows, top, chosen, weights, parts, y);
    if (experts.front().gate.input_scale > 0) return;
    for (int64_t r = 0; r < rows; ++r) {
      std::vector<Dots> sums(static_cast<size_t>(shared.down.rows));
      for (int64_t slot = 0; slot <= top; ++slot) {
        const ops::ExpertWeights& e = slot < top ? experts[static_cast<size_t>(chosen[r * top + slot])] : shared;
        add_expert(e, static_cast<double>(limit), x + r * e.gate.columns,
                   slot < top ? static_cast<double>(weights[r * top + slot]) : 1.0, sums);
      }
      for (size_t o = 0; o < sums.size(); o += kEvery)
        compare(y[static_cast<size_t>(r) * sums.size() + o], sums[o].value, sums[o].magnitude, worst_experts);
    }
  }

  double worst_products = 0, worst_experts = 0;  // shares of the bounds
  int64_t outputs = 0;

 private:
  static constexpr size_t kEvery = 37;

  void compare(double got, double want, double bound, double& worst) {
    worst = std::max(worst, std::abs(got - want) / bound);
    ++outputs;
  }
  static double relative_bound(const Matrix& w) {
    return 2 * static_cast<double>(w.columns) * kRoundoff + (w.float_input ? 0.0 : kBf16Roundoff);
  }
  void check(const Matrix& w, const float* x, int64_t x_stride, int64_t rows, const float* y, int64_t y_stride) {
    if (w.input_scale > 0) return;
    for (int64_t r = 0; r < rows; ++r)
      for (size_t o = 0; o < static_cast<size_t>(w.rows); o += kEvery) {
        const Dots d = dots(w, o, x + r * x_stride);
        compare(y[r * y_stride + static_cast<int64_t>(o)], d.value, relative_bound(w) * d.magnitude, worst_products);
      }
  }
  // Adds an expert's part of some outputs, with the bound of its error. The derivative of silu is at most 1.1.
  void add_expert(const ops::ExpertWeights& e, double limit, const float* x, double weight, std::vector<Dots>& sums) {
    const auto inner = static_cast<size_t>(e.gate.rows);
    std::vector<double> hidden(inner), moved(inner);
    pool_.for_each(e.gate.rows, 16, [&](int64_t begin, int64_t end) {
      for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
        const Dots gate = dots(e.gate, i, x), up = dots(e.up, i, x);
        const double a = silu(std::min(gate.value, limit)), b = std::clamp(up.value, -limit, limit);
        hidden[i] = a * b;
        moved[i] = 1.1 * relative_bound(e.gate) * gate.magnitude * std::abs(b) +
                   std::abs(a) * relative_bound(e.up) * up.magnitude +
                   1.1 * relative_bound(e.gate) * gate.magnitude * relative_bound(e.up) * up.magnitude;
      }
    });
    for (size_t o = 0; o < sums.size(); o += kEvery)
      for (size_t i = 0; i < inner; ++i) {
        const double w = weight * weight_value(e.down, o, i);
        sums[o].value += w * hidden[i];
        sums[o].magnitude += std::abs(w) * (moved[i] + relative_bound(e.down) * (std::abs(hidden[i]) + moved[i]));
      }
  }

  ThreadPool& pool_;
};

// States, convolution inputs and caches as a prompt may leave them, in numbers that bfloat16 holds.
void fill(const Config& c, const state::Storage& storage, int64_t cache_element_bytes) {
  uint64_t tensor = 0;
  const auto noise = [&](void* to, int64_t count, bool narrow) {
    const uint64_t key = synthetic_key(++tensor, "layer");
    for (int64_t i = 0; i < count; ++i) {
      const uint16_t half = float_to_bf16(0.25f * synthetic_number(key, i));
      if (narrow)
        static_cast<uint16_t*>(to)[i] = half;
      else
        static_cast<float*>(to)[i] = bf16_to_float(half);
    }
  };
  const ops::IndexShape index = index_shape(c);
  for (const ops::KdaState& layer : storage.state().linear) {
    noise(layer.state, c.linear_heads * c.linear_head_width * c.linear_head_width, false);
    noise(layer.conv, ops::kConvRing * 3 * c.linear_width(), false);
  }
  for (const ops::LatentCache& layer : storage.state().sparse) {
    noise(layer.latents, storage.pages() * ops::kPageTokens * c.latent, cache_element_bytes == 2);
    noise(layer.pools, storage.pages() * ops::kPageTokens / index.pool * index.width, cache_element_bytes == 2);
    noise(layer.tail_key, index.tail_ring() * index.width, false);
    noise(layer.tail_gate, index.tail_ring() * index.width, false);
  }
}

// The CPU, whose synthetic weights a device makes: they have the host's bits (DeviceUpload.SyntheticWeightsAreTheHosts)
// in a fraction of the time.
class MadeOnDevice final : public OpsProxy {
 public:
  MadeOnDevice(ops::Ops& cpu, ops::Ops& device) : OpsProxy(cpu), device_(device) {}
  std::optional<Matrix> synthesise(const ops::SyntheticMatrix& wanted, const ops::WeightUse&) override {
    std::optional<Matrix> made = device_.synthesise(wanted, {});
    if (!made) return made;
    const auto keep = [&](const void* there, int64_t bytes) {
      std::vector<std::byte>& own = kept_.emplace_back(static_cast<size_t>(bytes));
      device_.copy_out(own.data(), there, own.size());
      return own.data();
    };
    made->data = keep(made->data, made->rows * made->row_bytes);
    if (made->block_scale != nullptr)
      made->block_scale =
          reinterpret_cast<const uint8_t*>(keep(made->block_scale, made->rows * made->block_scale_stride));
    return made;
  }

 private:
  ops::Ops& device_;
  std::deque<std::vector<std::byte>> kept_;
};

TEST(ReleasedLayers, AsShippedNearTheCpu) {
  if (ops::cuda_devices().empty()) GTEST_SKIP() << "this machine has no CUDA device";
  using Clock = std::chrono::steady_clock;
  const auto seconds = [](Clock::time_point from) {
    return std::chrono::duration<double>(Clock::now() - from).count();
  };
  const auto start = Clock::now();
  ThreadPool pool(kThreads);
  const auto cpu = ops::make_cpu_ops(pool);
  // Three linear layers with dense feed-forwards, a sparse one and a linear one with experts.
  const SynthOptions options{.size = SynthSize::kReleased, .form = SynthForm::kNvfp4, .layers = 5, .experts = 288};
  auto maker = ops::make_cuda_ops({});
  MadeOnDevice made(*cpu, *maker);
  const Model model = synthetic_model(made, options, false, 1, pool);
  maker.reset();
  std::printf("made in %.1f s\n", seconds(start));
  const Config& c = model.config;
  std::vector<float> streams(static_cast<size_t>(kRows * c.streams * c.hidden));
  for (size_t i = 0; i < streams.size(); ++i)
    streams[i] = synthetic_number(synthetic_key(1, "streams"), static_cast<int64_t>(i));

  for (const auto& [layer, name, w4a4] : {std::tuple{0, "linear attention, dense", false},
                                          {3, "sparse attention, 288 experts", false},
                                          {4, "linear attention, 288 experts", false},
                                          {4, "linear attention, 288 experts, W4A4", true}}) {
    const auto began = Clock::now();
    Model one = layer_of(model, layer);
    if (w4a4)
      for (ops::ExpertWeights& e : one.weights.layers.front().moe.experts) {
        e.gate.input_scale = e.up.input_scale = 5.0f / (6 * 448);
        e.down.input_scale = 10.0f / (6 * 448);
      }
    const auto device = ops::make_cuda_ops({});
    ops::HostOps cuda(*device);
    Bounded bounded(cuda, pool);
    const auto run = [&](ops::Ops& ops, const Record* given) {
      return run_layer(ops, one, streams, given, kPosition,
                       [&](const state::Storage& storage, int64_t bytes) { fill(one.config, storage, bytes); });
    };
    const Layered want = run(*cpu, nullptr);
    const double cpu_s = seconds(began);
    const Layered got = run(bounded, &want.record);
    const double streams_error = relative_error(got.streams, want.streams);
    const double mixer = relative_error(got.record.outputs[0], want.record.outputs[0]);
    const double ffn = relative_error(got.record.outputs[1], want.record.outputs[1]);
    Choices experts, pools;
    if (one.config.ffn(0) == FfnKind::kSparse) experts = router_choices(got.record, want.record, one);
    if (one.config.mixer(0) == MixerKind::kSparse) pools = pool_choices(got.record, want.record, one);
    std::printf(
        "%-36s streams %.1e, attention %.1e, feed-forward %.1e; of their bounds: products %.2f, experts %.1e (%ld "
        "outputs); chosen otherwise: %ld of %ld experts (%.2f of the bound), %ld of %ld pools (%.2f); CPU %.1f s, all "
        "%.1f s\n",
        name, streams_error, mixer, ffn, bounded.worst_products, bounded.worst_experts,
        static_cast<long>(bounded.outputs), static_cast<long>(experts.different), static_cast<long>(experts.made),
        experts.worst, static_cast<long>(pools.different), static_cast<long>(pools.made), pools.worst, cpu_s,
        seconds(began));
    EXPECT_LT(streams_error, w4a4 ? 0.15 : 6e-3) << name;
    EXPECT_LT(mixer, 1e-2) << name;
    EXPECT_LT(ffn, w4a4 ? 0.15 : 1e-2) << name;
    EXPECT_LE(bounded.worst_products, 1) << name;
    EXPECT_LE(bounded.worst_experts, 1) << name;
    EXPECT_LE(experts.worst, 1) << name;
    EXPECT_LE(pools.worst, 1) << name;
  }
}

}  // namespace
}  // namespace verbatim::model
