// A template's source cut into tokens, as Jinja2 does with trim_blocks and lstrip_blocks on.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/meter.h"

namespace verbatim::text::jinja {

struct Token {
  enum class Kind : uint8_t {
    kData,           // text: what stands outside the tags, white space control applied
    kVariableBegin,  // {{
    kVariableEnd,
    kBlockBegin,  // {%
    kBlockEnd,
    kName,
    kString,  // text: unescaped
    kInteger,
    kFloat,
    kOperator,  // text: the operator
    kEnd,
  };
  Kind kind = Kind::kEnd;
  uint32_t line = 1;
  std::string text;
  int64_t integer = 0;
  double number = 0;

  bool is(Kind wanted, std::string_view wanted_text) const { return kind == wanted && text == wanted_text; }
};

// The last token is kEnd. Faults on what is not a token; `line` is then the line where.
std::vector<Token> tokenize(std::string_view source, const Limits& limits, uint32_t& line);

// For messages: "'%}'", "the name 'x'", "the end of the template".
std::string describe(const Token& token);

}  // namespace verbatim::text::jinja
