// Weights on their way from mapped files to a backend that copies them.
#include "model/upload.h"

#include <gtest/gtest.h>

#include <deque>
#include <fstream>
#include <sstream>

#include "tests/model/ops_proxy.h"
#include "tests/model/tiny_models.h"

namespace verbatim::model {
namespace {

// The CPU's operators on copies of the weights, as a device has them.
class CopyingOps : public OpsProxy {
 public:
  using OpsProxy::OpsProxy;
  Matrix upload(const Matrix& stored, const ops::WeightUse&) override {
    Matrix m = stored;
    if (stored.data == nullptr) return m;
    m.data = copy(stored.data, stored.rows * stored.row_bytes);
    if (stored.block_scale != nullptr)
      m.block_scale = reinterpret_cast<const uint8_t*>(
          copy(reinterpret_cast<const std::byte*>(stored.block_scale), stored.rows * stored.block_scale_stride));
    return m;
  }
  const float* upload(const float* values, int64_t count) override {
    return values == nullptr ? nullptr
                             : reinterpret_cast<const float*>(copy(reinterpret_cast<const std::byte*>(values),
                                                                   count * static_cast<int64_t>(sizeof(float))));
  }

 private:
  const std::byte* copy(const std::byte* from, int64_t bytes) {
    return copies_.emplace_back(from, from + bytes).data();
  }
  std::deque<std::vector<std::byte>> copies_;
};

// KiB of mapped safetensors files that this process holds in memory.
int64_t mapped_kib() {
  std::ifstream maps("/proc/self/smaps");
  int64_t total = 0;
  bool counts = false;
  for (std::string line; std::getline(maps, line);) {
    if (line.find(':') > line.find(' ')) counts = line.ends_with(".safetensors");  // a mapping's first line
    std::istringstream words(line);
    std::string key;
    int64_t kib = 0;
    if (counts && words >> key >> kib && key == "Rss:") total += kib;
  }
  return total;
}

TEST(Upload, DropsThePagesOfWhatIsCopied) {
  Cpu cpu;
  const std::vector<int32_t> ids = random_ids(20, 3);
  const std::vector<float> want = prompt_logits(*cpu.ops, Loaded(tiny("tiny-nvfp4")).model, ids);
  CopyingOps copying(*cpu.ops);
  {
    Loaded kept(tiny("tiny-nvfp4"));
    upload_weights(copying, kept.model);
    const int64_t before = mapped_kib();
    Loaded dropped(tiny("tiny-nvfp4"));
    // Every matrix of the text model is copied once.
    uint64_t matrix_bytes = 0;
    for (const checkpoint::TensorView& view : dropped.checkpoint.tensors())
      if (view.shape.size() == 2 && !view.name.starts_with("model.visual.") &&
          !view.name.ends_with("index_kpool_compress_ape"))
        matrix_bytes += view.bytes;
    EXPECT_EQ(upload_weights(copying, dropped.model, dropped.checkpoint), matrix_bytes);
    // What is left are pages that tensors share.
    EXPECT_LT(mapped_kib() - before, before / 2);
    EXPECT_GT(before, 1000);
    EXPECT_EQ(first_difference(prompt_logits(copying, dropped.model, ids), want), "");
  }
  // Where nothing is copied nothing is dropped, and the model is as it was.
  Loaded mapped(tiny("tiny-nvfp4"));
  const std::byte* head = mapped.model.weights.head.data;
  EXPECT_EQ(upload_weights(*cpu.ops, mapped.model, mapped.checkpoint), 0u);
  EXPECT_EQ(mapped.model.weights.head.data, head);
  EXPECT_EQ(first_difference(prompt_logits(*cpu.ops, mapped.model, ids), want), "");
}

// Copies the embedding in two pieces, and notes what is still mapped when it has the first.
class PiecewiseOps final : public CopyingOps {
 public:
  using CopyingOps::CopyingOps;
  Matrix upload(const Matrix& stored, const ops::WeightUse& use) override {
    const Matrix copy = CopyingOps::upload(stored, use);
    if (first_piece_bytes == 0) {
      const int64_t before = mapped_kib();
      use.rows_taken(stored.rows / 2);
      first_piece_bytes = stored.rows / 2 * stored.row_bytes;
      dropped_kib = before - mapped_kib();
    }
    return copy;
  }
  int64_t first_piece_bytes = 0, dropped_kib = 0;
};

TEST(Upload, DropsLargeMatricesInPieces) {
  Cpu cpu;
  PiecewiseOps ops(*cpu.ops);
  Loaded loaded(tiny("tiny-nvfp4"));
  upload_weights(ops, loaded.model, loaded.checkpoint);
  ASSERT_GT(ops.first_piece_bytes, 16 << 10);
  // But for the pages at its ends.
  EXPECT_GE(ops.dropped_kib, (ops.first_piece_bytes >> 10) - 8);
}

}  // namespace
}  // namespace verbatim::model
