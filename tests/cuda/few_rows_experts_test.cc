// Experts as shipped (one bfloat16 term): whatever few rows ride along, each has the bits that it has among many, which
// other kernels take.
#include <cuda_runtime_api.h>

#include "ops/cuda_backend.h"
#include "tests/cuda/host_ops.h"
#include "tests/ops/product_harness.h"

namespace verbatim::ops {
namespace {

constexpr int64_t kManyRows = 150;

struct Shape {
  WeightForm form;
  int64_t experts, width, inner, shared_inner, top;
  int parts;
  float input_scale;
  bool skewed;  // most rows choose the first experts
};

constexpr Shape kShapes[] = {{WeightForm::kNvfp4, 12, 256, 128, 192, 4, 1, 0.0f, false},
                             {WeightForm::kNvfp4, 40, 704, 320, 80, 8, 1, 0.0f, false},
                             {WeightForm::kNvfp4, 20, 512, 512, 0, 3, 8, 0.0f, false},
                             {WeightForm::kNvfp4, 6, 4096, 576, 2048, 2, 1, 0.0f, false},
                             {WeightForm::kNvfp4, 30, 320, 256, 64, 3, 2, 0.0f, true},
                             {WeightForm::kNvfp4, 1, 512, 1024, 64, 1, 1, 0.0f, false},
                             {WeightForm::kNvfp4, 24, 512, 512, 512, 8, 1, 0.0f, false},
                             {WeightForm::kNvfp4, 9, 2048, 64, 4096, 1, 1, 0.0f, true},
                             {WeightForm::kNvfp4, 12, 256, 384, 192, 4, 1, 0.003f, false},
                             {WeightForm::kNvfp4, 30, 320, 256, 64, 3, 2, 0.003f, true},
                             {WeightForm::kBf16, 9, 80, 48, 112, 2, 1, 0.0f, true},
                             {WeightForm::kBf16, 16, 1040, 336, 336, 8, 1, 0.0f, false},
                             {WeightForm::kBf16, 16, 96, 384, 64, 1, 4, 0.0f, false}};

class FewRowsExperts : public testing::TestWithParam<Shape> {
 protected:
  void SetUp() override {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) GTEST_SKIP() << "this machine has no CUDA device";
  }
};

TEST_P(FewRowsExperts, HaveTheBitsOfMany) {
  const Shape& s = GetParam();
  const std::unique_ptr<Ops> device = make_cuda_ops({.device = 0, .activations = Activations::kBf16});
  HostOps ops(*device);
  std::vector<StoredMatrix> stored;
  stored.reserve(static_cast<size_t>(3 * (s.experts + 1)));
  const auto make = [&](WeightForm form, int64_t inner, uint64_t seed, int expert) {
    const auto one = [&](int64_t rows, int64_t columns, uint64_t own, float scale) {
      Matrix& m = stored.emplace_back(form, rows, columns, seed + own).matrix;
      if (form == WeightForm::kNvfp4) {
        m.matrix_scale = 0.0041f * (1.0f + 0.1f * static_cast<float>(own + seed % 7));
        m.input_scale = scale;
      }
      return m;
    };
    const float scale = s.input_scale;
    ExpertWeights e;
    e.gate = one(inner, s.width, 0, scale);
    e.up = one(inner, s.width, 3, expert % 2 == 0 ? scale : 1.5f * scale);
    e.down = one(s.width, inner, 6, 2 * scale);
    return e;
  };
  std::vector<ExpertWeights> experts;
  for (int64_t e = 0; e < s.experts; ++e)
    experts.push_back(make(s.form, s.inner, static_cast<uint64_t>(1000 + 10 * e), static_cast<int>(e)));
  const ExpertWeights shared = s.shared_inner > 0 ? make(WeightForm::kBf16, s.shared_inner, 9, 0) : ExpertWeights{};

  const Floats x = random_floats(kManyRows * s.width, 5, 0.3f);
  Floats weights = random_floats(kManyRows * s.top, 7);
  for (float& weight : weights) weight = std::fabs(weight) + 0.1f;
  std::mt19937_64 bits(6);
  std::vector<int32_t> chosen;
  for (int64_t r = 0; r < kManyRows; ++r) {
    std::vector<int32_t> own;
    while (static_cast<int64_t>(own.size()) < s.top) {
      const int64_t most = s.skewed && r % 16 != 0 ? s.top + 1 : s.experts;
      const auto id = static_cast<int32_t>(bits() % static_cast<uint64_t>(most));
      if (std::find(own.begin(), own.end(), id) == own.end()) own.push_back(id);
    }
    chosen.insert(chosen.end(), own.begin(), own.end());
  }
  const auto run = [&](int64_t first, int64_t rows) {
    Floats y(static_cast<size_t>(rows * s.width), -9.0f);
    ops.experts(experts, shared, 0.7f, x.data() + first * s.width, rows, s.top, chosen.data() + first * s.top,
                weights.data() + first * s.top, s.parts, y.data());
    return y;
  };
  const Floats many = run(0, kManyRows);
  for (const float value : many) ASSERT_TRUE(std::isfinite(value));
  for (const int64_t rows : {1, 2, 3, 4, 5, 8, 9, 16, 17, 40, 64, 100, 128}) {
    for (int64_t first = 0; first + rows <= kManyRows; first += rows + 60) {
      const Floats few = run(first, rows);
      EXPECT_EQ(first_difference(few, {many.begin() + first * s.width, many.begin() + (first + rows) * s.width}), "")
          << rows << " rows from " << first;
    }
  }
  // What launches leave behind for the next ones changes nothing.
  for (int again = 0; again < 20; ++again) {
    const int64_t rows = again % 2 == 0 ? 1 : 12, first = 7 * again;
    ASSERT_EQ(
        first_difference(run(first, rows), {many.begin() + first * s.width, many.begin() + (first + rows) * s.width}),
        "")
        << "run " << again;
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, FewRowsExperts, testing::ValuesIn(kShapes));

}  // namespace
}  // namespace verbatim::ops
