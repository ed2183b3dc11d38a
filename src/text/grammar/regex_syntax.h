// Regular expressions as JSON schema has them (ECMA-262 with the u flag), without what is not regular.
// docs/structured-output.md lists the syntax.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/grammar/budget.h"
#include "text/grammar/code_points.h"
#include "text/grammar/dfa.h"

namespace verbatim::text {

struct RegexNode {
  enum class Kind : uint8_t { kEmpty, kSet, kSequence, kEither, kRepeat };
  static constexpr uint32_t kEndless = 0xFFFFFFFF;
  Kind kind = Kind::kEmpty;
  CodePoints set = {};               // kSet
  std::vector<uint32_t> parts = {};  // kSequence, kEither; kRepeat: one
  uint32_t min = 0, max = 0;         // kRepeat
};

struct Regex {
  std::vector<RegexNode> nodes;
  struct Branch {
    uint32_t node;
    bool at_begin, at_end;  // anchored
  };
  std::vector<Branch> branches;  // alternatives of the outermost level
};

// Throws Error(kUsage): a syntax error, or something that is not supported, named. `where` begins the message: the
// place of the regex.
Regex parse_regex(std::string_view pattern, const std::string& where, Budget& budget);

// How a character of the matched text is written.
enum class Spelling : uint8_t {
  kRaw,   // as UTF-8
  kJson,  // as in a JSON string: quotes, backslashes and control characters escaped, nothing else
};
enum class Anchoring : uint8_t {
  kWhole,   // the regex covers the text
  kSearch,  // it is found somewhere in it, unless anchors say otherwise
};

Dfa regex_dfa(const Regex& regex, Anchoring anchoring, Spelling spelling, Budget& budget);

// One character of the set, in the spelling.
void draw_characters(Nfa& nfa, uint32_t from, const CodePoints& set, Spelling spelling, uint32_t to);
// The text, in the spelling. It must be UTF-8.
std::string spell(std::string_view text, Spelling spelling);

}  // namespace verbatim::text
