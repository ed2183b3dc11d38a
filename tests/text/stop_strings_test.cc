#include "text/stop_strings.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/error.h"

namespace verbatim::text {
namespace {

struct Found {
  std::string visible;
  std::optional<size_t> match;
  friend bool operator==(const Found&, const Found&) = default;
};

Found search(const std::vector<std::string>& strings, std::string_view text, size_t step) {
  StopStrings stop(strings);
  Found found;
  for (size_t i = 0; i < text.size() && !found.match; i += step)
    found.match = stop.push(text.substr(i, step), found.visible);
  if (!found.match) stop.flush(found.visible);
  EXPECT_EQ(stop.matched(), found.match);
  return found;
}

// By definition: the first end at which some string stands, the longest of them.
Found search_slowly(const std::vector<std::string>& strings, const std::string& text) {
  for (size_t end = 0; end <= text.size(); ++end) {
    std::optional<size_t> best;
    for (size_t i = 0; i < strings.size(); ++i)
      if (text.substr(0, end).ends_with(strings[i]) && (!best || strings[i].size() > strings[*best].size())) best = i;
    if (best) return {text.substr(0, end - strings[*best].size()), best};
  }
  return {text, std::nullopt};
}

TEST(StopStrings, NoneLetEverythingOutAtOnce) {
  StopStrings stop;
  std::string out;
  EXPECT_EQ(stop.push("abc", out), std::nullopt);
  EXPECT_EQ(out, "abc");
}

TEST(StopStrings, HoldBackOnlyWhatMayBecomeAMatch) {
  StopStrings stop({"END", "\n\n"});
  std::string out;
  stop.push("a E", out);
  EXPECT_EQ(out, "a ");
  EXPECT_EQ(stop.held_bytes(), 1u);
  stop.push("N", out);
  EXPECT_EQ(out, "a ");
  stop.push("E", out);  // "ENE": only the last E may begin END
  EXPECT_EQ(out, "a EN");
  EXPECT_EQ(stop.push("ND, and more", out), std::optional<size_t>(0));
  EXPECT_EQ(out, "a EN");
  EXPECT_EQ(stop.push("more", out), std::optional<size_t>(0));  // nothing after a match
  EXPECT_EQ(out, "a EN");
}

TEST(StopStrings, FlushLetsOutWhatWasHeldAndForgetsIt) {
  StopStrings stop({"END"});
  std::string out;
  stop.push("EN", out);
  EXPECT_EQ(out, "");
  stop.flush(out);
  EXPECT_EQ(out, "EN");
  EXPECT_EQ(stop.push("D", out), std::nullopt);
  EXPECT_EQ(out, "END");
}

TEST(StopStrings, TheFirstCompleteWinsAndTheLongestOfThose) {
  EXPECT_EQ(search({"abcd", "bc"}, "xabcd", 5), (Found{"xa", 1}));
  EXPECT_EQ(search({"bcd", "abcd"}, "xabcd", 5), (Found{"x", 1}));
  EXPECT_EQ(search({"same", "same"}, "same", 1), (Found{"", 0}));
}

// Every text over three letters and sets that overlap in every way; every step.
TEST(StopStrings, EqualTheDefinitionHoweverTheTextIsCut) {
  std::mt19937 random(1);
  const auto word = [&](size_t longest) {
    std::string out;
    for (size_t n = 1 + random() % longest; out.size() < n;) out += static_cast<char>('a' + random() % 3);
    return out;
  };
  size_t matches = 0;
  for (int round = 0; round < 4000; ++round) {
    std::vector<std::string> strings(1 + random() % 4);
    for (std::string& string : strings) string = word(6);
    const std::string text = word(24);
    Found expected = search_slowly(strings, text);
    matches += expected.match.has_value();
    for (size_t step = 1; step <= 5; ++step) {
      Found found = search(strings, text, step);
      // Of equal strings the first is named, of one length there can be no other.
      ASSERT_EQ(found, expected) << text;
    }
  }
  EXPECT_GT(matches, 1000u);
}

TEST(StopStrings, WholeCharactersStayWhole) {
  StopStrings stop({"é!"});  // C3 A9 21
  std::string out;
  stop.push("è", out);  // C3 A8
  EXPECT_EQ(out, "è");
  stop.push("é", out);
  EXPECT_EQ(out, "è");
  stop.push("ê", out);
  EXPECT_EQ(out, "èéê");
}

TEST(StopStrings, LongRunsCostLinearWork) {
  // A quadratic search would need 10^12 steps here.
  StopStrings stop({std::string(1'000'000, 'a') + "b"});
  std::string out;
  const std::string text(2'000'000, 'a');
  for (size_t i = 0; i < text.size(); i += 1000) stop.push(std::string_view(text).substr(i, 1000), out);
  EXPECT_EQ(out.size(), 1'000'000u);
  EXPECT_EQ(stop.held_bytes(), 1'000'000u);
}

TEST(StopStrings, RefuseWhatCanNeverMatch) {
  const auto message = [](const std::vector<std::string>& strings) -> std::string {
    try {
      StopStrings stop(strings);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      return error.what();
    }
    return "accepted";
  };
  EXPECT_EQ(message({"a", ""}), "[stop] stop string 1 is empty; leave it out");
  EXPECT_EQ(message({"\xC3"}), "[stop] stop string 0 is not valid UTF-8; a reply could never contain it");
}

}  // namespace
}  // namespace verbatim::text
