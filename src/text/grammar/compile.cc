// Grammars that need no schema.
#include "base/error.h"
#include "text/grammar/grammar.h"
#include "text/grammar/json_rules.h"
#include "text/grammar/regex_syntax.h"
#include "text/utf8.h"

namespace verbatim::text {

GrammarPointer compile_json_object(TokenTablePointer tokens, const GrammarLimits& limits) {
  Budget budget(limits);
  AutomatonBuilder builder(budget);
  JsonRules json(builder);
  return std::make_shared<const Grammar>(std::move(tokens), builder.finish(json.object()));
}

GrammarPointer compile_regex(TokenTablePointer tokens, std::string_view pattern, const GrammarLimits& limits) {
  Budget budget(limits);
  budget.bytes(pattern.size(), "a regex");
  AutomatonBuilder builder(budget);
  const Regex regex = parse_regex(pattern, "regex", budget);
  const RuleId root = builder.rule_of(regex_dfa(regex, Anchoring::kWhole, Spelling::kRaw, budget));
  return std::make_shared<const Grammar>(std::move(tokens), builder.finish(root));
}

GrammarPointer compile_choice(TokenTablePointer tokens, std::span<const std::string> choices,
                              const GrammarLimits& limits) {
  Budget budget(limits);
  size_t bytes = 0;
  for (const std::string& choice : choices) {
    bytes += choice.size();
    if (choice.empty()) fail(ErrorKind::kUsage, "choice", "an empty string; a choice is a text; leave it out");
    if (valid_utf8_bytes(choice, 0) != choice.size())
      fail(ErrorKind::kUsage, "choice", "a text that is not UTF-8; send UTF-8");
  }
  budget.bytes(bytes, "choices");
  if (choices.empty()) fail(ErrorKind::kUsage, "choice", "no texts; expected at least one");
  AutomatonBuilder builder(budget);
  const RuleId root = builder.rule();
  const StateId end = builder.state(root);
  builder.accept(end);
  builder.literals(builder.start(root), choices, end);
  return std::make_shared<const Grammar>(std::move(tokens), builder.finish(root));
}

}  // namespace verbatim::text
