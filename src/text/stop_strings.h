// Stop strings that span tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace verbatim::text {

// Finds the first of several strings in a text that arrives in pieces (Aho-Corasick: amortised constant time a byte,
// however long the strings are). Text is held back while it may still turn out to be the beginning of a stop string.
//
// "First" is the match that is complete first: what follows is never generated, so it cannot matter. Of several that
// end at the same byte the longest counts, so that nothing of any of them is let out. Neither depends on how the text
// was cut.
class StopStrings {
 public:
  // Matches nothing and holds nothing back.
  StopStrings() : StopStrings(std::vector<std::string>{}) {}
  // Throws Error(kUsage) for a string that is empty or not UTF-8. How many and how long is the caller's to limit:
  // memory is about 60 bytes a byte.
  explicit StopStrings(const std::vector<std::string>& strings);

  // Appends to `out` what is known to be visible. Once a stop string is complete, returns its index, having let out
  // what stood before it; nothing comes out of any later call. Given whole characters, lets out whole characters.
  std::optional<size_t> push(std::string_view text, std::string& out);
  // The text ends or is interrupted here: lets out what was held back and begins anew.
  void flush(std::string& out);

  std::optional<size_t> matched() const { return matched_; }
  size_t held_bytes() const { return held_.size(); }  // below the length of the longest string

 private:
  // A node is a prefix of some string; its depth is the prefix's length. Node 0 is the empty one.
  struct Node {
    uint32_t depth = 0;
    uint32_t fallback = 0;               // the longest proper suffix that is a prefix of some string
    std::optional<uint32_t> match = {};  // the longest string that ends here
  };
  uint32_t step(uint32_t node, char byte) const;
  const uint32_t* child(uint32_t node, char byte) const;

  std::vector<Node> nodes_;
  std::unordered_map<uint64_t, uint32_t> children_;  // node << 8 | byte
  std::vector<uint32_t> lengths_;                    // of the strings, bytes
  uint32_t node_ = 0;
  std::string held_;  // the prefix that node_ stands for
  std::optional<size_t> matched_;
};

}  // namespace verbatim::text
