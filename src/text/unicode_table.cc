#include <algorithm>
#include <array>
#include <map>

#include "text/unicode_classes.h"

namespace verbatim::text {

const UnicodeClasses& UnicodeClasses::instance() {
  static const UnicodeClasses table;
  return table;
}

UnicodeClasses::UnicodeClasses() {
  constexpr size_t kBlock = 128, kCodePoints = 0x110000;
  std::vector<uint8_t> flat(kCodePoints, 0);
  for (size_t i = 0; i < kUnicodeRangeCount; ++i) {
    const UnicodeRange& range = kUnicodeRanges[i];
    std::fill(flat.begin() + range.first, flat.begin() + range.last + 1, range.classes);
  }
  std::map<std::array<uint8_t, kBlock>, uint16_t> known;
  block_.reserve(kCodePoints / kBlock);
  for (size_t first = 0; first < kCodePoints; first += kBlock) {
    std::array<uint8_t, kBlock> block{};
    std::copy_n(flat.begin() + static_cast<ptrdiff_t>(first), kBlock, block.begin());
    const auto [entry, is_new] = known.emplace(block, static_cast<uint16_t>(known.size()));
    if (is_new) classes_.insert(classes_.end(), block.begin(), block.end());
    block_.push_back(entry->second);
  }
}

}  // namespace verbatim::text
