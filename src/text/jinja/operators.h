// Python's operators on values.
#pragma once

#include "text/jinja/value.h"

namespace verbatim::text::jinja {

enum class BinaryOperator : uint8_t { kAdd, kSubtract, kMultiply, kDivide, kFloorDivide, kModulo, kPower };

// Integers are exact within 64 bits and fault beyond. Faults where Python raises TypeError or ZeroDivisionError.
Value apply(Meter& meter, BinaryOperator op, const Value& left, const Value& right);

Value negate(const Value& value);    // -value
Value identity(const Value& value);  // +value

// left ~ right: both as text, side by side.
Text concatenate(Meter& meter, const Value& left, const Value& right);

}  // namespace verbatim::text::jinja
