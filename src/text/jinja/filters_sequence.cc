// Filters that look through, order or choose from sequences and mappings.
#include <algorithm>
#include <optional>

#include "text/jinja/access.h"
#include "text/jinja/filters.h"
#include "text/jinja/operators.h"
#include "text/jinja/represent.h"
#include "text/utf8.h"

namespace verbatim::text::jinja {
namespace {

Value iterator_of(Meter& meter, std::vector<Value> items) {
  return make_sequence(meter, Sequence::Kind::kIterator, std::move(items));
}

// "a.b.0": keys one after the other, the numeric ones as integers.
std::vector<Value> attribute_path(std::string_view path) {
  std::vector<Value> parts;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('.', begin), path.size());
    const std::string_view part = path.substr(begin, end - begin);
    const bool digits =
        !part.empty() && std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
    const std::optional<int64_t> number = digits ? parse_integer(part) : std::nullopt;
    parts.push_back(number ? Value(*number) : Value(Text(std::string(part), Origin::kTemplate)));
    begin = end + 1;
  }
  return parts;
}

// Looks up an attribute argument in an item; without one, the item itself.
class Getter {
 public:
  Getter() = default;
  explicit Getter(const Value& attribute) {
    if (attribute.is_integral()) {
      path_ = {attribute};
    } else if (const Text* text = attribute.as_text()) {
      path_ = attribute_path(text->bytes());
    } else if (!attribute.is_none()) {
      require_defined(attribute);
      fault(ErrorKind::kFormat, "an attribute must be a str or an int, not {}", type_name(attribute));
    }
  }
  void set_default(const Value& value) { default_ = value; }
  void set_ignore_case(bool ignore) { ignore_case_ = ignore; }

  Value operator()(Meter& meter, Value item) const {
    for (const Value& part : path_) {
      item = get_item(meter, item, part);
      if (item.is_undefined() && default_) item = *default_;
    }
    if (ignore_case_)
      if (const Text* text = item.as_text()) {
        meter.charge_text(text->size());
        item = lower(*text);
      }
    return item;
  }

 private:
  std::vector<Value> path_;
  std::optional<Value> default_;
  bool ignore_case_ = false;
};

Getter getter_for(const Bound& bound, size_t attribute, bool ignore_case) {
  Getter getter = bound.has(attribute) ? Getter(bound.at(attribute)) : Getter();
  getter.set_ignore_case(ignore_case);
  return getter;
}

struct Keyed {
  Value key;
  Value item;
};

std::vector<Value> sorted(Meter& meter, std::vector<Keyed> keyed, bool reverse) {
  std::stable_sort(keyed.begin(), keyed.end(), [&](const Keyed& a, const Keyed& b) {
    return reverse ? less(meter, b.key, a.key) : less(meter, a.key, b.key);
  });
  std::vector<Value> items;
  items.reserve(keyed.size());
  for (Keyed& one : keyed) items.push_back(std::move(one.item));
  return items;
}

Value filter_length(Meter&, const Value& value, const Arguments& arguments) {
  const Bound none("length", arguments, {});
  const std::optional<int64_t> size = length(value);
  if (!size) fault(ErrorKind::kFormat, "a {} has no length", type_name(value));
  return *size;
}

Value filter_list(Meter& meter, const Value& value, const Arguments& arguments) {
  const Bound none("list", arguments, {});
  return make_list(meter, iterate(meter, value));
}

Value filter_join(Meter& meter, const Value& value, const Arguments& arguments) {
  const Bound bound("join", arguments, {"d", "attribute"});
  const Text separator = bound.has(0) ? to_text(meter, bound.at(0)) : Text();
  const Getter getter = bound.is_none(1) ? Getter() : Getter(bound.at(1));
  Text out;
  bool first = true;
  for (const Value& item : iterate(meter, value)) {
    const Text part = to_text(meter, getter(meter, item));
    meter.charge_text(out.size() + separator.size() + part.size());
    if (!first) out.append(separator);
    first = false;
    out.append(part);
  }
  return out;
}

Value filter_first(Meter& meter, const Value& value, const Arguments& arguments) {
  const Bound none("first", arguments, {});
  if (Sequence* sequence = value.as_sequence(); sequence && sequence->kind == Sequence::Kind::kIterator) {
    if (sequence->items.empty()) return Value::undefined("no first item: the sequence is empty");
    meter.charge(1 + sequence->items.size());
    Value item = sequence->items.front();
    sequence->items.erase(sequence->items.begin());
    return item;
  }
  const std::vector<Value> items = iterate(meter, value);
  return items.empty() ? Value::undefined("no first item: the sequence is empty") : items.front();
}

Value filter_last(Meter& meter, const Value& value, const Arguments& arguments) {
  const Bound none("last", arguments, {});
  if (!length(value)) fault(ErrorKind::kFormat, "last needs a sequence, not {}", type_name(value));
  const std::vector<Value> items = iterate(meter, value);
  return items.empty() ? Value::undefined("no last item: the sequence is empty") : items.back();
}

Value filter_items(Meter& meter, const Value& value, const Arguments& arguments) {
  const Bound none("items", arguments, {});
  std::vector<Value> items;
  if (const Dict* dict = value.as_dict()) {
    for (const auto& [key, item] : dict->items)
      items.push_back(make_sequence(meter, Sequence::Kind::kTuple, {key, item}));
  } else if (!value.is_undefined()) {
    fault(ErrorKind::kFormat, "items needs a mapping, not {}", type_name(value));
  }
  return iterator_of(meter, std::move(items));
}

Value filter_dictsort(Meter& meter, const Value& value, const Arguments& arguments) {
  const Bound bound("dictsort", arguments, {"case_sensitive", "by", "reverse"});
  const Dict* dict = value.as_dict();
  if (dict == nullptr) {
    require_defined(value);
    fault(ErrorKind::kFormat, "dictsort needs a mapping, not {}", type_name(value));
  }
  const std::string by = bound.has(1) ? bound.text(1).bytes() : "key";
  if (by != "key" && by != "value") fault(ErrorKind::kFormat, "dictsort sorts by key or value, not '{}'", by);
  Getter getter;
  getter.set_ignore_case(!bound.flag(0, false));
  std::vector<Keyed> keyed;
  keyed.reserve(dict->items.size());
  for (const auto& [key, item] : dict->items)
    keyed.push_back(
        {getter(meter, by == "key" ? key : item), make_sequence(meter, Sequence::Kind::kTuple, {key, item})});
  return make_list(meter, sorted(meter, std::move(keyed), bound.flag(2, false)));
}

Value filter_sort(Meter& meter, const Value& value, const Arguments& arguments) {
  const Bound bound("sort", arguments, {"reverse", "case_sensitive", "attribute"});
  const bool ignore_case = !bound.flag(1, false);
  // "a,b": sorted by several attributes.
  std::vector<Getter> getters;
  if (!bound.is_none(2) && bound.at(2).as_text() != nullptr) {
    const std::string& names = bound.text(2).bytes();
    for (size_t begin = 0; begin <= names.size();) {
      const size_t end = std::min(names.find(',', begin), names.size());
      getters.emplace_back(Text(names.substr(begin, end - begin), Origin::kTemplate));
      begin = end + 1;
    }
  } else {
    getters.push_back(getter_for(bound, 2, false));
  }
  for (Getter& getter : getters) getter.set_ignore_case(ignore_case);
  std::vector<Keyed> keyed;
  for (const Value& item : iterate(meter, value)) {
    std::vector<Value> keys;
    keys.reserve(getters.size());
    for (const Getter& getter : getters) keys.push_back(getter(meter, item));
    keyed.push_back({make_list(meter, std::move(keys)), item});
  }
  return make_list(meter, sorted(meter, std::move(keyed), bound.flag(0, false)));
}

Value filter_unique(Meter& meter, const Value& value, const Arguments& arguments) {
  const Bound bound("unique", arguments, {"case_sensitive", "attribute"});
  const Getter getter = getter_for(bound, 1, !bound.flag(0, false));
  std::vector<Value> seen;
  std::vector<Value> items;
  for (const Value& item : iterate(meter, value)) {
    Value key = getter(meter, item);
    if (key.as_dict() != nullptr || (key.as_sequence() != nullptr && key.as_sequence()->kind == Sequence::Kind::kList))
      fault(ErrorKind::kFormat, "unhashable type: '{}'", type_name(key));
    if (std::any_of(seen.begin(), seen.end(), [&](const Value& other) { return equal(meter, key, other); })) continue;
    seen.push_back(std::move(key));
    items.push_back(item);
  }
  return iterator_of(meter, std::move(items));
}

Value extreme(Meter& meter, const Value& value, const Arguments& arguments, bool largest) {
  const Bound bound(largest ? "max" : "min", arguments, {"case_sensitive", "attribute"});
  const Getter getter = getter_for(bound, 1, !bound.flag(0, false));
  std::optional<Keyed> best;
  for (const Value& item : iterate(meter, value)) {
    Keyed next{getter(meter, item), item};
    if (!best || (largest ? less(meter, best->key, next.key) : less(meter, next.key, best->key)))
      best = std::move(next);
  }
  return best ? best->item : Value::undefined("no aggregated item: the sequence is empty");
}
Value filter_min(Meter& meter, const Value& value, const Arguments& arguments) {
  return extreme(meter, value, arguments, false);
}
Value filter_max(Meter& meter, const Value& value, const Arguments& arguments) {
  return extreme(meter, value, arguments, true);
}

Value filter_sum(Meter& meter, const Value& value, const Arguments& arguments) {
  const Bound bound("sum", arguments, {"attribute", "start"});
  const Getter getter = bound.is_none(0) ? Getter() : Getter(bound.at(0));
  Value total = bound.has(1) ? bound.at(1) : Value(int64_t{0});
  if (total.as_text() != nullptr) fault(ErrorKind::kFormat, "sum does not add strings; use join");
  for (const Value& item : iterate(meter, value))
    total = apply(meter, BinaryOperator::kAdd, total, getter(meter, item));
  return total;
}

Value filter_reverse(Meter& meter, const Value& value, const Arguments& arguments) {
  const Bound none("reverse", arguments, {});
  if (const Text* text = value.as_text()) {
    meter.charge_text(text->size());
    return reversed(*text);
  }
  const bool has_length = length(value).has_value();
  std::vector<Value> items = iterate(meter, value);
  std::reverse(items.begin(), items.end());
  return has_length ? iterator_of(meter, std::move(items)) : make_list(meter, std::move(items));
}

// The arguments after the first `used` positional ones.
Arguments rest_of(const Arguments& arguments, size_t used) {
  Arguments rest = arguments;
  rest.positional.erase(rest.positional.begin(), rest.positional.begin() + static_cast<std::ptrdiff_t>(used));
  return rest;
}

std::string name_argument(const Arguments& arguments, size_t index, std::string_view what) {
  const Text* name = arguments.positional[index].as_text();
  if (name == nullptr)
    fault(ErrorKind::kFormat, "the name of a {} must be a str, not {}", what, type_name(arguments.positional[index]));
  return name->bytes();
}

Value filter_map(Meter& meter, const Value& value, const Arguments& arguments) {
  std::vector<Value> items;
  if (!truth(value)) return iterator_of(meter, {});
  if (arguments.positional.empty()) {
    if (std::none_of(arguments.keywords.begin(), arguments.keywords.end(),
                     [](const auto& k) { return k.first == "attribute"; }))
      fault(ErrorKind::kFormat, "map needs the name of a filter, or attribute=");
    const Bound bound("map", arguments, {"attribute", "default"});
    Getter getter(bound.at(0));
    if (!bound.is_none(1)) getter.set_default(bound.at(1));
    for (const Value& item : iterate(meter, value)) items.push_back(getter(meter, item));
    return iterator_of(meter, std::move(items));
  }
  const std::string name = name_argument(arguments, 0, "filter");
  const FilterFunction function = find_filter(name);
  if (function == nullptr) fault(ErrorKind::kFormat, "there is no filter '{}'", name);
  const Arguments rest = rest_of(arguments, 1);
  for (const Value& item : iterate(meter, value)) {
    const Meter::Level level(meter);
    items.push_back(function(meter, item, rest));
  }
  return iterator_of(meter, std::move(items));
}

Value choose(Meter& meter, const Value& value, const Arguments& arguments, bool by_attribute, bool wanted) {
  if (!truth(value)) return iterator_of(meter, {});
  Getter getter;
  size_t used = 0;
  if (by_attribute) {
    if (arguments.positional.empty()) fault(ErrorKind::kFormat, "selectattr and rejectattr need an attribute");
    getter = Getter(arguments.positional[used++]);
  }
  TestFunction test = nullptr;
  Arguments rest;
  if (arguments.positional.size() > used) {
    const std::string name = name_argument(arguments, used++, "test");
    test = find_test(name);
    if (test == nullptr) fault(ErrorKind::kFormat, "there is no test '{}'", name);
    rest = rest_of(arguments, used);
  }
  std::vector<Value> items;
  for (const Value& item : iterate(meter, value)) {
    const Value tested = getter(meter, item);
    meter.charge(1);
    if ((test != nullptr ? test(meter, tested, rest) : truth(tested)) == wanted) items.push_back(item);
  }
  return iterator_of(meter, std::move(items));
}
Value filter_select(Meter& meter, const Value& value, const Arguments& arguments) {
  return choose(meter, value, arguments, false, true);
}
Value filter_reject(Meter& meter, const Value& value, const Arguments& arguments) {
  return choose(meter, value, arguments, false, false);
}
Value filter_selectattr(Meter& meter, const Value& value, const Arguments& arguments) {
  return choose(meter, value, arguments, true, true);
}
Value filter_rejectattr(Meter& meter, const Value& value, const Arguments& arguments) {
  return choose(meter, value, arguments, true, false);
}

constexpr Filter kFilters[] = {
    {"count", filter_length},
    {"dictsort", filter_dictsort},
    {"first", filter_first},
    {"items", filter_items},
    {"join", filter_join},
    {"last", filter_last},
    {"length", filter_length},
    {"list", filter_list},
    {"map", filter_map},
    {"max", filter_max},
    {"min", filter_min},
    {"reject", filter_reject},
    {"rejectattr", filter_rejectattr},
    {"reverse", filter_reverse},
    {"select", filter_select},
    {"selectattr", filter_selectattr},
    {"sort", filter_sort},
    {"sum", filter_sum},
    {"unique", filter_unique},
};

}  // namespace

FilterFunction find_sequence_filter(std::string_view name) {
  const auto* found =
      std::find_if(std::begin(kFilters), std::end(kFilters), [&](const Filter& f) { return f.name == name; });
  return found != std::end(kFilters) ? found->function : nullptr;
}

}  // namespace verbatim::text::jinja
