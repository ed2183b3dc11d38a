#include "text/added_tokens.h"

#include <algorithm>

#include "text/unicode_classes.h"
#include "text/utf8.h"

namespace verbatim::text {
namespace {

// Classes of the character that starts at / ends at `position` of `text`; 0 for invalid bytes.
uint8_t classes_at(std::string_view text, size_t position, size_t& bytes) {
  const Utf8Char character = utf8_at(text, position);
  bytes = character.bytes;
  return character.valid ? UnicodeClasses::instance()[character.code_point] : uint8_t{0};
}

uint8_t classes_before(std::string_view text, size_t position, size_t& bytes) {
  for (bytes = 1; bytes <= 4 && bytes <= position; ++bytes) {
    const Utf8Char character = utf8_at(text, position - bytes);
    if (character.valid && character.bytes == bytes) return UnicodeClasses::instance()[character.code_point];
  }
  bytes = 1;
  return 0;
}

}  // namespace

void AddedTokenFinder::Trie::add(std::string_view content, size_t token) {
  first_[static_cast<uint8_t>(content[0])] = true;
  uint32_t node = 0;
  for (const char c : content) {
    const auto byte = static_cast<uint8_t>(c);
    auto& children = nodes_[node].children;
    auto child = std::lower_bound(children.begin(), children.end(), std::pair<uint8_t, uint32_t>(byte, 0));
    if (child == children.end() || child->first != byte) {
      const auto created = static_cast<uint32_t>(nodes_.size());
      children.insert(child, {byte, created});
      nodes_.emplace_back();
      node = created;
    } else {
      node = child->second;
    }
  }
  nodes_[node].token = static_cast<ptrdiff_t>(token);
}

ptrdiff_t AddedTokenFinder::Trie::longest(std::string_view text, size_t position, size_t end) const {
  ptrdiff_t found = -1;
  const Node* node = nodes_.data();
  for (; position < end; ++position) {
    const std::pair<uint8_t, uint32_t> wanted(static_cast<uint8_t>(text[position]), 0);
    const auto child = std::lower_bound(node->children.begin(), node->children.end(), wanted);
    if (child == node->children.end() || child->first != wanted.first) break;
    node = &nodes_[child->second];
    if (node->token >= 0) found = node->token;
  }
  return found;
}

AddedTokenFinder::AddedTokenFinder(const std::vector<AddedToken>& tokens) : tokens_(tokens) {
  for (size_t i = 0; i < tokens_.size(); ++i) tries_[tokens_[i].normalized ? 1 : 0].add(tokens_[i].content, i);
}

std::vector<Segment> AddedTokenFinder::cut(std::string_view text, std::span<const Range> trusted) const {
  std::vector<Segment> segments = {{0, text.size(), -1}};
  for (const Trie& trie : tries_) {
    if (trie.empty() || trusted.empty()) continue;
    std::vector<Segment> finer;
    for (const Segment& segment : segments) {
      if (segment.id >= 0) {
        finer.push_back(segment);
      } else {
        cut_segment(trie, text, segment, trusted, finer);
      }
    }
    segments = std::move(finer);
  }
  return segments;
}

void AddedTokenFinder::cut_segment(const Trie& trie, std::string_view text, Segment segment,
                                   std::span<const Range> trusted, std::vector<Segment>& out) const {
  const std::string_view visible = text.substr(0, segment.end);
  size_t done = segment.begin;
  Range space_run = {0, 0};  // the last run that rstrip swallowed: a second look at it must not cost its length again
  const auto match = [&](const AddedToken& token, size_t begin, size_t end) {
    size_t bytes = 0;
    if (token.single_word) {
      if (begin > segment.begin && (classes_before(text, begin, bytes) & kWord)) return;
      if (end < segment.end && (classes_at(visible, end, bytes) & kWord)) return;
    }
    if (token.lstrip) {
      while (begin > done && (classes_before(text, begin, bytes) & kSpace) && begin - bytes >= done) begin -= bytes;
    }
    if (token.rstrip) {
      if (end >= space_run.begin && end < space_run.end) {
        end = space_run.end;
      } else {
        space_run.begin = end;
        while (end < segment.end && (classes_at(visible, end, bytes) & kSpace)) end += bytes;
        space_run.end = end;
      }
    }
    if (done < begin) out.push_back({done, begin, -1});
    out.push_back({begin, end, token.id});
    done = end;
  };
  auto range =
      std::partition_point(trusted.begin(), trusted.end(), [&](const Range& r) { return r.end <= segment.begin; });
  for (; range != trusted.end() && range->begin < segment.end; ++range) {
    const size_t end = std::min(range->end, segment.end);
    for (size_t at = std::max(range->begin, segment.begin); at < end;) {
      const ptrdiff_t found = trie.may_start(text[at]) ? trie.longest(text, at, end) : -1;
      if (found < 0) {
        ++at;
        continue;
      }
      const AddedToken& token = tokens_[static_cast<size_t>(found)];
      match(token, at, at + token.content.size());
      at += token.content.size();
    }
  }
  if (done < segment.end) out.push_back({done, segment.end, -1});
}

}  // namespace verbatim::text
