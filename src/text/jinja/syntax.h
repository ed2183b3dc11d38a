// A parsed template.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja/filters.h"
#include "text/jinja/operators.h"
#include "text/jinja/value.h"

namespace verbatim::text::jinja {

// Index into TemplateBody::names.
using NameId = uint32_t;

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

enum class Comparator : uint8_t { kEqual, kNotEqual, kLess, kLessOrEqual, kGreater, kGreaterOrEqual, kIn, kNotIn };

struct Expression {
  enum class Kind : uint8_t {
    kConstant,         // value
    kName,             // name
    kList,             // parts: the items
    kTuple,            // parts: the items
    kDict,             // parts: key, value, key, value, ...
    kAttribute,        // parts[0].text
    kItem,             // parts[0][parts[1]]
    kSlice,            // parts[0][parts[1]:parts[2]:parts[3]], the last three null when absent
    kCall,             // parts[0](parts[1], ..., keywords)
    kFilter,           // parts[0]|text(parts[1], ..., keywords); parts[0] is null for the text of a block
    kTest,             // parts[0] is text(parts[1], ..., keywords)
    kNot,              // parts[0]
    kNegate,           // parts[0]
    kIdentity,         // parts[0]
    kBinary,           // parts[0] binary parts[1]
    kConcatenate,      // parts[0] ~ parts[1] ~ ...
    kCompare,          // parts[0] comparators[0] parts[1] comparators[1] ...
    kAnd,              // parts[0] and parts[1]
    kOr,               // parts[0] or parts[1]
    kConditional,      // parts[1] if parts[0] else parts[2], which may be null
    kNamespaceTarget,  // name.text, as what `set` assigns to; never evaluated
  };
  Kind kind = Kind::kConstant;
  uint32_t line = 1;
  uint32_t depth = 1;  // 1 + the deepest part's
  BinaryOperator binary = BinaryOperator::kAdd;
  NameId name = 0;
  FilterFunction filter = nullptr;
  TestFunction test = nullptr;
  Value value;
  std::string text;
  std::vector<ExpressionPtr> parts;
  std::vector<std::pair<std::string, ExpressionPtr>> keywords;
  std::vector<Comparator> comparators;
};

// What is assigned to: a name, a namespace's attribute, or a tuple of targets.
struct Target {
  enum class Kind : uint8_t { kName, kAttribute, kTuple };
  Kind kind = Kind::kName;
  NameId name = 0;
  std::string attribute;
  std::vector<Target> parts;
};

struct Statement;
using Block = std::vector<Statement>;

// Names that are undefined in a scope until they are set there, even when the inputs have a variable of that name (see
// hidden_names.h).
using Hidden = std::vector<NameId>;

struct MacroNode {
  std::string name;
  std::vector<std::pair<NameId, ExpressionPtr>> parameters;  // with the default, or null
  Block body;
  Hidden hidden;
};

struct Branch {
  ExpressionPtr condition;  // null for else
  Block body;
};

struct Statement {
  enum class Kind : uint8_t {
    kText,         // text
    kOutput,       // expression
    kIf,           // branches
    kFor,          // for target in expression if condition: body, else otherwise
    kSet,          // target = expression
    kSetBlock,     // target = the text of body, through the filters of expression (may be null)
    kMacro,        // name, macro
    kWith,         // bindings, body
    kFilterBlock,  // the text of body through the filters of expression
    kScope,        // body, whose assignments stay inside
    kBreak,
    kContinue,
  };
  Kind kind = Kind::kText;
  uint32_t line = 1;
  bool looks_ahead = false;  // kFor: the body asks for loop.last, length, ..., so condition is evaluated for all first
  NameId name = 0;
  Value text;
  ExpressionPtr expression;
  ExpressionPtr condition;
  Target target;
  std::vector<Branch> branches;
  std::vector<std::pair<Target, ExpressionPtr>> bindings;
  Block body;
  Block otherwise;
  std::unique_ptr<MacroNode> macro;
  Hidden hidden;            // in body
  Hidden hidden_otherwise;  // in otherwise
};

struct TemplateBody {
  std::vector<std::string> names;
  Block body;
  Hidden hidden;
};

// Faults on what is wrong or not supported; `line` is then the line where.
TemplateBody parse_template(std::string_view source, const Limits& limits, uint32_t& line);

}  // namespace verbatim::text::jinja
