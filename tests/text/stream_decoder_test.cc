#include "text/stream_decoder.h"

#include <gtest/gtest.h>

#include <random>

#include "text/utf8.h"

namespace verbatim::text {
namespace {

std::string replaced(std::string_view bytes, size_t& count) {
  StreamDecoder decoder;
  std::string text = decoder.push(bytes);
  text += decoder.flush();
  count = decoder.replaced();
  return text;
}

TEST(StreamDecoder, HoldsACharacterUntilItIsWhole) {
  StreamDecoder decoder;
  EXPECT_EQ(decoder.push("a\xf0\x9f"), "a");
  EXPECT_EQ(decoder.held_bytes(), 2u);
  EXPECT_EQ(decoder.push("\x98"), "");
  EXPECT_EQ(decoder.push("\x80z"), "\xf0\x9f\x98\x80z");
  EXPECT_EQ(decoder.flush(), "");
  EXPECT_EQ(decoder.replaced(), 0u);
}

// The counts are those of bytes.decode("utf-8", "replace") in Python.
TEST(StreamDecoder, ReplacesMaximalSubparts) {
  const std::string r = "\xef\xbf\xbd";
  const std::vector<std::pair<std::string, std::string>> cases = {{"\xff", r},
                                                                  {"\x80\x80", r + r},
                                                                  {"\xc0\xaf", r + r},
                                                                  {"\xe4\xb8", r},
                                                                  {"\xe4\xb8z", r + "z"},
                                                                  {"\xe4z", r + "z"},
                                                                  {"\xed\xa0\x80", r + r + r},
                                                                  {"\xf0\x9f\x98z", r + "z"},
                                                                  {"\xf4\x90\x80\x80", r + r + r + r},
                                                                  {"\xf5\x80", r + r},
                                                                  {"\xe0\x80\x80", r + r + r},
                                                                  {"\xf0\x80\x80", r + r + r},
                                                                  {"\xc3\xc3\xa9", r + "\xc3\xa9"},
                                                                  {"\xf1\x80\xe1\x80\xc2z", r + r + r + "z"}};
  for (const auto& [bytes, expected] : cases) {
    size_t count = 0;
    EXPECT_EQ(replaced(bytes, count), expected);
    EXPECT_EQ(count, (expected.size() - (expected.back() == 'z') - (expected.ends_with("\xc3\xa9") ? 2 : 0)) / 3);
  }
}

TEST(StreamDecoder, TheCutsDoNotMatter) {
  std::mt19937 random(7);
  constexpr std::string_view kBytes = "a\xc3\xa9\xe4\xb8\xad\xf0\x9f\x98\x80\xff\xed\xa0\xf4\x90\xc0z";
  for (int trial = 0; trial < 20000; ++trial) {
    std::string bytes;
    for (uint32_t i = random() % 20; i > 0; --i) {
      const size_t at = random() % kBytes.size();
      bytes += kBytes.substr(at, 1 + random() % 3);
    }
    size_t count = 0;
    const std::string expected = replaced(bytes, count);
    StreamDecoder decoder;
    std::string text;
    for (size_t at = 0; at < bytes.size();) {
      const size_t step = random() % 4;
      const std::string whole = decoder.push(std::string_view(bytes).substr(at, step));
      EXPECT_EQ(valid_utf8_bytes(whole, 0), whole.size());
      EXPECT_LE(decoder.held_bytes(), 3u);
      text += whole;
      at += step;
    }
    text += decoder.flush();
    EXPECT_EQ(text, expected);
    EXPECT_EQ(decoder.replaced(), count);
    EXPECT_EQ(decoder.flush(), "");
  }
}

TEST(Utf8, EveryScalarValueSurvives) {
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text;
    append_utf8(text, c);
    const Utf8Char read = utf8_at(text, 0);
    ASSERT_TRUE(read.valid && !read.incomplete && read.code_point == c && read.bytes == text.size());
    for (size_t cut = 1; cut < text.size(); ++cut) {
      const Utf8Char part = utf8_at(std::string_view(text).substr(0, cut), 0);
      ASSERT_TRUE(!part.valid && part.incomplete && part.bytes == cut);
    }
  }
}

}  // namespace
}  // namespace verbatim::text
