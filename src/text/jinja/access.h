// Looking into values: attributes, items, slices, iteration, membership.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "text/jinja/value.h"

namespace verbatim::text::jinja {

// value.name, as Jinja2's sandbox looks it up: the type's own methods first, then the key. Undefined when there is
// neither; faults on undefined itself, and with the name on what Python has but templates may not use here.
Value get_attribute(Meter& meter, const Value& value, std::string_view name);

// value[key]: the item first, then the attribute of that name.
Value get_item(Meter& meter, const Value& value, const Value& key);

// value[start:stop:step]; absent parts are none.
Value get_slice(Meter& meter, const Value& value, const Value& start, const Value& stop, const Value& step);

// Everything that iterating yields; an iterator is used up. Faults on what is not iterable; `what` names the user.
std::vector<Value> iterate(Meter& meter, const Value& value);
bool is_iterable(const Value& value);

// len(); none for what has no length.
std::optional<int64_t> length(const Value& value);

// `needle in haystack`.
bool contains(Meter& meter, const Value& haystack, const Value& needle);

}  // namespace verbatim::text::jinja
