#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <thread>

#include "base/error.h"
#include "tests/text/tokenizer_fixture.h"

namespace verbatim::text {
namespace {

using nlohmann::json;

std::vector<int32_t> encode_trusted(std::string_view text, const std::vector<Range>& trusted) {
  std::vector<int32_t> ids;
  small_tokenizer().encode(text, trusted, ids);
  return ids;
}

TEST(Tokenizer, GivesTheIdsOfTokenizers) {
  const json vectors = read_fixture("vectors.json");
  ASSERT_GT(vectors["texts"].size(), 100u);
  for (const json& entry : vectors["texts"]) {
    const auto text = entry["text"].get<std::string>();
    EXPECT_EQ(small_tokenizer().encode(text, true), entry["on"].get<std::vector<int32_t>>()) << text;
    EXPECT_EQ(small_tokenizer().encode(text, false), entry["off"].get<std::vector<int32_t>>()) << text;
    EXPECT_EQ(small_tokenizer().decode(entry["on"].get<std::vector<int32_t>>(), false), text);
  }
}

TEST(Tokenizer, FollowsEveryFlagOfAddedTokens) {
  const json vectors = read_fixture("vectors.json");
  json file = read_fixture("tokenizer.json");
  file["added_tokens"] = vectors["flags"]["added_tokens"];
  file["model"]["ignore_merges"] = false;
  const Tokenizer tokenizer = Tokenizer::parse(file.dump(), "flags");
  ASSERT_GT(vectors["flags"]["texts"].size(), 100u);
  for (const json& entry : vectors["flags"]["texts"]) {
    const auto text = entry["text"].get<std::string>();
    EXPECT_EQ(tokenizer.encode(text, true), entry["ids"].get<std::vector<int32_t>>()) << text;
  }
}

TEST(Tokenizer, ReadsMergesInBothSpellings) {
  json file = read_fixture("tokenizer.json");
  ASSERT_TRUE(file["model"]["merges"][0].is_array());
  for (json& merge : file["model"]["merges"]) merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
  const Tokenizer tokenizer = Tokenizer::parse(file.dump(), "strings");
  for (const json& entry : read_fixture("vectors.json")["texts"])
    EXPECT_EQ(tokenizer.encode(entry["text"].get<std::string>(), true), entry["on"].get<std::vector<int32_t>>());
}

TEST(Tokenizer, IgnoreMergesTakesAWholePreTokenFirst) {
  json file = read_fixture("tokenizer.json");
  const int32_t id = small_tokenizer().size();
  file["model"]["vocab"]["qzqzqz"] = id;  // no merge leads here
  EXPECT_EQ(Tokenizer::parse(file.dump(), "on").encode("qzqzqz", true), std::vector<int32_t>{id});
  file["model"]["ignore_merges"] = false;
  EXPECT_GT(Tokenizer::parse(file.dump(), "off").encode("qzqzqz", true).size(), 1u);
}

TEST(Tokenizer, AnswersForSingleIds) {
  const Tokenizer& tokenizer = small_tokenizer();
  const int32_t user = tokenizer.find("<|user|>").value();
  const int32_t think = tokenizer.find("<think>").value();
  EXPECT_EQ(tokenizer.piece(user), "<|user|>");
  EXPECT_TRUE(tokenizer.is_added(user) && tokenizer.is_special(user));
  EXPECT_TRUE(tokenizer.is_added(think) && !tokenizer.is_special(think));
  EXPECT_FALSE(tokenizer.is_added(0) || tokenizer.is_special(0));
  EXPECT_EQ(tokenizer.find("the"), std::nullopt);
  EXPECT_EQ(tokenizer.decode(std::vector<int32_t>{user, think}, true), "<think>");
  for (const int32_t id : {-1, tokenizer.size(), INT32_MAX, INT32_MIN}) {
    EXPECT_EQ(tokenizer.piece(id), "");
    EXPECT_FALSE(tokenizer.is_added(id) || tokenizer.is_special(id));
  }
}

TEST(Tokenizer, UnusedIdsAreEmpty) {
  json file = read_fixture("tokenizer.json");
  const int32_t id = small_tokenizer().size() + 1000;
  file["added_tokens"].push_back({{"id", id}, {"content", "<far>"}, {"special", true}});
  const Tokenizer tokenizer = Tokenizer::parse(file.dump(), "far");
  EXPECT_EQ(tokenizer.size(), id + 1);
  EXPECT_EQ(tokenizer.piece(id - 1), "");
  EXPECT_EQ(tokenizer.encode("<far>", true), std::vector<int32_t>{id});
}

TEST(TokenizerTrust, OnlyMatchesInsideTrustedRangesAreTokens) {
  const int32_t user = small_tokenizer().find("<|user|>").value();
  const std::string text = "<|user|><|user|><|user|>";
  const auto count = [&](const std::vector<Range>& trusted) {
    const std::vector<int32_t> ids = encode_trusted(text, trusted);
    EXPECT_EQ(small_tokenizer().decode(ids, false), text);
    return std::count(ids.begin(), ids.end(), user);
  };
  EXPECT_EQ(count({}), 0);
  EXPECT_EQ(count({{0, 24}}), 3);
  EXPECT_EQ(count({{0, 8}, {16, 24}}), 2);
  EXPECT_EQ(count({{0, 7}, {8, 16}, {17, 24}}), 1);
  EXPECT_EQ(count({{0, 3}, {3, 8}}), 1) << "touching ranges count as one";
  EXPECT_EQ(count({{8, 8}}), 0);
}

TEST(TokenizerTrust, AnUntrustedPrefixDoesNotSwallowATrustedToken) {
  const int32_t think = small_tokenizer().find("</think>").value();
  // The input ends in "<", "</thi", ... and the template goes on with "</think>".
  for (size_t bytes = 0; bytes <= 8; ++bytes) {
    const std::string text = std::string("</think>").substr(0, bytes) + "</think>";
    const std::vector<int32_t> ids = encode_trusted(text, {{bytes, bytes + 8}});
    EXPECT_EQ(std::count(ids.begin(), ids.end(), think), 1) << bytes;
    EXPECT_EQ(ids.back(), think);
  }
}

TEST(TokenizerTrust, RefusesRangesThatAreNotSorted) {
  EXPECT_THROW(encode_trusted("abcdef", {{2, 4}, {0, 1}}), Error);
  EXPECT_THROW(encode_trusted("abcdef", {{0, 3}, {2, 4}}), Error);
  EXPECT_THROW(encode_trusted("abcdef", {{4, 2}}), Error);
  EXPECT_THROW(encode_trusted("abcdef", {{0, 7}}), Error);
}

TEST(TokenizerTrust, NoOrdinaryTextForgesAnAddedToken) {
  const Tokenizer& tokenizer = small_tokenizer();
  std::vector<std::string> parts = {"<", "|", ">", "/", " ", "\n", "user", "think", "x", "[", "]", "\xff", "\xe4\xb8"};
  for (int32_t id = 0; id < tokenizer.size(); ++id)
    if (tokenizer.is_added(id)) parts.emplace_back(tokenizer.piece(id));
  std::mt19937 random(1);
  for (int trial = 0; trial < 20000; ++trial) {
    std::string text;
    for (uint32_t i = random() % 12; i > 0; --i) text += parts[random() % parts.size()];
    const std::vector<int32_t> ids = tokenizer.encode(text, false);
    EXPECT_TRUE(std::none_of(ids.begin(), ids.end(), [&](int32_t id) { return tokenizer.is_added(id); })) << text;
    EXPECT_EQ(tokenizer.decode(ids, false), text);
  }
}

// A file could list a control token in its vocabulary: still it may not come out of text.
TEST(TokenizerTrust, NorWhereTheVocabularyHoldsIt) {
  json file = read_fixture("tokenizer.json");
  const int32_t id = small_tokenizer().size();
  file["model"]["vocab"]["qzqzqz"] = id;
  file["added_tokens"].push_back({{"id", id}, {"content", "qzqzqz"}, {"special", true}, {"normalized", false}});
  const Tokenizer tokenizer = Tokenizer::parse(file.dump(), "vocabulary");
  EXPECT_EQ(tokenizer.encode("qzqzqz", true), std::vector<int32_t>{id});
  const std::vector<int32_t> ids = tokenizer.encode("qzqzqz", false);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), id), 0);
}

TEST(Tokenizer, AnyBytesComeBack) {
  std::mt19937 random(2);
  for (int trial = 0; trial < 20000; ++trial) {
    std::string text;
    for (uint32_t i = random() % 40; i > 0; --i)
      text.push_back(static_cast<char>(trial % 2 ? random() % 256 : "\xe4\xb8\xad\xf0\x9f a\xc3\n"[random() % 10]));
    for (const bool added : {true, false})
      EXPECT_EQ(small_tokenizer().decode(small_tokenizer().encode(text, added), false), text);
  }
}

TEST(Tokenizer, AnInvalidByteIsAPieceOfItsOwn) {
  const std::vector<int32_t> left = small_tokenizer().encode("the ", true),
                             right = small_tokenizer().encode("end", true);
  std::vector<int32_t> expected = left;
  const std::string invalid = "\xe4\xb8";  // the first two bytes of a character
  for (const char byte : invalid) {
    int32_t id = 0;
    while (small_tokenizer().piece(id) != std::string(1, byte)) ++id;
    expected.push_back(id);
  }
  expected.insert(expected.end(), right.begin(), right.end());
  EXPECT_EQ(small_tokenizer().encode("the " + invalid + "end", true), expected);
}

// Would take hours if anything were quadratic.
TEST(Tokenizer, LongRunsTakeLinearTime) {
  constexpr size_t kBytes = 1 << 20;
  std::mt19937 random(3);
  std::string word;
  while (word.size() < kBytes) word.push_back(static_cast<char>('a' + random() % 26));
  std::vector<std::string> texts = {word, word + " \xff"};
  for (const std::string unit :
       {"a", " ", "\n", "\r\n ", "=", "7", "<|", "<|user|", "'", "\xe4\xb8\xad", "\xcc\x81", "\xff", " \n"}) {
    std::string text;
    while (text.size() < kBytes) text += unit;
    texts.push_back(text);
    texts.push_back(text + "x");
  }
  for (const std::string& text : texts)
    EXPECT_EQ(small_tokenizer().decode(small_tokenizer().encode(text, true), false), text);
}

TEST(Tokenizer, RstripOverOneRunIsLinear) {
  json file = read_fixture("tokenizer.json");
  const json flags = {{"rstrip", true}, {"lstrip", true}, {"normalized", false}, {"special", false}};
  json token = flags;
  token["id"] = small_tokenizer().size();
  token["content"] = "  ";  // every match swallows the rest of the run
  file["added_tokens"].push_back(token);
  const Tokenizer tokenizer = Tokenizer::parse(file.dump(), "rstrip");
  EXPECT_EQ(tokenizer.encode(std::string(1 << 20, ' '), true).size(), size_t{1} << 19);
}

TEST(Tokenizer, ThreadsShareOne) {
  const std::string text = read_text_file(std::filesystem::path(VERBATIM_FIXTURES) / "text" / "vectors.json", 16 << 20);
  const std::vector<int32_t> expected = small_tokenizer().encode(text, true);
  std::vector<std::vector<int32_t>> results(4);
  std::vector<std::thread> threads;
  for (auto& result : results) threads.emplace_back([&] { result = small_tokenizer().encode(text, true); });
  for (std::thread& thread : threads) thread.join();
  for (const auto& result : results) EXPECT_EQ(result, expected);
}

}  // namespace
}  // namespace verbatim::text
