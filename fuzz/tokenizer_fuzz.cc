// tokenizer.json, then a text through it. The first byte picks how the bytes up to the first NUL are read: as a JSON
// merge patch (RFC 7396) on a small valid file, as a whole file, as a regex for the pre-tokenizer alone, or as more of
// the text for the small file's tokenizer; what follows the NUL is the text.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/error.h"
#include "text/pretokenizer.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace {

using nlohmann::json;
using verbatim::text::Pretokenizer;
using verbatim::text::Range;
using verbatim::text::StreamDecoder;
using verbatim::text::Tokenizer;

constexpr size_t kMostTextBytes = 1024;

json small_file() {
  json vocabulary;
  int32_t next = 0;
  char32_t beyond = 0x100;
  for (char32_t byte = 0; byte < 256; ++byte) {
    const bool itself = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    std::string spelling;
    verbatim::text::append_utf8(spelling, itself ? byte : beyond++);
    vocabulary[spelling] = next++;
  }
  json merges = json::array();
  for (const auto& [left, right] : {std::pair("a", "b"), std::pair("ab", "c"), std::pair("b", "c"),
                                    std::pair("a", "bc"), std::pair("a", "a"), std::pair("aa", "aa")}) {
    vocabulary.emplace(std::string(left) + right, next++);
    merges.push_back({left, right});
  }
  const json split = {{"type", "Split"}, {"pattern", {{"Regex", "\\p{L}+|\\s+(?!\\S)"}}}, {"behavior", "Isolated"}};
  const json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  return {{"model", {{"type", "BPE"}, {"ignore_merges", true}, {"vocab", vocabulary}, {"merges", merges}}},
          {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {split, bytes}}}},
          {"decoder", bytes},
          {"added_tokens", {{{"id", 300}, {"content", "<t>"}, {"special", true}}, {{"id", 301}, {"content", "<t>a"}}}}};
}

void check(bool holds) {
  if (!holds) std::abort();
}

void encode(const Tokenizer& tokenizer, std::string_view text, bool strips) {
  const size_t third = text.size() / 3;
  const std::array<Range, 2> trusted = {Range{0, third}, Range{2 * third, text.size()}};
  for (const size_t ranges : {0, 1, 2}) {
    std::vector<int32_t> ids;
    tokenizer.encode(text, std::span(trusted).first(ranges), ids);
    const std::string back = tokenizer.decode(ids, false);
    check(strips || back == text);
    StreamDecoder whole, cut;
    std::string expected = whole.push(back);
    expected += whole.flush();
    std::string pieces;
    for (const int32_t id : ids) pieces += cut.push(tokenizer.piece(id));
    pieces += cut.flush();
    check(verbatim::text::valid_utf8_bytes(pieces, 0) == pieces.size());
    check(pieces == expected && whole.replaced() == cut.replaced());
    if (ranges == 0) {
      for (const int32_t id : ids) check(!tokenizer.is_special(id));
    }
  }
}

void patched(const json& base, const std::string& head, std::string_view text) {
  const json patch = json::parse(head, nullptr, false);
  if (!patch.is_object()) return;
  json file = base;
  file.merge_patch(patch);
  encode(Tokenizer::parse(file.dump(), "fuzz"), text, head.find("strip") != std::string::npos);
}

void split(const std::string& pattern, std::string_view text) {
  const Pretokenizer pretokenizer({{pattern}}, "fuzz");
  Pretokenizer::Scratch scratch(pretokenizer);
  text = text.substr(0, verbatim::text::valid_utf8_bytes(text, 0));
  size_t last = 0;
  for (const size_t cut : pretokenizer.split(text, scratch)) {
    check(cut > last);
    last = cut;
  }
  check(last == text.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  static const json base = small_file();
  static const Tokenizer base_tokenizer = Tokenizer::parse(base.dump(), "fuzz");
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t end = std::min(input.find('\0', 1), size);
  const std::string head(input.substr(1, end - 1));
  const std::string_view text = input.substr(std::min(end + 1, size)).substr(0, kMostTextBytes);
  try {
    switch (data[0] % 4) {
      case 0: patched(base, head, text); break;
      case 1: encode(Tokenizer::parse(head, "fuzz"), text, head.find("strip") != std::string::npos); break;
      case 2: split(head, text); break;
      default: encode(base_tokenizer, input.substr(1).substr(0, kMostTextBytes), false);
    }
  } catch (const verbatim::Error&) {  // a refusal
  }
  return 0;
}
