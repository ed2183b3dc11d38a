#include "text/grammar/mask_cache.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <utility>

namespace verbatim::text {
namespace {

// Forgotten as a whole beyond this.
constexpr size_t kMaxBytes = size_t{16} << 20;
// Of one mask. A schema's alternatives count, and the ways out of them.
constexpr size_t kMaxMerges = 20'000;

}  // namespace

MaskCache::MaskCache(const Automaton& automaton, const TokenTable& tokens)
    : automaton_(automaton), tokens_(tokens), matcher_(automaton) {}

size_t MaskCache::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

size_t MaskCache::worked_out() const {
  const std::lock_guard lock(mutex_);
  return worked_out_;
}

MaskCache::Key MaskCache::key_of(const Item& item) const {
  const auto far = static_cast<uint32_t>(tokens_.longest());
  if (item.count == Item::kFarAndEnough) return {item.state, far, 0};
  if (item.count == Item::kFarFromEnough) return {item.state, far, far};
  const Rule& rule = automaton_.rule(automaton_.rule_of(item.state));
  const uint32_t more = rule.max_count == kNoMaximum ? far : std::min(rule.max_count - item.count, far);
  const uint32_t needed = item.count < rule.min_count ? std::min(rule.min_count - item.count, far) : 0;
  return {item.state, more, needed};
}

MaskCache::Node& MaskCache::node_of(const Item& item) {
  const Key key = key_of(item);
  const auto found = nodes_.find(key);
  if (found != nodes_.end()) return *found->second;
  std::unique_ptr<Node> node = of_all(item);
  return *nodes_.insert_or_assign(key, std::move(node)).first->second;
}

void MaskCache::allow(const Position& position, Frames& frames, std::span<uint64_t> allowed) {
  const std::lock_guard lock(mutex_);
  if (bytes_ > kMaxBytes) {
    nodes_.clear();
    bytes_ = 0;
  }
  merges_left_ = kMaxMerges;
  for (const Item& item : position.items) {
    if (automaton_.bytes(item.state).empty()) continue;
    if (!merge(node_of(item), item.frame, frames, allowed)) return read_all(position, frames, allowed);
  }
}

void MaskCache::allow_by_reading(const Position& position, Frames& frames, std::span<uint64_t> allowed) {
  const std::lock_guard lock(mutex_);
  read_all(position, frames, allowed);
}

void MaskCache::read_all(const Position& position, Frames& frames, std::span<uint64_t> allowed) {
  if (position.items.empty()) return;
  const Frames::Size size = frames.size();
  Node node;
  at_depth(0) = position;
  sizes_[0] = size;
  walk(0, 0, false, frames, node);
  frames.resize(size);
  for (const int32_t id : node.sparse) allowed[static_cast<size_t>(id) / 64] |= uint64_t{1} << (id % 64);
}

// False if there are too many ways.
bool MaskCache::merge(Node& node, uint32_t frame, const Frames& frames, std::span<uint64_t> allowed) {
  if (merges_left_-- == 0) return false;
  for (size_t i = 0; i < node.dense.size(); ++i) allowed[i] |= node.dense[i];
  for (const int32_t id : node.sparse) allowed[static_cast<size_t>(id) / 64] |= uint64_t{1} << (id % 64);
  if (node.open.empty() || frame == Frames::kRoot) return true;
  for (uint32_t r = frames.first_return(frame); r != Frames::kNone; r = frames.at(r).next) {
    const Item& behind = frames.at(r).item;
    std::unique_ptr<Node>& below = node.below[key_of(behind)];
    if (!below) below = of_open(behind, node.open);
    if (!merge(*below, behind.frame, frames, allowed)) return false;
  }
  return true;
}

Position& MaskCache::at_depth(size_t depth) {
  while (positions_.size() <= depth) {
    positions_.push_back(std::make_unique<Position>());
    sizes_.emplace_back();
  }
  return *positions_[depth];
}

// Of all tokens.
std::unique_ptr<MaskCache::Node> MaskCache::of_all(const Item& item) {
  const auto far = static_cast<uint32_t>(tokens_.longest());
  const auto [state, more, needed] = key_of(item);
  auto node = std::make_unique<Node>();
  // A token shorter than what is left to a limit fits as if the limit were far.
  Item here{state, needed == 0 ? Item::kFarAndEnough : Item::kFarFromEnough, Frames::kRoot};
  uint32_t shorter = 0;
  if (more < far || (needed > 0 && needed < far)) {
    shorter = std::min(more, needed == 0 ? far : needed);
    const Node& other = node_of(here);
    const auto is_shorter = [&](int32_t id) { return tokens_.text(id).size() <= shorter; };
    for (size_t word = 0; word < other.dense.size(); ++word)
      for (uint64_t bits = other.dense[word]; bits != 0; bits &= bits - 1) {
        const auto id = static_cast<int32_t>(word * 64 + static_cast<size_t>(std::countr_zero(bits)));
        if (is_shorter(id)) node->sparse.push_back(id);
      }
    std::copy_if(other.sparse.begin(), other.sparse.end(), std::back_inserter(node->sparse), is_shorter);
    std::copy_if(other.open.begin(), other.open.end(), std::back_inserter(node->open),
                 [&](uint32_t at) { return tokens_.nodes()[at].depth <= shorter; });
    here.count = item.count;
  }
  frames_.resize({1, 0});
  Position& start = at_depth(0);
  start.items.assign(1, here);
  start.is_complete = false;
  sizes_[0] = frames_.size();
  walk(0, shorter, automaton_.rule(automaton_.rule_of(state)).is_followed, frames_, *node);
  settle(*node);
  return node;
}

// Of those below the trie nodes `open`, at which `item` is returned to.
std::unique_ptr<MaskCache::Node> MaskCache::of_open(const Item& item, const std::vector<uint32_t>& open) {
  auto node = std::make_unique<Node>();
  frames_.resize({1, 0});
  Position start;
  matcher_.enter({item.state, item.count, Frames::kRoot}, frames_, start);
  const Frames::Size size = frames_.size();
  const bool is_followed = automaton_.rule(automaton_.rule_of(item.state)).is_followed;
  if (start.is_complete && is_followed) node->open = open;
  const bool reads = std::any_of(start.items.begin(), start.items.end(),
                                 [&](const Item& one) { return !automaton_.bytes(one.state).empty(); });
  for (const uint32_t at : open) {
    if (!reads) break;
    const size_t depth = tokens_.nodes()[at].depth;
    at_depth(depth) = start;
    sizes_[depth] = size;
    walk(at, 0, is_followed, frames_, *node);
  }
  settle(*node);
  return node;
}

// The smaller form of what was gathered in `sparse`.
void MaskCache::settle(Node& node) {
  ++worked_out_;
  if (node.sparse.size() * sizeof(int32_t) > tokens_.words() * sizeof(uint64_t)) {
    node.dense.resize(tokens_.words());
    for (const int32_t id : node.sparse) node.dense[static_cast<size_t>(id) / 64] |= uint64_t{1} << (id % 64);
    node.sparse = {};
  } else {
    std::sort(node.sparse.begin(), node.sparse.end());
    node.sparse.erase(std::unique(node.sparse.begin(), node.sparse.end()), node.sparse.end());
    node.sparse.shrink_to_fit();
  }
  bytes_ += sizeof(Node) + 64 + node.dense.size() * sizeof(uint64_t) + node.sparse.size() * sizeof(int32_t) +
            node.open.size() * sizeof(uint32_t);
}

// Whether any of so many characters but quotes, backslashes and control characters lead from `item` back to it, and
// nothing else happens on the way: then whole branches of the trie fit. A rule that may end there is fine unless text
// may follow it.
bool MaskCache::takes_any_text(const Item& item, size_t characters, bool is_followed) {
  const Rule& rule = automaton_.rule(automaton_.rule_of(item.state));
  if (rule.max_count != kNoMaximum && item.count < Item::kFarFromEnough && rule.max_count - item.count < characters)
    return false;
  const auto [place, is_new] = takes_any_text_.try_emplace({item.state, is_followed}, false);
  if (!is_new) return place->second;
  const auto is_quiet = [&](StateId state) {
    return automaton_.epsilons(state).empty() && automaton_.calls(state).empty() && automaton_.tokens(state).empty() &&
           (automaton_.accept(state) == Automaton::Accept::kNo || !is_followed);
  };
  // Of the states behind some bytes of characters: whether all continuations lead back, by how many are to come.
  std::map<std::pair<StateId, int>, bool> known;
  const auto leads_back = [&](auto& self, StateId state, int left, uint32_t first, uint32_t last) -> bool {
    if (left == 0) return state == item.state;
    if (state == item.state || !is_quiet(state) || automaton_.accept(state) != Automaton::Accept::kNo) return false;
    const bool is_whole = first == 0x80 && last == 0xBF;
    if (const auto found = known.find({state, left}); is_whole && found != known.end()) return found->second;
    bool holds = true;
    for (uint32_t byte = first; holds && byte <= last; ++byte) {
      Item next{state, Item::kFarAndEnough, Frames::kRoot};
      holds = matcher_.follow(next, static_cast<uint8_t>(byte)) && self(self, next.state, left - 1, 0x80, 0xBF);
    }
    if (is_whole) known[{state, left}] = holds;
    return holds;
  };
  bool holds = is_quiet(item.state);
  for (uint32_t byte = 0x20; holds && byte < 0xF5; ++byte) {
    if (byte == '"' || byte == '\\' || (byte >= 0x80 && byte < 0xC2)) continue;
    Item next{item.state, Item::kFarAndEnough, Frames::kRoot};
    const int left = byte < 0x80 ? 0 : byte < 0xE0 ? 1 : byte < 0xF0 ? 2 : 3;
    holds = matcher_.follow(next, static_cast<uint8_t>(byte)) && leads_back(leads_back, next.state, left,
                                                                            byte == 0xE0   ? 0xA0
                                                                            : byte == 0xF0 ? 0x90
                                                                                           : 0x80,
                                                                            byte == 0xED   ? 0x9F
                                                                            : byte == 0xF4 ? 0x8F
                                                                                           : 0xBF);
  }
  return takes_any_text_[{item.state, is_followed}] = holds;
}

// Adds what is below trie node `from`, whose position is that of its depth: tokens and open nodes of more than
// `longer_than` bytes. is_followed: of the rule whose end makes a node open.
void MaskCache::walk(uint32_t from, size_t longer_than, bool is_followed, Frames& frames, Node& node) {
  const std::span<const TokenTable::Node> trie = tokens_.nodes();
  at_depth(trie[from].deepest);
  const auto fits = [&](uint32_t i, bool is_complete) {
    if (trie[i].depth <= longer_than) return;
    for (const int32_t id : tokens_.tokens_at(i)) node.sparse.push_back(id);
    if (is_complete && is_followed && trie[i].end > i + 1) node.open.push_back(i);
  };
  for (uint32_t i = from + 1; i < trie[from].end;) {
    const size_t depth = trie[i].depth;
    if (trie[i].deepest <= longer_than) {
      i = trie[i].end;
      continue;
    }
    const Position& before = *positions_[depth - 1];
    Position& here = *positions_[depth];
    if (before.items.size() == 1) {  // nearly always inside a string
      Item item = before.items[0];
      if (trie[i].is_plain_text && takes_any_text(item, trie[i].deepest - depth + 1, is_followed)) {
        const std::span<const int32_t> ids = tokens_.tokens_from(i);
        node.sparse.insert(node.sparse.end(), ids.begin(), ids.end());
        i = trie[i].end;
        continue;
      }
      if (!matcher_.follow(item, trie[i].byte)) {
        i = trie[i].end;
        continue;
      }
      if (automaton_.is_plain(item.state)) {
        here.is_complete = false;
        if (here.items.size() == 1)
          here.items[0] = item;
        else
          here.items.assign(1, item);
        sizes_[depth] = sizes_[depth - 1];
        fits(i, false);
        ++i;
        continue;
      }
    }
    frames.resize(sizes_[depth - 1]);
    matcher_.step(before, trie[i].byte, frames, here);
    if (here.is_dead()) {
      i = trie[i].end;
      continue;
    }
    sizes_[depth] = frames.size();
    fits(i, here.is_complete);
    i = here.items.empty() ? trie[i].end : i + 1;
  }
}

}  // namespace verbatim::text
