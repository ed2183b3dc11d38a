// The small tokenizer of tests/fixtures/text, and ways to change its file.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "base/mapped_file.h"
#include "text/tokenizer.h"

namespace verbatim::text {

inline nlohmann::json read_fixture(const char* name) {
  return nlohmann::json::parse(read_text_file(std::filesystem::path(VERBATIM_FIXTURES) / "text" / name, 16 << 20));
}

inline const Tokenizer& small_tokenizer() {
  static const Tokenizer tokenizer =
      Tokenizer::load(std::filesystem::path(VERBATIM_FIXTURES) / "text" / "tokenizer.json");
  return tokenizer;
}

}  // namespace verbatim::text
