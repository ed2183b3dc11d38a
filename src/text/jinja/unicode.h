// What Python's str methods know about characters (Unicode 14.0, Python 3.11).
#pragma once

#include <array>

namespace verbatim::text::jinja {

enum class Case { kUpper, kLower, kTitle };

// Up to three code points; unused places are 0 (no mapping yields U+0000 except that of U+0000, which is one place).
using CaseMapping = std::array<char32_t, 3>;

// The full, context-free mapping of one character. Final sigma is the caller's affair.
CaseMapping map_case(char32_t character, Case to);

bool is_cased(char32_t character);           // lower, upper or title case
bool is_case_ignorable(char32_t character);  // skipped when looking for the neighbours of a sigma
bool is_lowercase(char32_t character);
bool is_uppercase(char32_t character);
bool is_titlecase(char32_t character);
bool is_space(char32_t character);       // str.isspace, and `\s` of a regular expression
bool is_line_break(char32_t character);  // where str.splitlines cuts
bool is_printable(char32_t character);   // what repr() leaves as it is

}  // namespace verbatim::text::jinja
