// Which launches multiply a group of packed matrices with few rows (ops/cuda/stream_plan.h): every row of every product
// once, no more columns than a launch takes, and the launches that the released model's groups are meant to have.
#include "ops/cuda/stream_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "ops/cuda/shapes.h"

namespace verbatim::ops::cuda {
namespace {

constexpr int64_t kShared = 227 * 1024;

alignas(16) float inputs[3][16];

StreamedProduct product(int input, int64_t outputs, int64_t columns, int terms = 1, float input_scale = 0.0f) {
  return {inputs[input], columns, outputs, columns, WeightForm::kBf16, terms, input_scale};
}

// Linear attention's first group at the released widths: q, k, v, f_a, g_a, beta, of which f_a and beta come in three
// terms.
std::vector<StreamedProduct> first_group() {
  return {product(0, 8192, 4096),   product(0, 8192, 4096), product(0, 8192, 4096),
          product(0, 128, 4096, 3), product(0, 128, 4096),  product(0, 64, 4096, 3)};
}
std::vector<StreamedProduct> second_group() { return {product(0, 8192, 128, 3), product(1, 8192, 128)}; }

// What every plan must be.
void check(const StreamPlan& plan, const std::vector<StreamedProduct>& products, int64_t rows) {
  std::map<int, std::set<int64_t>> seen;
  int64_t bytes = -1;
  for (const StreamPlan::Launch& launch : plan.launches) {
    ASSERT_FALSE(launch.pieces.empty());
    EXPECT_LE(launch.pieces.size(), static_cast<size_t>(kMostGroup));
    EXPECT_TRUE(bytes < 0 || launch.bytes <= bytes) << "the most bytes come first";
    bytes = launch.bytes;
    const StreamPlan::Piece& any = launch.pieces.front();
    const StreamedProduct& first = products[static_cast<size_t>(any.product)];
    std::set<const void*> whole_inputs;
    for (const StreamPlan::Piece& piece : launch.pieces) {
      const StreamedProduct& own = products[static_cast<size_t>(piece.product)];
      for (int64_t row = piece.first_row; row < piece.first_row + piece.rows; ++row)
        EXPECT_TRUE(seen[piece.product].insert(row).second) << "row " << row << " twice";
      EXPECT_EQ(own.columns, first.columns);
      EXPECT_EQ(own.form, first.form);
      EXPECT_EQ(piece.ring_rows, any.ring_rows);
      EXPECT_EQ(piece.set < 0, any.set < 0);
      EXPECT_EQ(piece.block_rows, any.block_rows);
      if (piece.set >= 0) {
        ASSERT_LT(static_cast<size_t>(piece.set), plan.sets.size());
        const StreamPlan::Set& set = plan.sets[static_cast<size_t>(piece.set)];
        const StreamedProduct& of = products[static_cast<size_t>(set.product)];
        EXPECT_EQ(of.x, own.x);
        EXPECT_EQ(of.columns, own.columns);
        EXPECT_EQ(of.input_scale, own.input_scale);
        EXPECT_EQ(set.first_row, piece.first_row);
        EXPECT_EQ(set.rows, piece.rows);
        EXPECT_GE(set.terms, own.terms);
        EXPECT_EQ(set.tiles, fragment_tiles(set.rows, set.terms));
        EXPECT_LE(set.rows * set.terms, kMostFragmentColumns);
        EXPECT_EQ(fragment_tiles(piece.rows, own.terms), fragment_tiles(any.rows, first.terms));
      } else if (piece.ring_rows) {
        EXPECT_LE(piece.rows, kMostRingRows);
        EXPECT_EQ(own.terms, 1);
        EXPECT_EQ(own.input_scale, 0.0f);
        EXPECT_EQ(own.x_stride % 4, 0);
        EXPECT_EQ(reinterpret_cast<uintptr_t>(own.x) % 16, 0u);
      } else {
        const int64_t at_a_time = piece.block_rows > 0 ? piece.block_rows : piece.rows;
        EXPECT_TRUE(streams_inputs(kShared, at_a_time, own.terms, own.columns, 1));
        EXPECT_EQ(own.input_scale, 0.0f);
        whole_inputs.insert(own.x);
      }
    }
    EXPECT_LE(whole_inputs.size(), 2u);
  }
  for (size_t i = 0; i < products.size(); ++i)
    EXPECT_EQ(std::ssize(seen[static_cast<int>(i)]), rows) << "product " << i;
}

TEST(StreamPlan, TakesEveryRowOnce) {
  const std::vector<std::vector<StreamedProduct>> groups = {
      first_group(),
      second_group(),
      {product(0, 4096, 16384)},
      {product(0, 192, 4096, 3)},
      {product(0, 1536, 4096), product(0, 128, 4096, 3), product(1, 96, 4096, 3), product(2, 64, 4096)},
      {product(0, 512, 8192, 1, 0.5f), product(0, 512, 8192, 1, 0.25f), product(0, 512, 8192)},
      std::vector<StreamedProduct>(11, product(0, 700, 4096, 3))};
  for (const auto& group : groups)
    for (const int64_t rows : {1, 2, 3, 4, 5, 8, 9, 16, 21, 22, 44, 64})
      check(plan_stream(group, rows, kShared), group, rows);
}

TEST(StreamPlan, OneLaunchAtOneRow) {
  for (const auto& group : {first_group(), second_group(), {product(0, 192, 4096, 3)}, {product(0, 4096, 8192)}}) {
    const StreamPlan plan = plan_stream(group, 1, kShared);
    EXPECT_EQ(plan.launches.size(), 1u);
    EXPECT_TRUE(plan.sets.empty());
  }
}

TEST(StreamPlan, FewRowsNeedNoFragments) {
  // Three terms of few outputs or few inputs: two rows a layer of the grid, beside the large launch.
  for (const auto& group : {first_group(), second_group()}) {
    const StreamPlan plan = plan_stream(group, 4, kShared);
    EXPECT_TRUE(plan.sets.empty());
    ASSERT_EQ(plan.launches.size(), 2u);
    const auto layered = [](const StreamPlan::Launch& launch) { return launch.pieces.front().block_rows == 2; };
    EXPECT_EQ(std::count_if(plan.launches.begin(), plan.launches.end(), layered), 1);
  }
}

TEST(StreamPlan, ManyInputsOfFewRowsComeInTheRing) {
  for (const int64_t rows : {1, 4})
    for (const int64_t columns : {8192, 16384}) {
      const StreamPlan plan = plan_stream(std::vector{product(0, 4096, columns)}, rows, kShared);
      ASSERT_EQ(plan.launches.size(), 1u);
      EXPECT_TRUE(plan.launches.front().pieces.front().ring_rows);
    }
  // Not where copies of sixteen bytes could not read them, nor more rows than it has room for.
  StreamedProduct odd = product(0, 4096, 16384);
  odd.x_stride += 1;
  EXPECT_FALSE(plan_stream(std::vector{odd}, 4, kShared).sets.empty());
  odd = product(0, 4096, 16384);
  odd.x = reinterpret_cast<const char*>(odd.x) + 4;
  EXPECT_FALSE(plan_stream(std::vector{odd}, 4, kShared).sets.empty());
  EXPECT_FALSE(plan_stream(std::vector{product(0, 4096, 16384)}, 5, kShared).sets.empty());
  EXPECT_FALSE(plan_stream(std::vector{product(0, 4096, 16384, 1, 1.0f)}, 1, kShared).sets.empty());
}

// Sparse attention's first group has many inputs and is short; linear attention's first is long, its second has few.
TEST(StreamPlan, ShortLaunchesOfManyInputsNeedNotFitBesideOthers) {
  const std::vector<StreamedProduct> sparse = {product(0, 1536, 4096), product(0, 576, 4096), product(0, 128, 4096, 3),
                                               product(0, 96, 4096, 3)};
  const auto beside = [](const std::vector<StreamedProduct>& group) {
    const StreamPlan plan = plan_stream(group, 16, kShared);
    EXPECT_GE(plan.launches.size(), 2u);
    return plan.launches.back().fits_beside;
  };
  EXPECT_FALSE(beside(sparse));
  EXPECT_TRUE(beside(first_group()));
  EXPECT_TRUE(beside(second_group()));
}

// Launches beside the first fit into what it leaves of a multiprocessor, or take the shape they have alone.
TEST(StreamPlan, LaunchesBesideOthersFitBesideThem) {
  StreamProblem p;
  p.count = 1;
  p.slices = 16;
  p.terms = 3;
  p.row_tiles[0] = 12;
  p.layers = 22;
  p.whole_bytes = 2 * 3 * 4096 * 2;
  for (const int64_t taken : {kShared * 6 / 10, kShared - 4096}) {
    p.beside_bytes = taken;
    const StreamShape beside = stream_shape(p, 132, kShared);
    ASSERT_GT(beside.units, 0);
    p.beside_bytes = 0;
    const StreamShape alone = stream_shape(p, 132, kShared);
    if (taken == kShared - 4096)
      EXPECT_EQ(beside.shared_bytes, alone.shared_bytes);
    else
      EXPECT_LE(beside.shared_bytes + taken, kShared);
  }
}

}  // namespace
}  // namespace verbatim::ops::cuda
