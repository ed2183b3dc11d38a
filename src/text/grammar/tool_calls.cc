// Tool calls as grammars, and schemas of whole replies.
#include <algorithm>
#include <optional>

#include "base/error.h"
#include "text/grammar/grammar.h"
#include "text/grammar/schema_rules.h"
#include "text/utf8.h"

namespace verbatim::text {
namespace {

constexpr size_t kMaxCalls = 64;

class CallDrawer {
 public:
  CallDrawer(const TokenTable& tokens, const std::vector<OfferedTool>& offered, JsonRules& json)
      : tokens_(tokens), offered_(offered), tools_(offered), json_(json), builder_(json.builder()) {}

  // Of the tools at these indices.
  RuleId call(const std::vector<size_t>& chosen) {
    const RuleId rule = builder_.rule();
    const StateId begun = builder_.state(rule), end = builder_.state(rule);
    builder_.accept(end);
    builder_.token(builder_.start(rule), tokens_.tag(ReplyTag::kCallBegin), begun);
    std::vector<std::string> names;
    names.reserve(chosen.size());
    for (const size_t tool : chosen) names.push_back(offered_[tool].name);
    const std::vector<StateId> named = builder_.literals(begun, names);
    const StateId closing = builder_.state(rule);
    builder_.token(closing, tokens_.tag(ReplyTag::kCallEnd), end);
    for (size_t i = 0; i < chosen.size(); ++i) draw_arguments(chosen[i], named[i], closing);
    return rule;
  }

 private:
  StateId tag(StateId from, ReplyTag tag) {
    const StateId to = builder_.state(builder_.rule_of(from));
    builder_.token(from, tokens_.tag(tag), to);
    return to;
  }

  void draw_arguments(size_t tool, StateId from, StateId to) {
    const OfferedTool& offered = offered_[tool];
    const std::string where = "tool '" + offered.name + "'";
    std::optional<JsonValue> schema;
    if (!offered.parameters.empty()) schema = parse_json(offered.parameters, where);
    if (!schema || schema->is(JsonValue::Kind::kNull)) return builder_.epsilon(from, to);
    SchemaReader reader(*schema, where, json_.budget());
    SchemaRules rules(reader, json_);
    for (const Shape& shape : reader.shapes({&*schema})) {
      if (!shape.admits(ArgumentType::kObject)) continue;
      if (shape.values) reader.refuse(*schema, "enum or const of all arguments");
      if (const std::optional<ObjectPlan> plan = rules.plan(shape, Spelling::kRaw))
        draw_plan(*plan, tool, rules, from, to);
    }
    rules.draw_all();
  }

  void draw_plan(const ObjectPlan& plan, size_t tool, SchemaRules& rules, StateId from, StateId to) {
    SchemaReader& reader = rules.reader();
    if (plan.min_others > 0 || plan.max_others != Shape::kEndless)
      reader.refuse(reader.root(), "minProperties or maxProperties of arguments that are not named");
    const RuleId rule = builder_.rule_of(from);
    StateId at = builder_.state(rule);
    builder_.epsilon(from, at);
    for (const ObjectPlan::Named& one : plan.named) {
      if (!tools_.declares(tool, one.name) &&
          (one.name.empty() || is_space(one.name.front()) || is_space(one.name.back())))
        reader.refuse(reader.root(), "an argument whose name begins or ends with white space");
      const StateId next = builder_.state(rule);
      const StateId key = builder_.literal(tag(at, ReplyTag::kKeyBegin), one.name);
      draw_value(rules.argument(one.schemas, tools_.type(tool, one.name)), key, next);
      if (!one.is_required) builder_.epsilon(at, next);
      at = next;
    }
    builder_.epsilon(at, to);
    std::string undeclared = "x";
    while (tools_.declares(tool, undeclared)) undeclared += 'x';
    for (const ObjectPlan::Others& others : plan.others) {
      const StateId key = builder_.state(rule);
      builder_.call(tag(at, ReplyTag::kKeyBegin), builder_.rule_of(*others.keys), key);
      draw_value(rules.argument(others.schemas, tools_.type(tool, undeclared)), key, at);
    }
  }

  void draw_value(RuleId value, StateId from, StateId to) {
    const StateId begun = tag(tag(from, ReplyTag::kKeyEnd), ReplyTag::kValueBegin);
    const StateId behind = builder_.state(builder_.rule_of(from));
    builder_.call(begun, value, behind);
    builder_.token(behind, tokens_.tag(ReplyTag::kValueEnd), to);
  }

  static bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

  const TokenTable& tokens_;
  const std::vector<OfferedTool>& offered_;
  const ToolSet tools_;
  JsonRules& json_;
  AutomatonBuilder& builder_;
};

}  // namespace

GrammarPointer compile_json_schema(TokenTablePointer tokens, std::string_view schema, const GrammarLimits& limits) {
  Budget budget(limits);
  budget.bytes(schema.size(), "a schema");
  const JsonValue root = parse_json(schema, "schema");
  AutomatonBuilder builder(budget);
  JsonRules json(builder);
  SchemaReader reader(root, "schema", budget);
  SchemaRules rules(reader, json);
  const RuleId rule = rules.value({&root});
  rules.draw_all();
  return std::make_shared<const Grammar>(std::move(tokens), builder.finish(rule));
}

GrammarPointer compile_tool_calls(TokenTablePointer tokens, const std::vector<OfferedTool>& tools,
                                  const ToolCallOptions& options, const GrammarLimits& limits) {
  for (const ReplyTag tag : {ReplyTag::kCallBegin, ReplyTag::kCallEnd, ReplyTag::kKeyBegin, ReplyTag::kKeyEnd,
                             ReplyTag::kValueBegin, ReplyTag::kValueEnd})
    if (tokens->tag(tag) < 0)
      fail(ErrorKind::kUnsupported, "tools", "the tokenizer has no added token {}; tool calls are made of it",
           kReplyTagText[static_cast<size_t>(tag)]);
  Budget budget(limits);
  size_t bytes = 0;
  std::vector<size_t> chosen;
  for (size_t i = 0; i < tools.size(); ++i) {
    bytes += tools[i].name.size() + tools[i].parameters.size();
    const std::string& name = tools[i].name;
    if (valid_utf8_bytes(name, 0) != name.size() || name.find_first_of(" \t\n\v\f\r") != std::string::npos)
      fail(ErrorKind::kUsage, "tools", "the name of tool {} holds white space or is not UTF-8; use letters and digits",
           i);
    if (options.named.empty() || options.named == name) chosen.push_back(i);
  }
  budget.bytes(bytes, "tools");
  if (tools.empty()) fail(ErrorKind::kUsage, "tools", "a call is required and no tools are offered; offer some");
  if (chosen.empty()) fail(ErrorKind::kUsage, "tools", "the tool '{}' is not offered; name one that is", options.named);
  if (options.min_calls == 0 || options.min_calls > kMaxCalls || options.max_calls > kMaxCalls ||
      (options.max_calls > 0 && options.max_calls < options.min_calls))
    fail(ErrorKind::kUsage, "tools", "from {} to {} calls; expected at least 1 and at most {}", options.min_calls,
         options.max_calls, kMaxCalls);
  AutomatonBuilder builder(budget);
  JsonRules json(builder);
  CallDrawer drawer(*tokens, tools, json);
  const RuleId call = drawer.call(chosen);
  const RuleId root = builder.rule();
  StateId at = builder.start(root);
  for (size_t i = 1; i <= std::max(options.min_calls, options.max_calls); ++i) {
    const StateId behind = builder.state(root);
    builder.call(at, call, behind);
    if (i >= options.min_calls) builder.accept(behind);
    at = behind;
  }
  if (options.max_calls == 0) builder.call(at, call, at);
  return std::make_shared<const Grammar>(std::move(tokens), builder.finish(root));
}

}  // namespace verbatim::text
