// Answers scripts/oracle_grammar.py: one JSON request a line in, one JSON answer a line out.
//
//   grammar_driver [tokenizer.json]      without one: a token a byte and the toy's pieces
//
// Request: kind (schema, object, regex, choice, tools), text, strings (choices), tools ([{name, parameters}]); accept
// (texts: does the grammar take them whole), walks (how many random replies to make), seed, limit (tokens), masks
// (lists of ids: what may follow). Answer: error, or ms, states, accept, walks ([text, ended]), masks (lists of ids).
#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "tests/text/grammar/grammar_toy.h"
#include "text/tokenizer.h"

namespace {

using namespace verbatim::text;
using nlohmann::json;

GrammarPointer compile(const TokenTablePointer& tokens, const json& request) {
  const std::string kind = request.at("kind"), text = request.value("text", "");
  if (kind == "schema") return compile_json_schema(tokens, text);
  if (kind == "object") return compile_json_object(tokens);
  if (kind == "regex") return compile_regex(tokens, text);
  if (kind == "choice") return compile_choice(tokens, request.at("strings").get<std::vector<std::string>>());
  std::vector<OfferedTool> tools;
  for (const json& tool : request.at("tools")) tools.push_back({tool.at("name"), tool.at("parameters").dump()});
  return compile_tool_calls(tokens, tools);
}

}  // namespace

int main(int argc, char** argv) {
  using Clock = std::chrono::steady_clock;
  GrammarToy toy;
  if (argc > 1) toy = GrammarToy(Tokenizer::load(argv[1]));
  std::string line;
  while (std::getline(std::cin, line)) {
    const json request = json::parse(line);
    json answer;
    const auto begin = Clock::now();
    const auto elapsed = [&] { return std::chrono::duration<double, std::milli>(Clock::now() - begin).count(); };
    try {
      const GrammarPointer grammar = compile(toy.tokens, request);
      answer = {{"ms", elapsed()}, {"states", grammar->states()}};
      for (const std::string text : request.value("accept", json::array()))
        answer["accept"].push_back(grammar->accepts(text));
      std::mt19937 random(request.value("seed", 1U));
      const TokenMaskFunction mask = make_mask(grammar, toy.plain());
      for (int i = 0; i < request.value("walks", 0); ++i) {
        const std::vector<int32_t> ids = toy.walk(mask, random, request.value("limit", size_t{60}));
        const bool ended = !ids.empty() && (ids.back() == toy.end || ids.back() == toy.other_end);
        answer["walks"].push_back({toy.text(ids), ended});
      }
      for (const json& ids : request.value("masks", json::array()))
        answer["masks"].push_back(toy.allowed(mask, ids.get<std::vector<int32_t>>()));
    } catch (const verbatim::Error& error) {
      answer = {{"error", error.what()}, {"ms", elapsed()}};
    }
    std::cout << answer.dump(-1, ' ', true, json::error_handler_t::replace) << std::endl;
  }
  return 0;
}
