// UTF-8, one character at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace verbatim::text {

// What stands at one position. valid: `code_point` in `bytes` (1-4) bytes. Not valid: the `bytes` (1-3) bytes of the
// maximal subpart that can never become a character (Unicode's rule for U+FFFD, the one of Python and Rust), code_point
// is U+FFFD. incomplete: not valid, but the text ended inside what may still become a character.
struct Utf8Char {
  char32_t code_point;
  uint8_t bytes;
  bool valid;
  bool incomplete;
};

// Reads at `position`, which must be below text.size(). Overlong forms, surrogates and values above U+10FFFF are
// invalid.
Utf8Char utf8_at(std::string_view text, size_t position);

// Appends one scalar value (not a surrogate, at most U+10FFFF).
void append_utf8(std::string& out, char32_t code_point);

// Length of the longest valid prefix of text.substr(position).
size_t valid_utf8_bytes(std::string_view text, size_t position);

}  // namespace verbatim::text
