// The arguments of a call, and how they are matched to a function's parameters.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace verbatim::text::jinja {

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> keywords;  // no name twice
};

// Arguments in the order of the parameters, as Python binds them. Faults on one too many, an unknown keyword, one given
// twice, or fewer than `required`.
class Bound {
 public:
  Bound(std::string_view function, const Arguments& arguments, std::initializer_list<std::string_view> parameters,
        size_t required = 0);

  bool has(size_t i) const { return values_[i].has_value(); }
  const Value& at(size_t i) const { return *values_[i]; }
  bool is_none(size_t i) const { return !has(i) || at(i).is_none(); }  // absent or none
  bool flag(size_t i, bool fallback) const { return has(i) ? truth(at(i)) : fallback; }
  int64_t integer(size_t i, int64_t fallback) const;  // faults when it is not an integer
  const Text& text(size_t i) const;                   // faults when it is not a string

 private:
  std::string_view function_;
  std::vector<std::string_view> parameters_;
  std::vector<std::optional<Value>> values_;
};

}  // namespace verbatim::text::jinja
