// The two ways Python strings are filled in: "%s" % value and "{}".format(value). What is put in keeps its origin.
#pragma once

#include "text/jinja/arguments.h"
#include "text/jinja/value.h"

namespace verbatim::text::jinja {

// %s, %d, %i and %%, without flags or width; the rest is refused by name.
Text format_percent(Meter& meter, const Text& pattern, const Value& values);

// {}, {0}, {name}, {{ and }}; conversions, attributes and format specifications are refused by name.
Text format_braces(Meter& meter, const Text& pattern, const Arguments& arguments);

}  // namespace verbatim::text::jinja
