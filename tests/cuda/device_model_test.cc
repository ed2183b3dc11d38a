// Models whose weights, caches and rows are all in device memory, as `generate --backend cuda` runs them.
#include <gtest/gtest.h>

#include <tuple>

#include "base/formats.h"
#include "base/synthetic.h"
#include "ops/cuda/device_memory.h"
#include "ops/cuda/kernels.h"
#include "ops/cuda_backend.h"
#include "ops/devices.h"
#include "quantize/nvfp4.h"
#include "tests/model/tiny_models.h"

namespace verbatim::model {
namespace {

using ops::Activations;

class DeviceModel : public testing::Test {
 protected:
  void SetUp() override {
    if (ops::cuda_devices().empty()) GTEST_SKIP() << "this machine has no CUDA device";
  }
  static std::unique_ptr<ops::Ops> cuda(Activations activations) {
    return ops::make_cuda_ops({.activations = activations, .records_steps = true});
  }
};

struct Uploaded {
  Loaded loaded;
  Uploaded(ops::Ops& ops, const char* directory, Precision precision = Precision::kFull)
      : loaded(tiny(directory), precision) {
    upload_weights(ops, loaded.model);
  }
  const Model& model() const { return loaded.model; }
};

using DeviceUpload = DeviceModel;

TEST_F(DeviceUpload, KeepsEveryStoredBit) {
  const auto device = cuda(Activations::kBf16);
  int64_t matrices = 0;
  const auto expect_same = [&](const Matrix& stored) {
    const Matrix copy = device->upload(stored);
    const auto same = [&](const void* host, const void* there, int64_t bytes) {
      std::vector<std::byte> back(static_cast<size_t>(bytes));
      device->copy_out(back.data(), there, back.size());
      EXPECT_EQ(std::memcmp(back.data(), host, back.size()), 0);
    };
    const int64_t bytes = stored.row_bytes;
    for (int64_t row = 0; row < stored.rows; row += 1 + stored.rows / 40) {
      same(stored.data + row * stored.row_bytes, copy.data + row * copy.row_bytes, bytes);
      if (stored.block_scale != nullptr)
        same(stored.block_scale + row * stored.block_scale_stride, copy.block_scale + row * copy.block_scale_stride,
             stored.columns / 16);
      if (stored.grid_scale != nullptr)
        same(stored.grid_scale + row / 128 * stored.grid_stride, copy.grid_scale + row / 128 * copy.grid_stride,
             4 * stored.grid_stride);
    }
    ++matrices;
  };
  for (const char* directory : {"tiny-bf16", "tiny-nvfp4", "tiny-fp8"}) {
    const Loaded loaded{tiny(directory)};
    const Weights& w = loaded.model.weights;
    expect_same(w.embedding);
    for (const Layer& layer : w.layers) {
      expect_same(layer.attention_site.hyper.fn);
      if (layer.mixer == MixerKind::kLinear) expect_same(layer.linear.q);
      if (layer.mixer == MixerKind::kSparse) expect_same(layer.sparse.kv_b);
      if (layer.ffn == FfnKind::kDense) expect_same(layer.mlp.down);
      for (const ops::ExpertWeights& expert : layer.moe.experts) {
        expect_same(expert.gate);
        expect_same(expert.down);
      }
    }
  }
  std::printf("%ld matrices read back\n", static_cast<long>(matrices));
}

TEST_F(DeviceModel, GoldensWithThreeTerms) {
  const auto device = cuda(Activations::kSplit3);
  const Golden golden;
  const auto check = [&](const char* directory, Precision precision, const std::string& ids,
                         const std::string& logits) {
    const Uploaded up(*device, directory, precision);
    const std::vector<float> expected = golden.floats(logits);
    const double error = relative_error(last_rows(prompt_logits(*device, up.model(), golden.ids(ids)),
                                                  static_cast<int64_t>(expected.size()) / 512, 512),
                                        expected);
    std::printf("%s %-24s %.2e\n", directory, logits.c_str(), error);
    EXPECT_LT(error, 1e-4) << directory << " " << logits;
  };
  check("tiny-bf16", Precision::kFull, "text.300.ids", "text.300.logits");
  check("tiny-nvfp4", Precision::kFull, "nvfp4.ids", "nvfp4.w4a16_logits");
  check("tiny-nvfp4", Precision::kCheckpoint, "nvfp4.w4a4.ids", "nvfp4.w4a4_logits");
  check("tiny-w4a4-experts", Precision::kFull, "mixed.w4a16.ids", "mixed.w4a16_logits");
  check("tiny-w4a4-experts", Precision::kCheckpoint, "mixed.w4a4.ids", "mixed.w4a4_logits");

  const Uploaded up(*device, "tiny-bf16");
  const std::vector<int32_t> expected = golden.ids("greedy.ids");
  state::Solo solo(*device, up.model(), 60, 60);
  solo.feed(std::span(expected).first(20));
  std::vector<int32_t> ids(expected.begin(), expected.begin() + 20);
  while (ids.size() < 60) {
    ids.push_back(solo.greedy(up.model().config.vocabulary));
    solo.feed(std::span(ids).last(1));
  }
  EXPECT_EQ(ids, expected);
}

// What products read stands in another order, which holds every bit.
TEST_F(DeviceUpload, PackedWeightsUnpackToEveryStoredBit) {
  const auto device = cuda(Activations::kBf16);
  int64_t matrices = 0;
  const auto expect_same = [&](const Matrix& stored) {
    const Matrix copy = device->upload(stored, {.only_products = true});
    ASSERT_TRUE(copy.is_packed) << stored.rows << " x " << stored.columns;
    ops::cuda::Weights packed;
    packed.form = copy.form;
    packed.rows = copy.rows;
    packed.columns = copy.columns;
    packed.data = reinterpret_cast<const uint8_t*>(copy.data);
    packed.block_scale = copy.block_scale;
    const int64_t scale_bytes = copy.form == ops::WeightForm::kNvfp4 ? copy.columns / 16 : 0;
    const ops::cuda::DeviceMemory codes(copy.rows * stored.row_bytes), scales(copy.rows * scale_bytes);
    device->synchronise();
    ops::cuda::check(ops::cuda::unpack(nullptr, packed, codes.data(), stored.row_bytes, scales.data(), scale_bytes),
                     "unpack");
    const auto same = [&](const void* host, const std::byte* there, int64_t bytes) {
      std::vector<std::byte> back(static_cast<size_t>(bytes));
      ops::cuda::check(cudaMemcpy(back.data(), there, back.size(), cudaMemcpyDeviceToHost), "cudaMemcpy");
      EXPECT_EQ(std::memcmp(back.data(), host, back.size()), 0);
    };
    same(stored.data, codes.data(), stored.rows * stored.row_bytes);
    if (scale_bytes > 0) same(stored.block_scale, scales.data(), stored.rows * scale_bytes);
    ++matrices;
  };
  for (const char* directory : {"tiny-bf16", "tiny-nvfp4"}) {
    const Loaded loaded{tiny(directory)};
    const Weights& w = loaded.model.weights;
    expect_same(w.head);
    for (const Layer& layer : w.layers) {
      if (layer.mixer == MixerKind::kLinear) expect_same(layer.linear.o);
      if (layer.ffn == FfnKind::kDense) expect_same(layer.mlp.down);
      for (const ops::ExpertWeights& expert : layer.moe.experts) {
        expect_same(expert.gate);
        expect_same(expert.down);
      }
    }
  }
  EXPECT_GT(matrices, 10);
}

// The device makes the synthetic weights that the host makes.
TEST_F(DeviceUpload, SyntheticWeightsAreTheHosts) {
  const auto device = cuda(Activations::kBf16);
  ThreadPool pool(2);
  constexpr int64_t kRows = 48, kColumns = 128;
  ops::SyntheticMatrix wanted{ops::WeightForm::kBf16, kRows, kColumns, synthetic_key(3, "a"), 0.1f, 0.7f};
  std::vector<float> values(static_cast<size_t>(kRows * kColumns));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = wanted.mean + wanted.spread * synthetic_number(wanted.key, static_cast<int64_t>(i));
  const auto bytes_at = [&](const void* there, int64_t bytes) {
    std::vector<uint8_t> back(static_cast<size_t>(bytes));
    device->copy_out(back.data(), there, back.size());
    return back;
  };
  const std::optional<Matrix> halves = device->synthesise(wanted, {});
  ASSERT_TRUE(halves);
  std::vector<uint8_t> expected(values.size() * 2);
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t half = float_to_bf16(values[i]);
    std::memcpy(&expected[2 * i], &half, 2);
  }
  EXPECT_EQ(bytes_at(halves->data, kRows * kColumns * 2), expected);
  wanted.form = ops::WeightForm::kNvfp4;
  const std::optional<Matrix> codes = device->synthesise(wanted, {});
  ASSERT_TRUE(codes);
  const quantize::Nvfp4Matrix host = quantize::quantise_nvfp4(values, kRows, kColumns, pool);
  EXPECT_EQ(codes->matrix_scale, host.matrix_scale);
  EXPECT_EQ(bytes_at(codes->data, kRows * kColumns / 2), host.codes);
  EXPECT_EQ(bytes_at(codes->block_scale, kRows * kColumns / 16), host.block_scales);
}

// A step replayed from its recording gives the bits of the step launched eagerly, at whatever position.
TEST_F(DeviceModel, ReplayedStepsEqualEagerOnes) {
  const auto device = cuda(Activations::kBf16);
  const Uploaded up(*device, "tiny-nvfp4");
  const Config& c = up.model().config;
  const std::vector<int32_t> ids = random_ids(90, 11);
  const auto run = [&](bool recorded) {
    state::Storage storage(*device, c, 1, 2);
    state::Sequence sequence(0, {1, 0});
    Workspace workspace(*device, c, 1);
    std::vector<float> all, hidden(static_cast<size_t>(c.hidden));
    for (size_t i = 0; i < ids.size(); ++i) {
      const ops::Span span = sequence.next(0, 1, 1);
      const auto one = std::span(ids).subspan(i, 1);
      const auto body = [&] { forward(*device, up.model(), storage.state(), {&span, 1}, one, workspace); };
      if (recorded)
        device->step(7, {&span, 1}, one, body);
      else
        body();
      if (recorded && i > 2) {
        EXPECT_GT(device->launches(), 0) << i;
      }
      device->copy_out(hidden.data(), workspace.hidden, hidden.size() * sizeof(float));
      all.insert(all.end(), hidden.begin(), hidden.end());
      sequence.accept(span, 1);
    }
    return all;
  };
  EXPECT_EQ(first_difference(run(true), run(false)), "");
}

// As shipped: the cut of a prompt changes no bit.
TEST_F(DeviceModel, ChunksOfAPrompt) {
  const auto device = cuda(Activations::kBf16);
  for (const auto& [directory, precision] :
       {std::pair{"tiny-bf16", Precision::kFull}, std::pair{"tiny-nvfp4", Precision::kFull},
        std::pair{"tiny-nvfp4", Precision::kCheckpoint}, std::pair{"tiny-fp8", Precision::kFull}}) {
    const Uploaded up(*device, directory, precision);
    const std::vector<int32_t> ids = random_ids(200, 1);
    const std::vector<float> whole = prompt_logits(*device, up.model(), ids);
    for (const float logit : whole) ASSERT_TRUE(std::isfinite(logit));
    EXPECT_EQ(first_difference(prompt_logits(*device, up.model(), ids), whole), "") << directory << ", twice";
    for (const int64_t chunk : {1, 7, 16, 33, 64, 65})
      EXPECT_EQ(first_difference(prompt_logits(*device, up.model(), ids, chunk), whole), "")
          << directory << " in chunks of " << chunk;
  }
}

// The kernels of many rows, of few and of one, in both numbers of terms and both precisions, in so few steps that
// compute-sanitizer comes to their end (scripts/device-check.sh).
TEST_F(DeviceModel, CutsOfAShortPrompt) {
  for (const auto& [directory, precision, activations] :
       {std::tuple{"tiny-nvfp4", Precision::kFull, Activations::kBf16},
        std::tuple{"tiny-nvfp4", Precision::kCheckpoint, Activations::kBf16},
        std::tuple{"tiny-bf16", Precision::kFull, Activations::kSplit3}}) {
    const auto device = cuda(activations);
    const Uploaded up(*device, directory, precision);
    const std::vector<int32_t> ids = random_ids(70, 2);
    const std::vector<float> whole = prompt_logits(*device, up.model(), ids);
    for (const float logit : whole) ASSERT_TRUE(std::isfinite(logit));
    for (const int64_t first : {69, 67, 58})
      EXPECT_EQ(first_difference(prompt_logits(*device, up.model(), ids, first), whole), "")
          << directory << ", " << first << " and then " << 70 - first;
  }
}

TEST_F(DeviceModel, FiveThousandTokens) {
  const auto device = cuda(Activations::kBf16);
  const Uploaded up(*device, "tiny-nvfp4");
  const std::vector<int32_t> ids = random_ids(5000, 3);
  const std::vector<float> whole = prompt_logits(*device, up.model(), ids);
  for (const int64_t chunk : {511, 2048})
    EXPECT_EQ(first_difference(prompt_logits(*device, up.model(), ids, chunk), whole), "") << chunk;
  // The last tokens one by one.
  state::Solo solo(*device, up.model(), 5000, 4700);
  solo.feed(std::span(ids).first(4700));
  std::vector<float> logits;
  for (size_t i = 4700; i < 5000; ++i) solo.feed(std::span(ids).subspan(i, 1), &logits);
  EXPECT_EQ(first_difference(logits, std::span(whole).last(logits.size())), "");
}

}  // namespace
}  // namespace verbatim::model
