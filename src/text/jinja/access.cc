#include "text/jinja/access.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "text/jinja/methods.h"
#include "text/jinja/represent.h"
#include "text/utf8.h"

namespace verbatim::text::jinja {
namespace {

// What Python's types have and templates might name, but this interpreter does not run. Being listed, they are refused
// by name instead of turning into undefined.
constexpr std::string_view kRefusedText[] = {
    "casefold",   "center",    "encode",    "expandtabs",   "format_map",   "isalnum",      "isalpha",
    "isascii",    "isdecimal", "isdigit",   "isidentifier", "isnumeric",    "isprintable",  "isspace",
    "istitle",    "ljust",     "maketrans", "partition",    "removeprefix", "removesuffix", "rjust",
    "rpartition", "swapcase",  "translate", "zfill",        "striptags",    "unescape"};
constexpr std::string_view kRefusedList[] = {"append", "clear",  "copy",    "extend", "insert",
                                             "pop",    "remove", "reverse", "sort"};
constexpr std::string_view kRefusedDict[] = {"clear", "copy", "fromkeys", "pop", "popitem", "setdefault", "update"};
constexpr std::string_view kRefusedNumber[] = {
    "real",     "imag",       "numerator",        "denominator", "conjugate", "bit_length", "bit_count",
    "to_bytes", "from_bytes", "as_integer_ratio", "is_integer",  "hex",       "fromhex"};
constexpr std::string_view kRefusedRange[] = {"start", "stop", "step", "count", "index"};
constexpr std::string_view kRefusedView[] = {"mapping", "isdisjoint"};
constexpr std::string_view kRefusedIterator[] = {"send", "throw", "close"};

std::span<const std::string_view> refused_attributes(const Value& value) {
  if (value.as_text() != nullptr) return kRefusedText;
  if (value.as_dict() != nullptr) return kRefusedDict;
  if (value.is_number()) return kRefusedNumber;
  if (value.as_range() != nullptr) return kRefusedRange;
  if (const Sequence* sequence = value.as_sequence()) {
    if (sequence->kind == Sequence::Kind::kList) return kRefusedList;
    if (sequence->kind == Sequence::Kind::kIterator) return kRefusedIterator;
    if (sequence->kind != Sequence::Kind::kTuple) return kRefusedView;
  }
  return {};
}

Value bound_method(const Value& self, std::string_view name) {
  Callable method;
  method.kind = Callable::Kind::kMethod;
  method.name = std::string(name);
  method.self = self;
  return std::make_shared<const Callable>(std::move(method));
}

std::optional<Value> loop_attribute(const Value& value, const Loop& loop, std::string_view name) {
  const auto number = [](size_t n) { return Value(static_cast<int64_t>(n)); };
  const size_t size = loop.items.size();
  if (name == "index") return number(loop.index0 + 1);
  if (name == "index0") return number(loop.index0);
  if (name == "first") return Value(loop.index0 == 0);
  if (name == "last") return Value(loop.index0 + 1 == size);
  if (name == "length") return number(size);
  if (name == "revindex") return number(size - loop.index0);
  if (name == "revindex0") return number(size - loop.index0 - 1);
  if (name == "depth") return number(1);
  if (name == "depth0") return number(0);
  if (name == "previtem")
    return loop.index0 == 0 ? Value::undefined("there is no previous item") : loop.items[loop.index0 - 1];
  if (name == "nextitem")
    return loop.index0 + 1 >= size ? Value::undefined("there is no next item") : loop.items[loop.index0 + 1];
  if (name == "cycle" || name == "changed") return bound_method(value, name);
  return std::nullopt;
}

// What Python's getattr finds.
std::optional<Value> own_attribute(const Value& value, std::string_view name) {
  if (name.starts_with("__"))
    fault(ErrorKind::kUnsupported, "the attribute '{}': templates may not look inside Python's objects", name);
  if (const Loop* loop = value.as_loop()) return loop_attribute(value, *loop, name);
  if (const Namespace* space = value.as_namespace()) {
    for (const auto& [key, item] : space->attributes)
      if (key == name) return item;
    return std::nullopt;
  }
  if (has_method(value, name)) return bound_method(value, name);
  const std::span<const std::string_view> refused = refused_attributes(value);
  if (std::find(refused.begin(), refused.end(), name) != refused.end())
    fault(ErrorKind::kUnsupported, "'{}' of a {}: this method is not supported in templates", name, type_name(value));
  if (const Callable* callable = value.as_callable();
      callable != nullptr && callable->kind == Callable::Kind::kMacro &&
      (name == "name" || name == "arguments" || name.starts_with("catch_") || name == "caller"))
    fault(ErrorKind::kUnsupported, "'{}' of a macro: macros can only be called", name);
  return std::nullopt;
}

Value missing(const Value& value, std::string_view name) {
  if (value.is_none()) return Value::undefined(fmt::format("none has no attribute '{}'", name));
  return Value::undefined(fmt::format("a {} has no attribute or key '{}'", type_name(value), name));
}

// The index as Python counts it: from the end when negative. None when outside.
std::optional<size_t> position(int64_t index, size_t size) {
  if (index >= 0) return static_cast<size_t>(index) < size ? std::optional(static_cast<size_t>(index)) : std::nullopt;
  const uint64_t from_end = uint64_t{0} - static_cast<uint64_t>(index);
  return from_end <= size ? std::optional(size - from_end) : std::nullopt;
}

// len() of a range; Python too has no longer ones.
int64_t range_length(const Range& range) {
  if (range.size() > static_cast<size_t>(INT64_MAX))
    fault(ErrorKind::kCapacity, "the length of a range does not fit in 64 bits");
  return static_cast<int64_t>(range.size());
}

// What Python's value[key] finds; none for TypeError and LookupError.
std::optional<Value> own_item(Meter& meter, const Value& value, const Value& key) {
  if (const Dict* dict = value.as_dict()) {
    if (key.as_dict() != nullptr || (key.as_sequence() != nullptr && key.as_sequence()->kind == Sequence::Kind::kList))
      return std::nullopt;
    const Value* found = dict->find(key);
    return found != nullptr ? std::optional(*found) : std::nullopt;
  }
  if (!key.is_integral()) return std::nullopt;
  if (const Text* text = value.as_text()) {
    meter.charge(1 + text->size() / 64);
    const std::optional<size_t> at = position(key.integer(), text->characters());
    if (!at) return std::nullopt;
    const size_t begin = text->offset_of(*at);
    Text one = text->slice(begin, begin + utf8_at(text->bytes(), begin).bytes);
    return one;
  }
  if (const Range* range = value.as_range()) {
    const std::optional<size_t> at = position(key.integer(), range->size());
    return at ? std::optional<Value>(range->at(*at)) : std::nullopt;
  }
  const Sequence* sequence = value.as_sequence();
  if (sequence != nullptr && (sequence->kind == Sequence::Kind::kList || sequence->kind == Sequence::Kind::kTuple)) {
    const std::optional<size_t> at = position(key.integer(), sequence->items.size());
    return at ? std::optional(sequence->items[*at]) : std::nullopt;
  }
  return std::nullopt;
}

}  // namespace

Value get_attribute(Meter& meter, const Value& value, std::string_view name) {
  meter.charge(1);
  require_defined(value);
  if (std::optional<Value> own = own_attribute(value, name)) return *std::move(own);
  if (const Dict* dict = value.as_dict())
    if (const Value* found = dict->find(name)) return *found;
  return missing(value, name);
}

Value get_item(Meter& meter, const Value& value, const Value& key) {
  meter.charge(1);
  require_defined(value);
  if (std::optional<Value> own = own_item(meter, value, key)) return *std::move(own);
  if (const Text* name = key.as_text()) {
    if (std::optional<Value> own = own_attribute(value, name->bytes())) return *std::move(own);
    return missing(value, name->bytes());
  }
  return Value::undefined(fmt::format("a {} has no such item", type_name(value)));
}

Value get_slice(Meter& meter, const Value& value, const Value& start, const Value& stop, const Value& step) {
  require_defined(value);
  const Text* text = value.as_text();
  const Range* range = value.as_range();
  const Sequence* sequence = value.as_sequence();
  const bool sliceable =
      text != nullptr || range != nullptr ||
      (sequence != nullptr && (sequence->kind == Sequence::Kind::kList || sequence->kind == Sequence::Kind::kTuple));
  if (!sliceable) fault(ErrorKind::kFormat, "a {} cannot be sliced", type_name(value));
  for (const Value* part : {&start, &stop, &step}) {
    if (part->is_none()) continue;
    require_defined(*part);
    if (!part->is_integral()) fault(ErrorKind::kFormat, "a slice's bounds must be integers, not {}", type_name(*part));
  }
  const int64_t stride = step.is_none() ? 1 : step.integer();
  if (stride == 0) fault(ErrorKind::kFormat, "a slice's step cannot be zero");
  const size_t size = text != nullptr ? text->characters() : range != nullptr ? range->size() : sequence->items.size();
  const int64_t count = range != nullptr ? range_length(*range) : static_cast<int64_t>(size);
  // Python's slice.indices().
  const int64_t lowest = stride > 0 ? 0 : -1;
  const int64_t highest = stride > 0 ? count : count - 1;
  const auto bound = [&](const Value& part, int64_t fallback) {
    if (part.is_none()) return fallback;
    const int64_t at = part.integer();
    return at < 0 ? std::max(at + count, lowest) : std::min(at, highest);
  };
  const int64_t first = bound(start, stride > 0 ? lowest : highest);
  const int64_t last = bound(stop, stride > 0 ? highest : lowest);
  const Range chosen{first, last, stride};
  const size_t items = chosen.size();

  if (range != nullptr) {
    int64_t from = 0;
    int64_t to = 0;
    int64_t by = 0;
    if (__builtin_mul_overflow(first, range->step, &from) || __builtin_add_overflow(from, range->start, &from) ||
        __builtin_mul_overflow(last, range->step, &to) || __builtin_add_overflow(to, range->start, &to) ||
        __builtin_mul_overflow(range->step, stride, &by))
      fault(ErrorKind::kCapacity, "an integer does not fit in 64 bits");
    return Range{from, to, by};
  }
  if (text != nullptr) {
    meter.charge_text(text->size());
    if (stride == 1)
      return items == 0
                 ? text->slice(0, 0)
                 : text->slice(text->offset_of(static_cast<size_t>(first)), text->offset_of(static_cast<size_t>(last)));
    std::vector<size_t> offsets;
    for (size_t at = 0; at < text->size(); at += utf8_at(text->bytes(), at).bytes) offsets.push_back(at);
    offsets.push_back(text->size());
    Text out;
    for (size_t i = 0; i < items; ++i) {
      const auto at = static_cast<size_t>(chosen.at(i));
      out.append(*text, offsets[at], offsets[at + 1]);
    }
    out.set_markup(text->markup());
    return out;
  }
  std::vector<Value> part;
  part.reserve(items);
  for (size_t i = 0; i < items; ++i) part.push_back(sequence->items[static_cast<size_t>(chosen.at(i))]);
  return make_sequence(meter, sequence->kind, std::move(part));
}

bool is_iterable(const Value& value) {
  return value.is_undefined() || value.as_text() != nullptr || value.as_sequence() != nullptr ||
         value.as_dict() != nullptr || value.as_range() != nullptr || value.as_loop() != nullptr;
}

std::vector<Value> iterate(Meter& meter, const Value& value) {
  std::vector<Value> items;
  if (Sequence* sequence = value.as_sequence()) {
    meter.charge_items(sequence->items.size());
    if (sequence->kind == Sequence::Kind::kIterator) {
      items.swap(sequence->items);
    } else {
      items = sequence->items;
    }
  } else if (const Dict* dict = value.as_dict()) {
    meter.charge_items(dict->items.size());
    for (const auto& [key, item] : dict->items) items.push_back(key);
  } else if (const Text* text = value.as_text()) {
    meter.charge_items(text->characters());
    for (size_t at = 0; at < text->size();) {
      const size_t end = at + utf8_at(text->bytes(), at).bytes;
      // Iterating over marked text yields unmarked characters, as in Python.
      Text one;
      one.append(*text, at, end);
      items.emplace_back(std::move(one));
      at = end;
    }
  } else if (const Range* range = value.as_range()) {
    const size_t size = range->size();
    meter.charge_items(size);
    items.reserve(size);
    for (size_t i = 0; i < size; ++i) items.emplace_back(range->at(i));
  } else if (value.as_loop() != nullptr) {
    fault(ErrorKind::kUnsupported, "iterating over 'loop' itself");
  } else if (!value.is_undefined()) {
    fault(ErrorKind::kFormat, "a {} is not iterable", type_name(value));
  }
  return items;
}

std::optional<int64_t> length(const Value& value) {
  if (value.is_undefined()) return 0;
  if (const Text* text = value.as_text()) return static_cast<int64_t>(text->characters());
  if (const Dict* dict = value.as_dict()) return static_cast<int64_t>(dict->items.size());
  if (const Range* range = value.as_range()) return range_length(*range);
  if (const Loop* loop = value.as_loop()) return static_cast<int64_t>(loop->items.size());
  if (const Sequence* sequence = value.as_sequence(); sequence && sequence->kind != Sequence::Kind::kIterator)
    return static_cast<int64_t>(sequence->items.size());
  return std::nullopt;
}

bool contains(Meter& meter, const Value& haystack, const Value& needle) {
  meter.charge(1);
  if (const Text* text = haystack.as_text()) {
    const Text* part = needle.as_text();
    if (part == nullptr) {
      require_defined(needle);
      fault(ErrorKind::kFormat, "'in' a str needs a str on its left, not {}", type_name(needle));
    }
    meter.charge(text->size() / 16);
    return find_bytes(text->bytes(), part->bytes(), 0) != std::string::npos;
  }
  if (const Dict* dict = haystack.as_dict()) return dict->find(needle) != nullptr;
  if (const Range* range = haystack.as_range()) {
    const size_t size = range->size();
    if (size == 0 || !needle.is_number()) return false;
    const double number = needle.number();
    if (needle.is_float() && (std::isnan(number) || number != std::trunc(number) || std::abs(number) >= 0x1p63))
      return false;
    const int64_t wanted = needle.is_float() ? static_cast<int64_t>(number) : needle.integer();
    const auto [low, high] = std::minmax({range->start, range->at(size - 1)});
    if (wanted < low || wanted > high) return false;
    const Range distance{low, wanted, 1};
    const uint64_t stride =
        range->step > 0 ? static_cast<uint64_t>(range->step) : uint64_t{0} - static_cast<uint64_t>(range->step);
    return distance.size() % stride == 0;
  }
  if (Sequence* sequence = haystack.as_sequence()) {
    for (size_t i = 0; i < sequence->items.size(); ++i) {
      if (!equal(meter, sequence->items[i], needle)) continue;
      // An iterator is used up to the item found.
      if (sequence->kind == Sequence::Kind::kIterator)
        sequence->items.erase(sequence->items.begin(), sequence->items.begin() + static_cast<std::ptrdiff_t>(i) + 1);
      return true;
    }
    if (sequence->kind == Sequence::Kind::kIterator) sequence->items.clear();
    return false;
  }
  if (haystack.is_undefined()) return false;
  fault(ErrorKind::kFormat, "'in' needs something to look through on its right, not {}", type_name(haystack));
}

}  // namespace verbatim::text::jinja
