#include "text/stop_strings.h"

#include "base/error.h"
#include "text/utf8.h"

namespace verbatim::text {
namespace {

uint64_t edge(uint32_t node, char byte) { return uint64_t{node} << 8 | static_cast<uint8_t>(byte); }

}  // namespace

StopStrings::StopStrings(const std::vector<std::string>& strings) {
  nodes_.emplace_back();
  for (size_t i = 0; i < strings.size(); ++i) {
    const std::string& string = strings[i];
    if (string.empty()) fail(ErrorKind::kUsage, "stop", "stop string {} is empty; leave it out", i);
    if (valid_utf8_bytes(string, 0) != string.size())
      fail(ErrorKind::kUsage, "stop", "stop string {} is not valid UTF-8; a reply could never contain it", i);
    uint32_t node = 0;
    for (const char byte : string) {
      const auto [place, is_new] = children_.try_emplace(edge(node, byte), static_cast<uint32_t>(nodes_.size()));
      if (is_new) nodes_.push_back({.depth = nodes_[node].depth + 1});
      node = place->second;
    }
    if (!nodes_[node].match) nodes_[node].match = static_cast<uint32_t>(i);  // of equal strings the first
    lengths_.push_back(static_cast<uint32_t>(string.size()));
  }
  // Fallbacks by increasing depth: a node's depends only on shorter prefixes.
  std::vector<std::vector<std::pair<uint64_t, uint32_t>>> by_depth;
  for (const auto& [key, node] : children_) {
    const uint32_t depth = nodes_[node].depth;
    if (by_depth.size() < depth) by_depth.resize(depth);
    by_depth[depth - 1].emplace_back(key, node);
  }
  for (const auto& level : by_depth) {
    for (const auto& [key, node] : level) {
      const auto parent = static_cast<uint32_t>(key >> 8);
      if (parent != 0) nodes_[node].fallback = step(nodes_[parent].fallback, static_cast<char>(key & 0xFF));
      if (!nodes_[node].match) nodes_[node].match = nodes_[nodes_[node].fallback].match;
    }
  }
}

const uint32_t* StopStrings::child(uint32_t node, char byte) const {
  const auto found = children_.find(edge(node, byte));
  return found == children_.end() ? nullptr : &found->second;
}

uint32_t StopStrings::step(uint32_t node, char byte) const {
  while (true) {
    if (const uint32_t* next = child(node, byte)) return *next;
    if (node == 0) return 0;
    node = nodes_[node].fallback;
  }
}

std::optional<size_t> StopStrings::push(std::string_view text, std::string& out) {
  if (matched_) return matched_;
  if (lengths_.empty()) {
    out.append(text);
    return std::nullopt;
  }
  size_t released = 0;  // of held_, which grows by the whole text and is cut once
  for (const char byte : text) {
    held_.push_back(byte);
    node_ = step(node_, byte);
    if (const std::optional<uint32_t> match = nodes_[node_].match) {
      matched_ = *match;
      out.append(held_, 0, held_.size() - lengths_[*match]);
      held_.clear();
      return matched_;
    }
    released = held_.size() - nodes_[node_].depth;
  }
  out.append(held_, 0, released);
  held_.erase(0, released);
  return std::nullopt;
}

void StopStrings::flush(std::string& out) {
  out.append(held_);
  held_.clear();
  node_ = 0;
}

}  // namespace verbatim::text
