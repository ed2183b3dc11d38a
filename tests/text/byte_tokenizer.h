// A tokenizer.json with a piece a byte (ids 0 to 255) and added tokens after them; those with a bar in their name are
// special.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "text/tokenizer.h"
#include "text/utf8.h"

namespace verbatim::text {

inline const std::vector<std::string>& chat_tokens() {
  static const std::vector<std::string> kTokens = {
      "[gMASK]",     "<sop>",        "<|system|>", "<|user|>",   "<|assistant|>", "<think>",     "</think>",
      "<tool_call>", "</tool_call>", "<arg_key>",  "</arg_key>", "<arg_value>",   "</arg_value>"};
  return kTokens;
}

inline std::string byte_tokenizer_json(const std::vector<std::string>& added) {
  using nlohmann::json;
  json vocabulary = json::object();
  int32_t next = 0;
  char32_t unprintable = 0x100;
  for (char32_t byte = 0; byte < 256; ++byte) {
    const bool itself = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    std::string character;
    append_utf8(character, itself ? byte : unprintable++);
    vocabulary[character] = next++;
  }
  json tokens = json::array();
  for (const std::string& content : added)
    tokens.push_back({{"id", next++},
                      {"content", content},
                      {"single_word", false},
                      {"lstrip", false},
                      {"rstrip", false},
                      {"normalized", false},
                      {"special", content.find('|') != std::string::npos}});
  const json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  const json file = {{"version", "1.0"},
                     {"added_tokens", tokens},
                     {"pre_tokenizer", byte_level},
                     {"decoder", byte_level},
                     {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", json::array()}}}};
  return file.dump();
}

inline Tokenizer byte_tokenizer(const std::vector<std::string>& added) {
  return Tokenizer::parse(byte_tokenizer_json(added), "test");
}

}  // namespace verbatim::text
