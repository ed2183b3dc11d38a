#include "text/grammar/mask_cache.h"

#include <algorithm>
#include <utility>

namespace verbatim::text {
namespace {

// Forgotten as a whole beyond this.
constexpr size_t kMaxBytes = size_t{64} << 20;

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
  const Rule& rule = automaton_.rule(automaton_.rule_of(item.state));
  const auto far = static_cast<uint32_t>(tokens_.longest());
  const uint32_t more = rule.max_count == kNoMaximum ? far : std::min(rule.max_count - item.count, far);
  const uint32_t needed = item.count < rule.min_count ? std::min(rule.min_count - item.count, far) : 0;
  return {item.state, more, needed};
}

void MaskCache::allow(const Position& position, const Frames& frames, std::span<uint64_t> allowed) {
  const std::lock_guard lock(mutex_);
  if (bytes_ > kMaxBytes) {
    nodes_.clear();
    bytes_ = 0;
  }
  for (const Item& item : position.items) {
    if (automaton_.bytes(item.state).empty()) continue;
    std::unique_ptr<Node>& node = nodes_[key_of(item)];
    if (!node) node = work_out(item, nullptr);
    merge(*node, item.frame, frames, allowed);
  }
}

void MaskCache::merge(Node& node, uint32_t frame, const Frames& frames, std::span<uint64_t> allowed) {
  for (size_t i = 0; i < node.dense.size(); ++i) allowed[i] |= node.dense[i];
  for (const int32_t id : node.sparse) allowed[static_cast<size_t>(id) / 64] |= uint64_t{1} << (id % 64);
  if (node.open.empty() || frame == Frames::kRoot) return;
  for (uint32_t r = frames.first_return(frame); r != Frames::kNone; r = frames.at(r).next) {
    const Item& behind = frames.at(r).item;
    std::unique_ptr<Node>& below = node.below[key_of(behind)];
    if (!below) below = work_out(behind, &node.open);
    merge(*below, behind.frame, frames, allowed);
  }
}

Position& MaskCache::at_depth(size_t depth) {
  while (positions_.size() <= depth) {
    positions_.push_back(std::make_unique<Position>());
    sizes_.emplace_back();
  }
  return *positions_[depth];
}

// Of all tokens, or of those below the trie nodes `open` where `item` is returned to.
std::unique_ptr<MaskCache::Node> MaskCache::work_out(const Item& item, const std::vector<uint32_t>* open) {
  ++worked_out_;
  auto node = std::make_unique<Node>();
  std::vector<int32_t> fitting;
  const Item here{item.state, item.count, Frames::kRoot};
  if (open == nullptr) {
    frames_.resize({1, 0});
    Position& start = at_depth(0);
    start.items.assign(1, here);
    start.is_complete = false;
    sizes_[0] = frames_.size();
    walk(0, fitting, node->open);
  } else {
    for (const uint32_t at : *open) {
      frames_.resize({1, 0});
      const size_t depth = tokens_.nodes()[at].depth;
      matcher_.enter(here, frames_, at_depth(depth));
      sizes_[depth] = frames_.size();
      if (positions_[depth]->is_complete) node->open.push_back(at);
      if (!positions_[depth]->items.empty()) walk(at, fitting, node->open);
    }
  }
  if (fitting.size() * sizeof(int32_t) > tokens_.words() * sizeof(uint64_t)) {
    node->dense.resize(tokens_.words());
    for (const int32_t id : fitting) node->dense[static_cast<size_t>(id) / 64] |= uint64_t{1} << (id % 64);
  } else {
    std::sort(fitting.begin(), fitting.end());
    fitting.erase(std::unique(fitting.begin(), fitting.end()), fitting.end());
    fitting.shrink_to_fit();
    node->sparse = std::move(fitting);
  }
  account(*node);
  return node;
}

void MaskCache::account(const Node& node) {
  bytes_ += sizeof(Node) + 64 + node.dense.size() * sizeof(uint64_t) + node.sparse.size() * sizeof(int32_t) +
            node.open.size() * sizeof(uint32_t);
}

// Everything below trie node `from`, whose position is that of its depth.
void MaskCache::walk(uint32_t from, std::vector<int32_t>& fitting, std::vector<uint32_t>& open) {
  const std::span<const TokenTable::Node> trie = tokens_.nodes();
  for (uint32_t i = from + 1; i < trie[from].end;) {
    const size_t depth = trie[i].depth;
    at_depth(depth);
    frames_.resize(sizes_[depth - 1]);
    Position& here = *positions_[depth];
    matcher_.step(*positions_[depth - 1], trie[i].byte, frames_, here);
    if (here.is_dead()) {
      i = trie[i].end;
      continue;
    }
    sizes_[depth] = frames_.size();
    const std::span<const int32_t> ids = tokens_.tokens_at(i);
    fitting.insert(fitting.end(), ids.begin(), ids.end());
    if (here.is_complete && trie[i].end > i + 1) open.push_back(i);
    i = here.items.empty() ? trie[i].end : i + 1;
  }
}

}  // namespace verbatim::text
