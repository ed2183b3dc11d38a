// The division of memory: what it says is what is allocated, and what does not fit is refused with its numbers.
#include "engine/budget.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "engine/scheduler.h"
#include "tests/model/tiny_models.h"

namespace verbatim::engine {
namespace {

class BudgetTest : public testing::Test {
 protected:
  Budget budget(const BudgetOptions& options) const {
    return make_budget(loaded_.checkpoint, loaded_.model.config, options);
  }
  std::string refusal(const BudgetOptions& options) const {
    try {
      budget(options);
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  }
  const model::Loaded loaded_{model::tiny("tiny-nvfp4")};
};

TEST_F(BudgetTest, IsWhatIsAllocated) {
  for (const int64_t memory : {int64_t{40} << 20, int64_t{60} << 20, int64_t{200} << 20}) {
    const Budget made = budget({.memory_bytes = memory, .sequences = 3, .chunk_rows = 100});
    EXPECT_LE(made.needed_bytes(), memory);
    model::Cpu cpu;
    const BackendModel backend(*cpu.ops, loaded_.model, made.model);
    EXPECT_EQ(backend.storage().allocated_bytes(), made.slots_bytes + made.pages_bytes) << made.text();
    EXPECT_EQ(backend.buffers().allocated_bytes(), made.workspace_bytes) << made.text();
    // The context is one that the scheduler takes, to the last token.
    Scheduler scheduler(const_cast<BackendModel&>(backend), {.snapshot_bytes = made.snapshot_bytes});
    Request request;
    request.prompt = {5, 6, 7};
    request.max_tokens = made.model.max_positions - 3;
    EXPECT_NO_THROW(scheduler.check(request));
    request.max_tokens += 1;
    EXPECT_THROW(scheduler.check(request), Error);
  }
}

TEST_F(BudgetTest, PagesTakeWhatIsLeft) {
  const BudgetOptions options{.memory_bytes = int64_t{44} << 20, .sequences = 4, .snapshot_bytes = 1 << 20};
  const Budget made = budget(options);
  const int64_t page = made.pages_bytes / made.model.pages;
  EXPECT_LE(made.needed_bytes(), options.memory_bytes);
  EXPECT_GT(made.needed_bytes() + page, options.memory_bytes);
  EXPECT_EQ(made.snapshot_bytes, 1 << 20);
  // A context that was asked for is not exceeded, and no more pages than it can use are taken.
  BudgetOptions shorter = options;
  shorter.context_tokens = 1000;
  EXPECT_EQ(budget(shorter).model.max_positions, 1000);
  EXPECT_EQ(budget(shorter).model.pages, 2 * 4 * 16);
}

TEST_F(BudgetTest, RefusesWithNumbers) {
  const int64_t config_most = loaded_.model.config.max_positions;
  EXPECT_NE(refusal({.memory_bytes = 1 << 20}).find("weights"), std::string::npos);
  const std::string text =
      refusal({.memory_bytes = int64_t{40} << 20, .context_tokens = config_most, .snapshot_bytes = int64_t{30} << 20});
  EXPECT_NE(text.find("0.039 GiB given"), std::string::npos) << text;
  EXPECT_NE(text.find("are needed"), std::string::npos) << text;
  EXPECT_NE(refusal({.memory_bytes = 0}).find("must be positive"), std::string::npos);
  EXPECT_NE(refusal({.memory_bytes = 1 << 30, .context_tokens = config_most + 1}).find("a context of"),
            std::string::npos);
}

}  // namespace
}  // namespace verbatim::engine
