#include "text/released_pattern.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "text/unicode_classes.h"

namespace verbatim::text {
namespace {

// One character of valid UTF-8 and its classes.
struct Character {
  uint8_t bytes;
  uint8_t classes;
};

class Scanner {
 public:
  explicit Scanner(std::string_view text)
      : data_(reinterpret_cast<const uint8_t*>(text.data())), size_(text.size()), table_(UnicodeClasses::instance()) {
    for (char32_t c = 0; c < 128; ++c) ascii_[c] = table_[c];
  }

  // The alternatives in the pattern's order; each returns the end of its match at `begin`, or `begin` if it has none.
  size_t next(size_t begin) const {
    const uint8_t byte = data_[begin];
    if (byte == '\'') {
      if (const size_t end = contraction(begin); end != begin) return end;
    }
    const Character first = at(begin);
    const size_t after = begin + first.bytes;
    // [^\r\n\p{L}\p{N}]?\p{L}+
    if (first.classes & kLetter) return skip(after, kLetter);
    if (!(first.classes & kNumber) && byte != '\r' && byte != '\n' && after < size_) {
      if (const Character second = at(after); second.classes & kLetter) return skip(after + second.bytes, kLetter);
    }
    // \p{N}{1,3}
    if (first.classes & kNumber) {
      size_t end = after;
      for (int count = 1; count < 3 && end < size_; ++count) {
        const Character digit = at(end);
        if (!(digit.classes & kNumber)) break;
        end += digit.bytes;
      }
      return end;
    }
    //  ?[^\s\p{L}\p{N}]+[\r\n]*
    const size_t symbols = byte == ' ' ? after : begin;
    if (const size_t end = skip_symbols(symbols); end != symbols) return skip_newlines(end);
    return white_space(begin);
  }

 private:
  Character at(size_t position) const {
    const uint8_t* p = data_ + position;
    if (p[0] < 0x80) return {1, ascii_[p[0]]};
    if (p[0] < 0xE0) return {2, table_[(p[0] & 0x1Fu) << 6 | (p[1] & 0x3Fu)]};
    if (p[0] < 0xF0) return {3, table_[(p[0] & 0x0Fu) << 12 | (p[1] & 0x3Fu) << 6 | (p[2] & 0x3Fu)]};
    return {4, table_[(p[0] & 0x07u) << 18 | (p[1] & 0x3Fu) << 12 | (p[2] & 0x3Fu) << 6 | (p[3] & 0x3Fu)]};
  }

  size_t skip(size_t position, uint8_t wanted) const {
    while (position < size_) {
      const Character character = at(position);
      if (!(character.classes & wanted)) break;
      position += character.bytes;
    }
    return position;
  }

  size_t skip_symbols(size_t position) const {
    while (position < size_) {
      const Character character = at(position);
      if (character.classes & (kLetter | kNumber | kSpace)) break;
      position += character.bytes;
    }
    return position;
  }

  size_t skip_newlines(size_t position) const {
    while (position < size_ && (data_[position] == '\r' || data_[position] == '\n')) ++position;
    return position;
  }

  // (?i:'s|'t|'re|'ve|'m|'ll|'d), where i is Unicode's simple case folding: U+017F folds to s.
  size_t contraction(size_t begin) const {
    const auto lower = [&](size_t i) {
      return begin + i < size_ ? static_cast<uint8_t>(data_[begin + i] | 0x20) : uint8_t{0};
    };
    switch (lower(1)) {
      case 's':
      case 't':
      case 'm':
      case 'd': return begin + 2;
      case 'r':
      case 'v': return lower(2) == 'e' ? begin + 3 : begin;
      case 'l': return lower(2) == 'l' ? begin + 3 : begin;
      default: break;
    }
    const bool long_s = begin + 2 < size_ && data_[begin + 1] == 0xC5 && data_[begin + 2] == 0xBF;
    return long_s ? begin + 3 : begin;
  }

  // \s*[\r\n]+|\s+(?!\S)|\s+ at a white-space character: through the last line end of the run; without one, all of the
  // run but its last character; at the end of the text, or where that leaves nothing, the run.
  size_t white_space(size_t begin) const {
    size_t end = begin, last = begin, after_line_end = begin;
    while (end < size_) {
      const Character character = at(end);
      if (!(character.classes & kSpace)) break;
      last = end;
      if (data_[end] == '\r' || data_[end] == '\n') after_line_end = end + 1;
      end += character.bytes;
    }
    if (after_line_end != begin) return after_line_end;
    return end == size_ || last == begin ? end : last;
  }

  const uint8_t* data_;
  size_t size_;
  const UnicodeClasses& table_;
  std::array<uint8_t, 128> ascii_{};
};

}  // namespace

void split_by_released_pattern(std::string_view text, std::vector<size_t>& ends) {
  const Scanner scanner(text);
  for (size_t position = 0; position < text.size();) {
    position = scanner.next(position);
    ends.push_back(position);
  }
}

}  // namespace verbatim::text
