#include "state/storage.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/model/tiny_models.h"

namespace verbatim::state {
namespace {

TEST(Storage, EveryArrayLiesInsideWhatWasAllocated) {
  const auto config = model::parse_config(checkpoint::Checkpoint::open(model::tiny("tiny-bf16")).config_text(), "tiny");
  model::Cpu cpu;
  const Storage storage(*cpu.ops, config, 2, 5);
  ASSERT_EQ(storage.state().linear.size(), 6u);
  ASSERT_EQ(storage.state().sparse.size(), 3u);  // two layers and the next-n layer
  // The last arrays end where the blocks do: sizes add up to state_sizes without a gap.
  const auto& first = storage.state().linear.front();
  const auto& last = storage.state().sparse.back();
  const auto index = model::index_shape(config);
  const float* slots_end = last.tail_gate + 2 * index.tail_ring() * index.width;
  const float* pages_end = static_cast<const float*>(last.pools) + 5 * (ops::kPageTokens / index.pool) * index.width;
  EXPECT_EQ((slots_end - first.state) * 4 +
                (pages_end - static_cast<const float*>(storage.state().sparse.front().latents)) * 4,
            storage.allocated_bytes());
}

TEST(Storage, RefusesNothingAndTooMuch) {
  const auto config = model::parse_config(checkpoint::Checkpoint::open(model::tiny("tiny-bf16")).config_text(), "tiny");
  model::Cpu cpu;
  EXPECT_THROW(Storage(*cpu.ops, config, 0, 1), Error);
  EXPECT_THROW(Storage(*cpu.ops, config, 1, 0), Error);
  EXPECT_THROW(Storage(*cpu.ops, config, 1, int64_t{1} << 60), Error);
}

TEST(Sequence, CountsWhatIsAcceptedAndWhereItsStateStands) {
  Sequence sequence(3, {7, 2});
  ops::Span span = sequence.next(5, 40, 40);
  EXPECT_EQ(span.first_row, 5);
  EXPECT_EQ(span.sequence, 3);
  EXPECT_EQ(span.pages[1], 2);
  EXPECT_EQ(span.state_position, 0);
  sequence.accept(span, 40);
  EXPECT_EQ(sequence.length(), 40);
  // Rows 32..39 are kept since S, which stands at the last chunk boundary before row 39.
  EXPECT_EQ(sequence.next(0, 1, 1).state_position, 32);
  // A window past row 47 whose last rows are taken back does not move S past a row that may go.
  span = sequence.next(0, 8, 1);
  sequence.accept(span, 2);
  EXPECT_EQ(sequence.length(), 42);
  EXPECT_EQ(sequence.next(0, 1, 1).state_position, 32);
  EXPECT_THROW(sequence.accept(span, 3), Error);                    // of an earlier place
  EXPECT_THROW(sequence.accept(sequence.next(0, 4, 2), 1), Error);  // fewer than are certain
  EXPECT_THROW(sequence.accept(sequence.next(0, 4, 2), 5), Error);  // more than there are
  EXPECT_NO_THROW(sequence.next(0, 128 - 42, 1));
  EXPECT_THROW(sequence.next(0, 128 - 42 + 1, 1), Error);  // past the pages
}

}  // namespace
}  // namespace verbatim::state
