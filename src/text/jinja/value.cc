#include "text/jinja/value.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "text/utf8.h"

namespace verbatim::text::jinja {

size_t Range::size() const {
  if (step > 0 ? start >= stop : start <= stop) return 0;
  const uint64_t distance = step > 0 ? static_cast<uint64_t>(stop) - static_cast<uint64_t>(start)
                                     : static_cast<uint64_t>(start) - static_cast<uint64_t>(stop);
  const uint64_t stride = step > 0 ? static_cast<uint64_t>(step) : uint64_t{0} - static_cast<uint64_t>(step);
  return (distance - 1) / stride + 1;
}

Value Value::undefined(std::string reason) {
  Value value;
  value.storage_ = Undefined{std::make_shared<const std::string>(std::move(reason))};
  return value;
}

void require_defined(const Value& value) {
  if (const Undefined* undefined = value.as_undefined())
    fault(ErrorKind::kFormat, "{}", undefined->reason ? *undefined->reason : "a value is undefined");
}

namespace {

uint32_t depth_of(const Value& value) {
  if (const Sequence* sequence = value.as_sequence()) return sequence->depth;
  if (const Dict* dict = value.as_dict()) return dict->depth;
  return 0;
}

uint32_t checked_depth(Meter& meter, uint32_t deepest) {
  if (deepest >= meter.limits().value_depth)
    fault(ErrorKind::kCapacity, "lists and mappings nest deeper than {} levels", meter.limits().value_depth);
  return deepest + 1;
}

}  // namespace

Value make_sequence(Meter& meter, Sequence::Kind kind, std::vector<Value> items) {
  meter.charge_items(items.size());
  auto sequence = std::make_shared<Sequence>();
  uint32_t deepest = 0;
  for (const Value& item : items) deepest = std::max(deepest, depth_of(item));
  sequence->kind = kind;
  sequence->depth = checked_depth(meter, deepest);
  sequence->items = std::move(items);
  return sequence;
}

Value make_dict(Meter& meter, Dict dict) {
  meter.charge_items(dict.items.size());
  uint32_t deepest = 0;
  for (const auto& [key, value] : dict.items) deepest = std::max(deepest, depth_of(value));
  dict.depth = checked_depth(meter, deepest);
  return std::make_shared<const Dict>(std::move(dict));
}

const Value* Dict::find(std::string_view key) const {
  const auto found = text_index.find(key);
  return found != text_index.end() ? &items[found->second].second : nullptr;
}

const Value* Dict::find(const Value& key) const {
  if (const Text* text = key.as_text()) return find(text->bytes());
  if (key.as_dict() != nullptr || (key.as_sequence() != nullptr && key.as_sequence()->kind == Sequence::Kind::kList))
    fault(ErrorKind::kFormat, "unhashable type: '{}'", type_name(key));
  if (key.as_sequence() != nullptr || key.as_range() != nullptr) return nullptr;  // never a key here: see set()
  for (const auto& [other, value] : items) {
    const bool same = key.is_number()
                          ? other.is_number() && (key.is_float() || other.is_float() ? key.number() == other.number()
                                                                                     : key.integer() == other.integer())
                          : key.is_none() && other.is_none();
    if (same) return &value;
  }
  return nullptr;
}

void Dict::set(Value key, Value value) {
  if (!key.is_number() && !key.is_none() && key.as_text() == nullptr)
    fault(ErrorKind::kUnsupported, "a {} as a mapping's key; strings, numbers, true, false and none can be keys",
          type_name(key));
  if (const Value* present = find(key)) {
    const_cast<Value&>(*present) = std::move(value);
    return;
  }
  items.emplace_back(std::move(key), std::move(value));
  if (const Text* text = items.back().first.as_text()) text_index.emplace(text->bytes(), items.size() - 1);
}

namespace {

Value text_from_json(Meter& meter, const std::string& text, Origin origin) {
  if (text.size() > meter.limits().text_bytes)
    fault(ErrorKind::kCapacity, "an input string of {} bytes; the limit on text is {} bytes", text.size(),
          meter.limits().text_bytes);
  if (valid_utf8_bytes(text, 0) != text.size())
    fault(ErrorKind::kFormat, "an input string is not valid UTF-8 (byte {})", valid_utf8_bytes(text, 0));
  return Text(text, origin);
}

Value from_json_at(Meter& meter, const nlohmann::ordered_json& json, Origin origin, size_t depth) {
  if (depth > meter.limits().value_depth)
    fault(ErrorKind::kCapacity, "the inputs nest deeper than {} levels", meter.limits().value_depth);
  using Type = nlohmann::ordered_json::value_t;
  switch (json.type()) {
    case Type::null: return None{};
    case Type::boolean: return json.get<bool>();
    case Type::number_integer: return json.get<int64_t>();
    case Type::number_unsigned:
      if (json.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
        fault(ErrorKind::kCapacity, "the input integer {} does not fit in 64 bits", json.get<uint64_t>());
      return static_cast<int64_t>(json.get<uint64_t>());
    case Type::number_float: return json.get<double>();
    case Type::string: return text_from_json(meter, json.get_ref<const std::string&>(), origin);
    case Type::array: {
      std::vector<Value> items;
      items.reserve(json.size());
      for (const auto& item : json) items.push_back(from_json_at(meter, item, origin, depth + 1));
      return make_list(meter, std::move(items));
    }
    case Type::object: {
      Dict dict;
      for (const auto& [key, value] : json.items())
        dict.set(text_from_json(meter, key, origin), from_json_at(meter, value, origin, depth + 1));
      return make_dict(meter, std::move(dict));
    }
    case Type::binary:
    case Type::discarded: break;
  }
  fault(ErrorKind::kFormat, "an input is neither an object, array, string, number, boolean nor null");
}

}  // namespace

Value from_json(Meter& meter, const nlohmann::ordered_json& json, Origin origin) {
  return from_json_at(meter, json, origin, 0);
}

std::string_view type_name(const Value& value) {
  if (value.is_undefined()) return "Undefined";
  if (value.is_none()) return "NoneType";
  if (value.is_bool()) return "bool";
  if (value.is_int()) return "int";
  if (value.is_float()) return "float";
  if (value.as_text() != nullptr) return "str";
  if (value.as_dict() != nullptr) return "dict";
  if (value.as_range() != nullptr) return "range";
  if (value.as_namespace() != nullptr) return "Namespace";
  if (value.as_loop() != nullptr) return "LoopContext";
  if (const Callable* callable = value.as_callable())
    return callable->kind == Callable::Kind::kMacro ? "Macro" : "function";
  switch (value.as_sequence()->kind) {
    case Sequence::Kind::kList: return "list";
    case Sequence::Kind::kTuple: return "tuple";
    case Sequence::Kind::kKeys: return "dict_keys";
    case Sequence::Kind::kValues: return "dict_values";
    case Sequence::Kind::kItems: return "dict_items";
    case Sequence::Kind::kIterator: break;
  }
  return "generator";
}

bool truth(const Value& value) {
  if (value.is_undefined() || value.is_none()) return false;
  if (value.is_number()) return value.number() != 0;
  if (const Text* text = value.as_text()) return !text->empty();
  if (const Dict* dict = value.as_dict()) return !dict->items.empty();
  if (const Range* range = value.as_range()) return range->size() != 0;
  if (const Sequence* sequence = value.as_sequence())
    return sequence->kind == Sequence::Kind::kIterator || !sequence->items.empty();
  return true;
}

namespace {

// An int and a float as Python compares them: exactly, not after rounding the int.
int compare_int_float(int64_t left, double right) {
  constexpr double kTwoTo63 = 0x1p63;
  if (right >= kTwoTo63) return -1;
  if (right < -kTwoTo63) return 1;
  const double whole = std::floor(right);
  const int64_t floor = static_cast<int64_t>(whole);
  if (left != floor) return left < floor ? -1 : 1;
  return whole < right ? -1 : 0;
}

// Two numbers, neither of them NaN.
int compare_numbers(const Value& left, const Value& right) {
  if (!left.is_float() && !right.is_float())
    return left.integer() < right.integer() ? -1 : left.integer() > right.integer() ? 1 : 0;
  if (left.is_float() && right.is_float())
    return left.number() < right.number() ? -1 : left.number() > right.number() ? 1 : 0;
  return left.is_float() ? -compare_int_float(right.integer(), left.number())
                         : compare_int_float(left.integer(), right.number());
}

bool is_nan(const Value& value) { return value.is_float() && std::isnan(value.number()); }

bool equal_sequences(Meter& meter, const Sequence& left, const Sequence& right) {
  const auto is_view = [](const Sequence& s) {
    return s.kind == Sequence::Kind::kKeys || s.kind == Sequence::Kind::kItems;
  };
  if (is_view(left) && is_view(right))
    fault(ErrorKind::kUnsupported, "comparing views of mappings (keys() or items()); compare lists of them");
  if (left.kind != right.kind || (left.kind != Sequence::Kind::kList && left.kind != Sequence::Kind::kTuple))
    return &left == &right;
  if (left.items.size() != right.items.size()) return false;
  for (size_t i = 0; i < left.items.size(); ++i)
    if (!equal(meter, left.items[i], right.items[i])) return false;
  return true;
}

bool equal_dicts(Meter& meter, const Dict& left, const Dict& right) {
  if (left.items.size() != right.items.size()) return false;
  for (const auto& [key, value] : left.items) {
    const Value* other = right.find(key);
    if (other == nullptr || !equal(meter, value, *other)) return false;
  }
  return true;
}

bool same_callable(const Callable& left, const Callable& right) {
  if (left.kind == Callable::Kind::kMethod || right.kind == Callable::Kind::kMethod)
    fault(ErrorKind::kUnsupported, "comparing methods; call them");
  return left.kind == right.kind && left.name == right.name && left.macro == right.macro && left.scope == right.scope;
}

}  // namespace

bool equal(Meter& meter, const Value& left, const Value& right) {
  meter.charge(1);
  if (left.is_undefined() || right.is_undefined()) return left.is_undefined() && right.is_undefined();
  if (left.is_number() && right.is_number())
    return !is_nan(left) && !is_nan(right) && compare_numbers(left, right) == 0;
  if (left.as_text() != nullptr && right.as_text() != nullptr) {
    meter.charge(std::min(left.as_text()->size(), right.as_text()->size()) / 16);
    return left.as_text()->bytes() == right.as_text()->bytes();
  }
  if (left.as_sequence() != nullptr && right.as_sequence() != nullptr)
    return equal_sequences(meter, *left.as_sequence(), *right.as_sequence());
  if (left.as_dict() != nullptr && right.as_dict() != nullptr)
    return equal_dicts(meter, *left.as_dict(), *right.as_dict());
  if (left.as_range() != nullptr && right.as_range() != nullptr) {
    const Range& a = *left.as_range();
    const Range& b = *right.as_range();
    if (a.size() != b.size()) return false;
    return a.size() == 0 || (a.start == b.start && (a.size() == 1 || a.step == b.step));
  }
  if (left.as_callable() != nullptr && right.as_callable() != nullptr)
    return same_callable(*left.as_callable(), *right.as_callable());
  if (left.as_namespace() != nullptr) return left.as_namespace() == right.as_namespace();
  if (left.as_loop() != nullptr) return left.as_loop() == right.as_loop();
  return left.is_none() && right.is_none();
}

int compare(Meter& meter, const Value& left, const Value& right, bool& unordered) {
  meter.charge(1);
  require_defined(left);
  require_defined(right);
  unordered = false;
  if (left.is_number() && right.is_number()) {
    unordered = is_nan(left) || is_nan(right);
    return unordered ? 0 : compare_numbers(left, right);
  }
  if (left.as_text() != nullptr && right.as_text() != nullptr) {
    // Bytes of UTF-8 order as code points do.
    const int order = left.as_text()->bytes().compare(right.as_text()->bytes());
    meter.charge(std::min(left.as_text()->size(), right.as_text()->size()) / 16);
    return order < 0 ? -1 : order > 0 ? 1 : 0;
  }
  const Sequence* a = left.as_sequence();
  const Sequence* b = right.as_sequence();
  if (a != nullptr && b != nullptr && a->kind == b->kind &&
      (a->kind == Sequence::Kind::kList || a->kind == Sequence::Kind::kTuple)) {
    const size_t common = std::min(a->items.size(), b->items.size());
    for (size_t i = 0; i < common; ++i)
      if (!equal(meter, a->items[i], b->items[i])) return compare(meter, a->items[i], b->items[i], unordered);
    return a->items.size() < b->items.size() ? -1 : a->items.size() > b->items.size() ? 1 : 0;
  }
  fault(ErrorKind::kFormat, "'{}' and '{}' cannot be ordered", type_name(left), type_name(right));
}

bool less(Meter& meter, const Value& left, const Value& right) {
  bool unordered = false;
  const int order = compare(meter, left, right, unordered);
  return !unordered && order < 0;
}

}  // namespace verbatim::text::jinja
