// Added tokens: strings of the file that are looked for before the text is split.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace verbatim::text {

struct AddedToken {
  std::string content;
  int32_t id = -1;
  bool single_word = false;  // only where no word character touches it
  bool lstrip = false;       // swallows the white space before
  bool rstrip = false;       // and after
  bool normalized = false;   // looked for after those that are not, in what those left
  bool special = false;
};

// A stretch of the text: an added token, or ordinary text (id -1).
struct Segment {
  size_t begin, end;
  int32_t id;
};

// The leftmost match wins, the longest of those that start there; after a match the search goes on behind it, even
// where a flag rejects it. All as `tokenizers` does. Time is linear in the text times the longest content.
class AddedTokenFinder {
 public:
  explicit AddedTokenFinder(const std::vector<AddedToken>& tokens);

  // Cuts the whole text. A match counts only with every byte inside one of `trusted` (sorted, not touching); the flags
  // look at the text around it, trusted or not.
  std::vector<Segment> cut(std::string_view text, std::span<const Range> trusted) const;

 private:
  // Finds one group of tokens: a trie with children in sorted order.
  class Trie {
   public:
    void add(std::string_view content, size_t token);
    // The longest content at text[position, end): its index, or -1.
    ptrdiff_t longest(std::string_view text, size_t position, size_t end) const;
    bool may_start(char byte) const { return first_[static_cast<uint8_t>(byte)]; }
    bool empty() const { return nodes_.size() == 1; }

   private:
    struct Node {
      std::vector<std::pair<uint8_t, uint32_t>> children;
      ptrdiff_t token = -1;
    };
    std::vector<Node> nodes_ = std::vector<Node>(1);
    std::array<bool, 256> first_{};
  };

  void cut_segment(const Trie& trie, std::string_view text, Segment segment, std::span<const Range> trusted,
                   std::vector<Segment>& out) const;

  std::vector<AddedToken> tokens_;
  std::array<Trie, 2> tries_;  // not normalized, normalized
};

}  // namespace verbatim::text
