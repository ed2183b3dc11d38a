#include "text/jinja/operators.h"

#include <cmath>
#include <limits>
#include <string_view>

#include "text/jinja/formatting.h"
#include "text/jinja/represent.h"

namespace verbatim::text::jinja {
namespace {

[[noreturn]] void overflow() { fault(ErrorKind::kCapacity, "an integer result does not fit in 64 bits"); }

constexpr std::string_view symbol(BinaryOperator op) {
  switch (op) {
    case BinaryOperator::kAdd: return "+";
    case BinaryOperator::kSubtract: return "-";
    case BinaryOperator::kMultiply: return "*";
    case BinaryOperator::kDivide: return "/";
    case BinaryOperator::kFloorDivide: return "//";
    case BinaryOperator::kModulo: return "%";
    case BinaryOperator::kPower: return "**";
  }
  return "?";
}

[[noreturn]] void mismatch(BinaryOperator op, const Value& left, const Value& right) {
  require_defined(left);
  require_defined(right);
  fault(ErrorKind::kFormat, "'{}' cannot be applied to '{}' and '{}'", symbol(op), type_name(left), type_name(right));
}

// Remainder with the divisor's sign.
double float_modulo(double left, double right) {
  double rest = std::fmod(left, right);
  if (rest != 0) return (right < 0) != (rest < 0) ? rest + right : rest;
  return std::copysign(0.0, right);
}

double float_floor_divide(double left, double right) {
  const double rest = float_modulo(left, right);
  const double quotient = (left - rest) / right;
  if (quotient == 0) return std::copysign(0.0, left / right);
  const double floor = std::floor(quotient);
  return quotient - floor > 0.5 ? floor + 1 : floor;
}

double float_power(double base, double exponent) {
  if (base == 0 && exponent < 0) fault(ErrorKind::kFormat, "zero cannot be raised to a negative power");
  if (base < 0 && std::isfinite(base) && std::isfinite(exponent) && exponent != std::trunc(exponent))
    fault(ErrorKind::kUnsupported,
          "a negative number to a fractional power is complex; complex numbers are not supported");
  const double result = std::pow(base, exponent);
  if (std::isinf(result) && std::isfinite(base) && std::isfinite(exponent))
    fault(ErrorKind::kFormat, "the result of '**' is too large");
  return result;
}

Value integer_power(int64_t base, int64_t exponent) {
  if (exponent < 0) return float_power(static_cast<double>(base), static_cast<double>(exponent));
  int64_t result = 1;
  // The square of the last step is not needed, so it may not be what overflows.
  for (;;) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) overflow();
    exponent >>= 1;
    if (exponent == 0) return result;
    if (__builtin_mul_overflow(base, base, &base)) overflow();
  }
}

Value integer_arithmetic(BinaryOperator op, int64_t left, int64_t right) {
  int64_t result = 0;
  switch (op) {
    case BinaryOperator::kAdd:
      if (__builtin_add_overflow(left, right, &result)) overflow();
      return result;
    case BinaryOperator::kSubtract:
      if (__builtin_sub_overflow(left, right, &result)) overflow();
      return result;
    case BinaryOperator::kMultiply:
      if (__builtin_mul_overflow(left, right, &result)) overflow();
      return result;
    case BinaryOperator::kPower: return integer_power(left, right);
    default: break;
  }
  if (right == 0) fault(ErrorKind::kFormat, "division by zero");
  if (op == BinaryOperator::kDivide) {
    // Python rounds the exact quotient once; so does this, as long as both operands are exact as doubles.
    constexpr int64_t kExact = int64_t{1} << 53;
    if (left > kExact || left < -kExact || right > kExact || right < -kExact)
      fault(ErrorKind::kCapacity, "'/' of integers beyond 2 ** 53; use '//'");
    return static_cast<double>(left) / static_cast<double>(right);
  }
  if (right == -1) {
    if (op == BinaryOperator::kModulo) return int64_t{0};
    if (__builtin_sub_overflow(int64_t{0}, left, &result)) overflow();
    return result;
  }
  const int64_t rest = left % right;
  const bool adjust = rest != 0 && (rest < 0) != (right < 0);
  if (op == BinaryOperator::kModulo) return adjust ? rest + right : rest;
  return left / right - (adjust ? 1 : 0);
}

Value float_arithmetic(BinaryOperator op, double left, double right) {
  switch (op) {
    case BinaryOperator::kAdd: return left + right;
    case BinaryOperator::kSubtract: return left - right;
    case BinaryOperator::kMultiply: return left * right;
    case BinaryOperator::kPower: return float_power(left, right);
    default: break;
  }
  if (right == 0) fault(ErrorKind::kFormat, "division by zero");
  if (op == BinaryOperator::kDivide) return left / right;
  return op == BinaryOperator::kModulo ? float_modulo(left, right) : float_floor_divide(left, right);
}

Value add_texts(Meter& meter, const Text& left, const Text& right) {
  meter.charge_text(left.size() + right.size());
  const bool markup = left.markup() || right.markup();
  Text sum = markup ? escape_html(left) : left;
  sum.append(markup ? escape_html(right) : right);
  sum.set_markup(markup);
  return sum;
}

// Python's repetition: none at all for counts below 1.
Value repeat(Meter& meter, const Value& value, int64_t count) {
  const auto times = static_cast<size_t>(std::max<int64_t>(count, 0));
  if (const Text* text = value.as_text()) {
    if (times != 0 && text->size() > meter.limits().text_bytes / times)
      fault(ErrorKind::kCapacity, "a string repeated {} times passes the limit on text of {} bytes", times,
            meter.limits().text_bytes);
    meter.charge_text(text->size() * times);
    Text out;
    if (!text->empty())
      for (size_t i = 0; i < times; ++i) out.append(*text);
    out.set_markup(text->markup());
    return out;
  }
  const Sequence& sequence = *value.as_sequence();
  if (times != 0 && sequence.items.size() > meter.limits().sequence_items / times)
    fault(ErrorKind::kCapacity, "a sequence repeated {} times passes the limit of {} items", times,
          meter.limits().sequence_items);
  meter.charge_items(sequence.items.size() * times);
  std::vector<Value> items;
  if (!sequence.items.empty())
    for (size_t i = 0; i < times; ++i) items.insert(items.end(), sequence.items.begin(), sequence.items.end());
  return make_sequence(meter, sequence.kind, std::move(items));
}

bool is_repeatable(const Value& value) {
  const Sequence* sequence = value.as_sequence();
  return value.as_text() != nullptr ||
         (sequence != nullptr && (sequence->kind == Sequence::Kind::kList || sequence->kind == Sequence::Kind::kTuple));
}

}  // namespace

Value apply(Meter& meter, BinaryOperator op, const Value& left, const Value& right) {
  meter.charge(1);
  if (op == BinaryOperator::kModulo && left.as_text() != nullptr) return format_percent(meter, *left.as_text(), right);
  if (left.is_number() && right.is_number()) {
    return left.is_float() || right.is_float() ? float_arithmetic(op, left.number(), right.number())
                                               : integer_arithmetic(op, left.integer(), right.integer());
  }
  if (op == BinaryOperator::kAdd) {
    if (left.as_text() != nullptr && right.as_text() != nullptr)
      return add_texts(meter, *left.as_text(), *right.as_text());
    const Sequence* a = left.as_sequence();
    const Sequence* b = right.as_sequence();
    if (a != nullptr && b != nullptr && a->kind == b->kind && is_repeatable(left)) {
      meter.charge_items(a->items.size() + b->items.size());
      std::vector<Value> items = a->items;
      items.insert(items.end(), b->items.begin(), b->items.end());
      return make_sequence(meter, a->kind, std::move(items));
    }
  }
  if (op == BinaryOperator::kMultiply) {
    if (is_repeatable(left) && right.is_integral()) return repeat(meter, left, right.integer());
    if (is_repeatable(right) && left.is_integral()) return repeat(meter, right, left.integer());
  }
  mismatch(op, left, right);
}

Value negate(const Value& value) {
  require_defined(value);
  if (value.is_float()) return -value.number();
  if (!value.is_integral()) fault(ErrorKind::kFormat, "'-' cannot be applied to a {}", type_name(value));
  int64_t result = 0;
  if (__builtin_sub_overflow(int64_t{0}, value.integer(), &result)) overflow();
  return result;
}

Value identity(const Value& value) {
  require_defined(value);
  if (value.is_float()) return value;
  if (!value.is_integral()) fault(ErrorKind::kFormat, "'+' cannot be applied to a {}", type_name(value));
  return value.integer();
}

Text concatenate(Meter& meter, const Value& left, const Value& right) {
  Text sum = to_text(meter, left);
  const Text more = to_text(meter, right);
  meter.charge_text(sum.size() + more.size());
  sum.append(more);
  sum.set_markup(false);
  return sum;
}

}  // namespace verbatim::text::jinja
