// Lets a script run the tokenizer on many texts: scripts/oracle_tokenizer.py.
//
//   tokenizer_driver encode TOKENIZER.json on|off < texts > ids     texts: (u32 bytes, bytes)*; ids: (u32 count, i32*)*
//   tokenizer_driver decode TOKENIZER.json < ids > texts
//   tokenizer_driver splits PATTERN fast|pcre2 < texts > ends       ends: (u32 count, u32*)*
//   tokenizer_driver time TOKENIZER.json < texts            prints the CPU seconds that encoding them takes, and the
//   ids
#include <fmt/core.h>

#include <cstdint>
#include <cstdio>
#include <ctime>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "text/pretokenizer.h"
#include "text/tokenizer.h"

namespace verbatim::text {
namespace {

// One counted array from standard input; false at its end.
template <typename Element>
bool read_array(std::vector<Element>& elements) {
  uint32_t count = 0;
  if (std::fread(&count, sizeof count, 1, stdin) != 1) return false;
  elements.resize(count);
  return std::fread(elements.data(), sizeof(Element), count, stdin) == count;
}

template <typename Element>
void write_array(const Element* elements, size_t count) {
  const auto written = static_cast<uint32_t>(count);
  std::fwrite(&written, sizeof written, 1, stdout);
  std::fwrite(elements, sizeof(Element), count, stdout);
}

void encode(const Tokenizer& tokenizer, bool added_tokens) {
  for (std::vector<char> text; read_array(text);) {
    const std::vector<int32_t> ids = tokenizer.encode(std::string_view(text.data(), text.size()), added_tokens);
    write_array(ids.data(), ids.size());
  }
}

void decode(const Tokenizer& tokenizer) {
  for (std::vector<int32_t> ids; read_array(ids);) {
    const std::string text = tokenizer.decode(ids, false);
    write_array(text.data(), text.size());
  }
}

void splits(const std::string& pattern, Matcher matcher) {
  const Pretokenizer pretokenizer({{pattern}}, "pattern", matcher);
  Pretokenizer::Scratch scratch(pretokenizer);
  for (std::vector<char> text; read_array(text);) {
    const std::vector<size_t>& ends = pretokenizer.split(std::string_view(text.data(), text.size()), scratch);
    const std::vector<uint32_t> narrow(ends.begin(), ends.end());
    write_array(narrow.data(), narrow.size());
  }
}

// Reads all texts before the clock starts.
void time_pass(const Tokenizer& tokenizer) {
  std::vector<std::string> texts;
  for (std::vector<char> text; read_array(text);) texts.emplace_back(text.data(), text.size());
  size_t count = 0;
  const std::clock_t start = std::clock();
  for (const std::string& text : texts) count += tokenizer.encode(text, true).size();
  fmt::print("{} {}\n", static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, count);
}

int run(const std::vector<std::string>& arguments) {
  const auto is = [&](const char* verb, size_t count) { return arguments.size() == count && arguments[0] == verb; };
  if (is("encode", 3)) {
    encode(Tokenizer::load(arguments[1]), arguments[2] == "on");
  } else if (is("decode", 2)) {
    decode(Tokenizer::load(arguments[1]));
  } else if (is("splits", 3)) {
    splits(arguments[1], arguments[2] == "fast" ? Matcher::kFastest : Matcher::kPcre2Only);
  } else if (is("time", 2)) {
    time_pass(Tokenizer::load(arguments[1]));
  } else {
    fmt::print(stderr, "usage: see the top of tests/text/tokenizer_driver.cc\n");
    return 2;
  }
  return std::fflush(stdout) == 0 ? 0 : 1;
}

}  // namespace
}  // namespace verbatim::text

int main(int argc, char** argv) {
  try {
    return verbatim::text::run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 1;
  }
}
