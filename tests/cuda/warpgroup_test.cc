// The warpgroup kernels (wgmma) against those on mma.sync, bit for bit: a prompt takes the ones, decode the others.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "ops/cuda/device_memory.h"
#include "ops/cuda/kernels.h"
#include "ops/cuda/warpgroup_products.h"
#include "ops/cuda/working.h"
#include "ops/devices.h"

namespace verbatim::ops::cuda {
namespace {

class Warpgroup : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda_devices().empty()) GTEST_SKIP() << "this machine has no CUDA device";
    if (!has_warpgroup_products()) GTEST_SKIP() << "this device has no wgmma";
  }

  template <class T>
  T* upload(const std::vector<T>& values) {
    held_.emplace_back(static_cast<int64_t>(values.size() * sizeof(T)));
    check(cudaMemcpy(held_.back().data(), values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice),
          "cudaMemcpy");
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");  // the stream of kernels does not wait for copies
    return reinterpret_cast<T*>(held_.back().data());
  }
  // Filled with NaN that no kernel writes.
  float* floats(int64_t count) {
    held_.emplace_back(count * 4);
    check(cudaMemset(held_.back().data(), 0xff, static_cast<size_t>(count) * 4), "cudaMemset");
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    return reinterpret_cast<float*>(held_.back().data());
  }
  std::vector<uint32_t> bits(const float* from, int64_t count) {
    stream_.synchronise();
    std::vector<uint32_t> values(static_cast<size_t>(count));
    check(cudaMemcpy(values.data(), from, values.size() * 4, cudaMemcpyDeviceToHost), "cudaMemcpy");
    return values;
  }
  // Random stored bits, zeros of both signs and subnormals among them, packed.
  Weights matrix(WeightForm form, int64_t rows, int64_t columns) {
    Weights plain;
    plain.form = form;
    plain.rows = rows;
    plain.columns = columns;
    if (form == WeightForm::kBf16) {
      std::vector<uint16_t> values(static_cast<size_t>(rows * columns));
      for (uint16_t& value : values) {
        const uint32_t draw = numbers_();
        value = static_cast<uint16_t>((draw & 0x80ff) | (draw >> 16) % 20 << 8 | 0x3000);
        if (draw >> 24 < 20) value &= 0x8000;
        if (draw >> 24 == 21) value &= 0x807f;
      }
      plain.row_bytes = columns * 2;
      plain.data = reinterpret_cast<const uint8_t*>(upload(values));
    } else {
      std::vector<uint8_t> codes(static_cast<size_t>(rows * columns / 2)), scales(codes.size() / 8);
      for (uint8_t& code : codes) code = static_cast<uint8_t>(numbers_());
      for (uint8_t& scale : scales) scale = static_cast<uint8_t>(numbers_() % 0x7f);
      plain.row_bytes = columns / 2;
      plain.data = upload(codes);
      plain.block_scale = upload(scales);
      plain.block_scale_stride = columns / 16;
    }
    Weights packed = plain;
    packed.packed = true;
    packed.matrix_scale = 0.37f;
    packed.data = upload(std::vector<uint8_t>(static_cast<size_t>(packed_bytes(form, rows, columns))));
    packed.block_scale = upload(std::vector<uint8_t>(static_cast<size_t>((rows + 15) / 16 * columns)));
    check(pack(stream_.get(), plain, const_cast<uint8_t*>(packed.data), const_cast<uint8_t*>(packed.block_scale)),
          "pack");
    return packed;
  }
  const float* rows(int64_t count, int64_t columns) {
    std::vector<float> values(static_cast<size_t>(count * columns));
    for (float& value : values) {
      const uint32_t draw = numbers_();
      value = draw % 9 == 0 ? -0.0f : (static_cast<float>(draw % 4001) - 2000.0f) * 0.003f;
    }
    // Rows of one sign and of zeros: sums of which every term is a zero of the same sign.
    for (int64_t k = 0; k < columns; ++k) values[static_cast<size_t>(k)] = -0.0f;
    for (int64_t k = columns; k < 2 * columns; ++k) values[static_cast<size_t>(k)] = -1.0f;
    return upload(values);
  }

  Stream stream_;
  std::mt19937 numbers_{5};
  std::vector<DeviceMemory> held_;
};

TEST_F(Warpgroup, ProductsHaveTheBitsOfMmaSync) {
  struct Shape {
    int64_t outputs, columns, rows;
    int parts, terms;
  };
  for (const WeightForm form : {WeightForm::kBf16, WeightForm::kNvfp4})
    for (const Shape& shape : {Shape{24, 64, 65, 1, 1}, Shape{130, 320, 129, 1, 1}, Shape{64, 512, 200, 2, 1},
                               Shape{200, 448, 70, 1, 3}, Shape{1041, 256, 300, 1, 1}, Shape{4096, 1088, 129, 1, 1},
                               Shape{128, 4096, 1000, 8, 1}, Shape{16, 64, 1, 1, 1}, Shape{17000, 128, 97, 2, 1}}) {
      const Weights w = matrix(form, shape.outputs, shape.columns);
      Preparation preparation;
      preparation.x = rows(shape.rows + 1, shape.columns);
      preparation.x_stride = preparation.columns = preparation.stride = shape.columns;
      preparation.rows = shape.rows;
      preparation.terms = shape.terms;
      preparation.to =
          upload(std::vector<uint16_t>(static_cast<size_t>(shape.terms * shape.rows * shape.columns), 0x7fff));
      check(prepare(stream_.get(), preparation), "prepare");
      // Twice the same matrix: a group. A gap between rows.
      Bf16Product both[2][2];
      const int64_t stride = shape.outputs + 3, count = shape.parts * shape.terms * shape.rows * stride;
      for (auto& way : both)
        for (Bf16Product& p : way) {
          p.weights = w;
          p.x = preparation.to;
          p.x_stride = shape.columns;
          p.rows = shape.rows;
          p.terms = shape.terms;
          p.parts = shape.parts;
          p.scale = 0.7f;
          p.raw = floats(count);
          p.raw_stride = stride;
        }
      ASSERT_TRUE(warpgroup_takes(w, shape.parts));
      check(packed_tile_products(stream_.get(), both[0], 2), "packed_tile_products");
      check(warpgroup_products(stream_.get(), both[1], 2), "warpgroup_products");
      for (int i = 0; i < 2; ++i) {
        const std::vector<uint32_t> expected = bits(both[0][i].raw, count), actual = bits(both[1][i].raw, count);
        int64_t wrong = 0;
        for (size_t j = 0; j < expected.size(); ++j) wrong += expected[j] != actual[j] ? 1 : 0;
        EXPECT_EQ(wrong, 0) << (form == WeightForm::kBf16 ? "bf16 " : "nvfp4 ") << shape.outputs << " x "
                            << shape.columns << ", " << shape.rows << " rows, " << shape.parts << " parts, "
                            << shape.terms << " terms";
        // Something was written, and nothing between rows.
        EXPECT_NE(actual[0], 0xffffffffu);
        EXPECT_EQ(actual[static_cast<size_t>(shape.outputs)], 0xffffffffu);
      }
      stream_.synchronise();
      held_.clear();
    }
}

// Three terms added at once, or from raw sums.
TEST_F(Warpgroup, TermsAreAddedInOrder) {
  for (const WeightForm form : {WeightForm::kBf16, WeightForm::kNvfp4})
    for (const int64_t count : {70, 1000}) {
      constexpr int64_t kOutputs = 600, kColumns = 448;
      const Weights w = matrix(form, kOutputs, kColumns);
      Preparation preparation;
      preparation.x = rows(count, kColumns);
      preparation.x_stride = preparation.columns = preparation.stride = kColumns;
      preparation.rows = count;
      preparation.terms = 3;
      preparation.to = upload(std::vector<uint16_t>(static_cast<size_t>(3 * count * kColumns)));
      check(prepare(stream_.get(), preparation), "prepare");
      Bf16Product p;
      p.weights = w;
      p.x = preparation.to;
      p.x_stride = kColumns;
      p.rows = count;
      p.terms = 3;
      p.raw = floats(3 * count * kOutputs);
      Finish finish;
      finish.raw = p.raw;
      finish.rows = count;
      finish.outputs = finish.y_stride = kOutputs;
      finish.terms = 3;
      finish.scale = 0.7f;
      finish.y = floats(count * kOutputs);
      check(packed_tile_products(stream_.get(), &p, 1), "packed_tile_products");
      check(finish_products(stream_.get(), &finish, 1), "finish_products");
      p.raw = floats(count * kOutputs);
      p.scale = finish.scale;
      p.adds_terms = true;
      check(warpgroup_products(stream_.get(), &p, 1), "warpgroup_products");
      EXPECT_TRUE(bits(finish.y, count * kOutputs) == bits(p.raw, count * kOutputs)) << count << " rows";
      stream_.synchronise();
      held_.clear();
    }
}

TEST_F(Warpgroup, ExpertsHaveTheBitsOfMmaSync) {
  struct Case {
    int64_t experts, rows, top, columns, inner, shared_inner, width;
    int parts;
    WeightForm form;
  };
  for (const Case& c : {Case{7, 301, 3, 192, 128, 64, 200, 1, WeightForm::kNvfp4},
                        Case{7, 301, 3, 320, 256, 512, 136, 2, WeightForm::kNvfp4},
                        Case{40, 700, 2, 64, 320, 0, 130, 1, WeightForm::kNvfp4},
                        Case{5, 150, 1, 448, 64, 192, 64, 1, WeightForm::kBf16},
                        Case{2, 1100, 2, 128, 192, 128, 1024, 1, WeightForm::kBf16}}) {
    std::vector<ExpertTable> table;
    for (int64_t e = 0; e < c.experts; ++e)
      table.push_back(
          {matrix(c.form, c.inner, c.columns), matrix(c.form, c.inner, c.columns), matrix(c.form, c.width, c.inner)});
    if (c.shared_inner > 0)
      table.push_back({matrix(WeightForm::kBf16, c.shared_inner, c.columns),
                       matrix(WeightForm::kBf16, c.shared_inner, c.columns),
                       matrix(WeightForm::kBf16, c.width, c.shared_inner)});
    else
      table.emplace_back();
    // The last expert of more than two is never chosen, the first by most rows.
    const int64_t used = c.experts > 2 ? c.experts - 1 : c.experts;
    std::vector<int32_t> chosen;
    std::vector<float> weights;
    for (int64_t r = 0; r < c.rows; ++r)
      for (int64_t slot = 0; slot < c.top; ++slot) {
        chosen.push_back(slot == 0 && r % 3 != 0 ? 0 : static_cast<int32_t>(1 + (r + slot) % (used - 1)));
        weights.push_back(0.25f + 0.125f * static_cast<float>(numbers_() % 7));
      }
    ExpertsProblem p;
    p.table = upload(table);
    p.experts = c.experts;
    p.has_shared = c.shared_inner > 0;
    p.has_bf16 = p.packed = true;
    p.rows = c.rows;
    p.top = c.top;
    p.columns = c.columns;
    p.inner = std::max(c.inner, c.shared_inner);
    p.width = c.width;
    p.parts = c.parts;
    p.limit = 3.0f;
    p.x = rows(c.rows, c.columns);
    p.chosen = upload(chosen);
    p.weights = upload(weights);
    ExpertsProblem other = p;
    other.warpgroups = true;
    p.y = floats(c.rows * c.width);
    other.y = floats(c.rows * c.width);
    const DeviceMemory memory(ExpertsScratch::bytes(p)), other_memory(ExpertsScratch::bytes(other));
    check(cudaMemset(memory.data(), 0x7f, static_cast<size_t>(memory.bytes())), "cudaMemset");
    check(cudaMemset(other_memory.data(), 0x7f, static_cast<size_t>(other_memory.bytes())), "cudaMemset");
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    ASSERT_FALSE(experts_have_few_rows(p));
    check(experts(stream_.get(), p, ExpertsScratch(p, memory.data())), "experts");
    check(warpgroup_experts(stream_.get(), other, ExpertsScratch(other, other_memory.data())), "warpgroup_experts");
    EXPECT_TRUE(bits(p.y, c.rows * c.width) == bits(other.y, c.rows * c.width))
        << c.experts << " experts, " << c.rows << " rows, " << c.columns << " x " << c.inner;
    EXPECT_EQ(other_memory.bytes(),
              warpgroup_experts_bytes({c.experts, c.top, c.columns, p.inner, c.width, p.has_shared, c.parts}, c.rows));
    stream_.synchronise();
    held_.clear();
  }
}

}  // namespace
}  // namespace verbatim::ops::cuda
