// The methods that templates may call on strings, mappings, lists and `loop`.
#pragma once

#include <string_view>

#include "text/jinja/arguments.h"
#include "text/jinja/value.h"

namespace verbatim::text::jinja {

bool has_method(const Value& self, std::string_view name);

// Calls a method that has_method() found. Pieces of a string keep their origin, with one exception: where a separator
// or a sought text that is not wholly the template's decides what is cut out, the whole result is of the inputs'
// origin, so that no input can close a gap in what the template wrote.
Value call_method(Meter& meter, const Value& self, std::string_view name, const Arguments& arguments);

// str.replace and str.split, which filters and methods share. count, limit: how many at most, negative for all.
Text replace_text(Meter& meter, const Text& text, const Text& old, const Text& replacement, int64_t count);

}  // namespace verbatim::text::jinja
