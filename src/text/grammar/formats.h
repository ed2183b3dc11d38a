// The values of the keyword "format".
#pragma once

#include <optional>
#include <string_view>

#include "text/grammar/decimal.h"

namespace verbatim::text {

bool is_format(std::string_view name);  // known, if only as one that says nothing about the text
// The regex of the whole string; empty for a format that says nothing about strings.
std::string_view pattern_of_format(std::string_view name);
// int32, int64.
std::optional<NumberBounds> bounds_of_format(std::string_view name);

}  // namespace verbatim::text
