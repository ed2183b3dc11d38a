// A grammar as automata over bytes and tags that call each other: one automaton a rule, so that JSON may nest without
// bound.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/grammar/budget.h"

namespace verbatim::text {

struct Dfa;

using StateId = uint32_t;
using RuleId = uint32_t;

// A rule may count: items of an array, characters of a string.
enum class Counting : uint8_t {
  kNone,
  kOneMore,  // takes the edge only while the count is below the rule's maximum, and adds one
  kEnough,   // takes the edge only if the count has reached the rule's minimum
};

struct ByteEdge {
  uint8_t first, last;
  Counting counting;
  StateId target;
};
struct EpsilonEdge {
  StateId target;
  bool if_enough;  // only if the count has reached the rule's minimum
};
struct CallEdge {
  RuleId rule;
  StateId target;  // behind the call
};
struct TokenEdge {
  int32_t token;
  StateId target;
};

inline constexpr uint32_t kNoMaximum = std::numeric_limits<uint32_t>::max();

struct Rule {
  StateId start = 0;
  uint32_t min_count = 0;
  uint32_t max_count = kNoMaximum;
  bool is_nullable = false;  // matches the empty text
  bool is_followed = false;  // somewhere text, and not only a tag or the end, may come right behind it
};

// Every state lies on some way to acceptance (of its rule), so that whatever was matched can be completed. No rule can
// come to call itself before it has matched anything.
class Automaton {
 public:
  enum class Accept : uint8_t { kNo, kYes, kIfEnough };

  RuleId root() const { return root_; }
  const Rule& rule(RuleId rule) const { return rules_[rule]; }
  size_t rules() const { return rules_.size(); }
  size_t states() const { return states_.size() - 1; }

  RuleId rule_of(StateId state) const { return states_[state].rule; }
  Accept accept(StateId state) const { return states_[state].accept; }
  // Only byte edges: nothing to do on arrival.
  bool is_plain(StateId state) const { return states_[state].is_plain; }
  std::span<const ByteEdge> bytes(StateId s) const {  // ascending and disjoint
    return {bytes_.data() + states_[s].bytes, bytes_.data() + states_[s + 1].bytes};
  }
  std::span<const EpsilonEdge> epsilons(StateId s) const {
    return {epsilons_.data() + states_[s].epsilons, epsilons_.data() + states_[s + 1].epsilons};
  }
  std::span<const CallEdge> calls(StateId s) const {
    return {calls_.data() + states_[s].calls, calls_.data() + states_[s + 1].calls};
  }
  std::span<const TokenEdge> tokens(StateId s) const {
    return {tokens_.data() + states_[s].tokens, tokens_.data() + states_[s + 1].tokens};
  }

 private:
  friend class AutomatonBuilder;
  struct State {
    uint32_t bytes = 0, epsilons = 0, calls = 0, tokens = 0;  // where its edges begin
    RuleId rule = 0;
    Accept accept = Accept::kNo;
    bool is_plain = false;
  };
  RuleId root_ = 0;
  std::vector<Rule> rules_;
  std::vector<State> states_;  // and one behind the last
  std::vector<ByteEdge> bytes_;
  std::vector<EpsilonEdge> epsilons_;
  std::vector<CallEdge> calls_;
  std::vector<TokenEdge> tokens_;
};

// Draws the automata: functions add ways from one state to another.
class AutomatonBuilder {
 public:
  explicit AutomatonBuilder(Budget& budget) : budget_(budget) {}

  RuleId rule();  // with its start state
  StateId start(RuleId rule) const { return rules_[rule].start; }
  void count(RuleId rule, uint32_t minimum, uint32_t maximum);
  StateId state(RuleId rule);

  void epsilon(StateId from, StateId to, bool if_enough = false) { states_[from].epsilons.push_back({to, if_enough}); }
  void bytes(StateId from, uint8_t first, uint8_t last, StateId to, Counting counting = Counting::kNone) {
    states_[from].bytes.push_back({first, last, counting, to});
  }
  void call(StateId from, RuleId rule, StateId to) { states_[from].calls.push_back({rule, to}); }
  void token(StateId from, int32_t id, StateId to) { states_[from].tokens.push_back({id, to}); }
  void accept(StateId state, Automaton::Accept how = Automaton::Accept::kYes) { states_[state].accept = how; }

  // The text, from `from` to `to` or to a new state, which is returned.
  StateId literal(StateId from, std::string_view text);
  void literal(StateId from, std::string_view text, StateId to);
  // Any of the texts, common beginnings drawn once. Returns the states behind each of them.
  std::vector<StateId> literals(StateId from, std::span<const std::string> texts);
  void literals(StateId from, std::span<const std::string> texts, StateId to);
  // The DFA's states as those of a new rule, or drawn between two states.
  RuleId rule_of(const Dfa& dfa);
  RuleId rule_of(StateId state) const { return states_[state].rule; }
  void draw(const Dfa& dfa, StateId from, StateId to);

  // Throws Error(kUsage) if nothing can satisfy `root`, or if a rule calls itself before it has matched anything.
  Automaton finish(RuleId root);

  Budget& budget() { return budget_; }

 private:
  struct State {
    RuleId rule;
    Automaton::Accept accept = Automaton::Accept::kNo;
    std::vector<ByteEdge> bytes;
    std::vector<EpsilonEdge> epsilons;
    std::vector<CallEdge> calls;
    std::vector<TokenEdge> tokens;
  };
  void find_nullable();
  void find_followed();
  std::vector<bool> find_productive() const;
  std::vector<bool> find_counting(const std::vector<bool>& productive) const;
  void refuse_left_recursion(RuleId root) const;
  void separate_overlaps();

  Budget& budget_;
  std::vector<Rule> rules_;
  std::vector<State> states_;
};

}  // namespace verbatim::text
