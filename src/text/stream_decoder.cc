#include "text/stream_decoder.h"

#include "text/utf8.h"

namespace verbatim::text {

std::string StreamDecoder::push(std::string_view bytes) {
  held_.append(bytes);
  std::string whole;
  size_t position = 0;
  while (position < held_.size()) {
    if (const size_t valid = valid_utf8_bytes(held_, position)) {
      whole.append(held_, position, valid);
      position += valid;
      continue;
    }
    const Utf8Char character = utf8_at(held_, position);
    if (character.incomplete) break;
    append_utf8(whole, character.code_point);
    ++replaced_;
    position += character.bytes;
  }
  held_.erase(0, position);
  return whole;
}

std::string StreamDecoder::flush() {
  std::string whole;
  if (!held_.empty()) {
    append_utf8(whole, 0xFFFD);
    ++replaced_;
    held_.clear();
  }
  return whole;
}

}  // namespace verbatim::text
