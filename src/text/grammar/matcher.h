// Runs an automaton: all ways at once to read what was generated so far (Earley's method, byte by byte).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "text/grammar/automaton.h"

namespace verbatim::text {

// A place in a rule, and the call it is in.
struct Item {
  StateId state;
  uint32_t count;  // of a rule that counts; saturated where more makes no difference
  uint32_t frame;
  friend bool operator==(const Item&, const Item&) = default;

  // Instead of a count: no maximum is near, and the minimum is reached, or far away.
  static constexpr uint32_t kFarAndEnough = 0xFFFFFFFF, kFarFromEnough = 0xFFFFFFFE;
};

// The calls made so far. A frame stands for all calls of one rule at one position; it knows where each goes on. Frames
// are made at the end and taken back from the end, so a position is remembered by two sizes.
class Frames {
 public:
  struct Return {
    Item item;
    uint32_t next;  // of the same frame; kNone ends them
  };
  struct Size {
    uint32_t frames, returns;
  };
  static constexpr uint32_t kNone = 0xFFFFFFFF;
  static constexpr uint32_t kRoot = 0;  // has no return: leaving it is left to the caller

  Frames() : heads_{kNone} {}

  Size size() const { return {static_cast<uint32_t>(heads_.size()), static_cast<uint32_t>(returns_.size())}; }
  void resize(Size size) {
    heads_.resize(size.frames);
    returns_.resize(size.returns);
  }
  uint32_t add() {
    heads_.push_back(kNone);
    return static_cast<uint32_t>(heads_.size() - 1);
  }
  void add_return(uint32_t frame, const Item& item) {
    returns_.push_back({item, heads_[frame]});
    heads_[frame] = static_cast<uint32_t>(returns_.size() - 1);
  }
  uint32_t first_return(uint32_t frame) const { return heads_[frame]; }
  const Return& at(uint32_t index) const { return returns_[index]; }

 private:
  std::vector<uint32_t> heads_;
  std::vector<Return> returns_;
};

// Where a text may be: items with edges, and whether frame kRoot was completed.
struct Position {
  std::vector<Item> items;
  bool is_complete = false;

  bool is_dead() const { return items.empty() && !is_complete; }
};

// Steps through an automaton. Keeps scratch memory: one object a thread.
class Matcher {
 public:
  explicit Matcher(const Automaton& automaton) : automaton_(automaton), frame_of_rule_(automaton.rules()) {}

  void begin(Frames& frames, Position& out);  // at the root rule's start
  // Behind a byte or a tag. `out` must be another object.
  void step(const Position& from, uint8_t byte, Frames& frames, Position& out);
  void step_token(const Position& from, int32_t token, Frames& frames, Position& out);
  // Arrived at `item` with nothing read since.
  void enter(const Item& item, Frames& frames, Position& out);

  // Follows an edge: the state behind it, or false. `item` becomes what is reached.
  bool follow(Item& item, uint8_t byte) const {
    for (const ByteEdge& edge : automaton_.bytes(item.state)) {
      if (byte > edge.last) continue;
      return byte >= edge.first && take(item, edge);
    }
    return false;
  }
  const Automaton& automaton() const { return automaton_; }

 private:
  bool take(Item& item, const ByteEdge& edge) const;
  static bool has_enough(const Item& item, const Rule& rule) {
    return item.count >= rule.min_count && item.count != Item::kFarFromEnough;
  }
  void start_closure(const Frames& frames, Position& out);
  void add(const Item& item);
  void close(Frames& frames, Position& out);
  uint32_t frame_of(RuleId rule, Frames& frames);

  const Automaton& automaton_;
  std::vector<Item> reached_;    // all items of the closure being made
  std::vector<uint32_t> slots_;  // hash table of indices + 1 into reached_, used beyond a few items
  struct Called {
    uint64_t round = 0;
    uint32_t frame = 0;
  };
  std::vector<Called> frame_of_rule_;
  uint64_t round_ = 0;
  uint32_t first_new_frame_ = 0;
};

}  // namespace verbatim::text
