#include "text/grammar/schema_rules.h"

#include <algorithm>

#include "base/error.h"
#include "text/grammar/formats.h"

namespace verbatim::text {
namespace {

using Kind = ArgumentType::Kind;

// What the parser reads as JSON, white space around it included.
constexpr std::string_view kSpace = "[ \\t\\n\\r]*";
constexpr std::string_view kAnything = "[\\s\\S]";
// What the parser does not drop at the ends of a key.
constexpr std::string_view kNoSpace = R"([^\s\x1c-\x1f\x85])";

}  // namespace

RuleId SchemaRules::value(const Schemas& schemas) {
  Schemas key;
  for (const JsonValue* schema : schemas)
    if (!schema->is(JsonValue::Kind::kBoolean) || !schema->boolean) key.push_back(schema);
  if (key.empty()) return json_.value();
  Schemas sorted = key;
  std::sort(sorted.begin(), sorted.end());
  sorted.erase(std::unique(sorted.begin(), sorted.end()), sorted.end());
  const auto [place, is_new] = rules_.try_emplace(std::move(sorted), 0);
  if (is_new) {
    place->second = builder().rule();
    tasks_.push_back({place->second, std::move(key)});
  }
  return place->second;
}

void SchemaRules::draw_all() {
  while (!tasks_.empty()) {
    const Task task = std::move(tasks_.back());
    tasks_.pop_back();
    draw(task.rule, task.schemas);
  }
}

void SchemaRules::draw(RuleId rule, const Schemas& schemas) {
  const StateId start = builder().start(rule), end = builder().state(rule);
  builder().accept(end);
  if (const std::optional<std::vector<Schemas>> alternatives = reader_.alternatives(schemas)) {
    for (const Schemas& one : *alternatives) builder().call(start, value(one), end);
    return;
  }
  for (const Shape& shape : reader_.shapes(schemas)) draw_shape(shape, rule, start, end);
}

void SchemaRules::draw_shape(const Shape& shape, RuleId rule, StateId from, StateId to) {
  if (shape.values) return draw_values(shape, from, to);
  const StateId start = builder().state(rule);
  builder().epsilon(from, start);
  if (shape.admits(Kind::kNull)) builder().literal(start, "null", to);
  if (shape.admits(Kind::kBoolean)) builder().call(start, json_.boolean(), to);
  if (shape.admits(Kind::kInteger) || shape.admits(Kind::kFraction)) builder().call(start, number(shape), to);
  if (shape.admits(Kind::kString)) builder().call(start, string(shape), to);
  if (shape.admits(Kind::kArray)) builder().call(start, array(shape), to);
  if (shape.admits(Kind::kObject)) builder().call(start, object(shape), to);
}

std::vector<const JsonValue*> SchemaRules::admitted_values(const Shape& shape) {
  std::vector<const JsonValue*> out;
  for (const JsonValue* value : *shape.values) {
    const bool says_more = (value->is(JsonValue::Kind::kArray) && !shape.says_nothing_about_arrays()) ||
                           (value->is(JsonValue::Kind::kObject) && !shape.says_nothing_about_objects());
    if (says_more && (shape.kinds & kind_of(*value)) != 0)
      reader_.refuse(*value, "an object or array in enum or const beside keywords about its parts");
    reader_.budget().work(50);
    if (reader_.holds(shape, *value)) out.push_back(value);
  }
  return out;
}

void SchemaRules::draw_values(const Shape& shape, StateId from, StateId to) {
  std::vector<std::string> texts;
  for (const JsonValue* value : admitted_values(shape)) append_json(texts.emplace_back(), *value);
  builder().literals(from, texts, to);
}

RuleId SchemaRules::number(const Shape& shape) {
  const bool only_whole = !shape.admits(Kind::kFraction);
  if (!shape.bounds.any()) return only_whole ? json_.integer() : json_.number();
  return builder().rule_of(numbers_within(shape.bounds, only_whole, reader_.budget()));
}

Dfa SchemaRules::dfa_of(std::string_view pattern, const std::string& where, Anchoring anchoring, Spelling spelling) {
  return regex_dfa(parse_regex(pattern, where, reader_.budget()), anchoring, spelling, reader_.budget());
}

// The characters of a string, without quotes.
Dfa SchemaRules::body(const Shape& shape, Spelling spelling) {
  std::optional<Dfa> out;
  const auto also = [&](Dfa dfa) { out = out ? intersect(*out, dfa, reader_.budget()) : std::move(dfa); };
  for (const JsonValue* pattern : shape.patterns)
    also(dfa_of(pattern->text, reader_.path(*pattern), Anchoring::kSearch, spelling));
  for (const JsonValue* format : shape.formats)
    also(dfa_of(pattern_of_format(format->text), reader_.path(*format), Anchoring::kWhole, spelling));
  if (!out || shape.min_length > 0 || shape.max_length != Shape::kEndless) {
    const std::string most = shape.max_length == Shape::kEndless ? "" : std::to_string(shape.max_length);
    also(dfa_of(fmt::format("{}{{{},{}}}", kAnything, shape.min_length, most), "length", Anchoring::kWhole, spelling));
  }
  return std::move(*out);
}

RuleId SchemaRules::string(const Shape& shape) {
  if (shape.min_length > shape.max_length) return nothing();
  if (shape.patterns.empty() && shape.formats.empty()) return json_.string(shape.min_length, shape.max_length);
  std::string key = std::to_string(shape.min_length) + " " + std::to_string(shape.max_length);
  for (const JsonValue* pattern : shape.patterns) key += "\np" + pattern->text;
  for (const JsonValue* format : shape.formats) key += "\nf" + format->text;
  const auto [place, is_new] = strings_.try_emplace(std::move(key), 0);
  if (is_new) place->second = json_.string_of(body(shape, Spelling::kJson));
  return place->second;
}

RuleId SchemaRules::array(const Shape& shape) {
  if (shape.says_nothing_about_arrays()) return json_.array();
  if (shape.min_items > shape.max_items) return nothing();
  AutomatonBuilder& draw = builder();
  const RuleId rule = draw.rule();
  const StateId opened = draw.literal(draw.start(rule), "["), closing = draw.state(rule), end = draw.state(rule);
  draw.accept(end);
  const StateId last = draw.state(rule);
  draw.call(closing, json_.gap(), last);
  draw.literal(last, "]", end);
  if (shape.min_items == 0) draw.literal(opened, "]", end);
  if (shape.max_items == 0) return rule;
  // The first items one by one, the others counted by their commas.
  const auto first = static_cast<uint32_t>(std::max<size_t>(shape.prefix.size(), 1));
  StateId at = draw.state(rule);
  draw.call(opened, json_.gap(), at);
  for (uint32_t i = 0; i < first && i < shape.max_items; ++i) {
    if (i > 0) {
      if (i >= shape.min_items) draw.epsilon(at, closing);
      const StateId next = draw.state(rule);
      draw.call(draw.literal(at, ","), json_.gap(), next);
      at = next;
    }
    const StateId behind = draw.state(rule);
    draw.call(at, value(i < shape.prefix.size() ? shape.prefix[i] : shape.items), behind);
    at = behind;
  }
  if (shape.max_items <= first) {
    draw.epsilon(at, closing);
    return rule;
  }
  draw.count(rule, shape.min_items > first ? shape.min_items - first : 0,
             shape.max_items == Shape::kEndless ? kNoMaximum : shape.max_items - first);
  const StateId comma = draw.state(rule), next = draw.state(rule);
  draw.epsilon(at, closing, true);
  draw.bytes(at, ',', ',', comma, Counting::kOneMore);
  draw.call(comma, json_.gap(), next);
  draw.call(next, value(shape.items), at);
  return rule;
}

// One other property after another, with commas between them; `from` and `to` are those of one member.
void SchemaRules::draw_others(const ObjectPlan& plan, RuleId rule, StateId from, StateId to) {
  for (const ObjectPlan::Others& others : plan.others) {
    const StateId key = builder().state(rule);
    builder().call(from, others.keys ? json_.string_of(*others.keys) : json_.string(), key);
    builder().call(json_.colon(key), value(others.schemas), to);
  }
}

RuleId SchemaRules::object(const Shape& shape) {
  if (shape.says_nothing_about_objects()) return json_.object();
  const std::optional<ObjectPlan> plan = this->plan(shape, Spelling::kJson);
  if (!plan) return nothing();
  AutomatonBuilder& draw = builder();
  const RuleId rule = draw.rule();
  const size_t count = plan->named.size();
  const StateId opened = draw.literal(draw.start(rule), "{"), closing = draw.state(rule), end = draw.state(rule);
  draw.accept(end);
  const StateId last = draw.state(rule);
  draw.call(closing, json_.gap(), last);
  draw.literal(last, "}", end);
  const auto required = [](const ObjectPlan::Named& one) { return one.is_required; };
  size_t last_required = count;  // index + 1; 0: none
  while (last_required > 0 && !required(plan->named[last_required - 1])) --last_required;
  if (last_required == 0 && plan->min_others == 0) draw.literal(opened, "}", end);

  // next[i]: behind '{' or ',': the property i, or a later one if it may be left out, or another one, has to come.
  std::vector<StateId> next(count + 1);
  for (StateId& state : next) state = draw.state(rule);
  const bool counts = plan->min_others > 0 || plan->max_others != Shape::kEndless;
  draw.call(opened, json_.gap(), next[0]);
  for (size_t i = 0; i < count; ++i) {
    const ObjectPlan::Named& property = plan->named[i];
    std::string quoted = "\"";
    append_json_escaped(quoted, property.name);
    quoted += '"';
    const StateId key = draw.state(rule), behind = draw.state(rule);
    draw.epsilon(next[i], key);
    if (!property.is_required) draw.epsilon(next[i], next[i + 1]);
    draw.call(json_.key(key, quoted), value(property.schemas), behind);
    const StateId comma = draw.state(rule);
    draw.bytes(behind, ',', ',', comma, counts && i + 1 == count ? Counting::kOneMore : Counting::kNone);
    draw.call(comma, json_.gap(), next[i + 1]);
    if (i + 1 >= last_required) draw.epsilon(behind, closing, counts);
  }
  if (plan->others.empty()) return rule;
  // Counted by their commas: the first of all has none before it.
  if (counts) {
    const uint32_t uncounted = count == 0 ? 1 : 0;
    if (plan->max_others < uncounted) return rule;
    draw.count(rule, plan->min_others - std::min(plan->min_others, uncounted),
               plan->max_others == Shape::kEndless ? kNoMaximum : plan->max_others - uncounted);
  }
  const StateId behind = draw.state(rule), comma = draw.state(rule);
  draw_others(*plan, rule, next[count], behind);
  draw.bytes(behind, ',', ',', comma, counts ? Counting::kOneMore : Counting::kNone);
  draw.call(comma, json_.gap(), next[count]);
  draw.epsilon(behind, closing, counts);
  return rule;
}

std::optional<ObjectPlan> SchemaRules::plan(const Shape& shape, Spelling spelling) {
  ObjectPlan plan;
  std::vector<std::string> order;
  std::set<std::string, std::less<>> known;
  const auto add = [&](const std::string& name) {
    if (known.insert(name).second) order.push_back(name);
  };
  for (const Shape::Properties& one : shape.properties)
    if (one.named != nullptr)
      for (const auto& [name, schema] : one.named->members) add(name);
  for (const std::string& name : shape.required) add(name);
  const std::set<std::string_view> required(shape.required.begin(), shape.required.end());
  const std::optional<Dfa> keys = keys_named_by(shape.names, Spelling::kRaw);
  for (const std::string& name : order) {
    const bool is_required = required.contains(name);
    std::optional<Schemas> schemas = reader_.property(shape, name);
    if (keys && !keys->matches(name)) schemas.reset();
    if (schemas)
      plan.named.push_back({name, std::move(*schemas), is_required});
    else if (is_required)
      return std::nullopt;
  }
  if (shape.max_properties > 0) plan.others = plan_others(shape, order, spelling);

  const auto needed = static_cast<uint32_t>(required.size()), most = static_cast<uint32_t>(plan.named.size());
  const uint32_t min = shape.min_properties, max = shape.max_properties;
  if (min > max || needed > max || (plan.others.empty() && min > most)) return std::nullopt;
  if (max == needed) {  // the required ones and no others
    std::erase_if(plan.named, [](const ObjectPlan::Named& one) { return !one.is_required; });
    plan.others.clear();
    return plan;
  }
  if (min <= needed && (max == Shape::kEndless || (plan.others.empty() && max >= most))) return plan;
  if (plan.others.empty() && min == most) {
    for (ObjectPlan::Named& one : plan.named) one.is_required = true;
    return plan;
  }
  if (needed != most || plan.others.empty())
    fail(ErrorKind::kUsage, reader_.path(reader_.root()),
         "minProperties or maxProperties beside properties that may be left out is not supported; rewrite the schema "
         "without");
  plan.min_others = min > needed ? min - needed : 0;
  if (max != Shape::kEndless) plan.max_others = max - needed;
  return plan;
}

// Properties beside those that are named: their keys sorted by the patterns that match.
std::vector<ObjectPlan::Others> SchemaRules::plan_others(const Shape& shape, const std::vector<std::string>& named,
                                                         Spelling spelling) {
  const bool is_open = SchemaReader::is_open(shape);
  const bool has_patterns = std::any_of(shape.properties.begin(), shape.properties.end(),
                                        [](const Shape::Properties& one) { return one.patterned != nullptr; });
  Budget& budget = reader_.budget();
  if (!is_open && !has_patterns) return {};
  const auto is_false = [](const JsonValue& schema) { return schema.is(JsonValue::Kind::kBoolean) && !schema.boolean; };
  if (!has_patterns)
    for (const Shape::Properties& one : shape.properties)
      if (one.additional != nullptr && is_false(*one.additional)) return {};
  struct Class {
    std::optional<Dfa> keys;
    Schemas schemas;
    bool is_covered;
  };
  std::vector<Class> classes = {{keys_named_by(shape.names, spelling), {}, false}};
  // Calls drop white space around a key that is not named.
  if (spelling == Spelling::kRaw && !classes[0].keys)
    classes[0].keys = dfa_of(fmt::format("{0}({1}*{0})?", kNoSpace, kAnything), "keys", Anchoring::kWhole, spelling);
  const auto keys_of = [&](const Class& one) {
    return one.keys ? *one.keys : dfa_of(fmt::format("{}*", kAnything), "keys", Anchoring::kWhole, spelling);
  };
  if (!named.empty()) {
    Nfa nfa(budget);
    const uint32_t start = nfa.state(), end = nfa.state();
    for (const std::string& name : named) nfa.literal(start, spell(name, spelling), end);
    classes[0].keys = subtract(keys_of(classes[0]), nfa.determinize(start, end), budget);
  }
  for (const Shape::Properties& one : shape.properties) {
    std::vector<Class> uncovered = std::move(classes), covered;
    if (one.patterned != nullptr) {
      for (const auto& [pattern, schema] : one.patterned->members) {
        const Dfa matching = dfa_of(pattern, reader_.path(schema), Anchoring::kSearch, spelling);
        std::vector<Class> rest;
        std::vector<Class> more;
        for (std::vector<Class>* from : {&uncovered, &covered}) {
          for (Class& part : *from) {
            const Dfa keys = keys_of(part);
            Class matched{intersect(keys, matching, budget), part.schemas, true};
            matched.schemas.push_back(&schema);
            part.keys = subtract(keys, matching, budget);
            if (!matched.keys->states.empty() && !is_false(schema)) more.push_back(std::move(matched));
            if (!part.keys->states.empty()) (from == &uncovered ? rest : more).push_back(std::move(part));
          }
        }
        uncovered = std::move(rest);
        covered = std::move(more);
        if (covered.size() + uncovered.size() > 64) reader_.refuse(schema, "so many patternProperties that overlap");
      }
    }
    if (one.additional != nullptr && is_false(*one.additional)) uncovered.clear();
    for (Class& part : uncovered)
      if (one.additional != nullptr) part.schemas.push_back(one.additional);
    classes = std::move(covered);
    classes.insert(classes.end(), uncovered.begin(), uncovered.end());
  }
  std::vector<ObjectPlan::Others> out;
  for (Class& one : classes)
    if ((is_open || one.is_covered) && !(one.keys && one.keys->states.empty()))
      out.push_back({std::move(one.keys), std::move(one.schemas)});
  return out;
}

// Keys that propertyNames allows; none if it says nothing.
std::optional<Dfa> SchemaRules::keys_named_by(const Schemas& names, Spelling spelling) {
  if (names.empty()) return std::nullopt;
  Budget& budget = reader_.budget();
  Nfa nfa(budget);
  const uint32_t start = nfa.state(), end = nfa.state();
  for (const Shape& shape : reader_.shapes(names)) {
    if (!shape.admits(Kind::kString) || shape.min_length > shape.max_length) continue;
    if (shape.values) {
      for (const JsonValue* value : admitted_values(shape))
        if (value->is(JsonValue::Kind::kString)) nfa.literal(start, spell(value->text, spelling), end);
    } else {
      nfa.draw(body(shape, spelling), start, end);
    }
  }
  return nfa.determinize(start, end);
}

RuleId SchemaRules::argument(const Schemas& schemas, const ArgumentType& type) {
  const std::vector<Shape> shapes = reader_.shapes(schemas);
  const RuleId rule = builder().rule();
  const StateId start = builder().start(rule), end = builder().state(rule);
  builder().accept(end);
  // Kinds of which every value satisfies the schema: a text that is read as one of them does no harm.
  uint8_t free_kinds = 0;
  for (const Shape& shape : shapes) {
    if (shape.values) continue;
    free_kinds |= shape.kinds & (Kind::kNull | Kind::kBoolean);
    if (!shape.bounds.any()) free_kinds |= shape.kinds & (Kind::kInteger | Kind::kFraction);
    if (shape.says_nothing_about_strings()) free_kinds |= shape.kinds & Kind::kString;
    if (shape.says_nothing_about_arrays()) free_kinds |= shape.kinds & Kind::kArray;
    if (shape.says_nothing_about_objects()) free_kinds |= shape.kinds & Kind::kObject;
  }
  for (const Shape& shape : shapes) draw_argument(shape, type, free_kinds, start, end);
  return rule;
}

void SchemaRules::draw_argument(const Shape& shape, const ArgumentType& type, uint8_t free_kinds, StateId from,
                                StateId to) {
  if (shape.values) {
    std::vector<std::string> texts;
    for (const JsonValue* value : admitted_values(shape)) {
      std::string json, text;
      append_json(json, *value);
      text = value->is(JsonValue::Kind::kString) ? value->text : json;
      if (!equal(parse_json(type.to_json(text), "argument"), *value)) continue;  // read as another value
      if (text.empty())
        builder().epsilon(from, to);
      else
        texts.push_back(std::move(text));
    }
    return builder().literals(from, texts, to);
  }
  Shape others = shape;
  others.kinds &= static_cast<uint8_t>(~Kind::kString);
  uint8_t unread = others.kinds & static_cast<uint8_t>(~type.kinds);
  if ((type.kinds & Kind::kFraction) != 0) unread &= static_cast<uint8_t>(~Kind::kInteger);
  if (unread != 0)
    fail(ErrorKind::kUsage, reader_.path(reader_.root()),
         "an argument of a kind that its declared types do not tell from text is not supported; give it a type");
  // What the parser would read as a kind of which not every value will do must not come out as text.
  auto read_as_json = static_cast<uint8_t>(type.kinds & ~(free_kinds | Kind::kString));
  if (type.kinds == ArgumentType::kUnknown && (free_kinds & Kind::kString) == 0) read_as_json |= Kind::kString;
  const bool any_text = shape.admits(Kind::kString) && read_as_json == 0 && shape.says_nothing_about_strings();
  if (!any_text) draw_shape(others, builder().rule_of(from), from, to);
  if (!shape.admits(Kind::kString) || shape.min_length > shape.max_length) return;
  builder().call(from, raw_string(shape, type, read_as_json), to);
}

RuleId SchemaRules::raw_string(const Shape& shape, const ArgumentType& type, uint8_t read_as_json) {
  if (type.kinds == Kind::kString) read_as_json = 0;
  if (read_as_json == 0 && shape.patterns.empty() && shape.formats.empty())
    return json_.raw_string(shape.min_length, shape.max_length);
  Dfa text = body(shape, Spelling::kRaw);
  std::string excluded;
  const auto exclude = [&](uint8_t kinds, std::string_view what) {
    if ((read_as_json & kinds) == 0) return;
    excluded += excluded.empty() ? "(" : "|";
    excluded += what;
  };
  exclude(Kind::kNull, fmt::format("null{}", kSpace));
  exclude(Kind::kBoolean, fmt::format("(true|false){}", kSpace));
  exclude(Kind::kInteger | Kind::kFraction, fmt::format(R"(-?[0-9]+(\.[0-9]+)?([eE][+\-]?[0-9]+)?{})", kSpace));
  exclude(Kind::kObject, fmt::format(R"(\{{{}*)", kAnything));
  exclude(Kind::kArray, fmt::format(R"(\[{}*)", kAnything));
  exclude(Kind::kString, fmt::format("\"{}*", kAnything));
  if (!excluded.empty())
    text = subtract(text, dfa_of(fmt::format("{}{})", kSpace, excluded), "argument", Anchoring::kWhole, Spelling::kRaw),
                    reader_.budget());
  return builder().rule_of(text);
}

}  // namespace verbatim::text
