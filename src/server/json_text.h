// JSON written as text, piece by piece: what a stream needs a thousand times a second.
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <iterator>
#include <span>
#include <string>
#include <string_view>

#include "text/tool_schema.h"

namespace verbatim::server {

// `text` must be valid UTF-8.
inline void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  text::append_json_escaped(out, text);
  out += '"';
}

// Bytes of any kind: what is not UTF-8 becomes U+FFFD.
void append_json_bytes_as_string(std::string& out, std::string_view bytes);

inline void append_json_integer(std::string& out, int64_t number) {
  fmt::format_to(std::back_inserter(out), "{}", number);
}

// Shortest digits that read back as the same number; what JSON cannot say becomes -9999 (as log probabilities of
// nothing do elsewhere).
void append_json_number(std::string& out, double number);
void append_json_number(std::string& out, float number);

void append_json_integers(std::string& out, std::span<const int32_t> numbers);

}  // namespace verbatim::server
