// Memory for caches and recurrent state: sequence slots and pages, allocated once. The bytes are those of
// model::state_sizes, which `plan` prints.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/glm.h"
#include "ops/ops.h"

namespace verbatim::state {

class Storage {
 public:
  // `ops` must outlive it. Throws Error(kUsage) for no slot or page, Error(kCapacity) when memory runs out.
  Storage(ops::Ops& ops, const model::Config& config, int64_t slots, int64_t pages);

  const model::State& state() const { return state_; }
  int64_t slots() const { return slots_; }
  int64_t pages() const { return pages_; }
  int64_t allocated_bytes() const { return static_cast<int64_t>(slots_block_.bytes() + pages_block_.bytes()); }

 private:
  int64_t slots_, pages_;
  ops::Buffer slots_block_, pages_block_;
  model::State state_;
};

// Where a sequence stands: its slot, its pages and how many tokens it holds.
class Sequence {
 public:
  // A new sequence in `slot` with `pages` (enough for every token it will hold), at position 0.
  Sequence(int32_t slot, std::vector<int32_t> pages) : slot_(slot), pages_(std::move(pages)) {}

  // One that resumes behind `length` tokens (whole pages), where the slot's S was restored to.
  Sequence(int32_t slot, std::vector<int32_t> pages, int64_t length)
      : slot_(slot), pages_(std::move(pages)), length_(length), state_position_(length) {}

  int32_t slot() const { return slot_; }
  int64_t length() const { return length_; }
  const std::vector<int32_t>& pages() const { return pages_; }
  void append_page(int32_t page) { pages_.push_back(page); }

  // The span of the next `rows` tokens, of which the first `certain` are accepted whatever happens. Throws
  // Error(kCapacity) when the pages do not hold them. The span points into this object.
  ops::Span next(int64_t first_row, int64_t rows, int64_t certain) const;

  // After a step: the first `rows` rows of `span` stay, the others are taken back. rows >= span.certain.
  void accept(const ops::Span& span, int64_t rows);

  // A span of no rows that advances S to `position` (a multiple of kChunkRows, at most length()), which is noted.
  ops::Span advance_state(int64_t position);

 private:
  int32_t slot_;
  std::vector<int32_t> pages_;
  int64_t length_ = 0;
  int64_t state_position_ = 0;
};

inline int64_t pages_for(int64_t tokens) { return (tokens + ops::kPageTokens - 1) / ops::kPageTokens; }

}  // namespace verbatim::state
