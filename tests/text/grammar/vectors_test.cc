// Verdicts that scripts/oracle_grammar.py wrote after it had compared them with xgrammar and jsonschema.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/text/grammar/grammar_toy.h"

namespace verbatim::text {
namespace {

TEST(GrammarVectors, VerdictsAreThoseThatWereCompared) {
  std::ifstream file(VERBATIM_FIXTURES "/text/grammar_vectors.json");
  const nlohmann::json vectors = nlohmann::json::parse(file);
  const GrammarToy toy;
  size_t texts = 0;
  for (const nlohmann::json& vector : vectors) {
    const std::string text = vector.at("text");
    const GrammarPointer grammar =
        vector.at("kind") == "schema" ? compile_json_schema(toy.tokens, text) : compile_regex(toy.tokens, text);
    for (const char* verdict : {"take", "refuse"}) {
      for (const std::string one : vector.at(verdict)) {
        EXPECT_EQ(grammar->accepts(one), verdict == std::string("take")) << text << "\n" << one;
        ++texts;
      }
    }
  }
  EXPECT_GE(vectors.size(), 80U);
  EXPECT_GT(texts, 1000U);
}

}  // namespace
}  // namespace verbatim::text
