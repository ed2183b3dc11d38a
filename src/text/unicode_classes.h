// The character classes that the pre-tokenizer and the flags of added tokens speak of, as `tokenizers` has them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace verbatim::text {

enum UnicodeClass : uint8_t {
  kLetter = 1,  // \p{L}
  kNumber = 2,  // \p{N}
  kSpace = 4,   // \s
  kWord = 8,    // \w of single_word
};

struct UnicodeRange {
  uint32_t first, last;
  uint8_t classes;  // UnicodeClass bits
};

// Ascending and disjoint; code points in no range have no class. Generated (unicode_classes.cc).
extern const UnicodeRange kUnicodeRanges[];
extern const size_t kUnicodeRangeCount;

// The ranges as a two-level table.
class UnicodeClasses {
 public:
  static const UnicodeClasses& instance();

  // UnicodeClass bits of a code point up to U+10FFFF.
  uint8_t operator[](char32_t code_point) const {
    return classes_[static_cast<size_t>(block_[code_point >> 7]) << 7 | (code_point & 127)];
  }

 private:
  UnicodeClasses();
  std::vector<uint16_t> block_;   // per 128 code points: which block of classes_
  std::vector<uint8_t> classes_;  // distinct blocks
};

}  // namespace verbatim::text
