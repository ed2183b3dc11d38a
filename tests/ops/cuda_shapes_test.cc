// Launch configurations of the CUDA backend against what architectures give, without a device or its compiler.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "model/config.h"
#include "model/synth.h"
#include "ops/cuda/shapes.h"
#include "ops/cuda/working.h"

namespace verbatim::ops::cuda {
namespace {

struct Kernel {
  const char* name;
  int64_t shared_bytes;
  bool needs_wgmma = false;
};

// At the released widths, and the most that options ask for (three terms in tests).
std::vector<Kernel> kernels() {
  const model::Config c = model::parse_config(
      model::synth_config({.size = model::SynthSize::kReleased, .layers = 4, .experts = 288}), "released");
  return {{"down of few rows", few_rows_shared_bytes(3)},
          {"gate and up", gate_up_shared_bytes(3)},
          {"places", places_shared_bytes(c.experts)},
          {"packed tile", packed_tile_shared_bytes(128)},
          {"warpgroup tile", warpgroup_tile_shared_bytes(), true},
          {"plain tile", bf16_tile_shared_bytes(64)},
          {"plain slice", bf16_slice_shared_bytes(32)},
          {"linear attention, a row", kda_row_shared_bytes(c.linear_head_width)},
          {"linear attention", kda_shared_bytes(c.linear_head_width)},
          {"linear attention, chunks", kda_chunks_shared_bytes()},
          {"attention by groups", attention_group_shared_bytes(c.latent)},
          {"attention in tiles, a group or 16 heads", attention_tile_shared_bytes(16, 1, c.latent)},
          {"index scores in tiles", index_tile_shared_bytes(256, c.index_heads, c.index_width)},
          {"choice of pools", select_shared_bytes(select_held_scores(INT64_MAX))},
          {"products with kv_b", absorb_shared_bytes(2)},
          {"attention", attention_shared_bytes(8, c.latent)},
          {"index scores", index_score_shared_bytes(c.index_heads, c.index_width)},
          {"hyper-connections", hyper_shared_bytes(c.hidden)},
          {"sampling, weights", sample_weigh_shared_bytes(41 * 32)},
          {"sampling, the pick", sample_pick_shared_bytes()},
          {"hyper-connections in clusters", hyper_cluster_shared_bytes(8)}};
}

// Kernels state less than the whole: static arrays of at most this stand beside what is asked for.
constexpr int64_t kStaticBytes = 8 * 1024;

TEST(CudaShapes, SharedMemoryFitsEveryArchitecture) {
  for (const Architecture& architecture : kArchitectures)
    for (const Kernel& kernel : kernels())
      if (architecture.has_wgmma || !kernel.needs_wgmma) {
        EXPECT_LE(kernel.shared_bytes + kStaticBytes, architecture.shared_bytes)
            << kernel.name << " on " << architecture.name;
      }
}

// Attention of more heads or groups a block and wider products with kv_b are chosen where a block may have as much.
TEST(CudaShapes, WhatIsChosenBySharedMemoryFitsTheLargest) {
  for (const int64_t heads : {16, 32, 64})
    EXPECT_LE(attention_tile_shared_bytes(heads, 2, 512), kArchitectures[0].shared_bytes) << heads;
  // Few rows: 33 groups, of 2,048 chosen tokens and a tail.
  EXPECT_LE(split_weigh_shared_bytes(64, 33) + kStaticBytes / 8, kArchitectures[0].shared_bytes);
  EXPECT_LE(2 * (split_sum_shared_bytes(128, kSplitStages, 33) + kStaticBytes / 8), kArchitectures[0].shared_bytes);
  EXPECT_LE(split_sum_shared_bytes(64, kSplitMoreStages, 33) + kStaticBytes / 8, kArchitectures[0].shared_bytes);
  EXPECT_LE(split_few_sum_shared_bytes(64, 33) + kStaticBytes / 8, kArchitectures[0].shared_bytes);
  EXPECT_LE(absorb_shared_bytes(4), kArchitectures[0].shared_bytes);
}

// Streamed products take a shape that fits whatever the columns: whole ones up to a quarter of what a block may have,
// as streams_inputs() has it, fragments, or rows in the ring. Two such blocks never fit one multiprocessor.
TEST(CudaShapes, StreamedProductsFitEveryArchitecture) {
  for (const Architecture& architecture : kArchitectures)
    for (const int columns8 : {1, 2, 4, 6, 8})
      for (const int slices : {1, 6, 16, 32, 64})
        for (const int64_t row_tiles : {1, 12, 256, 1548, 9680})
          for (const int terms : {1, 3})
            for (const bool nvfp4 : {false, true})
              for (const int columns : {0, 1, 2}) {
                const bool whole = columns == 1, ring_rows = columns == 2;
                if (ring_rows && (columns8 > 1 || slices < 16 || terms > 1)) continue;
                StreamProblem p;
                p.ring_rows = ring_rows;
                p.count = 1;
                p.columns8 = columns8;
                p.slices = slices;
                p.terms = terms;
                p.row_tiles[0] = row_tiles;
                p.bf16 = !nvfp4;
                if (whole && columns8 > 1) continue;
                if (whole) p.whole_bytes = architecture.shared_bytes / 4;
                const StreamShape shape = stream_shape(p, 132, architecture.shared_bytes);
                ASSERT_GT(shape.units, 0) << architecture.name << ", " << columns8 << " tiles, " << slices;
                EXPECT_LE(shape.shared_bytes, architecture.shared_bytes);
                // There is no form of rows in the ring for a warp alone on its row tile.
                EXPECT_TRUE(!ring_rows || shape.concurrent > 1);
                EXPECT_GT(2 * shape.shared_bytes, architecture.shared_bytes);
                EXPECT_LE(shape.warps() * 32, kStreamThreads);
              }
  // Experts are streamed where a block may have as much, and else multiplied as before.
  EXPECT_LE(expert_shared_bytes() + kStaticBytes, kArchitectures[0].shared_bytes);
}

// A prompt of 8,192 rows goes through each operator of the released model whole, within the bounds of working memory.
TEST(CudaShapes, WorkingMemoryHoldsAPromptWhole) {
  const model::Config c = model::parse_config(
      model::synth_config({.size = model::SynthSize::kReleased, .layers = 4, .experts = 288}), "released");
  constexpr int64_t kRows = 8192;
  ExpertsShape e = {c.experts, c.experts_per_token, c.hidden, c.expert_intermediate, c.hidden, true, 1};
  const auto bytes = [&](int64_t rows) { return warpgroup_experts_bytes(e, rows); };
  EXPECT_EQ(experts_block_rows(kRows, bytes), kRows);
  EXPECT_EQ(experts_working_bytes(e, kRows), bytes(kRows));
  // Of which sums of down, and hidden rows.
  EXPECT_GT(bytes(kRows), kRows * (c.experts_per_token + 1) * (4 * c.hidden + 2 * c.expert_intermediate));
  for (const int64_t columns : {c.hidden, c.linear_width(), c.heads * c.value_width, c.dense_intermediate})
    EXPECT_GE(product_block_rows(2 * columns), kRows);
  EXPECT_EQ(product_working_bytes(kRows, c.vocabulary, c.hidden, 1, 1), 2 * kRows * c.hidden);
  // Sums of eight parts are cut.
  e.parts = 8;
  EXPECT_LT(experts_block_rows(kRows, bytes), kRows);
  EXPECT_LE(experts_working_bytes(e, kRows), kExpertsWorkingBytes);
  EXPECT_EQ(product_block_rows(int64_t{1} << 40), 64);
}

// No architecture but one has wgmma: its instructions stand in one file, which only files named for sm_90a read.
TEST(CudaShapes, OnlyOneArchitectureNeedsItsOwnInstructions) {
  int files = 0;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(std::filesystem::path(VERBATIM_FIXTURES) / "../../src/ops/cuda")) {
    if (!entry.is_regular_file()) continue;
    std::ifstream in(entry.path());
    std::stringstream text;
    text << in.rdbuf();
    const std::string name = entry.path().filename();
    const bool own = name.find("sm90a") != std::string::npos;
    if (name != "wgmma.cuh") {
      EXPECT_EQ(text.str().find("wgmma.mma"), std::string::npos) << name;
    }
    if (!own) {
      EXPECT_EQ(text.str().find("ptx/wgmma.cuh"), std::string::npos) << name;
    }
    // Raw instructions stand in ptx/ alone.
    if (entry.path().parent_path().filename() != "ptx") {
      EXPECT_EQ(text.str().find("asm volatile"), std::string::npos) << name;
    }
    ++files;
  }
  EXPECT_GT(files, 30);
}

}  // namespace
}  // namespace verbatim::ops::cuda
