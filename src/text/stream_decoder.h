// Bytes of tokens in, whole UTF-8 characters out.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace verbatim::text {

// A token may end inside a character, so bytes are held until it is whole. What can no longer become a character is
// replaced by one U+FFFD per maximal invalid subpart (as Python's and Rust's lossy decoding). The concatenation of all
// that comes out does not depend on how the bytes were cut.
class StreamDecoder {
 public:
  // Returns the text that became whole; never part of a character.
  std::string push(std::string_view bytes);
  // The end of the stream: what is held can no longer become whole. Ready for a new stream afterwards.
  std::string flush();

  size_t held_bytes() const { return held_.size(); }  // at most 3
  size_t replaced() const { return replaced_; }       // how many U+FFFD stand for invalid bytes so far, streams summed

 private:
  std::string held_;
  size_t replaced_ = 0;
};

}  // namespace verbatim::text
