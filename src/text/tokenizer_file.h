// What a tokenizer.json says, checked and in plain types.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/pretokenizer.h"

namespace verbatim::text {

struct TokenizerFile {
  std::vector<std::string> pieces;      // raw bytes by id; empty where the id is unused
  std::vector<bool> whole;              // by id: a pre-token of these bytes is this token (ignore_merges)
  std::array<int32_t, 256> byte_ids{};  // the piece of each byte
  std::vector<Merge> merges;            // in order of rank
  std::vector<SplitStage> stages;       // the pre-tokenizer
  std::vector<AddedToken> added;        // in the file's order
};

// Throws Error(kFormat) for what is not a byte-level BPE tokenizer.json and Error(kUnsupported), by name, for what it
// asks and this engine lacks. What `tokenizers` would silently drop or repair is refused too: a vocabulary without a
// piece for each byte, ids given twice, merges of or into pieces that are not there.
TokenizerFile parse_tokenizer_file(std::string_view json, const std::string& where);

}  // namespace verbatim::text
