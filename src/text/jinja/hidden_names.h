// Jinja2 compiles names to Python variables, and decides once for each scope where a name's first value comes from. One
// corner of that shows: a name that a scope sets, and does not read itself before, never reads the input variable of
// the same name, not even in loops and macros that run before it is set.
#pragma once

#include "text/jinja/syntax.h"

namespace verbatim::text::jinja {

// Fills in every Hidden of the template. Faults when it has too many names in too many branches.
void find_hidden_names(TemplateBody& body);

}  // namespace verbatim::text::jinja
