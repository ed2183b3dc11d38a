#include "text/grammar/code_points.h"

#include <algorithm>

namespace verbatim::text {
namespace {

constexpr uint32_t kLast = 0x10FFFF, kFirstSurrogate = 0xD800, kLastSurrogate = 0xDFFF;

}  // namespace

CodePoints::CodePoints(std::initializer_list<CodePointRange> ranges) {
  for (const CodePointRange& range : ranges) add(range.first, range.last);
}

CodePoints CodePoints::all() { return {{0, kLast}}; }

void CodePoints::add(uint32_t first, uint32_t last) {
  last = std::min(last, kLast);
  const auto put = [&](uint32_t from, uint32_t to) {
    if (from > to) return;
    ranges_.push_back({from, to});
    is_sorted_ = false;
  };
  put(first, std::min(last, kFirstSurrogate - 1));
  put(std::max(first, kLastSurrogate + 1), last);
}

void CodePoints::add(const CodePoints& other) {
  for (const CodePointRange& range : other.ranges()) add(range.first, range.last);
}

const std::vector<CodePointRange>& CodePoints::ranges() const {
  if (is_sorted_) return ranges_;
  std::sort(ranges_.begin(), ranges_.end(),
            [](const CodePointRange& a, const CodePointRange& b) { return a.first < b.first; });
  size_t kept = 0;
  for (size_t i = 1; i < ranges_.size(); ++i) {
    if (ranges_[i].first <= ranges_[kept].last + 1)
      ranges_[kept].last = std::max(ranges_[kept].last, ranges_[i].last);
    else
      ranges_[++kept] = ranges_[i];
  }
  ranges_.resize(std::min(ranges_.size(), kept + 1));
  is_sorted_ = true;
  return ranges_;
}

CodePoints CodePoints::complement() const {
  CodePoints out;
  uint32_t next = 0;
  for (const CodePointRange& range : ranges()) {
    if (range.first > next) out.add(next, range.first - 1);
    next = range.last + 1;
  }
  if (next <= kLast) out.add(next, kLast);
  return out;
}

CodePoints CodePoints::intersected(const CodePoints& other) const {
  CodePoints out;
  const std::vector<CodePointRange>&a = ranges(), &b = other.ranges();
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    out.add(std::max(a[i].first, b[j].first), std::min(a[i].last, b[j].last));
    ++(a[i].last < b[j].last ? i : j);
  }
  return out;
}

bool CodePoints::contains(uint32_t code_point) const {
  const std::vector<CodePointRange>& sorted = ranges();
  const auto after = std::upper_bound(sorted.begin(), sorted.end(), code_point,
                                      [](uint32_t value, const CodePointRange& range) { return value < range.first; });
  return after != sorted.begin() && code_point <= std::prev(after)->last;
}

}  // namespace verbatim::text
