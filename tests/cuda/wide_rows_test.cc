// Operators on rows past 2^16 whose elements pass 2^31: the last rows come out as they do alone.
#include <gtest/gtest.h>

#include <functional>

#include "base/synthetic.h"
#include "ops/cuda_backend.h"
#include "ops/devices.h"

namespace verbatim::ops {
namespace {

constexpr int64_t kRows = 140000, kWidth = 16384;
static_assert(kRows > 1 << 17 && kRows * kWidth > int64_t{1} << 31);
// Rows that hold numbers; all others are zeros.
constexpr int64_t kMarked[] = {0, 65535, 65536, 131071, 131072, kRows - 1};
constexpr int64_t kFew = std::ssize(kMarked);

class WideRows : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda_devices().empty()) GTEST_SKIP() << "this machine has no CUDA device";
    device_ = make_cuda_ops({});
    constexpr int64_t kNeeded = 3 * kRows * kWidth * int64_t{sizeof(float)};
    if (cuda_free_bytes(*device_) < kNeeded) GTEST_SKIP() << "needs " << (kNeeded >> 30) << " GiB of device memory";
  }

  static std::vector<float> numbers(int64_t count, uint64_t key) {
    std::vector<float> values(static_cast<size_t>(count));
    for (size_t i = 0; i < values.size(); ++i) values[i] = synthetic_number(key, static_cast<int64_t>(i));
    return values;
  }
  Buffer floats(int64_t count) { return Buffer(*device_, static_cast<size_t>(count) * sizeof(float)); }
  // The marked rows together, and in their places among all rows.
  struct Rows {
    Buffer few, all;
  };
  Rows rows(int64_t width, uint64_t key) {
    const std::vector<float> values = numbers(kFew * width, key);
    Rows made{floats(kFew * width), floats(kRows * width)};
    device_->copy_in(made.few.floats(), values.data(), values.size() * sizeof(float));
    for (int64_t i = 0; i < kFew; ++i)
      device_->copy_in(made.all.floats() + kMarked[i] * width, values.data() + i * width,
                       static_cast<size_t>(width) * sizeof(float));
    return made;
  }
  // `run` on the few rows and on all gives the same for the marked ones.
  void expect_same(const char* name, int64_t width, const std::function<void(bool all, int64_t rows, float* to)>& run) {
    const Buffer few = floats(kFew * width), all = floats(kRows * width);
    run(false, kFew, few.floats());
    run(true, kRows, all.floats());
    std::vector<float> want(static_cast<size_t>(width)), got(want.size());
    double magnitude = 0;
    for (int64_t i = 0; i < kFew; ++i) {
      device_->copy_out(want.data(), few.floats() + i * width, want.size() * sizeof(float));
      device_->copy_out(got.data(), all.floats() + kMarked[i] * width, got.size() * sizeof(float));
      EXPECT_EQ(got, want) << name << ", row " << kMarked[i];
      for (const float each : want) magnitude += std::abs(each);
    }
    EXPECT_GT(magnitude, 0) << name;
  }
  static const float* of(const Rows& rows, bool all) { return (all ? rows.all : rows.few).floats(); }
  const float* vector(int64_t count, uint64_t key) {
    const std::vector<float> values = numbers(count, key);
    return device_->upload(values.data(), count);
  }
  Matrix matrix(int64_t rows, int64_t columns, WeightForm form = WeightForm::kBf16) {
    return *device_->synthesise({form, rows, columns, synthetic_key(1, "wide"), 0.0f, 1.0f},
                                {.only_products = true, .parts = 1});
  }

  std::unique_ptr<Ops> device_;
};

TEST_F(WideRows, Norms) {
  const Rows x = rows(kWidth, 1);
  const float* weight = vector(kWidth, 2);
  const float* bias = vector(kWidth, 3);
  expect_same("rms_norm", kWidth, [&](bool all, int64_t count, float* to) {
    device_->rms_norm(of(x, all), kWidth, weight, 1e-5f, count, kWidth, to, kWidth);
  });
  expect_same("layer_norm", kWidth, [&](bool all, int64_t count, float* to) {
    device_->layer_norm(of(x, all), weight, bias, 1e-5f, count, kWidth, to);
  });
}

TEST_F(WideRows, Elementwise) {
  const Rows x = rows(kWidth, 1);
  expect_same("add", kWidth, [&](bool all, int64_t count, float* to) { device_->add(of(x, all), count * kWidth, to); });
  expect_same("swiglu", kWidth, [&](bool all, int64_t count, float* to) {
    device_->swiglu(of(x, all), of(x, all), 10.0f, count * kWidth, to);
  });
}

TEST_F(WideRows, EmbeddingAndGathering) {
  constexpr int64_t kTokens = 64, kStreams = 4;
  const Matrix table =
      *device_->synthesise({WeightForm::kBf16, kTokens, kWidth / kStreams, synthetic_key(1, "table"), 0.0f, 1.0f}, {});
  std::vector<int32_t> ids(kRows, 0), few;
  for (int64_t i = 0; i < kFew; ++i) {
    ids[static_cast<size_t>(kMarked[i])] = static_cast<int32_t>(7 + 3 * i);
    few.push_back(ids[static_cast<size_t>(kMarked[i])]);
  }
  expect_same("embed", kWidth, [&](bool all, int64_t count, float* to) {
    device_->embed(table, std::span<const int32_t>(all ? ids : few).first(static_cast<size_t>(count)), kStreams, to);
  });
  const Rows x = rows(kWidth, 4);
  std::vector<int32_t> same(kRows);
  for (size_t i = 0; i < same.size(); ++i) same[i] = static_cast<int32_t>(i);
  expect_same("gather", kWidth,
              [&](bool all, int64_t count, float* to) { device_->gather(of(x, all), same.data(), count, kWidth, to); });
}

TEST_F(WideRows, HyperConnections) {
  const HyperShape shape{4, kWidth / 4};
  const Rows x = rows(kWidth, 1), y = rows(kWidth / 4, 2);
  const int64_t maps_width = (2 + shape.streams) * shape.streams;
  const HyperWeights weights{
      *device_->synthesise({WeightForm::kBf16, maps_width, kWidth, synthetic_key(1, "fn"), 0.0f, 0.01f}, {}),
      vector(maps_width, 3), vector(3, 4)};
  const float* norm = vector(kWidth / 4, 5);
  const Buffer maps = floats(kRows * maps_width), few_maps = floats(kFew * maps_width);
  expect_same("hyper_enter", kWidth / 4, [&](bool all, int64_t count, float* to) {
    device_->hyper_enter(shape, weights, norm, of(x, all), count, (all ? maps : few_maps).floats(), to);
  });
  expect_same("hyper_leave", kWidth, [&](bool all, int64_t count, float* to) {
    device_->add(of(x, all), count * kWidth, to);
    device_->hyper_leave(shape, (all ? maps : few_maps).floats(), of(y, all), count, to);
    device_->synchronise();
  });
  expect_same("hyper_mean", kWidth / 4,
              [&](bool all, int64_t count, float* to) { device_->hyper_mean(shape, of(x, all), count, to); });
}

TEST_F(WideRows, Products) {
  {
    const Rows x = rows(kWidth, 1);
    for (const WeightForm form : {WeightForm::kBf16, WeightForm::kNvfp4}) {
      const Matrix w = matrix(64, kWidth, form);
      expect_same("matmul of wide rows", 64, [&](bool all, int64_t count, float* to) {
        device_->matmul(w, of(x, all), kWidth, count, 1, to, 64);
      });
    }
  }
  const Rows x = rows(256, 2);
  const Matrix w = matrix(kWidth, 256);
  expect_same("matmul to wide rows", kWidth,
              [&](bool all, int64_t count, float* to) { device_->matmul(w, of(x, all), 256, count, 1, to, kWidth); });
}

TEST_F(WideRows, ExpertsAndRouter) {
  constexpr int64_t kExperts = 8, kTop = 4, kHidden = 512, kInner = 256;
  const Rows x = rows(kHidden, 1), logits = rows(kExperts, 2);
  std::vector<ExpertWeights> experts;
  for (int64_t e = 0; e <= kExperts; ++e)
    experts.push_back({matrix(kInner, kHidden), matrix(kInner, kHidden), matrix(kHidden, kInner)});
  const ExpertWeights shared = experts.back();
  experts.pop_back();
  const float* bias = vector(kExperts, 3);
  const Buffer chosen = floats(kRows * kTop), few_chosen = floats(kFew * kTop);
  expect_same("route", kTop, [&](bool all, int64_t count, float* to) {
    device_->route(of(logits, all), bias, count, kExperts, kTop, 2.5f, (all ? chosen : few_chosen).ints(), to);
  });
  const Buffer weights = floats(kRows * kTop), few_weights = floats(kFew * kTop);
  expect_same("experts", kHidden, [&](bool all, int64_t count, float* to) {
    device_->route(of(logits, all), bias, count, kExperts, kTop, 2.5f, (all ? chosen : few_chosen).ints(),
                   (all ? weights : few_weights).floats());
    device_->experts(experts, shared, 10.0f, of(x, all), count, kTop, (all ? chosen : few_chosen).ints(),
                     (all ? weights : few_weights).floats(), 1, to);
  });
}

TEST_F(WideRows, Choices) {
  const Rows x = rows(kWidth, 1);
  expect_same("argmax", 1, [&](bool all, int64_t count, float* to) {
    device_->argmax(of(x, all), count, kWidth, kWidth, reinterpret_cast<int32_t*>(to));
  });
  SampleRow how;
  how.temperature = 1.0f;
  how.top_p = 0.9f;
  how.random = mix_bits(5);
  const std::vector<SampleRow> each(kRows, how);
  expect_same("sample", 1, [&](bool all, int64_t count, float* to) {
    device_->sample(const_cast<float*>(of(x, all)), count, kWidth, kWidth,
                    std::span(each).first(static_cast<size_t>(count)), {}, reinterpret_cast<int32_t*>(to));
  });
}

}  // namespace
}  // namespace verbatim::ops
