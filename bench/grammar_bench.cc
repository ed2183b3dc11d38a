// What a mask costs: replies read token by token, the mask asked for before each, first with nothing remembered and
// then again by another request for the same grammar.
//
//   grammar_bench tokenizer.json
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "base/error.h"
#include "text/grammar/grammar.h"
#include "text/grammar/mask_cache.h"
#include "text/tokenizer.h"

namespace {

using namespace verbatim::text;
using Clock = std::chrono::steady_clock;

double microseconds(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

struct Times {
  std::vector<double> us;
  std::string text() {
    std::sort(us.begin(), us.end());
    return fmt::format("{:7.0f} {:7.0f} {:7.0f}", us[us.size() / 2], us[us.size() * 99 / 100], us.back());
  }
};

Times read(const GrammarPointer& grammar, const std::vector<int32_t>& ids, int32_t end) {
  const TokenMaskFunction mask = make_mask(grammar, {.end_tokens = {end}, .has_reasoning = false});
  std::vector<uint64_t> words(grammar->tokens().words());
  Times times;
  for (size_t i = 0; i <= ids.size(); ++i) {
    const auto begin = Clock::now();
    mask(std::span(ids).first(i), words);
    times.us.push_back(microseconds(begin));
    const int32_t next = i < ids.size() ? ids[i] : end;
    if ((words[static_cast<size_t>(next) / 64] >> (next % 64) & 1) == 0) {
      fmt::print("token {} ({}) does not fit\n", i, next);
      break;
    }
  }
  return times;
}

const char* const kSchema = R"({"type": "object", "properties": {
  "name": {"type": "string"}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
  "email": {"type": "string", "format": "email"}, "bio": {"type": "string", "maxLength": 500},
  "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 10},
  "address": {"type": "object", "properties": {"street": {"type": "string"}, "city": {"type": "string"},
    "zip": {"type": "string", "pattern": "^[0-9]{5}$"}}, "required": ["street", "city", "zip"]},
  "active": {"type": "boolean"}, "score": {"type": "number"}}, "required": ["name", "age", "email", "score"]})";

const char* const kReply = R"({"name": "Ada Lovelace", "age": 36, "email": "ada.lovelace@example.org",
  "bio": "English mathematician and writer, chiefly known for her work on Charles Babbage's proposed \"Analytical Engine\". She was the first to recognise that the machine had applications beyond pure calculation.",
  "tags": ["mathematics", "computing", "poetry"],
  "address": {
    "street": "12 St James's Square",
    "city": "London",
    "zip": "12345"
  },
  "active": false, "score": 99.25
})";

const char* const kCode = R"(#include <vector>

int sum(const std::vector<int>& values) {
  int total = 0;
  for (int value : values) total += value;  // "left to right"
  return total;
}
)";

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    fmt::print("usage: grammar_bench tokenizer.json\n");
    return 2;
  }
  try {
    const Tokenizer tokenizer = Tokenizer::load(argv[1]);
    auto begin = Clock::now();
    const TokenTablePointer tokens = TokenTable::build(tokenizer);
    fmt::print("{} ids, {} trie nodes, longest {} bytes, table built in {:.0f} ms\n", tokens->size(),
               tokens->nodes().size(), tokens->longest(), microseconds(begin) / 1000);
    const int32_t end = tokenizer.find("<|endoftext|>").value();
    std::string counted = R"({"type": "string", "minLength": 20, "maxLength": 400})", quoted = "\"";
    append_json_escaped(quoted, kCode);
    quoted += '"';
    std::string call = "<tool_call>write_file<arg_key>path</arg_key><arg_value>src/sum.cc</arg_value>";
    call += std::string("<arg_key>content</arg_key><arg_value>") + kCode + "</arg_value></tool_call>";
    struct Case {
      const char* name;
      std::function<GrammarPointer()> compile;
      std::string reply;
    };
    const std::vector<Case> cases = {
        {"json_object", [&] { return compile_json_object(tokens); }, kReply},
        {"json_schema", [&] { return compile_json_schema(tokens, kSchema); }, kReply},
        {"string of 20 to 400", [&] { return compile_json_schema(tokens, counted); }, quoted},
        {"regex", [&] { return compile_regex(tokens, "[\\s\\S]*return [a-z]+;\\n\\}\\n"); }, kCode},
        {"tool call",
         [&] {
           return compile_tool_calls(
               tokens, {{"read_file", R"({"type": "object", "properties": {"path": {"type": "string"}}})"},
                        {"write_file", R"({"type": "object", "properties": {"path": {"type": "string"},
                                           "content": {"type": "string"}, "mode": {"type": "integer"}},
                                           "required": ["path", "content"]})"}});
         },
         call}};
    fmt::print("{:22} {:>9} {:>7} {:>6}  {:>23}  {:>23}\n", "", "compile", "states", "tokens",
               "first, us: median p99 max", "again: median p99 max");
    for (const Case& one : cases) {
      begin = Clock::now();
      const GrammarPointer grammar = one.compile();
      const double compile_ms = microseconds(begin) / 1000;
      const std::vector<int32_t> ids = tokenizer.encode(one.reply, true);
      std::string first = read(grammar, ids, end).text(), again = read(grammar, ids, end).text();
      fmt::print("{:22} {:6.2f} ms {:7} {:6}  {}  {}   {} kB\n", one.name, compile_ms, grammar->states(), ids.size(),
                 first, again, grammar->masks().bytes() / 1024);
    }
  } catch (const verbatim::Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
  return 0;
}
