#include "state/prefix_tree.h"

#include <algorithm>
#include <array>

#include "base/error.h"

namespace verbatim::state {

namespace {

constexpr size_t kTokens = ops::kPageTokens;

uint64_t hash_of(std::span<const int32_t> tokens) {
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a over words
  for (const int32_t token : tokens) hash = (hash ^ static_cast<uint32_t>(token)) * 0x100000001b3;
  return hash;
}

}  // namespace

struct PrefixTree::Node {
  std::array<int32_t, kTokens> tokens{};
  int32_t page = -1;  // -1: the root
  bool next_n_complete = true;
  Node* parent = nullptr;
  Children children;
  std::shared_ptr<const Snapshot> snapshot;
  std::list<Node*>::iterator place, snapshot_place;
};

PrefixTree::PrefixTree(PagePool& pages, int64_t snapshot_bytes)
    : pages_(pages), snapshot_budget_(snapshot_bytes), root_(std::make_unique<Node>()) {}

PrefixTree::~PrefixTree() { clear(); }

PrefixTree::Node* PrefixTree::child(Node& node, std::span<const int32_t> page_tokens) {
  const auto [begin, end] = node.children.equal_range(hash_of(page_tokens));
  for (auto it = begin; it != end; ++it)
    if (std::equal(page_tokens.begin(), page_tokens.end(), it->second->tokens.begin())) return it->second.get();
  return nullptr;
}

PrefixTree::Node* PrefixTree::walk(std::span<const int32_t> tokens) {
  Node* node = root_.get();
  for (size_t at = 0; node != nullptr && at + kTokens <= tokens.size(); at += kTokens)
    node = child(*node, tokens.subspan(at, kTokens));
  return node;
}

void PrefixTree::touch(Node& node) {
  order_.splice(order_.end(), order_, node.place);
  if (node.snapshot) snapshot_order_.splice(snapshot_order_.end(), snapshot_order_, node.snapshot_place);
}

PrefixTree::Match PrefixTree::find(std::span<const int32_t> tokens, int64_t limit) {
  Match match;
  std::vector<Node*> path;
  Node* node = root_.get();
  while (static_cast<int64_t>((path.size() + 1) * kTokens) <= std::min<int64_t>(limit, std::ssize(tokens))) {
    node = child(*node, tokens.subspan(path.size() * kTokens, kTokens));
    if (node == nullptr) break;
    path.push_back(node);
  }
  match.matched_tokens = static_cast<int64_t>(path.size() * kTokens);
  size_t depth = path.size();
  while (depth > 0 && !path[depth - 1]->snapshot) --depth;
  if (depth == 0) return match;
  match.tokens = static_cast<int64_t>(depth * kTokens);
  match.snapshot = path[depth - 1]->snapshot;
  for (size_t i = 0; i < depth; ++i) {
    touch(*path[i]);
    pages_.hold(path[i]->page);
    match.pages.push_back(path[i]->page);
    match.next_n_complete = match.next_n_complete && path[i]->next_n_complete;
  }
  return match;
}

void PrefixTree::insert(std::span<const int32_t> tokens, std::span<const int32_t> pages, bool next_n_complete) {
  if (snapshot_budget_ == 0) return;
  Node* node = root_.get();
  for (size_t i = 0; (i + 1) * kTokens <= tokens.size(); ++i) {
    const auto page_tokens = tokens.subspan(i * kTokens, kTokens);
    Node* next = child(*node, page_tokens);
    if (next == nullptr) {
      auto made = std::make_unique<Node>();
      next = made.get();
      std::copy(page_tokens.begin(), page_tokens.end(), next->tokens.begin());
      next->page = pages[i];
      next->next_n_complete = next_n_complete;
      next->parent = node;
      next->place = order_.insert(order_.end(), next);
      pages_.hold(next->page);
      ++node_count_;
      node->children.emplace(hash_of(page_tokens), std::move(made));
    } else {
      touch(*next);
    }
    node = next;
  }
}

void PrefixTree::attach(std::span<const int32_t> tokens, std::shared_ptr<const Snapshot> snapshot) {
  Node* node = walk(tokens);
  if (node == nullptr || node == root_.get() || node->snapshot || snapshot->bytes() > snapshot_budget_) return;
  while (snapshot_bytes_ + snapshot->bytes() > snapshot_budget_) drop_snapshot(*snapshot_order_.front());
  snapshot_bytes_ += snapshot->bytes();
  node->snapshot = std::move(snapshot);
  node->snapshot_place = snapshot_order_.insert(snapshot_order_.end(), node);
}

bool PrefixTree::has_snapshot(std::span<const int32_t> tokens) {
  const Node* node = walk(tokens);
  return node != nullptr && node->snapshot != nullptr;
}

void PrefixTree::detach(std::span<const int32_t> tokens) {
  if (Node* node = walk(tokens)) drop_snapshot(*node);
}

void PrefixTree::drop_snapshot(Node& node) {
  if (!node.snapshot) return;
  snapshot_bytes_ -= node.snapshot->bytes();
  snapshot_order_.erase(node.snapshot_place);
  node.snapshot.reset();
}

void PrefixTree::remove_leaf(Node& node) {
  drop_snapshot(node);
  pages_.release(node.page);
  order_.erase(node.place);
  --node_count_;
  Children& siblings = node.parent->children;
  const auto [begin, end] = siblings.equal_range(hash_of(node.tokens));
  siblings.erase(std::find_if(begin, end, [&](const auto& entry) { return entry.second.get() == &node; }));
}

bool PrefixTree::evict_page() {
  for (Node* node : order_) {
    if (!node->children.empty() || pages_.holders(node->page) != 1) continue;
    remove_leaf(*node);
    return true;
  }
  return false;
}

int64_t PrefixTree::evictable_pages() const {
  // A node held by the tree alone has no holder below it: who holds a page holds the pages before it.
  return std::count_if(order_.begin(), order_.end(), [&](const Node* node) { return pages_.holders(node->page) == 1; });
}

void PrefixTree::clear() {
  while (!order_.empty()) {
    // Deepest first: a leaf exists as long as any node does.
    for (auto it = order_.begin(); it != order_.end();) {
      Node* node = *it++;
      if (node->children.empty()) remove_leaf(*node);
    }
  }
}

}  // namespace verbatim::state
