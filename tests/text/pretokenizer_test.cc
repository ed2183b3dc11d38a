#include "text/pretokenizer.h"

#include <gtest/gtest.h>

#include <random>

#include "base/error.h"
#include "text/unicode_classes.h"
#include "text/utf8.h"

namespace verbatim::text {
namespace {

std::vector<std::string> split(const Pretokenizer& pretokenizer, std::string_view text) {
  Pretokenizer::Scratch scratch(pretokenizer);
  std::vector<std::string> pieces;
  size_t begin = 0;
  for (const size_t end : pretokenizer.split(text, scratch)) {
    pieces.emplace_back(text.substr(begin, end - begin));
    begin = end;
  }
  return pieces;
}

using Pieces = std::vector<std::string>;

TEST(Pretokenizer, CutsByTheReleasedPattern) {
  for (const Matcher matcher : {Matcher::kFastest, Matcher::kPcre2Only}) {
    const Pretokenizer released({{std::string(kReleasedPattern)}}, "x", matcher);
    EXPECT_EQ(split(released, ""), Pieces{});
    EXPECT_EQ(split(released, "I'm here, 12345 x"), (Pieces{"I", "'m", " here", ",", " ", "123", "45", " x"}));
    EXPECT_EQ(split(released, "a  b"), (Pieces{"a", " ", " b"}));
    EXPECT_EQ(split(released, "a \n\n  b"), (Pieces{"a", " \n\n", " ", " b"}));
    EXPECT_EQ(split(released, "x = {\r\n\t}"), (Pieces{"x", " =", " {\r\n", "\t", "}"}));
    EXPECT_EQ(split(released, "end   "), (Pieces{"end", "   "}));
    EXPECT_EQ(split(released, "'\u017fa x'LLx 'lx"), (Pieces{"'\u017f", "a", " x", "'LL", "x", " '", "lx"}));
    EXPECT_EQ(split(released, "\u3000\u4e2d\u6587\u3002"), (Pieces{"\u3000\u4e2d\u6587", "\u3002"}));
  }
}

// Where PCRE2's classes (Unicode 14) are those of `tokenizers`, the two matchers must agree on every string.
TEST(Pretokenizer, TheTwoMatchersAgree) {
  const Pretokenizer fast({{std::string(kReleasedPattern)}}, "x");
  const Pretokenizer pcre2({{std::string(kReleasedPattern)}}, "x", Matcher::kPcre2Only);
  constexpr std::u32string_view kCharacters =
      U"aZ\u00e9\u017f\u4e2d\u05d0\u0627\U0001d400 01\u00b2\u0663\u216b "
      U"\t\n\r\v\f\u0085\u00a0\u2028\u3000'\u2019.-=<|>\u0301\u200d"
      U"\U0001f600\u200b\ufeff\ufffd\U0010ffffsStTmMdDrReEvVlL";
  std::mt19937 random(4);
  Pretokenizer::Scratch fast_scratch(fast), pcre2_scratch(pcre2);
  for (int trial = 0; trial < 50000; ++trial) {
    std::string text;
    const uint32_t kinds = 2 + random() % 6;
    std::u32string alphabet;
    for (uint32_t i = 0; i < kinds; ++i) alphabet.push_back(kCharacters[random() % kCharacters.size()]);
    for (uint32_t i = random() % 24; i > 0; --i) append_utf8(text, alphabet[random() % alphabet.size()]);
    EXPECT_EQ(fast.split(text, fast_scratch), pcre2.split(text, pcre2_scratch)) << text;
  }
}

TEST(Pretokenizer, KeepsMatchesAndGapsApart) {
  EXPECT_EQ(split(Pretokenizer({{"\\d+"}}, "x"), "ab12c345"), (Pieces{"ab", "12", "c", "345"}));
  EXPECT_EQ(split(Pretokenizer({{"x*"}}, "x"), "axxb"), (Pieces{"a", "xx", "b"}));
  EXPECT_EQ(split(Pretokenizer({{"ab", true}}, "x"), "aababc"), (Pieces{"a", "ab", "ab", "c"}));
  EXPECT_EQ(split(Pretokenizer({{".", true}}, "x"), "a.b"), (Pieces{"a", ".", "b"}));
  EXPECT_EQ(split(Pretokenizer({{"\\d"}, {"[ab]+"}}, "x"), "abc1ba"), (Pieces{"ab", "c", "1", "ba"}));
  EXPECT_EQ(split(Pretokenizer({{"\\d"}, {std::string(kReleasedPattern)}}, "x"), "a b12 c"),
            (Pieces{"a", " b", "1", "2", " c"}));
}

TEST(Pretokenizer, ScriptsAreScriptsNotExtensions) {
  // U+30FB has Script Common; its Script_Extensions hold Han.
  EXPECT_EQ(split(Pretokenizer({{"\\p{Han}+"}}, "x"), "\u4e2d\u30fb"), (Pieces{"\u4e2d", "\u30fb"}));
}

TEST(Pretokenizer, RefusesWhatOnigurumaReadsOtherwise) {
  for (const char* pattern :
       {"\\w",    "\\W",    "\\b",         "\\h",           "\\K",    "\\G",    "\\R",   "\\X",
        "\\v",    "\\1",    "\\Z",         "\\Qa\\E",       "[a[b]]", "[a&&b]", "[]a]",  "(?m)a",
        "(?s:a)", "a(?i)b", "(*UCP)a",     "(?<n>a)",       "(?#c)",  "a{2}+",  "a{,2}", "a{2}?",
        "a{x}",   "\\pL",   "\\p{sc:Han}", "\\p{Nonsense}", "a\\",    "(",      "[a",    "\\x{zz}"}) {
    try {
      const Pretokenizer refused({{pattern}}, "file");
      ADD_FAILURE() << "accepted " << pattern;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUnsupported) << error.what();
    }
  }
}

TEST(Pretokenizer, ReadsThePatternsOfOtherModels) {
  for (const char* pattern :
       {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "
        "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
        "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+",
        "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+", "\\p{N}{1,3}",
        "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", "[\\x{4e00}-\\x{9fff}]", "\\d{2,}?", "^#$", "(?<!a)b",
        "\\A(?>a)\\z"})
    EXPECT_NO_THROW(Pretokenizer({{pattern}}, "x")) << pattern;
}

TEST(Pretokenizer, PatternsOfFilesEndInAnErrorNotInHours) {
  const Pretokenizer exponential({{"(?:a|aa)+[bd]"}}, "x");
  Pretokenizer::Scratch scratch(exponential);
  EXPECT_THROW(exponential.split(std::string(200, 'a'), scratch), Error);
}

TEST(Pretokenizer, AMegabyteOfOneCharacterThroughPcre2) {
  for (const std::string_view pattern : {kReleasedPattern, kByteLevelPattern}) {
    const Pretokenizer pcre2({{std::string(pattern)}}, "x", Matcher::kPcre2Only);
    Pretokenizer::Scratch scratch(pcre2);
    for (const char c : {'a', ' ', '\n', '=', '7', '\''}) {
      const std::string text = std::string(1 << 20, c) + "x";
      EXPECT_EQ(pcre2.split(text, scratch).back(), text.size());
    }
  }
}

TEST(UnicodeClasses, HoldsWhatTheRangesSay) {
  const UnicodeClasses& classes = UnicodeClasses::instance();
  EXPECT_EQ(classes['a'], kLetter | kWord);
  EXPECT_EQ(classes['7'], kNumber | kWord);
  EXPECT_EQ(classes['_'], kWord);
  EXPECT_EQ(classes['-'], 0);
  EXPECT_EQ(classes[0x3000], kSpace);
  EXPECT_EQ(classes[0x180E], 0);
  EXPECT_EQ(classes[0x323AF], kLetter | kWord);
  EXPECT_EQ(classes[0x10FFFF], 0);
  size_t at = 0;
  for (char32_t c = 0; c < 0x110000; ++c) {
    while (at < kUnicodeRangeCount && kUnicodeRanges[at].last < c) ++at;
    const bool inside = at < kUnicodeRangeCount && kUnicodeRanges[at].first <= c;
    ASSERT_EQ(classes[c], inside ? kUnicodeRanges[at].classes : 0) << static_cast<uint32_t>(c);
  }
}

}  // namespace
}  // namespace verbatim::text
