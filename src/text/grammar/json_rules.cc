#include "text/grammar/json_rules.h"

#include <string>
#include <vector>

namespace verbatim::text {
namespace {

// One character as a JSON string may spell it. Lone surrogates are left out: they are no text.
Dfa json_character(Budget& budget) {
  Nfa nfa(budget);
  const uint32_t start = nfa.state(), end = nfa.state();
  nfa.characters(start, CodePoints{{0, 0x1F}, {'"', '"'}, {'\\', '\\'}}.complement(), end);
  const uint32_t escape = nfa.state();
  nfa.bytes(start, '\\', '\\', escape);
  for (const char c : std::string_view("\"\\/bfnrt"))
    nfa.bytes(escape, static_cast<uint8_t>(c), static_cast<uint8_t>(c), end);
  const auto any_of = [&](uint32_t from, std::string_view characters, uint32_t to) {
    for (const char c : characters) nfa.bytes(from, static_cast<uint8_t>(c), static_cast<uint8_t>(c), to);
  };
  constexpr std::string_view kHex = "0123456789abcdefABCDEF";
  const auto hex = [&](uint32_t from, int digits, uint32_t to) {
    for (int i = 0; i < digits; ++i) {
      const uint32_t next = i + 1 == digits ? to : nfa.state();
      any_of(from, kHex, next);
      from = next;
    }
  };
  const uint32_t unicode = nfa.state(), three = nfa.state(), after_d = nfa.state();
  nfa.bytes(escape, 'u', 'u', unicode);
  any_of(unicode, "0123456789abcefABCEF", three);
  hex(three, 3, end);
  any_of(unicode, "dD", after_d);
  const uint32_t two = nfa.state(), high = nfa.state();
  any_of(after_d, "01234567", two);
  hex(two, 2, end);
  any_of(after_d, "89abAB", high);
  const uint32_t low = nfa.state(), low_d = nfa.state(), low_two = nfa.state(), low_u = nfa.state();
  hex(high, 2, low);
  const uint32_t slash = nfa.state();
  nfa.epsilon(low, slash);
  nfa.bytes(slash, '\\', '\\', low_u);
  const uint32_t u = nfa.state();
  nfa.bytes(low_u, 'u', 'u', u);
  any_of(u, "dD", low_d);
  any_of(low_d, "cdefCDEF", low_two);
  hex(low_two, 2, end);
  return nfa.determinize(start, end);
}

Dfa raw_character(Budget& budget) {
  Nfa nfa(budget);
  const uint32_t start = nfa.state(), end = nfa.state();
  nfa.characters(start, CodePoints::all(), end);
  return nfa.determinize(start, end);
}

}  // namespace

RuleId JsonRules::counted_string(Spelling spelling, uint32_t minimum, uint32_t maximum) {
  const bool is_json = spelling == Spelling::kJson;
  const Dfa character = is_json ? json_character(budget()) : raw_character(budget());
  const RuleId rule = builder_.rule();
  builder_.count(rule, minimum, maximum);
  const bool counts = minimum > 0 || maximum != kNoMaximum;
  const StateId start = builder_.start(rule);
  StateId loop = start;
  if (is_json) {
    loop = builder_.state(rule);
    const StateId end = builder_.state(rule);
    builder_.bytes(start, '"', '"', loop);
    builder_.bytes(loop, '"', '"', end, counts ? Counting::kEnough : Counting::kNone);
    builder_.accept(end);
  } else {
    builder_.accept(loop, counts ? Automaton::Accept::kIfEnough : Automaton::Accept::kYes);
  }
  // The character's last byte leads back to `loop`; its first one counts.
  std::vector<StateId> states(character.states.size(), loop);
  for (size_t i = 1; i < states.size(); ++i)
    if (!character.states[i].accepts) states[i] = builder_.state(rule);
  for (size_t i = 0; i < states.size(); ++i)
    for (const DfaEdge& edge : character.states[i].edges)
      builder_.bytes(states[i], edge.first, edge.last, states[edge.target],
                     counts && i == 0 ? Counting::kOneMore : Counting::kNone);
  return rule;
}

RuleId JsonRules::string(uint32_t minimum, uint32_t maximum) {
  const auto [place, is_new] = strings_.try_emplace({minimum, maximum}, 0);
  if (is_new) place->second = counted_string(Spelling::kJson, minimum, maximum);
  return place->second;
}

RuleId JsonRules::raw_string(uint32_t minimum, uint32_t maximum) {
  const auto [place, is_new] = raw_strings_.try_emplace({minimum, maximum}, 0);
  if (is_new) place->second = counted_string(Spelling::kRaw, minimum, maximum);
  return place->second;
}

RuleId JsonRules::string_of(const Dfa& body) {
  const RuleId rule = builder_.rule();
  const StateId begin = builder_.literal(builder_.start(rule), "\""), end = builder_.state(rule);
  builder_.draw(body, begin, end);
  builder_.accept(builder_.literal(end, "\""));
  return rule;
}

RuleId JsonRules::regex_rule(Once what, std::string_view pattern) {
  std::optional<RuleId>& rule = once(what);
  if (!rule)
    rule = builder_.rule_of(
        regex_dfa(parse_regex(pattern, "JSON", budget()), Anchoring::kWhole, Spelling::kRaw, budget()));
  return *rule;
}

RuleId JsonRules::integer() { return regex_rule(Once::kInteger, "0|-?[1-9][0-9]{0,19}"); }

RuleId JsonRules::number() {
  return regex_rule(Once::kNumber, R"(-?(0|[1-9][0-9]{0,19})(\.[0-9]{1,20})?([eE][+\-]?[0-9]{1,2})?)");
}

RuleId JsonRules::boolean() { return regex_rule(Once::kBoolean, "true|false"); }

RuleId JsonRules::gap() {
  std::optional<RuleId>& rule = once(Once::kGap);
  if (rule) return *rule;
  rule = builder_.rule();
  builder_.count(*rule, 0, kMaxIndent);
  const StateId start = builder_.start(*rule), line = builder_.state(*rule), space = builder_.state(*rule);
  builder_.accept(start);
  builder_.accept(line);
  builder_.accept(space);
  builder_.bytes(start, ' ', ' ', space);
  builder_.bytes(start, '\n', '\n', line);
  builder_.bytes(line, ' ', ' ', line, Counting::kOneMore);
  return *rule;
}

StateId JsonRules::colon(StateId from) {
  const StateId behind = builder_.literal(from, ":");
  const StateId value = builder_.literal(behind, " ");
  builder_.epsilon(behind, value);
  return value;
}

StateId JsonRules::key(StateId from, std::string_view key) { return colon(builder_.literal(from, key)); }

void JsonRules::draw_members(RuleId rule, StateId from, char open, char close, StateId to, bool is_object) {
  const StateId opened = builder_.literal(from, {&open, 1});
  const StateId member = builder_.state(rule), behind = builder_.state(rule);
  builder_.literal(opened, {&close, 1}, to);
  builder_.call(opened, gap(), member);
  StateId begin = member;
  if (is_object) {
    const StateId key = builder_.state(rule);
    builder_.call(member, string(), key);
    begin = colon(key);
  }
  builder_.call(begin, value(), behind);
  builder_.call(builder_.literal(behind, ","), gap(), member);
  const StateId last = builder_.state(rule);
  builder_.call(behind, gap(), last);
  builder_.literal(last, {&close, 1}, to);
}

RuleId JsonRules::object() {
  std::optional<RuleId>& rule = once(Once::kObject);
  if (rule) return *rule;
  rule = builder_.rule();
  const StateId end = builder_.state(*rule);
  builder_.accept(end);
  draw_members(*rule, builder_.start(*rule), '{', '}', end, true);
  return *rule;
}

RuleId JsonRules::array() {
  std::optional<RuleId>& rule = once(Once::kArray);
  if (rule) return *rule;
  rule = builder_.rule();
  const StateId end = builder_.state(*rule);
  builder_.accept(end);
  draw_members(*rule, builder_.start(*rule), '[', ']', end, false);
  return *rule;
}

RuleId JsonRules::value() {
  std::optional<RuleId>& rule = once(Once::kValue);
  if (rule) return *rule;
  rule = builder_.rule();
  const StateId start = builder_.start(*rule), end = builder_.state(*rule);
  builder_.accept(end);
  for (const RuleId kind : {object(), array(), string(), number(), boolean()}) builder_.call(start, kind, end);
  builder_.literal(start, "null", end);
  return *rule;
}

}  // namespace verbatim::text
