// Every figure of `plan` with its arithmetic written out.
#include "model/plan.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "model/glm.h"
#include "model/step_buffers.h"
#include "ops/ops.h"
#include "state/storage.h"
#include "tests/model/tiny_models.h"

namespace verbatim::model {
namespace {

using checkpoint::Checkpoint;

constexpr int64_t D = 4096, N = 64, d = 128, Nd = 8192, Rq = 1536, R = 512, H = 64, key = 256, value = 256;
constexpr int64_t I = 2048, E = 288, V = 154880;

class PlanTest : public testing::Test {
 protected:
  Checkpoint stored_ = Checkpoint::from_inventory(std::string(VERBATIM_FIXTURES) + "/headers/nvfp4.json.gz",
                                                  std::string(VERBATIM_FIXTURES) + "/configs/nvfp4/config.json");
  Config config_ = parse_config(stored_.config_text(), "nvfp4");

  Plan plan(PlanOptions options) { return make_plan(stored_, config_, options); }
  static int64_t bytes(const Plan& plan, Group group) {
    return plan.ranks.front().group_bytes[static_cast<size_t>(group)];
  }
  static double gib(int64_t bytes) { return static_cast<double>(bytes) / 0x1p30; }
};

// NVFP4 [n, k]: half a byte a weight, one e4m3 scale per 16, one float32.
constexpr int64_t nvfp4(int64_t n, int64_t k) { return n * k / 2 + n * k / 16 + 4; }

TEST_F(PlanTest, WeightsOfTwoRanks) {
  const Plan two = plan({.ranks = 2});
  ASSERT_EQ(two.ranks.size(), 2u);
  EXPECT_EQ(two.ranks[0].group_bytes, two.ranks[1].group_bytes);

  // 42 layers x 288 experts; gate and up cut in rows, down in columns.
  EXPECT_EQ(bytes(two, Group::kRoutedExperts), 42 * E * (2 * nvfp4(I / 2, D) + nvfp4(D, I / 2)));
  EXPECT_EQ(bytes(two, Group::kDenseMlp), 3 * (2 * nvfp4(6144, D) + nvfp4(D, 6144)));
  EXPECT_EQ(bytes(two, Group::kSharedExperts), 42 * 3 * (I / 2) * D * 2);
  // gate.weight BF16 and its float32 bias, whole on each rank.
  EXPECT_EQ(bytes(two, Group::kRouter), 42 * (E * D * 2 + E * 4));
  // Heads are cut: q, k, v, f_b, g_b, b, o, taps (float32 here), A_log, dt_bias; f_a, g_a and o_norm are whole.
  EXPECT_EQ(bytes(two, Group::kKda),
            34 * ((3 * Nd * D * 2 + 2 * Nd * d * 2 + N * D * 2 + D * Nd * 2 + 3 * Nd * 4 * 4 + N * 4 + Nd * 4) / 2 +
                  2 * d * D * 2 + d * 2));
  // q_b, kv_b and o are cut; q_a, kv_a and the two norms are whole.
  EXPECT_EQ(bytes(two, Group::kMla), 11 * ((H * key * Rq * 2 + H * (key + value) * R * 2 + D * H * value * 2) / 2 +
                                           Rq * D * 2 + R * D * 2 + Rq * 2 + R * 2));
  // wq_b, wk, weights_proj, compress gate, ape, LayerNorm: whole.
  EXPECT_EQ(bytes(two, Group::kIndexer), 11 * 2 * (32 * 128 * Rq + 128 * D + 32 * D + 128 * D + 4 * 128 + 2 * 128));
  EXPECT_EQ(bytes(two, Group::kHyperConnections), 45 * 2 * 2 * (24 * 4 * D + 24 + 3));
  EXPECT_EQ(bytes(two, Group::kNorms), (45 * 2 + 1) * D * 2);
  EXPECT_EQ(bytes(two, Group::kEmbedding), V * D * 2);
  EXPECT_EQ(bytes(two, Group::kHead), V * D * 2 / 2);
  EXPECT_EQ(bytes(two, Group::kVision), 0);
  EXPECT_EQ(bytes(two, Group::kNextNExperts), E * 3 * (I / 2) * D * 2);
  // Its sparse attention, router, shared expert, projection and five norms.
  EXPECT_EQ(bytes(two, Group::kNextNRest), bytes(two, Group::kMla) / 11 + bytes(two, Group::kIndexer) / 11 +
                                               (E * D * 2 + E * 4) + 3 * (I / 2) * D * 2 + D * 2 * D * 2 + 5 * D * 2);
}

// The figures that the issue of this format's first users publishes, in GiB.
TEST_F(PlanTest, PublishedFiguresOfTwoRanks) {
  const Plan stored = plan({.ranks = 2}), packed = plan({.ranks = 2, .next_n_experts = NextNExperts::kPacked});
  const std::pair<Group, double> published[] = {{Group::kRoutedExperts, 79.735}, {Group::kKda, 4.398},
                                                {Group::kSharedExperts, 0.984},  {Group::kDenseMlp, 0.119},
                                                {Group::kRouter, 0.092},         {Group::kHyperConnections, 0.066},
                                                {Group::kNextNRest, 0.219},      {Group::kHead, 0.591},
                                                {Group::kEmbedding, 1.182},      {Group::kNextNExperts, 6.75}};
  for (const auto& [group, expected] : published)
    EXPECT_NEAR(gib(bytes(stored, group)), expected, 0.0005) << group_name(group);
  EXPECT_NEAR(gib(bytes(stored, Group::kMla) + bytes(stored, Group::kIndexer)), 1.442, 0.0005);
  EXPECT_EQ(bytes(packed, Group::kNextNExperts), E * (2 * nvfp4(I / 2, D) + nvfp4(D, I / 2)));
  EXPECT_NEAR(gib(bytes(packed, Group::kNextNExperts)), 1.898, 0.0005);
  // Their 90.9 holds 0.166 for a 4-bit copy of the head that only drafts use; we keep none.
  EXPECT_NEAR(gib(packed.ranks[0].weights_bytes) + 0.166, 90.9, 0.05);
  EXPECT_EQ(stored.not_resident, (std::vector<std::string>{"vision", "input_scale"}));
}

TEST_F(PlanTest, ActivationScalesAreResidentInTheCheckpointsOwnMath) {
  const Plan with = plan({.activation_scales = true}), without = plan({});
  EXPECT_EQ(with.ranks[0].weights_bytes - without.ranks[0].weights_bytes, (42 * E * 3 + 9) * 4);
  EXPECT_EQ(with.not_resident, std::vector<std::string>{"vision"});
}

// DESIGN.md "State and memory".
TEST_F(PlanTest, StateOnCuda) {
  const Plan one = plan({.backend = BackendKind::kCuda});
  const int64_t state = 34 * N * d * d * 4;
  EXPECT_EQ(state, 136 * 0x100000);
  const int64_t rows = 34 * (16 + 8) * 3 * Nd * 4;    // k, v_new and G of C + 8 rows
  const int64_t windows = 34 * (3 + 8) * 3 * Nd * 4;  // three inputs, and a window's eight
  const int64_t tails = 12 * (4 + 8) * 2 * 128 * 4;   // ki and gi of an open pool and a window
  EXPECT_EQ(one.sequence_bytes, state + rows + windows + tails);
  EXPECT_NEAR(static_cast<double>(rows) / 24 / 0x1p20, 3.2, 0.05);
  // 12 layers of 512 latents and a quarter of a 128-wide pool key, two bytes each.
  EXPECT_EQ(one.token_bytes, 12 * (512 + 128 / 4) * 2);
  EXPECT_EQ(one.page_bytes, 64 * one.token_bytes);
  // S, three convolution inputs, the next-n layer's tail and the hidden vector, all float32.
  EXPECT_EQ(one.snapshot_bytes, state + 34 * 3 * 3 * Nd * 4 + tails / 12 + D * 4);
  EXPECT_NEAR(static_cast<double>(one.snapshot_bytes) / 0x1p20, 145.6, 0.1);
  // Two ranks hold half the heads' state each and all latents.
  const Plan two = plan({.ranks = 2});
  EXPECT_EQ(two.sequence_bytes, one.sequence_bytes);
  EXPECT_EQ(two.rank_sequence_bytes, (state + rows + windows) / 2 + tails);
  EXPECT_EQ(two.token_bytes, one.token_bytes);
}

TEST_F(PlanTest, StateOnTheCpuIsFloat32) {
  const Plan cpu = plan({.backend = BackendKind::kCpu});
  EXPECT_EQ(cpu.token_bytes, 12 * (512 + 128 / 4) * 4);
  EXPECT_EQ(cpu.sequence_bytes, 136 * 0x100000 + 34 * 24 * 3 * Nd * 4 + 34 * 11 * 3 * Nd * 4 + 12 * 12 * 2 * 128 * 4);
}

TEST_F(PlanTest, WhatFits) {
  constexpr int64_t kGiB = 0x40000000;
  const PlanOptions options{.ranks = 2,
                            .context_tokens = 300000,
                            .sequences = 2,
                            .memory_bytes = 119 * kGiB,
                            .next_n_experts = NextNExperts::kPacked,
                            .snapshot_bytes = 4 * kGiB};
  const Plan two = plan(options);
  EXPECT_EQ(two.pages_per_sequence, 4688);  // 300,000 / 64 = 4,687.5
  const int64_t sequence = two.rank_sequence_bytes + 4688 * two.page_bytes;
  const int64_t fixed = two.ranks[0].weights_bytes + two.workspace_bytes + two.working_bytes + 4 * kGiB;
  EXPECT_EQ(two.needed_bytes, fixed + 2 * sequence);
  EXPECT_TRUE(two.fits);
  const int64_t rows = 2 * D * 4;  // a sequence's rows in the step buffers, of which `fixed` has two sequences'
  EXPECT_EQ(two.largest_sequences, (119 * kGiB - fixed + 2 * rows) / (sequence + rows));
  EXPECT_EQ(two.largest_context, std::min(((119 * kGiB - fixed) / 2 - two.rank_sequence_bytes) / two.page_bytes * 64,
                                          config_.max_positions));
  // One byte less than needed does not fit; exactly that does.
  PlanOptions exact = options;
  exact.memory_bytes = two.needed_bytes;
  EXPECT_TRUE(plan(exact).fits);
  EXPECT_EQ(plan(exact).largest_sequences, 2);
  exact.memory_bytes -= 1;
  EXPECT_FALSE(plan(exact).fits);
  EXPECT_EQ(plan(exact).largest_sequences, 1);
  EXPECT_LT(plan(exact).largest_context, 4688 * 64);
  // Too small for the weights: nothing fits, and nothing is negative.
  exact.memory_bytes = 10 * kGiB;
  EXPECT_EQ(plan(exact).largest_sequences, 0);
  EXPECT_EQ(plan(exact).largest_context, 0);
}

TEST_F(PlanTest, Refusals) {
  EXPECT_THROW(plan({.ranks = 3}), Error);  // 64 heads
  EXPECT_THROW(plan({.ranks = 0}), Error);
  EXPECT_THROW(plan({.context_tokens = config_.max_positions + 1}), Error);
  EXPECT_THROW(plan({.sequences = 0}), Error);
  EXPECT_THROW(plan({.chunk_rows = 0}), Error);
  try {
    plan({.ranks = 3});
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("64 linear attention heads do not divide by 3 ranks"), std::string::npos)
        << error.what();
  }
}

// The estimate is what is allocated, to the byte.
TEST(Plan, EqualsWhatIsAllocated) {
  const Checkpoint stored = Checkpoint::open(tiny("tiny-nvfp4"));
  const Config config = parse_config(stored.config_text(), "tiny");
  const Plan estimate = make_plan(
      stored, config, {.context_tokens = 1000, .sequences = 3, .backend = BackendKind::kCpu, .chunk_rows = 77});
  Cpu cpu;
  const state::Storage storage(*cpu.ops, config, 3, 3 * estimate.pages_per_sequence);
  EXPECT_EQ(storage.allocated_bytes(),
            3 * (estimate.sequence_bytes + estimate.pages_per_sequence * estimate.page_bytes));
  const StepBuffers buffers(*cpu.ops, config, 77, 3);
  EXPECT_EQ(buffers.allocated_bytes(), estimate.workspace_bytes);
}

}  // namespace
}  // namespace verbatim::model
