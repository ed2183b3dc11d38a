// Byte-level BPE as a tokenizer.json describes it: text to ids and back. docs/tokenizer.md lists what is supported.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/stream_decoder.h"

namespace verbatim::text {

struct Range {
  size_t begin, end;  // bytes
};

// Immutable after loading; every member may be called from any number of threads. Copies share one table.
//
// Ids equal those of Hugging Face `tokenizers` 0.22 for the same file and valid UTF-8. Invalid UTF-8, which
// `tokenizers` cannot take: each byte of an invalid sequence is a pre-token of its own and becomes the piece of that
// byte, and the text on either side is split as if it stood alone. So decode(encode(x)) == x for all bytes x, unless an
// added token of the file asks for white space around it to be swallowed (lstrip, rstrip).
class Tokenizer {
 public:
  // Throw Error: kIo, kFormat (not a tokenizer.json), kUnsupported (asks for something that this engine lacks, named).
  // `where` begins the messages.
  static Tokenizer load(const std::filesystem::path& tokenizer_json);
  static Tokenizer parse(std::string_view json, const std::string& where);

  // Appends ids. Added tokens are recognised only where every byte of the match lies inside `trusted` (sorted,
  // disjoint; touching ranges count as one); everything else is ordinary text, from which no special token can arise.
  // Takes time linear in the text (times the log of the length of the longest run without a split). Throws
  // Error(kUsage) for ranges that are not sorted or outside the text; Error(kCapacity) if a regex of the file (other
  // than the released one, which has its own matcher) exhausts its matching limits.
  void encode(std::string_view text, std::span<const Range> trusted, std::vector<int32_t>& ids) const;
  // The whole text trusted (added_tokens) or not.
  std::vector<int32_t> encode(std::string_view text, bool added_tokens) const;

  // The bytes of the pieces, one after the other: not always valid UTF-8 (see StreamDecoder). Ids that are unused or
  // out of range add nothing.
  std::string decode(std::span<const int32_t> ids, bool skip_special) const;

  std::string_view piece(int32_t id) const;  // raw bytes of one token; empty for unused or out-of-range ids
  bool is_added(int32_t id) const;
  bool is_special(int32_t id) const;
  std::optional<int32_t> find(std::string_view added_token_content) const;
  int32_t size() const;  // highest id + 1

 private:
  struct Data;
  explicit Tokenizer(std::shared_ptr<const Data> data) : data_(std::move(data)) {}
  std::shared_ptr<const Data> data_;
};

}  // namespace verbatim::text
