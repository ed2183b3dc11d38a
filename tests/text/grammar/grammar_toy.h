// Token tables and replies for the grammar's tests.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/grammar/grammar.h"
#include "text/tokenizer.h"

namespace verbatim::text {

// Ids: a byte each, then `pieces`, then the reply tags, then kEnd and kOtherEnd.
struct GrammarToy {
  TokenTablePointer tokens;
  std::vector<std::string> pieces;  // bytes of every id, tags and ends included
  int32_t first_tag = 0;
  int32_t end = 0, other_end = 0;

  explicit GrammarToy(const std::vector<std::string>& more = default_pieces()) {
    for (int byte = 0; byte < 256; ++byte) pieces.emplace_back(1, static_cast<char>(byte));
    pieces.insert(pieces.end(), more.begin(), more.end());
    first_tag = static_cast<int32_t>(pieces.size());
    std::array<int32_t, kReplyTagText.size()> tags{};
    for (size_t i = 0; i < tags.size(); ++i) {
      tags[i] = first_tag + static_cast<int32_t>(i);
      pieces.emplace_back(kReplyTagText[i]);
    }
    for (const char* special : {"<|endoftext|>", "<|user|>"}) pieces.emplace_back(special);
    end = static_cast<int32_t>(pieces.size()) - 2;
    other_end = end + 1;
    std::vector<bool> added(pieces.size());
    for (size_t i = static_cast<size_t>(first_tag); i < pieces.size(); ++i) added[i] = true;
    tokens = std::make_shared<const TokenTable>(pieces, added, tags);
  }

  // Of a real tokenizer, which must have all tags and <|endoftext|> and <|user|>.
  explicit GrammarToy(const Tokenizer& tokenizer) : tokens(TokenTable::build(tokenizer)) {
    for (int32_t id = 0; id < tokenizer.size(); ++id) pieces.emplace_back(tokenizer.piece(id));
    first_tag = tokenizer.find("<think>").value();
    end = tokenizer.find("<|endoftext|>").value();
    other_end = tokenizer.find("<|user|>").value();
  }

  // Pieces as JSON, code and prose make them: some end inside a character, some span the ends of values.
  static std::vector<std::string> default_pieces() {
    return {"{\"",      "\":",      "\": ",     "\": \"",   "\",",       "\", \"", "\"}",  "}}",     "}]",  "},",
            "},\n",     "[]",       "{}",       "[[",       "]]",        "],",     "\n  ", "\n    ", " ",   "  ",
            "    ",     "true",     "false",    "null",     "tru",       "12",     "123",  "0.",     "-1",  "1,",
            "e+",       "the",      " the",     "a\"",      "name",      "\"name", "\\\"", "\\u",    "\\n", "\xE4\xB8",
            "\xAD\xE6", "\x96\x87", "\xF0\x9F", "\x98\x80", "\xC3\xA9x", "abc",    "ab",   "1\"",    ", 2", ": {",
            "\"\"",     "\"\":",    "\n",       "\n\n",     "\t",        ".5",     "00",   "2026",   "-0",  ":\""};
  }

  int32_t tag(ReplyTag tag) const { return tokens->tag(tag); }
  MaskOptions plain() const { return {.end_tokens = {end, other_end}, .has_reasoning = false}; }
  MaskOptions with_reasoning() const {
    return {.end_tokens = {end, other_end},
            .reasoning_end_token = tag(ReplyTag::kThinkEnd),
            .forbidden_in_reasoning = {tag(ReplyTag::kCallBegin)}};
  }

  std::vector<int32_t> allowed(const TokenMaskFunction& mask, std::span<const int32_t> generated) const {
    std::vector<uint64_t> words(tokens->words(), ~uint64_t{0});
    mask(generated, words);
    std::vector<int32_t> ids;
    for (int32_t id = 0; id < static_cast<int32_t>(words.size() * 64); ++id)
      if (words[static_cast<size_t>(id) / 64] >> (id % 64) & 1) ids.push_back(id);
    return ids;
  }

  std::string text(std::span<const int32_t> ids) const {
    std::string out;
    for (const int32_t id : ids)
      if (id != end && id != other_end) out += pieces[static_cast<size_t>(id)];
    return out;
  }

  // A reply by the mask alone: ids up to and with the end token; without one if it did not end within `limit` tokens
  // (then the end is taken as soon as it is allowed, and closing bytes are preferred, so that most do).
  std::vector<int32_t> walk(const TokenMaskFunction& mask, std::mt19937& random, size_t limit = 60) const {
    std::vector<int32_t> ids;
    while (ids.size() < 12 * limit) {
      const std::vector<int32_t> next = allowed(mask, ids);
      if (next.empty()) return ids;
      int32_t chosen = next[random() % next.size()];
      const bool may_end = std::binary_search(next.begin(), next.end(), other_end);
      if (may_end && (ids.size() >= limit || random() % 4 == 0)) chosen = random() % 2 == 0 ? end : other_end;
      if (ids.size() >= limit && !may_end && random() % 8 != 0) chosen = closing(next, random, chosen);
      ids.push_back(chosen);
      if (chosen == end || chosen == other_end) break;
    }
    return ids;
  }

 private:
  // One that brings the reply nearer to its end, more likely than not.
  int32_t closing(const std::vector<int32_t>& next, std::mt19937& random, int32_t otherwise) const {
    std::vector<int32_t> closers;
    for (const int32_t id : {tag(ReplyTag::kCallEnd), tag(ReplyTag::kValueEnd), int32_t{'}'}, int32_t{']'},
                             int32_t{'"'}, int32_t{'0'}, int32_t{'n'}, int32_t{':'}})
      if (std::binary_search(next.begin(), next.end(), id)) closers.push_back(id);
    return closers.empty() ? otherwise : closers[random() % closers.size()];
  }
};

}  // namespace verbatim::text
