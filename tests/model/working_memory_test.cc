// The CUDA backend's working memory, counted without a device.
#include "model/working_memory.h"

#include <gtest/gtest.h>

#include "tests/model/tiny_models.h"

namespace verbatim::model {
namespace {

int64_t counted(const std::string& directory, const WorkingOptions& options) {
  const auto stored = checkpoint::Checkpoint::open(tiny(directory));
  const Config config = parse_config(stored.config_text(), directory);
  return cuda_working_bytes(stored, config, config, options);
}

TEST(WorkingMemory, GrowsWithTheStep) {
  for (const char* directory : {"tiny-bf16", "tiny-nvfp4", "tiny-fp8", "tiny-compressed"}) {
    // Packing on the way up takes more than short steps of so small a model do.
    const int64_t least = counted(directory, {.rows = 1, .positions = 64});
    int64_t before = least;
    for (const int64_t rows : {64, 512, 20000}) {
      const int64_t bytes = counted(directory, {.rows = rows, .sequences = 4, .positions = 65536});
      EXPECT_GE(bytes, before) << directory << ", " << rows;
      before = bytes;
    }
    EXPECT_GT(before, least) << directory;
  }
}

TEST(WorkingMemory, ForEveryIdAndEveryRoundedPlace) {
  // 64 rows of 512 ids are chosen from at once, eight bytes each; a model whose expert inputs are rounded holds them by
  // expert.
  EXPECT_GE(counted("tiny-bf16", {.rows = 64}), 64 * 512 * 8);
  EXPECT_GT(counted("tiny-w4a4-experts", {.rows = 60000, .activation_scales = true}),
            counted("tiny-w4a4-experts", {.rows = 60000}));
}

}  // namespace
}  // namespace verbatim::model
