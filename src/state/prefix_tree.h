// What was computed for earlier prompts and replies, by their tokens: a tree whose nodes are whole pages, some of which
// carry a snapshot of the recurrent state behind them. A later request resumes behind the deepest such node.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "ops/ops.h"
#include "state/pages.h"

namespace verbatim::state {

// The recurrent state behind a page: S of every linear layer, the last three convolution inputs, the tail of the next-n
// layer and the last token's final-normed hidden vector. Host memory; only StepModel knows the layout.
struct Snapshot {
  std::vector<float> values;
  int64_t bytes() const { return static_cast<int64_t>(values.size() * sizeof(float)); }
};

class PrefixTree {
 public:
  struct Match {
    int64_t tokens = 0;          // to resume behind: a multiple of kPageTokens, 0 if nothing
    std::vector<int32_t> pages;  // of those tokens, held once more for the caller
    std::shared_ptr<const Snapshot> snapshot;
    bool next_n_complete = true;  // the pages hold the next-n layer's rows too
    int64_t matched_tokens = 0;   // >= tokens: how far pages match, snapshot or not
  };

  // Snapshots are dropped, least recently used first, before they pass `snapshot_bytes`; 0 keeps none, and then
  // nothing is ever found.
  PrefixTree(PagePool& pages, int64_t snapshot_bytes);
  ~PrefixTree();
  PrefixTree(const PrefixTree&) = delete;
  PrefixTree& operator=(const PrefixTree&) = delete;

  // The deepest node with a snapshot along `tokens`, at most `limit` tokens deep. Touches what it finds.
  Match find(std::span<const int32_t> tokens, int64_t limit);

  // Adds nodes for the whole pages of `tokens` that are not there yet, holding their `pages` (one per kPageTokens).
  void insert(std::span<const int32_t> tokens, std::span<const int32_t> pages, bool next_n_complete);

  // Puts a snapshot behind the last page of `tokens` (whole pages, inserted before; ignored if they are gone).
  void attach(std::span<const int32_t> tokens, std::shared_ptr<const Snapshot> snapshot);

  bool has_snapshot(std::span<const int32_t> tokens);
  // Drops the snapshot behind `tokens`, if there is one.
  void detach(std::span<const int32_t> tokens);

  // Frees the least recently used page that only the tree holds and that no deeper node needs. False if there is none.
  bool evict_page();
  // Pages that evict_page could free one after the other.
  int64_t evictable_pages() const;

  void clear();  // forgets everything

  int64_t nodes() const { return node_count_; }
  int64_t snapshots() const { return static_cast<int64_t>(snapshot_order_.size()); }
  int64_t snapshot_bytes() const { return snapshot_bytes_; }

 private:
  struct Node;
  using Children = std::unordered_multimap<uint64_t, std::unique_ptr<Node>>;

  Node* child(Node& node, std::span<const int32_t> page_tokens);
  Node* walk(std::span<const int32_t> tokens);
  void touch(Node& node);
  void drop_snapshot(Node& node);
  void remove_leaf(Node& node);

  PagePool& pages_;
  int64_t snapshot_budget_;
  int64_t snapshot_bytes_ = 0;
  int64_t node_count_ = 0;
  std::unique_ptr<Node> root_;
  std::list<Node*> order_;           // all nodes, least recently used first
  std::list<Node*> snapshot_order_;  // those with a snapshot, likewise
};

}  // namespace verbatim::state
