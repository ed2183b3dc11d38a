// Values as text: Python's str(), repr() and json.dumps().
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "text/jinja/value.h"

namespace verbatim::text::jinja {

// Text as it is; of anything else Python's str(), all of it of the inputs' origin. Faults on what prints an address in
// Python (iterators, functions), since no two runs would agree.
Text to_text(Meter& meter, const Value& value);

// repr(float): the shortest digits that read back as the same number.
std::string float_text(double number);

struct JsonStyle {
  bool ensure_ascii = false;
  std::optional<std::string> indent;  // of one level; none: all on one line
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool sort_keys = false;
};
// Exactly json.dumps's text; all of it of the inputs' origin. Faults on what JSON cannot hold.
Text to_json(Meter& meter, const Value& value, const JsonStyle& style);

// int(text) and float(text) as Python reads them, none where it raises ValueError. An integer past 64 bits faults.
std::optional<int64_t> parse_integer(std::string_view text, int base = 10);
std::optional<double> parse_float(std::string_view text);
// int(number); none for NaN and infinities (which Python refuses). Past 64 bits faults.
std::optional<int64_t> truncate(double number);

}  // namespace verbatim::text::jinja
