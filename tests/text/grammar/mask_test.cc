// Masks: what they allow, that they depend on the generated tokens alone, and that a reply never gets stuck.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "tests/text/grammar/grammar_toy.h"
#include "text/grammar/mask_cache.h"

namespace verbatim::text {
namespace {

bool holds(const std::vector<int32_t>& ids, int32_t id) { return std::find(ids.begin(), ids.end(), id) != ids.end(); }

TEST(Mask, ReasoningIsFreeUpToItsEnd) {
  const GrammarToy toy;
  const TokenMaskFunction mask = make_mask(compile_json_object(toy.tokens), toy.with_reasoning());
  std::vector<int32_t> ids;
  for (const int32_t next : {int32_t{'x'}, toy.tag(ReplyTag::kThinkBegin), int32_t{'{'}}) {
    const std::vector<int32_t> allowed = toy.allowed(mask, ids);
    EXPECT_EQ(allowed.size(), toy.pieces.size() - 3) << "all but two end tokens and <tool_call>";
    EXPECT_FALSE(holds(allowed, toy.end));
    EXPECT_FALSE(holds(allowed, toy.tag(ReplyTag::kCallBegin)));
    EXPECT_TRUE(holds(allowed, toy.tag(ReplyTag::kThinkEnd)));
    ids.push_back(next);
  }
  ids.push_back(toy.tag(ReplyTag::kThinkEnd));
  std::vector<std::string> texts;
  for (const int32_t id : toy.allowed(mask, ids)) texts.push_back(toy.pieces[static_cast<size_t>(id)]);
  EXPECT_EQ(texts, (std::vector<std::string>{"{", "{\"", "{}"}));
}

TEST(Mask, EndsOnlyWhereTheGrammarAccepts) {
  const GrammarToy toy;
  const TokenMaskFunction mask = make_mask(compile_json_object(toy.tokens), toy.plain());
  EXPECT_FALSE(holds(toy.allowed(mask, std::vector<int32_t>{'{'}), toy.end));
  EXPECT_EQ(toy.allowed(mask, std::vector<int32_t>{'{', '}'}), (std::vector<int32_t>{toy.end, toy.other_end}));
}

TEST(Mask, AfterWhatWasNotAllowedOnlyEndTokensAre) {
  const GrammarToy toy;
  const TokenMaskFunction mask = make_mask(compile_json_object(toy.tokens), toy.plain());
  const std::vector<int32_t> ends = {toy.end, toy.other_end};
  EXPECT_EQ(toy.allowed(mask, std::vector<int32_t>{'{', 'x'}), ends);
  EXPECT_EQ(toy.allowed(mask, std::vector<int32_t>{'{', 'x', '}'}), ends);
  EXPECT_EQ(toy.allowed(mask, std::vector<int32_t>{'{', '}', toy.end}), ends);
  EXPECT_EQ(toy.allowed(mask, std::vector<int32_t>{'{', 100000, -1}), ends);
  EXPECT_EQ(toy.allowed(mask, std::vector<int32_t>{'{', toy.tag(ReplyTag::kCallBegin)}), ends);
}

TEST(Mask, RefusesWhatCouldNotEnd) {
  const GrammarToy toy;
  EXPECT_THROW(make_mask(compile_json_object(toy.tokens), {.has_reasoning = false}), Error);
  EXPECT_THROW(make_mask(compile_json_object(toy.tokens), {.end_tokens = {toy.end}}), Error);
}

TEST(Mask, RandomObjectsAreJson) {
  const GrammarToy toy;
  const GrammarPointer grammar = compile_json_object(toy.tokens);
  const TokenMaskFunction mask = make_mask(grammar, toy.plain());
  std::mt19937 random(1);
  size_t ended = 0;
  for (int i = 0; i < 200; ++i) {
    const std::vector<int32_t> ids = toy.walk(mask, random);
    ASSERT_FALSE(ids.empty());
    if (ids.back() != toy.end && ids.back() != toy.other_end) continue;
    ++ended;
    const std::string text = toy.text(ids);
    EXPECT_TRUE(nlohmann::json::accept(text)) << text;
    EXPECT_TRUE(grammar->accepts(text)) << text;
  }
  EXPECT_GT(ended, 150U);
}

// The mask of a token table is what reading each token byte by byte says.
void expect_same_as_byte_by_byte(const GrammarToy& toy, const GrammarPointer& grammar, uint32_t seed) {
  const TokenMaskFunction mask = make_mask(grammar, toy.plain());
  const GrammarToy bytes_only{{}};
  std::mt19937 random(seed);
  const std::vector<int32_t> ids = toy.walk(mask, random, 25);
  for (size_t length = 0; length < ids.size(); length += 1 + random() % 3) {
    const std::vector<int32_t> prefix(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(length));
    const std::vector<int32_t> allowed = toy.allowed(mask, prefix);
    for (int32_t id = 0; id < toy.first_tag; ++id) {
      std::vector<int32_t> spelt;
      for (const char c : toy.text(prefix) + toy.pieces[static_cast<size_t>(id)])
        spelt.push_back(static_cast<uint8_t>(c));
      const TokenMaskFunction fresh = make_mask(grammar, toy.plain());
      bool fits = true;
      for (size_t i = toy.text(prefix).size(); fits && i < spelt.size(); ++i)
        fits = holds(toy.allowed(fresh, std::span(spelt).first(i)), spelt[i]);
      ASSERT_EQ(holds(allowed, id), fits) << toy.text(prefix) << " + " << toy.pieces[static_cast<size_t>(id)];
    }
  }
}

TEST(Mask, TokensFitIfTheirBytesDo) {
  const GrammarToy toy;
  for (uint32_t seed = 0; seed < 8; ++seed) {
    expect_same_as_byte_by_byte(toy, compile_json_object(toy.tokens), seed);
    expect_same_as_byte_by_byte(toy, compile_regex(toy.tokens, "(ab?c*|the \\d{1,3}|[^a-z]{2,9})+"), seed);
  }
}

// What is remembered by state says the same as reading every token where the reply stands.
TEST(Mask, WhatIsRememberedIsWhatReadingSays) {
  const GrammarToy toy;
  const std::vector<std::string> schemas = {
      R"({"type": "object"})", R"({"type": "string", "minLength": 3, "maxLength": 9})",
      R"({"type": "array", "items": {"type": "string", "maxLength": 2}, "minItems": 2, "maxItems": 5})",
      R"({"anyOf": [{"type": "array", "items": {"$ref": "#"}}, {"type": "array", "items": {"$ref": "#"}, "maxItems": 2},
                    {"type": "number"}, {"type": "integer", "maximum": 1200}]})",
      R"({"type": "object", "properties": {"a": {"type": "integer"}, "ab": {"type": "string"}}, "additionalProperties": {"type": "object",
          "additionalProperties": {"enum": ["the", "a\"", 12]}}, "required": ["a"]})"};
  std::mt19937 random(11);
  for (const std::string& schema : schemas) {
    const GrammarPointer grammar = compile_json_schema(toy.tokens, schema);
    const TokenMaskFunction mask = make_mask(grammar, toy.plain());
    Matcher matcher(grammar->automaton());
    for (int i = 0; i < 30; ++i) {
      const std::vector<int32_t> ids = toy.walk(mask, random, 30);
      Frames frames;
      Position here, next;
      matcher.begin(frames, here);
      for (const int32_t id : ids) {
        std::vector<uint64_t> remembered(toy.tokens->words()), read(toy.tokens->words());
        grammar->masks().allow(here, frames, remembered);
        grammar->masks().allow_by_reading(here, frames, read);
        ASSERT_EQ(remembered, read) << schema << "\n"
                                    << toy.text(ids) << " before " << toy.pieces[static_cast<size_t>(id)];
        for (const char byte : toy.tokens->text(id)) {
          matcher.step(here, static_cast<uint8_t>(byte), frames, next);
          std::swap(here, next);
        }
      }
    }
  }
}

// Two ways to read each bracket: 2^depth in all.
TEST(Mask, AmbiguityCostsNoMoreThanReading) {
  std::vector<std::string> brackets;
  for (size_t count = 2; count <= 64; count *= 2) brackets.push_back(std::string(count, ']'));
  const GrammarToy toy(brackets);
  const GrammarPointer grammar = compile_json_schema(
      toy.tokens,
      R"({"anyOf": [{"type": "array", "items": {"$ref": "#"}}, {"type": "array", "items": {"$ref": "#"}, "maxItems": 3}]})");
  const TokenMaskFunction mask = make_mask(grammar, toy.plain());
  const std::vector<int32_t> ids(200, '[');
  const std::vector<int32_t> allowed = toy.allowed(mask, ids);
  EXPECT_EQ(std::count_if(allowed.begin(), allowed.end(),
                          [&](int32_t id) { return toy.pieces[static_cast<size_t>(id)][0] == ']'; }),
            7);
  const std::vector<int32_t> fewer(20, '[');
  EXPECT_TRUE(holds(toy.allowed(mask, fewer), 256 + 3)) << "16 brackets";
  EXPECT_FALSE(holds(toy.allowed(mask, fewer), 256 + 4)) << "32 brackets";
}

TEST(Mask, DependsOnGeneratedAlone) {
  const GrammarToy toy;
  const GrammarPointer grammar = compile_json_object(toy.tokens);
  std::mt19937 random(7);
  std::vector<std::vector<int32_t>> replies;
  for (int i = 0; i < 40; ++i) {
    std::vector<int32_t> ids = {'t', toy.tag(ReplyTag::kThinkEnd)};
    const std::vector<int32_t> walked = toy.walk(make_mask(grammar, toy.plain()), random);
    ids.insert(ids.end(), walked.begin(), walked.end());
    if (i % 3 == 0) ids[2 + random() % (ids.size() - 2)] = static_cast<int32_t>(random() % toy.pieces.size());
    replies.push_back(ids);
  }
  const TokenMaskFunction asked_often = make_mask(grammar, toy.with_reasoning());
  for (int i = 0; i < 3000; ++i) {
    const std::vector<int32_t>& reply = replies[random() % replies.size()];
    const auto prefix = std::span(reply).first(random() % (reply.size() + 1));
    // A cache of its own, too.
    const TokenMaskFunction fresh =
        make_mask(i % 100 == 0 ? compile_json_object(toy.tokens) : grammar, toy.with_reasoning());
    ASSERT_EQ(toy.allowed(asked_often, prefix), toy.allowed(fresh, prefix)) << toy.text(prefix);
  }
}

TEST(Mask, DraftsAreTakenBack) {
  const GrammarToy toy;
  const TokenMaskFunction mask = make_mask(compile_json_object(toy.tokens), toy.plain());
  std::vector<int32_t> ids;
  for (const char c : std::string(R"({"a": [1, {"b": "c")")) {
    ids.push_back(static_cast<uint8_t>(c));
    const std::vector<int32_t> before = toy.allowed(mask, ids);
    for (const std::vector<int32_t>& draft :
         {std::vector<int32_t>{'x', '}', '"'}, std::vector<int32_t>{'"', ',', '\n'}}) {
      std::vector<int32_t> longer = ids;
      for (const int32_t id : draft) {
        longer.push_back(id);
        toy.allowed(mask, longer);
      }
    }
    EXPECT_EQ(toy.allowed(mask, ids), before);
  }
}

TEST(Mask, ShortMasksAreCutAndLongOnesCleared) {
  const GrammarToy toy;
  const TokenMaskFunction mask = make_mask(compile_json_object(toy.tokens), toy.plain());
  std::vector<uint64_t> shorter(2, 0), longer(toy.tokens->words() + 3, ~uint64_t{0});
  mask({}, shorter);
  EXPECT_EQ(shorter[1], uint64_t{1} << ('{' - 64));
  mask({}, longer);
  EXPECT_EQ(longer[1], uint64_t{1} << ('{' - 64));
  EXPECT_EQ(longer.back(), 0U);
}

TEST(TokenTable, NeedsEveryByte) {
  std::vector<std::string> pieces;
  for (int byte = 0; byte < 256; ++byte)
    if (byte != 'q') pieces.emplace_back(1, static_cast<char>(byte));
  try {
    const TokenTable table(pieces, std::vector<bool>(pieces.size()), {});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
    EXPECT_NE(std::string(error.what()).find("0x71"), std::string::npos) << error.what();
  }
}

TEST(GrammarCache, KeepsWhatIsUsed) {
  const GrammarToy toy;
  GrammarCache cache(2);
  int compiled = 0;
  const auto get = [&](const std::string& word) {
    return cache.get(word, [&] {
      ++compiled;
      return compile_regex(toy.tokens, word);
    });
  };
  const GrammarPointer a = get("a");
  EXPECT_EQ(get("a"), a);
  get("b");
  get("a");
  get("c");  // b goes
  EXPECT_EQ(compiled, 3);
  EXPECT_EQ(get("a"), a);
  EXPECT_EQ(cache.size(), 2U);
  get("b");
  EXPECT_EQ(compiled, 4);
  EXPECT_THROW(get("("), Error);
  EXPECT_EQ(cache.size(), 2U);
}

}  // namespace
}  // namespace verbatim::text
