// Which tokens may follow an item, worked out once and remembered.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <tuple>
#include <vector>

#include "text/grammar/matcher.h"
#include "text/grammar/token_table.h"

namespace verbatim::text {

// Whether a token fits is decided by the state alone for most tokens: they end before the state's rule does. The others
// go on in the rules that wait on the stack. So what is remembered is a tree: below a state, the tokens that fit by
// themselves and the trie nodes at which its rule can end with text left over; below those, by where the rule returns
// to, the tokens that fit there, and so on. Counts that are far from their limits are told apart only as "far".
//
// Ambiguous schemas could be left in exponentially many ways; beyond a few thousand the tokens are read one by one.
//
// Thread safe.
class MaskCache {
 public:
  MaskCache(const Automaton& automaton, const TokenTable& tokens);

  // Sets the bits of the tokens of text that may follow `position`. `frames` are left as they were.
  void allow(const Position& position, Frames& frames, std::span<uint64_t> allowed);
  // The same by reading every token, with nothing remembered: for positions that can be left in too many ways.
  void allow_by_reading(const Position& position, Frames& frames, std::span<uint64_t> allowed);

  size_t bytes() const;       // remembered
  size_t worked_out() const;  // how often something was not remembered

 private:
  // A state with what of its count matters within one token: how many more are allowed, how many are still needed.
  using Key = std::tuple<StateId, uint32_t, uint32_t>;
  struct Node {
    std::vector<uint64_t> dense;  // a mask, or
    std::vector<int32_t> sparse;  // ids
    std::vector<uint32_t> open;   // trie nodes at which the rule may have ended
    std::map<Key, std::unique_ptr<Node>> below;
  };

  Key key_of(const Item& item) const;
  Node& node_of(const Item& item);
  bool merge(Node& node, uint32_t frame, const Frames& frames, std::span<uint64_t> allowed);
  void read_all(const Position& position, Frames& frames, std::span<uint64_t> allowed);
  std::unique_ptr<Node> of_all(const Item& item);
  std::unique_ptr<Node> of_open(const Item& item, const std::vector<uint32_t>& open);
  void walk(uint32_t from, size_t longer_than, bool is_followed, Frames& frames, Node& node);
  void settle(Node& node);
  bool takes_any_text(const Item& item, size_t characters, bool is_followed);
  Position& at_depth(size_t depth);

  const Automaton& automaton_;
  const TokenTable& tokens_;
  mutable std::mutex mutex_;
  Matcher matcher_;
  Frames frames_;                                     // of the walk
  std::vector<std::unique_ptr<Position>> positions_;  // of the walk, by depth
  std::vector<Frames::Size> sizes_;                   // behind each depth
  std::map<Key, std::unique_ptr<Node>> nodes_;
  std::map<std::pair<StateId, bool>, bool> takes_any_text_;
  size_t bytes_ = 0;
  size_t worked_out_ = 0;
  size_t merges_left_ = 0;  // of the mask being made
};

}  // namespace verbatim::text
