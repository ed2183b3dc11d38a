#include "text/grammar/token_table.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "text/tokenizer.h"

namespace verbatim::text {

std::shared_ptr<const TokenTable> TokenTable::build(const Tokenizer& tokenizer) {
  const auto size = static_cast<size_t>(tokenizer.size());
  std::vector<std::string> pieces(size);
  std::vector<bool> added(size);
  for (size_t i = 0; i < size; ++i) {
    pieces[i] = tokenizer.piece(static_cast<int32_t>(i));
    added[i] = tokenizer.is_added(static_cast<int32_t>(i));
  }
  std::array<int32_t, kReplyTagText.size()> tags{};
  for (size_t i = 0; i < tags.size(); ++i) tags[i] = tokenizer.find(kReplyTagText[i]).value_or(-1);
  return std::make_shared<const TokenTable>(std::move(pieces), added, tags);
}

TokenTable::TokenTable(std::vector<std::string> pieces, const std::vector<bool>& added,
                       const std::array<int32_t, kReplyTagText.size()>& tags)
    : pieces_(std::move(pieces)), tags_(tags), known_(words()) {
  for (size_t i = 0; i < pieces_.size(); ++i) {
    if (!pieces_[i].empty()) known_[i / 64] |= uint64_t{1} << (i % 64);
    // A depth is 16 bits; no vocabulary's text is longer.
    if (added[i] || pieces_[i].size() > std::numeric_limits<uint16_t>::max()) pieces_[i].clear();
    longest_ = std::max(longest_, pieces_[i].size());
  }
  for (size_t i = 0; i < pieces_.size(); ++i)
    if (!pieces_[i].empty()) tokens_.push_back(static_cast<int32_t>(i));
  std::sort(tokens_.begin(), tokens_.end(), [&](int32_t a, int32_t b) {
    const int order = text(a).compare(text(b));
    return order != 0 ? order < 0 : a < b;
  });

  nodes_.push_back({});
  std::vector<uint32_t> path = {0};  // nodes from the root to the token before
  const auto close = [&](size_t depth) {
    for (; path.size() > depth + 1; path.pop_back()) {
      Node& node = nodes_[path.back()];
      Node& parent = nodes_[path[path.size() - 2]];
      node.end = static_cast<uint32_t>(nodes_.size());
      parent.deepest = std::max(parent.deepest, node.deepest);
    }
  };
  std::string_view before;
  for (size_t i = 0; i < tokens_.size(); ++i) {
    const std::string_view bytes = text(tokens_[i]);
    const auto common = static_cast<size_t>(
        std::mismatch(before.begin(), before.end(), bytes.begin(), bytes.end()).first - before.begin());
    if (i > 0 && common == bytes.size()) continue;  // the same bytes again
    close(common);
    for (size_t depth = common; depth < bytes.size(); ++depth) {
      path.push_back(static_cast<uint32_t>(nodes_.size()));
      const auto deep = static_cast<uint16_t>(depth + 1);
      nodes_.push_back({.end = 0,
                        .first_token = static_cast<uint32_t>(i),
                        .depth = deep,
                        .deepest = deep,
                        .byte = static_cast<uint8_t>(bytes[depth])});
    }
    before = bytes;
  }
  close(0);
  nodes_[0].end = static_cast<uint32_t>(nodes_.size());
  nodes_.push_back({});
  nodes_.back().first_token = static_cast<uint32_t>(tokens_.size());

  mark_plain_text();

  std::array<bool, 256> is_token{};
  for (uint32_t node = 1; node + 1 < nodes_.size(); node = nodes_[node].end)
    is_token[nodes_[node].byte] = !tokens_at(node).empty();
  for (size_t byte = 0; byte < 0xF5; ++byte)
    if (!is_token[byte] && byte != 0xC0 && byte != 0xC1)
      fail(ErrorKind::kUnsupported, "structured output",
           "byte 0x{:02X} is no token by itself; a reply could get stuck before it; use a byte-level tokenizer", byte);
}

void TokenTable::mark_plain_text() {
  // Behind each depth: continuation bytes still to come, and the range of the next one; `is_text` so far.
  struct Reading {
    int left = 0;
    uint8_t first = 0x80, last = 0xBF;
    bool is_text = true;
  };
  std::vector<Reading> readings(longest_ + 1);
  for (uint32_t i = 1; i + 1 < nodes_.size(); ++i) {
    Node& node = nodes_[i];
    const Reading& before = readings[node.depth - 1u];
    Reading& here = readings[node.depth];
    here = {};
    const uint8_t byte = node.byte;
    if (before.left > 0) {
      here.is_text = before.is_text && byte >= before.first && byte <= before.last;
      here.left = before.left - 1;
    } else {
      here.is_text = before.is_text && byte >= 0x20 && byte != '"' && byte != '\\' && !(byte >= 0x80 && byte < 0xC2) &&
                     byte < 0xF5;
      here.left = byte < 0xC2 ? 0 : byte < 0xE0 ? 1 : byte < 0xF0 ? 2 : 3;
      if (byte == 0xE0) here.first = 0xA0;
      if (byte == 0xED) here.last = 0x9F;
      if (byte == 0xF0) here.first = 0x90;
      if (byte == 0xF4) here.last = 0x8F;
    }
    node.is_plain_text = here.is_text;
  }
  for (size_t i = nodes_.size() - 1; i-- > 1;)  // children come behind their parents
    for (uint32_t child = static_cast<uint32_t>(i) + 1; child < nodes_[i].end; child = nodes_[child].end)
      nodes_[i].is_plain_text = nodes_[i].is_plain_text && nodes_[child].is_plain_text;
}

}  // namespace verbatim::text
