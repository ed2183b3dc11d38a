// What generate needs of the tokenizer, so that it also builds without the text library.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace verbatim::cli {

// The ids of `text`, added tokens recognised in it, by the directory's tokenizer.json. Throws Error(kIo) if it has
// none, Error(kUnsupported) in a build without the text library.
std::vector<int32_t> encode_prompt(const std::string& directory, const std::string& text);
std::string decode_text(const std::string& directory, std::span<const int32_t> ids);

// Number of ids that the directory's tokenizer knows; `vocabulary` where there is no tokenizer.json or no text library.
int64_t token_limit(const std::string& directory, int64_t vocabulary);

}  // namespace verbatim::cli
