#include "text/utf8.h"

#include <cstring>

namespace verbatim::text {

Utf8Char utf8_at(std::string_view text, size_t position) {
  constexpr char32_t kReplacement = 0xFFFD;
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[position + i]); };
  const size_t available = text.size() - position;
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {lead, 1, true, false};
  if (lead < 0xC2 || lead > 0xF4) return {kReplacement, 1, false, false};
  const uint8_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // The second byte's range keeps out overlong forms, surrogates and values above U+10FFFF.
  const uint8_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const uint8_t high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  char32_t value = lead & (0x7F >> length);
  for (uint8_t i = 1; i < length; ++i) {
    if (i >= available) return {kReplacement, i, false, true};
    const uint8_t next = byte(i);
    if (next < (i == 1 ? low : 0x80) || next > (i == 1 ? high : 0xBF)) return {kReplacement, i, false, false};
    value = value << 6 | (next & 0x3F);
  }
  return {value, length, true, false};
}

void append_utf8(std::string& out, char32_t code_point) {
  const auto put = [&](char32_t byte) { out.push_back(static_cast<char>(static_cast<uint8_t>(byte))); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | code_point >> 6);
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | code_point >> 12);
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | code_point >> 18);
    put(0x80 | (code_point >> 12 & 0x3F));
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

size_t valid_utf8_bytes(std::string_view text, size_t position) {
  size_t end = position;
  while (end < text.size()) {
    uint64_t word = 0;
    if (text.size() - end >= sizeof word) {
      std::memcpy(&word, text.data() + end, sizeof word);
      if ((word & 0x8080808080808080u) == 0) {
        end += sizeof word;
        continue;
      }
    }
    const Utf8Char character = utf8_at(text, end);
    if (!character.valid) break;
    end += character.bytes;
  }
  return end - position;
}

}  // namespace verbatim::text
