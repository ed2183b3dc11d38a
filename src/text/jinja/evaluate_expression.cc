#include <algorithm>
#include <array>

#include "text/jinja/access.h"
#include "text/jinja/evaluator.h"
#include "text/jinja/methods.h"
#include "text/jinja/represent.h"

namespace verbatim::text::jinja {
namespace {

constexpr std::array kGlobals = {std::string_view("range"),        std::string_view("dict"),
                                 std::string_view("namespace"),    std::string_view("raise_exception"),
                                 std::string_view("strftime_now"), std::string_view("lipsum"),
                                 std::string_view("cycler"),       std::string_view("joiner")};

Value make_range(const Arguments& arguments) {
  if (!arguments.keywords.empty()) fault(ErrorKind::kFormat, "range() takes no keyword arguments");
  const Bound bound("range", arguments, {"start", "stop", "step"}, 1);
  const bool only_stop = !bound.has(1);
  const Range range{only_stop ? 0 : bound.integer(0, 0), bound.integer(only_stop ? 0 : 1, 0), bound.integer(2, 1)};
  if (range.step == 0) fault(ErrorKind::kFormat, "range(): the step is zero");
  return range;
}

// dict(mapping or pairs, **keywords), which namespace() shares.
Dict make_mapping(Meter& meter, std::string_view function, const Arguments& arguments) {
  if (arguments.positional.size() > 1)
    fault(ErrorKind::kFormat, "{}() takes at most one positional argument", function);
  Dict dict;
  if (!arguments.positional.empty()) {
    const Value& source = arguments.positional[0];
    require_defined(source);
    if (const Dict* mapping = source.as_dict()) {
      for (const auto& [key, value] : mapping->items) dict.set(key, value);
    } else {
      for (const Value& pair : iterate(meter, source)) {
        const std::vector<Value> both = iterate(meter, pair);
        if (both.size() != 2) fault(ErrorKind::kFormat, "{}(): pairs are expected", function);
        dict.set(both[0], both[1]);
      }
    }
  }
  for (const auto& [name, value] : arguments.keywords) dict.set(Text(name, Origin::kTemplate), value);
  return dict;
}

}  // namespace

Value Evaluator::evaluate(const Expression& expression, Scope& scope) {
  const Meter::Level level(meter_);
  meter_.charge(1);
  using Kind = Expression::Kind;
  const auto part = [&](size_t i) { return evaluate(*expression.parts[i], scope); };
  const auto part_or_none = [&](size_t i) { return expression.parts[i] != nullptr ? part(i) : Value(None{}); };
  switch (expression.kind) {
    case Kind::kConstant: return expression.value;
    case Kind::kName: line_ = expression.line; return evaluate_name(expression, scope);
    case Kind::kList: return make_list(meter_, evaluate_all(expression.parts, 0, scope));
    case Kind::kTuple: return make_sequence(meter_, Sequence::Kind::kTuple, evaluate_all(expression.parts, 0, scope));
    case Kind::kDict: return evaluate_dict(expression, scope);
    case Kind::kAttribute: {
      const Value value = part(0);
      line_ = expression.line;
      return get_attribute(meter_, value, expression.text);
    }
    case Kind::kItem: {
      const Value value = part(0);
      const Value key = part(1);
      line_ = expression.line;
      return get_item(meter_, value, key);
    }
    case Kind::kSlice: {
      const Value value = part(0);
      const Value start = part_or_none(1);
      const Value stop = part_or_none(2);
      const Value step = part_or_none(3);
      line_ = expression.line;
      return get_slice(meter_, value, start, stop, step);
    }
    case Kind::kCall: return evaluate_call(expression, scope);
    case Kind::kFilter: {
      const Value value = part(0);
      return apply_filter(expression, value, scope);
    }
    case Kind::kTest: {
      const Value value = part(0);
      const Arguments arguments = evaluate_arguments(expression, scope);
      line_ = expression.line;
      return expression.test(meter_, value, arguments);
    }
    case Kind::kNot: return !truth(part(0));
    case Kind::kNegate: return negate(part(0));
    case Kind::kIdentity: return identity(part(0));
    case Kind::kBinary: {
      const Value left = part(0);
      const Value right = part(1);
      line_ = expression.line;
      return apply(meter_, expression.binary, left, right);
    }
    case Kind::kConcatenate: {
      Text all;
      for (size_t i = 0; i < expression.parts.size(); ++i) {
        const Text text = to_text(meter_, part(i));
        meter_.charge_text(all.size() + text.size());
        all.append(text);
      }
      return all;
    }
    case Kind::kCompare: return evaluate_compare(expression, scope);
    case Kind::kAnd: {
      Value left = part(0);
      return truth(left) ? part(1) : left;
    }
    case Kind::kOr: {
      Value left = part(0);
      return truth(left) ? left : part(1);
    }
    case Kind::kConditional:
      if (truth(part(0))) return part(1);
      if (expression.parts[2] != nullptr) return part(2);
      return Value::undefined("the condition of an 'if' without 'else' was false");
    case Kind::kNamespaceTarget: break;
  }
  fault(ErrorKind::kFormat, "a namespace attribute where a value is expected");
}

Value Evaluator::evaluate_name(const Expression& expression, Scope& scope) {
  if (const Value* value = scope.find(expression.name)) return *value;
  const std::string& name = body_.names[expression.name];
  if (std::find(kGlobals.begin(), kGlobals.end(), name) != kGlobals.end()) {
    Callable global;
    global.name = name;
    return std::make_shared<const Callable>(std::move(global));
  }
  return Value::undefined(fmt::format("'{}' is undefined", name));
}

std::vector<Value> Evaluator::evaluate_all(const std::vector<ExpressionPtr>& parts, size_t first, Scope& scope) {
  std::vector<Value> values;
  values.reserve(parts.size() - first);
  for (size_t i = first; i < parts.size(); ++i) values.push_back(evaluate(*parts[i], scope));
  return values;
}

Value Evaluator::evaluate_dict(const Expression& expression, Scope& scope) {
  Dict dict;
  for (size_t i = 0; i + 1 < expression.parts.size(); i += 2) {
    Value key = evaluate(*expression.parts[i], scope);
    Value value = evaluate(*expression.parts[i + 1], scope);
    line_ = expression.line;
    dict.set(std::move(key), std::move(value));
  }
  return make_dict(meter_, std::move(dict));
}

Arguments Evaluator::evaluate_arguments(const Expression& expression, Scope& scope) {
  Arguments arguments;
  arguments.positional = evaluate_all(expression.parts, 1, scope);
  for (const auto& [name, value] : expression.keywords) arguments.keywords.emplace_back(name, evaluate(*value, scope));
  return arguments;
}

Value Evaluator::apply_filter(const Expression& expression, const Value& value, Scope& scope) {
  const Arguments arguments = evaluate_arguments(expression, scope);
  line_ = expression.line;
  return expression.filter(meter_, value, arguments);
}

bool Evaluator::compare_pair(Comparator comparator, const Value& left, const Value& right) {
  bool unordered = false;
  switch (comparator) {
    case Comparator::kEqual: return equal(meter_, left, right);
    case Comparator::kNotEqual: return !equal(meter_, left, right);
    case Comparator::kIn: return contains(meter_, right, left);
    case Comparator::kNotIn: return !contains(meter_, right, left);
    case Comparator::kLess: return compare(meter_, left, right, unordered) < 0 && !unordered;
    case Comparator::kLessOrEqual: return compare(meter_, left, right, unordered) <= 0 && !unordered;
    case Comparator::kGreater: return compare(meter_, left, right, unordered) > 0 && !unordered;
    case Comparator::kGreaterOrEqual: return compare(meter_, left, right, unordered) >= 0 && !unordered;
  }
  return false;
}

Value Evaluator::evaluate_compare(const Expression& expression, Scope& scope) {
  Value left = evaluate(*expression.parts[0], scope);
  for (size_t i = 0; i < expression.comparators.size(); ++i) {
    Value right = evaluate(*expression.parts[i + 1], scope);
    line_ = expression.line;
    if (!compare_pair(expression.comparators[i], left, right)) return false;
    left = std::move(right);
  }
  return true;
}

Value Evaluator::evaluate_call(const Expression& expression, Scope& scope) {
  const Value callee = evaluate(*expression.parts[0], scope);
  const Arguments arguments = evaluate_arguments(expression, scope);
  line_ = expression.line;
  require_defined(callee);
  if (callee.as_loop() != nullptr)
    fault(ErrorKind::kUnsupported, "calling 'loop' (a recursive for loop) is not supported");
  const Callable* callable = callee.as_callable();
  if (callable == nullptr) fault(ErrorKind::kFormat, "a {} is not callable", type_name(callee));
  switch (callable->kind) {
    case Callable::Kind::kMacro: return call_macro(*callable, arguments);
    case Callable::Kind::kMethod: return call_method(meter_, callable->self, callable->name, arguments);
    case Callable::Kind::kGlobal: break;
  }
  return call_global(callable->name, arguments);
}

Value Evaluator::call_macro(const Callable& callable, const Arguments& arguments) {
  const MacroNode& macro = *callable.macro;
  if (arguments.positional.size() > macro.parameters.size())
    fault(ErrorKind::kFormat, "the macro '{}' takes at most {} arguments, {} were given", macro.name,
          macro.parameters.size(), arguments.positional.size());
  const OpenScope scope(*this, callable.scope, macro.hidden);
  std::vector<const Value*> given(macro.parameters.size(), nullptr);
  for (size_t i = 0; i < arguments.positional.size(); ++i) given[i] = &arguments.positional[i];
  for (const auto& keyword : arguments.keywords) {
    const std::string& name = keyword.first;
    const auto found = std::find_if(macro.parameters.begin(), macro.parameters.end(),
                                    [&](const auto& parameter) { return body_.names[parameter.first] == name; });
    if (found == macro.parameters.end())
      fault(ErrorKind::kFormat, "the macro '{}' has no parameter '{}'", macro.name, name);
    const Value*& slot = given[static_cast<size_t>(found - macro.parameters.begin())];
    if (slot != nullptr) fault(ErrorKind::kFormat, "the macro '{}' got the argument '{}' twice", macro.name, name);
    slot = &keyword.second;
  }
  for (size_t i = 0; i < macro.parameters.size(); ++i) {
    const auto& [name, fallback] = macro.parameters[i];
    if (given[i] != nullptr) {
      scope->set(name, *given[i]);
    } else if (fallback != nullptr) {
      scope->set(name, evaluate(*fallback, *scope));
    } else {
      scope->set(name, Value::undefined(fmt::format("the parameter '{}' of the macro '{}' was not given",
                                                    body_.names[name], macro.name)));
    }
  }
  const uint32_t call_line = line_;
  Text out;
  execute(macro.body, *scope, out);
  line_ = call_line;
  return out;
}

Value Evaluator::call_global(std::string_view name, const Arguments& arguments) {
  if (name == "range") return make_range(arguments);
  if (name == "dict") return make_dict(meter_, make_mapping(meter_, name, arguments));
  if (name == "namespace") {
    const Dict dict = make_mapping(meter_, name, arguments);
    meter_.charge_items(dict.items.size());
    Namespace& space = namespaces_.emplace_back();
    for (const auto& [key, value] : dict.items) {
      const Text* attribute = key.as_text();
      if (attribute == nullptr) fault(ErrorKind::kFormat, "namespace(): a {} as an attribute's name", type_name(key));
      space.attributes.emplace_back(attribute->bytes(), value);
    }
    return &space;
  }
  if (name == "raise_exception") {
    const Bound bound(name, arguments, {"message"}, 1);
    fault(ErrorKind::kFormat, "the template refuses these inputs: {}", to_text(meter_, bound.at(0)).bytes());
  }
  if (name == "strftime_now")
    fault(ErrorKind::kUnsupported,
          "strftime_now() is not supported: a template sees its inputs and no clock; pass the date as a variable");
  fault(ErrorKind::kUnsupported, "the function '{}' is not supported", name);
}

}  // namespace verbatim::text::jinja
