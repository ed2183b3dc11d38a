// Draws JSON schemas as automata.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "text/grammar/json_rules.h"
#include "text/grammar/schema_shape.h"

namespace verbatim::text {

// The properties of an object in the order in which they are written.
struct ObjectPlan {
  struct Named {
    std::string name;
    Schemas schemas;
    bool is_required;
  };
  struct Others {
    std::optional<Dfa> keys;  // in the plan's spelling; none: any
    Schemas schemas;
  };
  std::vector<Named> named;
  std::vector<Others> others;  // behind the named ones, any number of each
  uint32_t min_others = 0, max_others = Shape::kEndless;
};

class SchemaRules {
 public:
  SchemaRules(SchemaReader& reader, JsonRules& json) : reader_(reader), json_(json) {}

  // The rule of a JSON value that satisfies all of the schemas. It is drawn by draw_all().
  RuleId value(const Schemas& schemas);
  void draw_all();

  // An argument of a tool call, in a rule of its own: strings as they are, other values as JSON. `type` says how
  // ReplyParser reads it. Throws Error(kUsage) for what it would read as something else.
  RuleId argument(const Schemas& schemas, const ArgumentType& type);

  // None if there is no such object. Throws Error(kUsage) for limits on the number of properties that it cannot follow.
  std::optional<ObjectPlan> plan(const Shape& shape, Spelling spelling);

  AutomatonBuilder& builder() { return json_.builder(); }
  SchemaReader& reader() { return reader_; }

 private:
  struct Task {
    RuleId rule;
    Schemas schemas;
  };
  void draw(RuleId rule, const Schemas& schemas);
  void draw_shape(const Shape& shape, RuleId rule, StateId from, StateId to);
  void draw_values(const Shape& shape, StateId from, StateId to);
  RuleId number(const Shape& shape);
  RuleId string(const Shape& shape);
  RuleId array(const Shape& shape);
  RuleId object(const Shape& shape);
  void draw_others(const ObjectPlan& plan, RuleId rule, StateId from, StateId to);
  Dfa body(const Shape& shape, Spelling spelling);
  std::optional<Dfa> keys_named_by(const Schemas& names, Spelling spelling);
  std::vector<ObjectPlan::Others> plan_others(const Shape& shape, const std::vector<std::string>& named,
                                              Spelling spelling);
  std::vector<const JsonValue*> admitted_values(const Shape& shape);
  RuleId raw_string(const Shape& shape, const ArgumentType& type, uint8_t read_as_json);
  void draw_argument(const Shape& shape, const ArgumentType& type, uint8_t free_kinds, StateId from, StateId to);
  Dfa dfa_of(std::string_view pattern, const std::string& where, Anchoring anchoring, Spelling spelling);
  RuleId nothing() { return json_.builder().rule(); }  // matches nothing

  SchemaReader& reader_;
  JsonRules& json_;
  std::map<Schemas, RuleId> rules_;  // by the schemas, sorted
  std::vector<Task> tasks_;
  std::map<std::string, RuleId> strings_;  // by what limits them
};

}  // namespace verbatim::text
