// Regexes: what matches, what is refused.
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/text/grammar/grammar_toy.h"

namespace verbatim::text {
namespace {

const GrammarToy& toy() {
  static const GrammarToy made;
  return made;
}

void expect_matches(std::string_view pattern, const std::vector<std::string>& yes, const std::vector<std::string>& no) {
  const GrammarPointer grammar = compile_regex(toy().tokens, pattern);
  for (const std::string& text : yes) EXPECT_TRUE(grammar->accepts(text)) << pattern << " on " << text;
  for (const std::string& text : no) EXPECT_FALSE(grammar->accepts(text)) << pattern << " on " << text;
}

TEST(GrammarRegex, Matches) {
  expect_matches("abc", {"abc"}, {"", "ab", "abcd", "xabc"});
  expect_matches("^abc$", {"abc"}, {"", "ab"});
  expect_matches("a|bc|", {"a", "bc", ""}, {"b", "abc"});
  expect_matches("^a$|^b", {"a", "b"}, {"ab"});
  expect_matches("(a|b)*c+d?", {"c", "abcc", "bcd"}, {"", "ab", "dd"});
  expect_matches("(?:ab){2,3}(?<x>c)(?P<y>d)", {"ababcd", "abababcd"}, {"abcd", "ababababcd"});
  expect_matches("a{2}b{0}c{1,}", {"aac", "aacc"}, {"aabc", "ac"});
  expect_matches("a{,2}", {"a{,2}"}, {"", "a"});
  expect_matches("(a*)*(b+?c*?)??", {"", "aaa", "aabcc"}, {"c"});
  expect_matches(R"(\d+\.\w\s\S)", {"12.a b", "1._\xE2\x80\x83x"}, {"a.a b", "1.- b"});
  expect_matches(R"(\D\W)", {"a-", "\xC3\xA9\xC3\xA9"}, {"1-", "aa"});
  expect_matches("[a-c-][^\\]x-z]", {"aq", "-!", "b\xF0\x9F\x98\x80"}, {"d1", "a]", "ay"});
  expect_matches(R"([\w.\-\x41\u00e9\u{1F600}\t])", {"A", "\xC3\xA9", "\xF0\x9F\x98\x80", "\t", "-", "."}, {"\n", " "});
  expect_matches("[\\d-x]", {"5", "-", "x"}, {"e"});
  expect_matches(".", {"a", "\xE4\xB8\xAD", "\xF0\x9F\x98\x80"},
                 {"\n", "\r", "\xE2\x80\xA8", "", "ab", "\xE4\xB8", "\xED\xA0\x80"});
  expect_matches("[^a]", {"b", "\n"}, {"a"});
  expect_matches(R"(\p{L}+\P{N})", {"\xC3\xA9x", "\xE4\xB8\xAD-"}, {"1-", "a1"});
  expect_matches(R"(\uD83D\uDE00)", {"\xF0\x9F\x98\x80"}, {});
  expect_matches("[\xC3\xA9-\xC3\xAB]\xE4\xB8\xAD{2}", {"\xC3\xAA\xE4\xB8\xAD\xE4\xB8\xAD"},
                 {"\xC3\xA8\xE4\xB8\xAD\xE4\xB8\xAD"});
}

TEST(GrammarRegex, RefusesByName) {
  const std::vector<std::pair<std::string, std::string>> cases = {{"(?=a)b", "look-around"},
                                                                  {"(?!a)b", "look-around"},
                                                                  {"(?<=a)b", "look-around"},
                                                                  {"(?<!a)b", "look-around"},
                                                                  {R"((a)\1)", "back reference"},
                                                                  {R"(\k<x>)", "back reference"},
                                                                  {R"(\bword)", "word boundary"},
                                                                  {R"(a\B)", "word boundary"},
                                                                  {"(?i)a", "flags"},
                                                                  {"(?i:a)", "flags"},
                                                                  {"a++", "possessive"},
                                                                  {R"(\p{Lu})", "property Lu"},
                                                                  {R"(\p{Greek})", "property"},
                                                                  {"[[:alpha:]]", "POSIX"},
                                                                  {R"(\Z)", "\\Z"},
                                                                  {"a^b", "anchor"},
                                                                  {"a$b", "anchor"},
                                                                  {"(^a)", "anchor"},
                                                                  {"(a$)", "anchor"},
                                                                  {R"(\012)", "octal"},
                                                                  {"(a", "'(' without"},
                                                                  {"a)", "')' without"},
                                                                  {"[a", "'[' without"},
                                                                  {"*a", "nothing to repeat"},
                                                                  {"a**", "two quantifiers"},
                                                                  {"a{3,2}", "wrong way round"},
                                                                  {"[z-a]", "wrong way round"},
                                                                  {R"(\x1)", "hexadecimal"},
                                                                  {"a\\", "backslash at the end"},
                                                                  {R"(\uD83Dx)", "no character"},
                                                                  {"a{999999}", "repeat above"},
                                                                  {"\xFF", "not UTF-8"},
                                                                  {"(?<x", "name without"},
                                                                  {R"(\u{110000})", "no character"},
                                                                  {"[]a]", "first character"},
                                                                  {"[^]a]", "first character"}};
  for (const auto& [pattern, named] : cases) {
    try {
      compile_regex(toy().tokens, pattern);
      ADD_FAILURE() << pattern << " compiles";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      EXPECT_NE(std::string(error.what()).find(named), std::string::npos) << pattern << ": " << error.what();
    }
  }
}

TEST(GrammarRegex, WhatMatchesNothingIsRefused) { EXPECT_THROW(compile_regex(toy().tokens, "a[^\\s\\S]"), Error); }

TEST(GrammarChoice, TakesOneOfTheTexts) {
  const std::vector<std::string> choices = {"yes", "no", "yesterday", "no", "\xE4\xB8\xAD"};
  const GrammarPointer grammar = compile_choice(toy().tokens, choices);
  for (const std::string& choice : choices) EXPECT_TRUE(grammar->accepts(choice));
  for (const char* other : {"", "ye", "yess", "yesno", "\xE4\xB8"}) EXPECT_FALSE(grammar->accepts(other)) << other;
  EXPECT_THROW(compile_choice(toy().tokens, {}), Error);
  EXPECT_THROW(compile_choice(toy().tokens, std::vector<std::string>{""}), Error);
  EXPECT_THROW(compile_choice(toy().tokens, std::vector<std::string>{"\xFF"}), Error);
}

}  // namespace
}  // namespace verbatim::text
