// Filters (`value|name`) and tests (`value is name`), found by name when a template is parsed.
#pragma once

#include <string_view>

#include "text/jinja/arguments.h"
#include "text/jinja/value.h"

namespace verbatim::text::jinja {

using FilterFunction = Value (*)(Meter&, const Value&, const Arguments&);
using TestFunction = bool (*)(Meter&, const Value&, const Arguments&);

struct Filter {
  std::string_view name;
  FilterFunction function;
};
struct Test {
  std::string_view name;
  TestFunction function;
};

// Null for a name that Jinja2 does not know either; faults with the name on a filter or test of Jinja2's that is not
// supported.
FilterFunction find_filter(std::string_view name);
TestFunction find_test(std::string_view name);

// One each for the files that hold them.
FilterFunction find_text_filter(std::string_view name);
FilterFunction find_sequence_filter(std::string_view name);

}  // namespace verbatim::text::jinja
