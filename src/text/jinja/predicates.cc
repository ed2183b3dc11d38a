// Jinja2's tests: `value is name(arguments)`.
#include <algorithm>

#include "text/jinja/access.h"
#include "text/jinja/filters.h"
#include "text/jinja/operators.h"
#include "text/jinja/represent.h"
#include "text/utf8.h"

namespace verbatim::text::jinja {
namespace {

using ValueProperty = bool (*)(const Value&);

// A test without arguments that looks at the value alone.
template <ValueProperty property>
bool plain(Meter&, const Value& value, const Arguments& arguments) {
  const Bound none("test", arguments, {});
  return property(value);
}

bool is_defined(const Value& value) { return !value.is_undefined(); }
bool is_undefined(const Value& value) { return value.is_undefined(); }
bool is_none(const Value& value) { return value.is_none(); }
bool is_boolean(const Value& value) { return value.is_bool(); }
bool is_true(const Value& value) { return value.is_bool() && truth(value); }
bool is_false(const Value& value) { return value.is_bool() && !truth(value); }
bool is_integer(const Value& value) { return value.is_int(); }
bool is_float(const Value& value) { return value.is_float(); }
bool is_number(const Value& value) { return value.is_number(); }  // true and false too, as in Python
bool is_string(const Value& value) { return value.as_text() != nullptr; }
bool is_mapping(const Value& value) { return value.as_dict() != nullptr; }
bool is_callable(const Value& value) {
  return value.as_callable() != nullptr || value.is_undefined() || value.as_loop() != nullptr;
}
bool is_escaped(const Value& value) { return value.as_text() != nullptr && value.as_text()->markup(); }

// len() and item access: lists and strings, and mappings too; undefined passes in Jinja2.
bool is_sequence(const Value& value) {
  if (const Sequence* sequence = value.as_sequence())
    return sequence->kind == Sequence::Kind::kList || sequence->kind == Sequence::Kind::kTuple;
  return value.is_undefined() || value.as_text() != nullptr || value.as_dict() != nullptr ||
         value.as_range() != nullptr;
}

// str.islower, str.isupper: some cased character, and none of the other case.
bool has_case(Meter& meter, const Value& value, bool wanted_lower) {
  const Text text = to_text(meter, value);
  meter.charge_text(text.size());
  bool found = false;
  for (size_t at = 0; at < text.size();) {
    const Utf8Char character = utf8_at(text.bytes(), at);
    at += character.bytes;
    const char32_t c = character.code_point;
    if (is_titlecase(c) || (wanted_lower ? is_uppercase(c) : is_lowercase(c))) return false;
    found = found || (wanted_lower ? is_lowercase(c) : is_uppercase(c));
  }
  return found;
}
bool test_lower(Meter& meter, const Value& value, const Arguments& arguments) {
  const Bound none("lower", arguments, {});
  return has_case(meter, value, true);
}
bool test_upper(Meter& meter, const Value& value, const Arguments& arguments) {
  const Bound none("upper", arguments, {});
  return has_case(meter, value, false);
}

bool remainder_is(Meter& meter, const Value& value, const Value& divisor, int64_t wanted) {
  return equal(meter, apply(meter, BinaryOperator::kModulo, value, divisor), wanted);
}
bool test_odd(Meter& meter, const Value& value, const Arguments& arguments) {
  const Bound none("odd", arguments, {});
  return remainder_is(meter, value, int64_t{2}, 1);
}
bool test_even(Meter& meter, const Value& value, const Arguments& arguments) {
  const Bound none("even", arguments, {});
  return remainder_is(meter, value, int64_t{2}, 0);
}
bool test_divisible(Meter& meter, const Value& value, const Arguments& arguments) {
  const Bound bound("divisibleby", arguments, {"num"}, 1);
  return remainder_is(meter, value, bound.at(0), 0);
}

bool test_equal(Meter& meter, const Value& value, const Arguments& arguments) {
  return equal(meter, value, Bound("eq", arguments, {"other"}, 1).at(0));
}
bool test_not_equal(Meter& meter, const Value& value, const Arguments& arguments) {
  return !equal(meter, value, Bound("ne", arguments, {"other"}, 1).at(0));
}

template <bool (*holds)(int)>
bool ordered(Meter& meter, const Value& value, const Arguments& arguments) {
  const Bound bound("test", arguments, {"other"}, 1);
  bool unordered = false;
  const int order = compare(meter, value, bound.at(0), unordered);
  return !unordered && holds(order);
}
bool is_less(int order) { return order < 0; }
bool is_less_or_equal(int order) { return order <= 0; }
bool is_greater(int order) { return order > 0; }
bool is_greater_or_equal(int order) { return order >= 0; }

bool test_in(Meter& meter, const Value& value, const Arguments& arguments) {
  return contains(meter, Bound("in", arguments, {"seq"}, 1).at(0), value);
}
bool test_iterable(Meter&, const Value& value, const Arguments& arguments) {
  const Bound none("iterable", arguments, {});
  return is_iterable(value);
}

// Identity, where it does not depend on how Python shares objects.
bool test_same(Meter&, const Value& value, const Arguments& arguments) {
  const Bound bound("sameas", arguments, {"other"}, 1);
  const Value& other = bound.at(0);
  if (value.is_none() || other.is_none()) return value.is_none() && other.is_none();
  if (value.is_bool() || other.is_bool()) return value.is_bool() && other.is_bool() && truth(value) == truth(other);
  fault(ErrorKind::kUnsupported, "the test 'sameas' on other values than none, true and false");
}

constexpr Test kTests[] = {
    {"!=", test_not_equal},
    {"<", ordered<is_less>},
    {"<=", ordered<is_less_or_equal>},
    {"==", test_equal},
    {">", ordered<is_greater>},
    {">=", ordered<is_greater_or_equal>},
    {"boolean", plain<is_boolean>},
    {"callable", plain<is_callable>},
    {"defined", plain<is_defined>},
    {"divisibleby", test_divisible},
    {"eq", test_equal},
    {"equalto", test_equal},
    {"escaped", plain<is_escaped>},
    {"even", test_even},
    {"false", plain<is_false>},
    {"float", plain<is_float>},
    {"ge", ordered<is_greater_or_equal>},
    {"greaterthan", ordered<is_greater>},
    {"gt", ordered<is_greater>},
    {"in", test_in},
    {"integer", plain<is_integer>},
    {"iterable", test_iterable},
    {"le", ordered<is_less_or_equal>},
    {"lessthan", ordered<is_less>},
    {"lower", test_lower},
    {"lt", ordered<is_less>},
    {"mapping", plain<is_mapping>},
    {"ne", test_not_equal},
    {"none", plain<is_none>},
    {"number", plain<is_number>},
    {"odd", test_odd},
    {"sameas", test_same},
    {"sequence", plain<is_sequence>},
    {"string", plain<is_string>},
    {"true", plain<is_true>},
    {"undefined", plain<is_undefined>},
    {"upper", test_upper},
};

}  // namespace

TestFunction find_test(std::string_view name) {
  if (name == "filter" || name == "test") fault(ErrorKind::kUnsupported, "the test '{}' is not supported", name);
  const auto* found = std::find_if(std::begin(kTests), std::end(kTests), [&](const Test& t) { return t.name == name; });
  return found != std::end(kTests) ? found->function : nullptr;
}

}  // namespace verbatim::text::jinja
