// What a JSON schema admits, its keywords sorted by what they are about.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/grammar/budget.h"
#include "text/grammar/decimal.h"
#include "text/grammar/dfa.h"
#include "text/grammar/json_value.h"
#include "text/tool_schema.h"

namespace verbatim::text {

// Schemas that all hold. Empty: anything goes.
using Schemas = std::vector<const JsonValue*>;

// One alternative: a value is admitted if its kind is among `kinds` and satisfies what is said about its kind.
struct Shape {
  uint8_t kinds = ArgumentType::kUnknown;  // bits of ArgumentType::Kind; a number has kInteger and kFraction
  std::optional<std::vector<const JsonValue*>> values = {};  // enum, const: one of them, and the rest holds too

  NumberBounds bounds = {};

  uint32_t min_length = 0, max_length = kEndless;
  Schemas patterns = {};  // the strings of `pattern`
  Schemas formats = {};

  std::vector<Schemas> prefix = {};  // of the first items
  Schemas items = {};                // of the others
  uint32_t min_items = 0, max_items = kEndless;

  // What one schema says about properties; null where it says nothing.
  struct Properties {
    const JsonValue* named = nullptr;       // properties
    const JsonValue* patterned = nullptr;   // patternProperties
    const JsonValue* additional = nullptr;  // additionalProperties
  };
  std::vector<Properties> properties = {};
  std::vector<std::string> required = {};  // each once
  Schemas names = {};                      // propertyNames
  uint32_t min_properties = 0, max_properties = kEndless;

  static constexpr uint32_t kEndless = 0xFFFFFFFF;
  bool admits(ArgumentType::Kind kind) const { return (kinds & kind) != 0; }
  bool says_nothing_about_strings() const {
    return min_length == 0 && max_length == kEndless && patterns.empty() && formats.empty();
  }
  bool says_nothing_about_arrays() const {
    return prefix.empty() && items.empty() && min_items == 0 && max_items == kEndless;
  }
  bool says_nothing_about_objects() const {
    return properties.empty() && required.empty() && names.empty() && min_properties == 0 && max_properties == kEndless;
  }
};

uint8_t kind_of(const JsonValue& value);  // ArgumentType::Kind

// Reads the schemas of one document. Throws Error(kUsage) for what is no schema or not supported, with its path.
class SchemaReader {
 public:
  SchemaReader(const JsonValue& root, std::string where, Budget& budget)
      : root_(root), where_(std::move(where)), budget_(budget) {}

  // The alternatives, of which a value must satisfy one (or more). Those that contradict themselves are left out.
  std::vector<Shape> shapes(const Schemas& schemas);
  // If the schemas are one that only refers to another, or only lists alternatives: those. Keeps references as
  // references, so that a schema may contain itself.
  std::optional<std::vector<Schemas>> alternatives(const Schemas& schemas);
  // What all of `shape` says about a property of this name; none if there is to be no such property.
  std::optional<Schemas> property(const Shape& shape, const std::string& name);
  // additionalProperties is given, or nothing is said about properties: others than those named may be there.
  static bool is_open(const Shape& shape);
  // Whether a pattern, somewhere, matches.
  bool matches(const std::string& pattern, const JsonValue& place, std::string_view text);
  // Whether a value that is no array or object satisfies the shape, `values` aside.
  bool holds(const Shape& shape, const JsonValue& value);

  [[noreturn]] void refuse(const JsonValue& place, std::string_view what) const;
  [[noreturn]] void wrong(const JsonValue& place, std::string_view expected) const;
  std::string path(const JsonValue& place) const { return where_ + " " + json_path(root_, place); }
  const JsonValue& root() const { return root_; }
  Budget& budget() { return budget_; }

 private:
  struct Path {
    const JsonValue* schema;
    std::shared_ptr<const Path> before;
    size_t length;
  };
  struct Open {  // a schema being read, and those that led to it
    const JsonValue* schema;
    std::shared_ptr<const Path> path;
  };
  struct Choice {
    const JsonValue* list;
    const JsonValue* always;  // a property that every branch gets, or null
    std::shared_ptr<const Path> path;
  };
  struct Reading {
    Shape shape;
    std::vector<Open> open;
    std::vector<Choice> choices;
    std::vector<const JsonValue*> seen;  // sorted
    size_t weight() const;
  };
  bool read(Reading& reading);
  bool read_one(Reading& reading, const Open& open);
  void read_all(Reading reading, std::vector<Shape>& out);
  void apply(Shape& shape, const JsonValue& schema, std::string_view key, const JsonValue& value);
  void apply_kinds(Shape& shape, const JsonValue& schema);
  void apply_items(Shape& shape, const JsonValue& schema);
  void apply_values(Shape& shape, const JsonValue& place, std::vector<const JsonValue*> values);
  static bool can_hold(const Shape& shape);
  static void require(Shape& shape, const std::string& name);
  const JsonValue* discriminator(const JsonValue& schema) const;
  void require_disjoint(const JsonValue& list, const JsonValue* always);
  bool disjoint(const Shape& a, const Shape& b, int depth);
  bool disjoint_objects(const Shape& a, const Shape& b, int depth);
  const JsonValue& target(const JsonValue& reference) const;
  uint32_t size_of(const JsonValue& value) const;

  const JsonValue& root_;
  std::string where_;
  Budget& budget_;
  std::set<const JsonValue*> checked_;  // oneOf lists
  std::map<std::string, Dfa> patterns_;
};

}  // namespace verbatim::text
