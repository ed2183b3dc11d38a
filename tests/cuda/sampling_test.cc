// Tokens that the device chooses are those of the host's sampler, for logits of every kind.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <limits>

#include "base/synthetic.h"
#include "ops/cuda_backend.h"
#include "ops/devices.h"

namespace verbatim::ops {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

class Numbers {
 public:
  explicit Numbers(uint64_t seed) : key_(mix_bits(seed + 1)) {}
  uint64_t bits() { return mix_bits(key_ + ++count_ * 0x9e3779b97f4a7c15); }
  int64_t below(int64_t n) { return static_cast<int64_t>(bits() % static_cast<uint64_t>(n)); }
  bool chance(int64_t one_in) { return below(one_in) == 0; }
  template <typename T>
  T pick(std::initializer_list<T> values) {
    return values.begin()[below(static_cast<int64_t>(values.size()))];
  }
  float normal() { return synthetic_number(key_, static_cast<int64_t>(++count_)); }

 private:
  uint64_t key_, count_ = 0;
};

std::vector<float> some_logits(Numbers& random, int64_t width) {
  const float spread = random.pick({0.0f, 0.01f, 1.0f, 3.0f, 10.0f});
  const float step = random.pick({0.0f, 0.0f, 0.25f, 2.0f});  // ties
  std::vector<float> logits(static_cast<size_t>(width));
  for (float& logit : logits) {
    logit = spread * random.normal();
    if (step > 0) logit = step * std::nearbyint(logit / step);
  }
  const auto sprinkle = [&](float value, int64_t count) {
    for (int64_t i = 0; i < count; ++i) logits[static_cast<size_t>(random.below(width))] = value;
  };
  if (random.chance(4)) sprinkle(std::numeric_limits<float>::quiet_NaN(), 1 + width / 10);
  if (random.chance(4)) sprinkle(-kInfinity, width / 2);
  if (random.chance(8)) sprinkle(12.0f, 3);
  if (random.chance(20)) sprinkle(kInfinity, 2);
  if (random.chance(30)) logits.assign(logits.size(), -kInfinity);
  if (random.chance(30)) logits.assign(logits.size(), std::numeric_limits<float>::quiet_NaN());
  if (random.chance(10)) sprinkle(-0.0f, width / 3);
  return logits;
}

SampleRow some_row(Numbers& random, int64_t width) {
  SampleRow how;
  how.temperature = random.pick({0.0f, 1e-30f, 0.05f, 0.6f, 1.0f, 1.0f, 1.7f, 20.0f, 100.0f});
  how.top_p = random.pick({1.0f, 1.0f, 0.95f, 0.95f, 0.5f, 0.999999f, 1e-7f});
  how.min_p = random.pick({0.0f, 0.0f, 0.0f, 0.05f, 1.0f});
  how.top_k = static_cast<int32_t>(random.pick<int64_t>({0, 0, 1, 20, 1000, width, 2 * width}));
  how.random = random.chance(10) ? random.pick<uint64_t>({0, ~uint64_t{0}}) : random.bits();
  how.otherwise = 3;
  return how;
}

class DeviceSampling : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda_devices().empty()) GTEST_SKIP() << "this machine has no CUDA device";
    device_ = make_cuda_ops({});
  }
  std::vector<int32_t> on_device(std::span<const float> logits, int64_t rows, int64_t stride, int64_t limit,
                                 std::span<const SampleRow> how, std::span<const LogitAdjustment> adjustments) {
    const Buffer there(*device_, logits.size_bytes()), ids(*device_, static_cast<size_t>(rows) * sizeof(int32_t));
    device_->copy_in(there.floats(), logits.data(), logits.size_bytes());
    device_->sample(there.floats(), rows, stride, limit, how, adjustments, ids.ints());
    std::vector<int32_t> back(static_cast<size_t>(rows));
    device_->copy_out(back.data(), ids.ints(), ids.bytes());
    return back;
  }
  std::unique_ptr<Ops> device_;
};

TEST_F(DeviceSampling, ChoosesTheTokensOfTheHost) {
  int64_t rows_done = 0, cut = 0, adjusted = 0;
  SampleSpace space;
  for (uint64_t seed = 0; seed < 700; ++seed) {
    Numbers random(seed);
    // One in a hundred at the released width, of which the last ids are never chosen.
    const int64_t limit = seed % 100 == 0 ? 154856 : 1 + random.below(seed % 10 == 0 ? 20000 : 3000);
    const int64_t stride = limit + random.below(30), rows = 1 + random.below(12);
    std::vector<float> logits;
    std::vector<SampleRow> how;
    std::vector<LogitAdjustment> adjustments;
    for (int64_t r = 0; r < rows; ++r) {
      const std::vector<float> own = some_logits(random, stride);
      logits.insert(logits.end(), own.begin(), own.end());
      how.push_back(some_row(random, limit));
      if (!random.chance(3)) continue;
      for (int64_t id = random.below(40); id < limit; id += 1 + random.below(limit)) {
        LogitAdjustment each{static_cast<int32_t>(r), static_cast<int32_t>(id)};
        if (random.chance(2)) each.repetition = 1.3f;
        if (random.chance(2)) each.subtract = 0.7f * 3.0f + 0.1f;
        if (random.chance(2)) each.add = random.pick({4.0f, -kInfinity});
        adjustments.push_back(each);
      }
    }
    const std::vector<int32_t> got = on_device(logits, rows, stride, limit, how, adjustments);
    for (const LogitAdjustment& each : adjustments) {
      float& logit = logits[static_cast<size_t>(each.row * stride + each.id)];
      logit = adjusted_logit(logit, each);
    }
    for (int64_t r = 0; r < rows; ++r) {
      const SampleRow& own = how[static_cast<size_t>(r)];
      const auto row = std::span(logits).subspan(static_cast<size_t>(r * stride), static_cast<size_t>(limit));
      ASSERT_EQ(got[static_cast<size_t>(r)], sample_row(row, own, space))
          << "seed " << seed << ", row " << r << " of " << limit << ": T " << own.temperature << ", top_p " << own.top_p
          << ", top_k " << own.top_k << ", min_p " << own.min_p;
      ++rows_done;
      cut += own.temperature > 0 && (own.top_p < 1.0f || own.top_k > 0) ? 1 : 0;
    }
    adjusted += std::ssize(adjustments);
  }
  std::printf("%ld rows, %ld of them cut, %ld logits adjusted\n", static_cast<long>(rows_done), static_cast<long>(cut),
              static_cast<long>(adjusted));
  EXPECT_GT(rows_done, 4000);
}

// More ids than the kernels take are chosen among on the host.
TEST_F(DeviceSampling, TakesAnyVocabulary) {
  Numbers random(5);
  constexpr int64_t kIds = 600000;
  std::vector<float> logits(kIds);
  for (float& logit : logits) logit = 3.0f * random.normal();
  SampleRow how = some_row(random, kIds);
  how.temperature = 1.0f;
  SampleSpace space;
  EXPECT_EQ(on_device(logits, 1, kIds, kIds, {&how, 1}, {}).front(), sample_row(logits, how, space));
}

TEST_F(DeviceSampling, Times) {
  constexpr int64_t kIds = 154880, kRows = 64;
  Numbers random(9);
  std::vector<float> logits(kIds * kRows);
  for (float& logit : logits) logit = 2.5f * random.normal();
  const Buffer there(*device_, logits.size() * sizeof(float)), ids(*device_, kRows * sizeof(int32_t));
  device_->copy_in(there.floats(), logits.data(), logits.size() * sizeof(float));
  SampleRow how;
  how.random = random.bits();
  for (const auto& [temperature, top_p, top_k] :
       {std::tuple{0.0f, 1.0f, 0}, {1.0f, 1.0f, 0}, {1.0f, 0.95f, 0}, {1.0f, 0.95f, 50}, {100.0f, 0.95f, 0}}) {
    how.temperature = temperature;
    how.top_p = top_p;
    how.top_k = top_k;
    std::string text;
    for (const int64_t rows : {1, 16, 64}) {
      const std::vector<SampleRow> all(static_cast<size_t>(rows), how);
      const auto run = [&] { device_->sample(there.floats(), rows, kIds, kIds, all, {}, ids.ints()); };
      run();
      device_->synchronise();
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < 20; ++i) run();
      device_->synchronise();
      const double us =
          std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count() / 20;
      text += " " + std::to_string(rows) + ": " + std::to_string(static_cast<int>(us + 0.5)) + " us";
    }
    std::printf("temperature %g, top_p %g, top_k %d, rows%s\n", temperature, top_p, top_k, text.c_str());
  }
}

}  // namespace
}  // namespace verbatim::ops
