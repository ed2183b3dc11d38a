// The vocabulary as a grammar sees it: the bytes of every token in a trie, and the tags' ids.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/reply_vocabulary.h"

namespace verbatim::text {

class Tokenizer;

// Immutable; built once for a checkpoint and shared.
//
// Added tokens (tags, special tokens) are no text: they are in no node of the trie and match a grammar by id alone.
class TokenTable {
 public:
  // Tags that the tokenizer lacks have the id -1; only tool calls need them.
  static std::shared_ptr<const TokenTable> build(const Tokenizer& tokenizer);
  // pieces[i]: the bytes of token i, empty for none. added[i]: it is an added token. Throws Error(kUnsupported) if a
  // byte that UTF-8 can hold is no token by itself: a reply could get stuck.
  TokenTable(std::vector<std::string> pieces, const std::vector<bool>& added,
             const std::array<int32_t, kReplyTagText.size()>& tags);

  int32_t size() const { return static_cast<int32_t>(pieces_.size()); }  // highest id + 1
  size_t words() const { return (pieces_.size() + 63) / 64; }            // of a mask
  // Bytes of a token that is text; empty for added, unused and out-of-range ids.
  std::string_view text(int32_t id) const {
    return id >= 0 && id < size() ? std::string_view(pieces_[static_cast<size_t>(id)]) : std::string_view{};
  }
  int32_t tag(ReplyTag tag) const { return tags_[static_cast<size_t>(tag)]; }
  size_t longest() const { return longest_; }  // bytes of the longest token that is text
  // Every token there is, added ones too.
  std::span<const uint64_t> known() const { return known_; }

  // The trie in preorder: a node's first child is the next node, its next sibling the node at `end`. Node 0 is the
  // root, the empty text.
  struct Node {
    uint32_t end = 0;          // one past the last node below this one
    uint32_t first_token = 0;  // of tokens_at(); the next node's first_token ends them
    uint16_t depth = 0;        // bytes
    uint16_t deepest = 0;      // of the nodes at and below this one
    uint8_t byte = 0;          // the last one
    // Every token at and below this node is UTF-8 (the last character may be cut) without quotes, backslashes and
    // control characters.
    bool is_plain_text = false;
  };
  std::span<const Node> nodes() const { return {nodes_.data(), nodes_.size() - 1}; }
  // Of the nodes from `node` up to its end.
  std::span<const int32_t> tokens_from(uint32_t node) const {
    return {tokens_.data() + nodes_[node].first_token, tokens_.data() + nodes_[nodes_[node].end].first_token};
  }
  std::span<const int32_t> tokens_at(uint32_t node) const {
    return {tokens_.data() + nodes_[node].first_token, tokens_.data() + nodes_[node + 1].first_token};
  }

 private:
  void mark_plain_text();

  std::vector<std::string> pieces_;  // those of added tokens are empty
  std::array<int32_t, kReplyTagText.size()> tags_;
  std::vector<uint64_t> known_;
  size_t longest_ = 0;
  std::vector<Node> nodes_;  // and one behind the last
  std::vector<int32_t> tokens_;
};

}  // namespace verbatim::text
