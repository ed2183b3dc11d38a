// Arbitrary bytes as a JSON schema, a regex and a tool's parameters: each compiles or is refused within its limits, a
// reply made by the mask alone never gets stuck, and what ends is taken byte by byte too (and is JSON, for a schema).
//
// Input: a byte that chooses, the bytes of the schema or regex up to the first 0 byte, then a byte a step of the reply.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "tests/text/grammar/grammar_toy.h"

namespace {

using namespace verbatim::text;

void check(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", what);
  std::abort();
}

GrammarPointer compile(const TokenTablePointer& tokens, int choice, std::string_view text) {
  const GrammarLimits limits{.schema_bytes = 4096, .states = 20'000, .compile_ms = 700};
  switch (choice) {
    case 0: return compile_regex(tokens, text, limits);
    case 1: return compile_tool_calls(tokens, {{"f", std::string(text)}, {"g", ""}}, {}, limits);
    default: return compile_json_schema(tokens, text, limits);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const GrammarToy toy;
  if (size < 2) return 0;
  const int choice = data[0] % 4;
  const std::string_view input(reinterpret_cast<const char*>(data) + 1, size - 1);
  const size_t end = std::min(input.find('\0'), input.size());
  const std::string_view text = input.substr(0, end), steps = end < input.size() ? input.substr(end + 1) : "";
  GrammarPointer grammar;
  const auto begin = std::chrono::steady_clock::now();
  try {
    grammar = compile(toy.tokens, choice, text);
  } catch (const verbatim::Error& error) {
    check(error.kind() == verbatim::ErrorKind::kUsage, "what is refused is the caller's affair");
  }
  check(std::chrono::steady_clock::now() - begin < std::chrono::seconds(10), "compiling ends in time");
  if (!grammar) return 0;

  const TokenMaskFunction mask = make_mask(grammar, toy.plain());
  std::vector<int32_t> ids;
  uint32_t state = 2166136261u;
  for (size_t i = 0; i < 40; ++i) {
    const std::vector<int32_t> allowed = toy.allowed(mask, ids);
    check(!allowed.empty(), "a mask is never empty");
    state = (state ^ (i < steps.size() ? static_cast<uint8_t>(steps[i]) : 17u)) * 16777619u;
    const int32_t id = allowed[(state >> 8) % allowed.size()];
    if (id == toy.end || id == toy.other_end) {
      const std::string reply = toy.text(ids);
      if (choice != 1) check(grammar->accepts(reply), "how a reply is cut into tokens means nothing");
      if (choice > 1) check(nlohmann::json::accept(reply), "a schema's reply is JSON");
      break;
    }
    ids.push_back(id);
  }
  if (!ids.empty()) {
    const std::vector<int32_t> before = toy.allowed(mask, std::span(ids).first(ids.size() - 1));
    check(std::find(before.begin(), before.end(), ids.back()) != before.end(), "a mask depends on the tokens alone");
  }
  return 0;
}
