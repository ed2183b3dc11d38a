#include "quantize/nvfp4.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/stored_matrix.h"
#include "tests/model/tiny_models.h"

namespace verbatim::quantize {
namespace {

// tiny-nvfp4 was made from tiny-bf16 by ModelOpt's recipe: every routed expert and dense matrix, bit for bit.
TEST(Nvfp4, ReproducesTheTinyCheckpoint) {
  using checkpoint::Checkpoint;
  const Checkpoint bf16 = Checkpoint::open(model::tiny("tiny-bf16")),
                   nvfp4 = Checkpoint::open(model::tiny("tiny-nvfp4"));
  ThreadPool pool(2);
  int matrices = 0;
  for (const checkpoint::TensorView& scales : nvfp4.tensors()) {
    if (!scales.name.ends_with(".weight_scale")) continue;
    const std::string module(scales.name.substr(0, scales.name.size() - std::strlen(".weight_scale")));
    const int64_t rows = scales.shape[0], columns = scales.shape[1] * 16;
    std::vector<float> weights(static_cast<size_t>(rows * columns));
    checkpoint::dequantise(bf16, checkpoint::resolve_matrix(bf16, module, rows, columns), weights);
    const Nvfp4Matrix made = quantise_nvfp4(weights, rows, columns, pool);
    auto equal = [&](const char* part, const void* data, size_t size) {
      const auto stored = nvfp4.data(*nvfp4.find(module + part));
      return stored.size() == size && std::memcmp(stored.data(), data, size) == 0;
    };
    EXPECT_TRUE(equal(".weight", made.codes.data(), made.codes.size())) << module;
    EXPECT_TRUE(equal(".weight_scale", made.block_scales.data(), made.block_scales.size())) << module;
    EXPECT_TRUE(equal(".weight_scale_2", &made.matrix_scale, 4)) << module;
    ++matrices;
  }
  EXPECT_EQ(matrices, 5 * 16 * 3 + 3 * 3);
}

TEST(Nvfp4, ZerosAndRefusals) {
  ThreadPool pool(1);
  const Nvfp4Matrix zero = quantise_nvfp4(std::vector<float>(32, 0.0f), 2, 16, pool);
  EXPECT_EQ(zero.matrix_scale, 0.0f);
  EXPECT_EQ(zero.codes, std::vector<uint8_t>(16, 0));
  EXPECT_EQ(zero.block_scales, std::vector<uint8_t>(2, 0x38));  // 1.0
  EXPECT_THROW(quantise_nvfp4(std::vector<float>(30, 0.0f), 2, 15, pool), Error);
  EXPECT_THROW(quantise_nvfp4(std::vector<float>(16, std::numeric_limits<float>::quiet_NaN()), 1, 16, pool), Error);
  EXPECT_THROW(quantise_nvfp4(std::vector<float>(16, std::numeric_limits<float>::infinity()), 1, 16, pool), Error);
}

}  // namespace
}  // namespace verbatim::quantize
