#include "cli/text_bridge.h"

#include <filesystem>

#include "text/tokenizer.h"

namespace verbatim::cli {

namespace {

std::filesystem::path tokenizer_file(const std::string& directory) {
  return std::filesystem::path(directory) / "tokenizer.json";
}

}  // namespace

std::vector<int32_t> encode_prompt(const std::string& directory, const std::string& text) {
  return text::Tokenizer::load(tokenizer_file(directory)).encode(text, true);
}

std::string decode_text(const std::string& directory, std::span<const int32_t> ids) {
  return text::Tokenizer::load(tokenizer_file(directory)).decode(ids, false);
}

int64_t token_limit(const std::string& directory, int64_t vocabulary) {
  if (!std::filesystem::exists(tokenizer_file(directory))) return vocabulary;
  return text::Tokenizer::load(tokenizer_file(directory)).size();
}

}  // namespace verbatim::cli
