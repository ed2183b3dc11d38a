#include "text/jinja/arguments.h"

#include <algorithm>

namespace verbatim::text::jinja {

Bound::Bound(std::string_view function, const Arguments& arguments, std::initializer_list<std::string_view> parameters,
             size_t required)
    : function_(function), parameters_(parameters), values_(parameters.size()) {
  if (arguments.positional.size() > parameters_.size())
    fault(ErrorKind::kFormat, "{}() takes at most {} arguments, {} were given", function, parameters_.size(),
          arguments.positional.size());
  for (size_t i = 0; i < arguments.positional.size(); ++i) values_[i] = arguments.positional[i];
  for (const auto& [name, value] : arguments.keywords) {
    const auto found = std::find(parameters_.begin(), parameters_.end(), name);
    if (found == parameters_.end()) fault(ErrorKind::kFormat, "{}() has no parameter '{}'", function, name);
    std::optional<Value>& slot = values_[static_cast<size_t>(found - parameters_.begin())];
    if (slot) fault(ErrorKind::kFormat, "{}() got the argument '{}' twice", function, name);
    slot = value;
  }
  for (size_t i = 0; i < required; ++i)
    if (!values_[i]) fault(ErrorKind::kFormat, "{}() needs the argument '{}'", function, parameters_[i]);
}

int64_t Bound::integer(size_t i, int64_t fallback) const {
  if (!has(i)) return fallback;
  require_defined(at(i));
  if (!at(i).is_integral())
    fault(ErrorKind::kFormat, "{}(): the argument '{}' is a {}, an int is expected", function_, parameters_[i],
          type_name(at(i)));
  return at(i).integer();
}

const Text& Bound::text(size_t i) const {
  const Text* text = at(i).as_text();
  if (text == nullptr) {
    require_defined(at(i));
    fault(ErrorKind::kFormat, "{}(): the argument '{}' is a {}, a str is expected", function_, parameters_[i],
          type_name(at(i)));
  }
  return *text;
}

}  // namespace verbatim::text::jinja
