#include "text/grammar/schema_shape.h"

#include <algorithm>
#include <array>
#include <map>

#include "base/error.h"
#include "text/grammar/formats.h"
#include "text/grammar/regex_syntax.h"
#include "text/utf8.h"

namespace verbatim::text {
namespace {

using Kind = ArgumentType::Kind;

constexpr size_t kMaxPath = 256;  // references and alternatives that lead to each other
// Alternatives of one schema, multiplied out: their number, and what they hold.
constexpr size_t kMaxShapes = 10'000;
constexpr size_t kMaxWeight = 1'000'000;

// Keywords of JSON schema and OpenAPI that constrain and that masks cannot follow.
constexpr std::array<std::string_view, 13> kRefused = {
    "not",      "if",          "then",        "else",        "dependentRequired", "dependentSchemas", "dependencies",
    "contains", "minContains", "maxContains", "$dynamicRef", "$recursiveRef",     "unevaluatedItems"};

uint8_t kinds_named(std::string_view name) {
  static const std::map<std::string_view, uint8_t> kKinds = {
      {"string", Kind::kString},   {"integer", Kind::kInteger}, {"number", Kind::kInteger | Kind::kFraction},
      {"boolean", Kind::kBoolean}, {"null", Kind::kNull},       {"object", Kind::kObject},
      {"array", Kind::kArray}};
  const auto found = kKinds.find(name);
  return found == kKinds.end() ? uint8_t{0} : found->second;
}

size_t characters_of(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

}  // namespace

uint8_t kind_of(const JsonValue& value) {
  switch (value.kind) {
    case JsonValue::Kind::kNull: return Kind::kNull;
    case JsonValue::Kind::kBoolean: return Kind::kBoolean;
    case JsonValue::Kind::kString: return Kind::kString;
    case JsonValue::Kind::kArray: return Kind::kArray;
    case JsonValue::Kind::kObject: return Kind::kObject;
    case JsonValue::Kind::kNumber: break;
  }
  const std::optional<Decimal> number = Decimal::parse(value.text);
  return number && number->is_whole() ? Kind::kInteger : Kind::kFraction;
}

void SchemaReader::refuse(const JsonValue& place, std::string_view what) const {
  fail(ErrorKind::kUsage, path(place), "{} is not supported; rewrite the schema without", what);
}

void SchemaReader::wrong(const JsonValue& place, std::string_view expected) const {
  fail(ErrorKind::kUsage, path(place), "{}; expected {}", place.kind_name(), expected);
}

uint32_t SchemaReader::size_of(const JsonValue& value) const {
  const std::optional<Decimal> number =
      value.is(JsonValue::Kind::kNumber) ? Decimal::parse(value.text) : std::optional<Decimal>();
  if (!number || number->is_negative || !number->is_whole()) wrong(value, "a whole number from 0 on");
  return number->whole.size() > 9 ? 1'000'000'000 : static_cast<uint32_t>(std::stoul(number->whole));
}

const JsonValue& SchemaReader::target(const JsonValue& reference) const {
  if (!reference.is(JsonValue::Kind::kString)) wrong(reference, "a reference, a string");
  const JsonValue* found = json_at(root_, reference.text);
  if (found == nullptr)
    fail(ErrorKind::kUsage, path(reference),
         "$ref '{}' leads nowhere in this schema; only '#' and '#/...' are followed", reference.text);
  return *found;
}

std::vector<Shape> SchemaReader::shapes(const Schemas& schemas) {
  Reading reading;
  for (const JsonValue* schema : schemas) reading.open.push_back({schema, nullptr});
  std::reverse(reading.open.begin(), reading.open.end());
  std::vector<Shape> out;
  read_all(std::move(reading), out);
  return out;
}

size_t SchemaReader::Reading::weight() const {
  return 8 + open.size() + choices.size() + seen.size() + shape.patterns.size() + shape.formats.size() +
         shape.prefix.size() * (1 + shape.items.size()) + shape.properties.size() + 4 * shape.required.size() +
         shape.names.size() + (shape.values ? shape.values->size() : 0);
}

void SchemaReader::read_all(Reading reading, std::vector<Shape>& out) {
  std::vector<Reading> readings;
  readings.push_back(std::move(reading));
  size_t weight = 0;  // of all that was copied
  const auto count = [&](size_t more) {
    weight += more;
    budget_.work(more * 10 + 200);
    if (weight > kMaxWeight || out.size() > kMaxShapes)
      fail(ErrorKind::kUsage, where_, "a schema with more than {} alternatives, or large ones; make it smaller",
           kMaxShapes);
  };
  while (!readings.empty()) {
    Reading now = std::move(readings.back());
    readings.pop_back();
    if (!read(now)) continue;
    if (now.choices.empty()) {
      if (can_hold(now.shape)) out.push_back(std::move(now.shape));
      count(1);
      continue;
    }
    const Choice choice = now.choices.back();
    now.choices.pop_back();
    if (choice.always != nullptr) require(now.shape, choice.always->text);
    const std::vector<JsonValue>& branches = choice.list->items;
    for (auto branch = branches.rbegin(); branch != branches.rend(); ++branch) {  // the first is taken up first
      count(now.weight());
      Reading one = now;
      one.open.push_back({&*branch, choice.path});
      readings.push_back(std::move(one));
    }
  }
}

void SchemaReader::require(Shape& shape, const std::string& name) {
  if (std::find(shape.required.begin(), shape.required.end(), name) == shape.required.end())
    shape.required.push_back(name);
}

// The property that tells the branches of an OpenAPI oneOf apart: it is always generated.
const JsonValue* SchemaReader::discriminator(const JsonValue& schema) const {
  const JsonValue* given = schema.find("discriminator");
  const JsonValue* name = given == nullptr ? nullptr : given->find("propertyName");
  return name != nullptr && name->is(JsonValue::Kind::kString) ? name : nullptr;
}

// False if nothing can satisfy it.
bool SchemaReader::read(Reading& reading) {
  while (!reading.open.empty()) {
    const Open open = std::move(reading.open.back());
    reading.open.pop_back();
    if (!read_one(reading, open)) return false;
  }
  return reading.shape.kinds != 0;
}

bool SchemaReader::read_one(Reading& reading, const Open& open) {
  const JsonValue& schema = *open.schema;
  if (schema.is(JsonValue::Kind::kBoolean)) return schema.boolean;
  if (!schema.is(JsonValue::Kind::kObject)) wrong(schema, "a schema: an object, true or false");
  for (const Path* at = open.path.get(); at != nullptr; at = at->before.get())
    if (at->schema == &schema) refuse(schema, "a schema that leads back to itself with nothing in between");
  const auto place = std::lower_bound(reading.seen.begin(), reading.seen.end(), &schema);
  if (place != reading.seen.end() && *place == &schema) return true;
  reading.seen.insert(place, &schema);
  const auto path = std::make_shared<const Path>(Path{&schema, open.path, open.path ? open.path->length + 1 : 1});
  if (path->length > kMaxPath) refuse(schema, "a longer chain of references than 256");
  budget_.work(schema.members.size() * 20 + path->length + reading.seen.size() / 16 + 50);

  Shape& shape = reading.shape;
  apply_kinds(shape, schema);
  apply_items(shape, schema);
  Shape::Properties properties;
  for (const auto& [key, said] : schema.members) {
    const JsonValue& value = said;
    const auto list = [&value, this]() -> const JsonValue& {
      if (!value.is(JsonValue::Kind::kArray) || value.items.empty()) wrong(value, "a list of schemas, not empty");
      return value;
    };
    if (key == "$ref") {
      reading.open.push_back({&target(value), path});
    } else if (key == "allOf") {
      const std::vector<JsonValue>& all = list().items;
      for (auto one = all.rbegin(); one != all.rend(); ++one) reading.open.push_back({&*one, path});
    } else if (key == "anyOf") {
      reading.choices.push_back({&list(), discriminator(schema), path});
    } else if (key == "oneOf") {
      require_disjoint(list(), discriminator(schema));
      reading.choices.push_back({&value, discriminator(schema), path});
    } else if (key == "properties" || key == "patternProperties") {
      if (!value.is(JsonValue::Kind::kObject)) wrong(value, "an object of schemas");
      (key == "properties" ? properties.named : properties.patterned) = &value;
    } else if (key == "additionalProperties") {
      properties.additional = &value;
    } else if (key == "$id" && &schema != &root_) {
      refuse(value, "$id inside a schema");
    } else {
      apply(shape, schema, key, value);
    }
  }
  if (properties.named || properties.patterned || properties.additional) shape.properties.push_back(properties);
  return true;
}

void SchemaReader::apply_kinds(Shape& shape, const JsonValue& schema) {
  const JsonValue* nullable = schema.find("nullable");
  const bool may_be_null = nullable != nullptr && nullable->is(JsonValue::Kind::kBoolean) && nullable->boolean;
  const JsonValue* type = schema.find("type");
  if (type == nullptr) {
    if (may_be_null) refuse(*nullable, "nullable without type");
    return;
  }
  uint8_t kinds = may_be_null ? Kind::kNull : 0;
  const auto add = [&](const JsonValue& name) {
    const uint8_t named = name.is(JsonValue::Kind::kString) ? kinds_named(name.text) : uint8_t{0};
    if (named == 0) wrong(name, "the name of a JSON type");
    kinds |= named;
  };
  if (type->is(JsonValue::Kind::kArray)) {
    for (const JsonValue& name : type->items) add(name);
  } else {
    add(*type);
  }
  shape.kinds &= kinds;
}

void SchemaReader::apply_items(Shape& shape, const JsonValue& schema) {
  const JsonValue* prefix = schema.find("prefixItems");
  const JsonValue* items = schema.find("items");
  if (items != nullptr && items->is(JsonValue::Kind::kArray)) {  // as older drafts have it
    prefix = items;
    items = schema.find("additionalItems");
  }
  if (prefix != nullptr && !prefix->is(JsonValue::Kind::kArray)) wrong(*prefix, "a list of schemas");
  const size_t first = prefix == nullptr ? 0 : prefix->items.size();
  const size_t named = shape.prefix.size();
  for (size_t i = named; i < first; ++i) shape.prefix.push_back(shape.items);
  for (size_t i = 0; i < shape.prefix.size(); ++i) {
    if (i < first)
      shape.prefix[i].push_back(&prefix->items[i]);
    else if (items != nullptr)
      shape.prefix[i].push_back(items);
  }
  if (items != nullptr) shape.items.push_back(items);
}

void SchemaReader::apply_values(Shape& shape, const JsonValue& place, std::vector<const JsonValue*> values) {
  if (!shape.values) {
    shape.values = std::move(values);
    return;
  }
  budget_.work(shape.values->size() * values.size() * 8);
  if (shape.values->size() * values.size() > 10'000'000) refuse(place, "so large an enum beside another one");
  std::erase_if(*shape.values, [&](const JsonValue* value) {
    return std::none_of(values.begin(), values.end(), [&](const JsonValue* other) { return equal(*value, *other); });
  });
}

// One keyword that says something about one kind of value.
void SchemaReader::apply(Shape& shape, const JsonValue& schema, std::string_view key, const JsonValue& value) {
  const auto bound = [&]() -> NumberBounds::Bound {
    std::optional<Decimal> number;
    if (value.is(JsonValue::Kind::kNumber)) number = Decimal::parse(value.text);
    if (!number) wrong(value, "a number of at most 40 digits");
    const JsonValue* exclusive = schema.find(key == "minimum" ? "exclusiveMinimum" : "exclusiveMaximum");
    const bool is_exclusive = key.starts_with("exclusive") ||
                              (exclusive != nullptr && exclusive->is(JsonValue::Kind::kBoolean) && exclusive->boolean);
    return {*number, is_exclusive};
  };
  const auto text = [&] {
    if (!value.is(JsonValue::Kind::kString)) wrong(value, "a string");
    return &value;
  };
  if (key == "enum") {
    if (!value.is(JsonValue::Kind::kArray) || value.items.empty()) wrong(value, "a list of values, not empty");
    std::vector<const JsonValue*> values;
    for (const JsonValue& one : value.items) values.push_back(&one);
    apply_values(shape, value, std::move(values));
  } else if (key == "const") {
    apply_values(shape, value, {&value});
  } else if (key == "minLength") {
    shape.min_length = std::max(shape.min_length, size_of(value));
  } else if (key == "maxLength") {
    shape.max_length = std::min(shape.max_length, size_of(value));
  } else if (key == "pattern") {
    shape.patterns.push_back(text());
  } else if (key == "format") {
    if (!is_format(text()->text)) refuse(value, "the format '" + value.text.substr(0, 60) + "'");
    if (const std::optional<NumberBounds> whole = bounds_of_format(value.text)) {
      shape.bounds.at_least(*whole->lower);
      shape.bounds.at_most(*whole->upper);
    }
    if (!pattern_of_format(value.text).empty()) shape.formats.push_back(&value);
  } else if (key == "minimum" || (key == "exclusiveMinimum" && !value.is(JsonValue::Kind::kBoolean))) {
    shape.bounds.at_least(bound());
  } else if (key == "maximum" || (key == "exclusiveMaximum" && !value.is(JsonValue::Kind::kBoolean))) {
    shape.bounds.at_most(bound());
  } else if (key == "multipleOf") {
    const std::optional<Decimal> number =
        value.is(JsonValue::Kind::kNumber) ? Decimal::parse(value.text) : std::optional<Decimal>();
    if (!number || !number->is_whole() || number->whole != "1") refuse(value, "multipleOf");
    shape.kinds &= static_cast<uint8_t>(~Kind::kFraction);
  } else if (key == "minItems") {
    shape.min_items = std::max(shape.min_items, size_of(value));
  } else if (key == "maxItems") {
    shape.max_items = std::min(shape.max_items, size_of(value));
  } else if (key == "uniqueItems") {
    if (!value.is(JsonValue::Kind::kBoolean)) wrong(value, "true or false");
    if (value.boolean) refuse(value, "uniqueItems");
  } else if (key == "required") {
    if (value.is(JsonValue::Kind::kBoolean)) return;  // drafts before 4
    if (!value.is(JsonValue::Kind::kArray)) wrong(value, "a list of property names");
    std::set<std::string_view> known(shape.required.begin(), shape.required.end());
    std::vector<std::string> more;
    for (const JsonValue& name : value.items) {
      if (!name.is(JsonValue::Kind::kString)) wrong(name, "a property name, a string");
      if (known.insert(name.text).second) more.push_back(name.text);
    }
    shape.required.insert(shape.required.end(), more.begin(), more.end());
  } else if (key == "propertyNames") {
    shape.names.push_back(&value);
  } else if (key == "minProperties") {
    shape.min_properties = std::max(shape.min_properties, size_of(value));
  } else if (key == "maxProperties") {
    shape.max_properties = std::min(shape.max_properties, size_of(value));
  } else if (key == "unevaluatedProperties") {
    // What is generated beside named, patterned and additional properties: nothing.
    if (!value.is(JsonValue::Kind::kBoolean)) refuse(value, "unevaluatedProperties with a schema");
  } else if (std::find(kRefused.begin(), kRefused.end(), key) != kRefused.end()) {
    refuse(value, key);
  }
}

// Cheap contradictions; what else nothing can satisfy is found when the automaton is finished.
bool SchemaReader::can_hold(const Shape& shape) {
  return shape.kinds != 0 && (!shape.values || !shape.values->empty());
}

bool SchemaReader::is_open(const Shape& shape) {
  return std::all_of(shape.properties.begin(), shape.properties.end(),
                     [](const Shape::Properties& one) { return !one.named && !one.patterned && !one.additional; }) ||
         std::any_of(shape.properties.begin(), shape.properties.end(),
                     [](const Shape::Properties& one) { return one.additional != nullptr; });
}

std::optional<std::vector<Schemas>> SchemaReader::alternatives(const Schemas& schemas) {
  if (schemas.size() != 1 || !schemas[0]->is(JsonValue::Kind::kObject)) return std::nullopt;
  const JsonValue& schema = *schemas[0];
  const JsonValue *reference = schema.find("$ref"), *any = schema.find("anyOf"), *one = schema.find("oneOf");
  if ((reference != nullptr) + (any != nullptr) + (one != nullptr) != 1 || discriminator(schema) != nullptr)
    return std::nullopt;
  // Everything else must say nothing: it is read with an empty list of alternatives in mind.
  static constexpr std::array<std::string_view, 27> kSays = {"type",
                                                             "enum",
                                                             "const",
                                                             "allOf",
                                                             "properties",
                                                             "patternProperties",
                                                             "required",
                                                             "items",
                                                             "prefixItems",
                                                             "minLength",
                                                             "maxLength",
                                                             "additionalProperties",
                                                             "pattern",
                                                             "format",
                                                             "minimum",
                                                             "maximum",
                                                             "exclusiveMinimum",
                                                             "exclusiveMaximum",
                                                             "minItems",
                                                             "maxItems",
                                                             "uniqueItems",
                                                             "propertyNames",
                                                             "minProperties",
                                                             "maxProperties",
                                                             "multipleOf",
                                                             "nullable",
                                                             "unevaluatedProperties"};
  for (const auto& [key, value] : schema.members) {
    if (std::find(kSays.begin(), kSays.end(), key) != kSays.end()) return std::nullopt;
    if (std::find(kRefused.begin(), kRefused.end(), key) != kRefused.end()) refuse(value, key);
    if (key == "$id" && &schema != &root_) refuse(value, "$id inside a schema");
  }
  if (reference != nullptr) return std::vector<Schemas>{{&target(*reference)}};
  const JsonValue& list = any != nullptr ? *any : *one;
  if (!list.is(JsonValue::Kind::kArray) || list.items.empty()) wrong(list, "a list of schemas, not empty");
  if (one != nullptr) require_disjoint(list, nullptr);
  std::vector<Schemas> out;
  for (const JsonValue& branch : list.items) out.push_back({&branch});
  return out;
}

std::optional<Schemas> SchemaReader::property(const Shape& shape, const std::string& name) {
  Schemas out;
  bool is_named = false;
  for (const Shape::Properties& one : shape.properties) {
    budget_.work(20);
    const JsonValue* named = one.named == nullptr ? nullptr : one.named->find(name);
    if (named != nullptr) out.push_back(named);
    bool is_covered = named != nullptr;
    if (one.patterned != nullptr)
      for (const auto& [pattern, schema] : one.patterned->members)
        if (matches(pattern, schema, name)) {
          out.push_back(&schema);
          is_covered = true;
        }
    if (!is_covered && one.additional != nullptr) out.push_back(one.additional);
    is_named = is_named || is_covered;
  }
  for (const JsonValue* schema : out)
    if (schema->is(JsonValue::Kind::kBoolean) && !schema->boolean) return std::nullopt;
  return out;
}

bool SchemaReader::matches(const std::string& pattern, const JsonValue& place, std::string_view text) {
  auto found = patterns_.find(pattern);
  if (found == patterns_.end()) {
    const Regex regex = parse_regex(pattern, path(place), budget_);
    found = patterns_.emplace(pattern, regex_dfa(regex, Anchoring::kSearch, Spelling::kRaw, budget_)).first;
  }
  budget_.work(text.size() * 8);
  return found->second.matches(text);
}

bool SchemaReader::holds(const Shape& shape, const JsonValue& value) {
  if ((shape.kinds & kind_of(value)) == 0) return false;
  if (value.is(JsonValue::Kind::kNumber)) {
    if (!shape.bounds.any()) return true;
    const std::optional<Decimal> number = Decimal::parse(value.text);
    return number && shape.bounds.holds(*number);
  }
  if (!value.is(JsonValue::Kind::kString)) return true;
  const size_t length = characters_of(value.text);
  if (length < shape.min_length || length > shape.max_length) return false;
  for (const JsonValue* pattern : shape.patterns)
    if (!matches(pattern->text, *pattern, value.text)) return false;
  for (const JsonValue* format : shape.formats) {
    const Regex regex = parse_regex(pattern_of_format(format->text), "format", budget_);
    if (!regex_dfa(regex, Anchoring::kWhole, Spelling::kRaw, budget_).matches(value.text)) return false;
  }
  return true;
}

// oneOf is read as anyOf. That is right only if no value that is made for one branch satisfies another.
void SchemaReader::require_disjoint(const JsonValue& list, const JsonValue* always) {
  if (!checked_.insert(&list).second) return;
  std::vector<std::vector<Shape>> branches;
  for (const JsonValue& branch : list.items) {
    branches.push_back(shapes({&branch}));
    if (always != nullptr)
      for (Shape& shape : branches.back()) require(shape, always->text);
  }
  for (size_t i = 0; i < branches.size(); ++i)
    for (size_t j = 0; j < i; ++j)
      for (const Shape& a : branches[i])
        for (const Shape& b : branches[j])
          if (!disjoint(a, b, 0))
            fail(ErrorKind::kUsage, path(list),
                 "oneOf whose branches {} and {} are not seen to exclude each other (by type, by values, or by a "
                 "required property with different const or enum) is not supported; write anyOf",
                 j, i);
}

bool SchemaReader::disjoint(const Shape& a, const Shape& b, int depth) {
  budget_.work(200);
  if ((a.kinds & b.kinds) == 0) return true;
  if (a.values || b.values) {
    const Shape &listed = a.values ? a : b, &other = a.values ? b : a;
    budget_.work(listed.values->size() * (other.values ? other.values->size() * 8 : 50));
    return std::none_of(listed.values->begin(), listed.values->end(), [&](const JsonValue* value) {
      if ((listed.kinds & other.kinds & kind_of(*value)) == 0) return false;
      if (value->is(JsonValue::Kind::kArray) || value->is(JsonValue::Kind::kObject))
        return !other.values || std::any_of(other.values->begin(), other.values->end(),
                                            [&](const JsonValue* one) { return equal(*one, *value); });
      return holds(other, *value) &&
             (!other.values || std::any_of(other.values->begin(), other.values->end(),
                                           [&](const JsonValue* one) { return equal(*one, *value); }));
    });
  }
  const uint8_t both = a.kinds & b.kinds;
  if (both & (Kind::kNull | Kind::kBoolean)) return false;
  if (both & (Kind::kInteger | Kind::kFraction)) {
    NumberBounds bounds = a.bounds;
    if (b.bounds.lower) bounds.at_least(*b.bounds.lower);
    if (b.bounds.upper) bounds.at_most(*b.bounds.upper);
    if (!bounds.lower || !bounds.upper) return false;
    const int order = compare(bounds.lower->value, bounds.upper->value);
    if (order < 0 || (order == 0 && !bounds.lower->is_exclusive && !bounds.upper->is_exclusive)) return false;
  }
  if ((both & Kind::kString) && std::max(a.min_length, b.min_length) <= std::min(a.max_length, b.max_length))
    return false;
  if ((both & Kind::kArray) && std::max(a.min_items, b.min_items) <= std::min(a.max_items, b.max_items)) return false;
  return (both & Kind::kObject) == 0 || disjoint_objects(a, b, depth);
}

bool SchemaReader::disjoint_objects(const Shape& a, const Shape& b, int depth) {
  if (depth > 3) return false;
  const auto requires_it = [](const Shape& shape, const std::string& name) {
    return std::find(shape.required.begin(), shape.required.end(), name) != shape.required.end();
  };
  // A property that is always there: no value of it suits both.
  for (const Shape* shape : {&a, &b}) {
    for (const std::string& name : shape->required) {
      budget_.work(a.required.size() + b.required.size());
      const std::optional<Schemas> x = property(a, name), y = property(b, name);
      if (!x || !y) return requires_it(a, name) && requires_it(b, name);
      if (!requires_it(a, name) || !requires_it(b, name)) continue;
      bool excludes = true;
      for (const Shape& one : shapes(*x))
        for (const Shape& other : shapes(*y)) excludes = excludes && disjoint(one, other, depth + 1);
      if (excludes) return true;
    }
  }
  // Each requires what is never made for the other.
  const auto never_makes = [&](const Shape& shape, const std::string& name) {
    budget_.work(shape.required.size() + 10);
    if (is_open(shape) || requires_it(shape, name)) return false;
    return std::none_of(shape.properties.begin(), shape.properties.end(), [&](const Shape::Properties& one) {
      return one.patterned != nullptr || (one.named != nullptr && one.named->find(name) != nullptr);
    });
  };
  const auto any = [&](const Shape& from, const Shape& other) {
    return std::any_of(from.required.begin(), from.required.end(),
                       [&](const std::string& name) { return never_makes(other, name); });
  };
  return any(a, b) && any(b, a);
}

}  // namespace verbatim::text
