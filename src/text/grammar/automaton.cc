#include "text/grammar/automaton.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "text/grammar/dfa.h"

namespace verbatim::text {

RuleId AutomatonBuilder::rule() {
  const auto id = static_cast<RuleId>(rules_.size());
  rules_.emplace_back();
  rules_.back().start = state(id);
  return id;
}

void AutomatonBuilder::count(RuleId rule, uint32_t minimum, uint32_t maximum) {
  rules_[rule].min_count = minimum;
  rules_[rule].max_count = maximum;
}

StateId AutomatonBuilder::state(RuleId rule) {
  budget_.states(1);
  State made;
  made.rule = rule;
  states_.push_back(std::move(made));
  return static_cast<StateId>(states_.size() - 1);
}

StateId AutomatonBuilder::literal(StateId from, std::string_view text) {
  for (const char c : text) {
    const StateId next = state(states_[from].rule);
    bytes(from, static_cast<uint8_t>(c), static_cast<uint8_t>(c), next);
    from = next;
  }
  return from;
}

void AutomatonBuilder::literal(StateId from, std::string_view text, StateId to) {
  if (text.empty()) return epsilon(from, to);
  from = literal(from, text.substr(0, text.size() - 1));
  bytes(from, static_cast<uint8_t>(text.back()), static_cast<uint8_t>(text.back()), to);
}

std::vector<StateId> AutomatonBuilder::literals(StateId from, std::span<const std::string> texts) {
  std::vector<uint32_t> sorted(texts.size());
  std::iota(sorted.begin(), sorted.end(), 0U);
  std::sort(sorted.begin(), sorted.end(), [&](uint32_t a, uint32_t b) { return texts[a] < texts[b]; });
  std::vector<StateId> ends(texts.size());
  std::vector<StateId> path = {state(states_[from].rule)};  // path[i]: behind i bytes of the text before
  epsilon(from, path[0]);
  std::string_view before;
  for (const uint32_t index : sorted) {
    const std::string_view text = texts[index];
    const auto common = static_cast<size_t>(
        std::mismatch(before.begin(), before.end(), text.begin(), text.end()).first - before.begin());
    path.resize(common + 1);
    for (size_t i = common; i < text.size(); ++i) path.push_back(literal(path[i], text.substr(i, 1)));
    ends[index] = path.back();
    before = text;
  }
  return ends;
}

void AutomatonBuilder::literals(StateId from, std::span<const std::string> texts, StateId to) {
  for (const StateId end : literals(from, texts)) epsilon(end, to);
}

RuleId AutomatonBuilder::rule_of(const Dfa& dfa) {
  const RuleId id = rule();
  const StateId end = state(id);
  accept(end);
  draw(dfa, start(id), end);
  return id;
}

void AutomatonBuilder::draw(const Dfa& dfa, StateId from, StateId to) {
  const auto base = static_cast<StateId>(states_.size());
  for (size_t i = 0; i < dfa.states.size(); ++i) state(states_[from].rule);
  for (size_t i = 0; i < dfa.states.size(); ++i) {
    const auto at = base + static_cast<StateId>(i);
    for (const DfaEdge& edge : dfa.states[i].edges) bytes(at, edge.first, edge.last, base + edge.target);
    if (dfa.states[i].accepts) epsilon(at, to);
  }
  if (!dfa.states.empty()) epsilon(from, base);
}

// By rule: whether it can count as far as it must. It can if some edge that counts lies on a loop.
std::vector<bool> AutomatonBuilder::find_counting(const std::vector<bool>& productive) const {
  std::vector<bool> counting(rules_.size());
  for (RuleId r = 0; r < rules_.size(); ++r) counting[r] = rules_[r].min_count == 0;
  std::vector<uint32_t> seen(states_.size(), 0);
  uint32_t round = 0;
  for (StateId s = 0; s < states_.size(); ++s) {
    for (const ByteEdge& first : states_[s].bytes) {
      if (first.counting != Counting::kOneMore || counting[states_[s].rule]) continue;
      std::vector<StateId> reached = {first.target};
      seen[first.target] = ++round;
      for (size_t i = 0; i < reached.size(); ++i) {
        const State& state = states_[reached[i]];
        budget_.work(4);
        const auto reach = [&](StateId target) {
          if (std::exchange(seen[target], round) != round) reached.push_back(target);
        };
        for (const ByteEdge& edge : state.bytes) reach(edge.target);
        for (const EpsilonEdge& edge : state.epsilons) reach(edge.target);
        for (const TokenEdge& edge : state.tokens) reach(edge.target);
        for (const CallEdge& call : state.calls)
          if (productive[rules_[call.rule].start]) reach(call.target);
      }
      if (seen[s] == round) counting[states_[s].rule] = true;
    }
  }
  return counting;
}

// States from which their rule can be completed.
std::vector<bool> AutomatonBuilder::find_productive() const {
  std::vector<std::vector<StateId>> before(states_.size());
  std::vector<std::vector<CallEdge>> calls_before(states_.size());  // target: the calling state
  std::vector<std::vector<StateId>> waiting(rules_.size());         // productive as soon as the rule is
  std::vector<std::vector<RuleId>> starts(states_.size());
  std::vector<bool> productive(states_.size());
  // What may be passed only after counting, of rules that must count and are not yet known to be able to.
  std::vector<std::vector<StateId>> enough_before(states_.size());
  std::vector<StateId> enough_accepts;
  std::vector<bool> counting(rules_.size());
  for (RuleId r = 0; r < rules_.size(); ++r) counting[r] = rules_[r].min_count == 0;
  const auto waits = [&](StateId state, bool if_enough) { return if_enough && !counting[states_[state].rule]; };
  std::vector<StateId> work;
  const auto mark = [&](StateId state) {
    if (productive[state]) return;
    productive[state] = true;
    work.push_back(state);
  };
  for (StateId s = 0; s < states_.size(); ++s) {
    for (const ByteEdge& edge : states_[s].bytes)
      (waits(s, edge.counting == Counting::kEnough) ? enough_before : before)[edge.target].push_back(s);
    for (const EpsilonEdge& edge : states_[s].epsilons)
      (waits(s, edge.if_enough) ? enough_before : before)[edge.target].push_back(s);
    for (const TokenEdge& edge : states_[s].tokens) before[edge.target].push_back(s);
    for (const CallEdge& edge : states_[s].calls) calls_before[edge.target].push_back({edge.rule, s});
    if (waits(s, states_[s].accept == Automaton::Accept::kIfEnough))
      enough_accepts.push_back(s);
    else if (states_[s].accept != Automaton::Accept::kNo)
      mark(s);
  }
  for (RuleId r = 0; r < rules_.size(); ++r) starts[rules_[r].start].push_back(r);
  while (true) {
    if (work.empty()) {
      std::vector<bool> found = find_counting(productive);
      if (found == counting) return productive;
      counting = std::move(found);
      for (const StateId state : enough_accepts)
        if (counting[states_[state].rule]) mark(state);
      for (StateId target = 0; target < states_.size(); ++target)
        for (const StateId from : enough_before[target])
          if (productive[target] && counting[states_[from].rule]) mark(from);
      continue;
    }
    const StateId state = work.back();
    work.pop_back();
    budget_.work(8);
    for (const StateId from : before[state]) mark(from);
    for (const StateId from : enough_before[state])
      if (counting[states_[from].rule]) mark(from);
    for (const CallEdge& call : calls_before[state]) {
      if (productive[rules_[call.rule].start])
        mark(call.target);
      else
        waiting[call.rule].push_back(call.target);
    }
    for (const RuleId rule : starts[state])
      for (const StateId from : waiting[rule]) mark(from);
  }
}

void AutomatonBuilder::find_nullable() {
  std::vector<StateId> reached;
  std::vector<uint32_t> seen(states_.size(), 0);
  uint32_t round = 0;
  for (bool changed = true; changed;) {
    changed = false;
    for (Rule& rule : rules_) {
      if (rule.is_nullable) continue;
      reached.assign(1, rule.start);
      seen[rule.start] = ++round;
      for (size_t i = 0; i < reached.size(); ++i) {
        const State& state = states_[reached[i]];
        budget_.work(1);
        if (state.accept == Automaton::Accept::kYes ||
            (state.accept == Automaton::Accept::kIfEnough && rule.min_count == 0))
          rule.is_nullable = changed = true;
        const auto reach = [&](StateId target) {
          if (std::exchange(seen[target], round) != round) reached.push_back(target);
        };
        for (const EpsilonEdge& edge : state.epsilons)
          if (!edge.if_enough || rule.min_count == 0) reach(edge.target);
        for (const CallEdge& call : state.calls)
          if (rules_[call.rule].is_nullable) reach(call.target);
      }
    }
  }
}

void AutomatonBuilder::find_followed() {
  std::vector<StateId> reached;
  std::vector<uint32_t> seen(states_.size(), 0);
  uint32_t round = 0;
  for (bool changed = true; changed;) {
    changed = false;
    for (const State& caller : states_) {
      for (const CallEdge& call : caller.calls) {
        Rule& rule = rules_[call.rule];
        if (rule.is_followed) continue;
        reached.assign(1, call.target);
        seen[call.target] = ++round;
        for (size_t i = 0; i < reached.size() && !rule.is_followed; ++i) {
          const State& state = states_[reached[i]];
          budget_.work(1);
          rule.is_followed = !state.bytes.empty() || !state.calls.empty() ||
                             (state.accept != Automaton::Accept::kNo && rules_[state.rule].is_followed);
          for (const EpsilonEdge& edge : state.epsilons)
            if (std::exchange(seen[edge.target], round) != round) reached.push_back(edge.target);
        }
        changed = changed || rule.is_followed;
      }
    }
  }
}

void AutomatonBuilder::refuse_left_recursion(RuleId root) const {
  std::vector<uint32_t> seen(states_.size(), 0);
  uint32_t round = 0;
  // Rules that `rule` may call before it has matched anything.
  const auto first_calls = [&](RuleId rule) {
    std::vector<RuleId> found;
    std::vector<StateId> reached = {rules_[rule].start};
    seen[rules_[rule].start] = ++round;
    for (size_t i = 0; i < reached.size(); ++i) {
      const State& state = states_[reached[i]];
      budget_.work(4);
      const auto reach = [&](StateId target) {
        if (std::exchange(seen[target], round) != round) reached.push_back(target);
      };
      for (const EpsilonEdge& edge : state.epsilons) reach(edge.target);
      for (const CallEdge& call : state.calls) {
        found.push_back(call.rule);
        if (rules_[call.rule].is_nullable) reach(call.target);
      }
    }
    return found;
  };
  struct Visit {
    RuleId rule;
    std::vector<RuleId> calls;
    size_t next = 0;
  };
  enum class Mark : uint8_t { kNew, kOpen, kDone };
  std::vector<Mark> marks(rules_.size(), Mark::kNew);
  for (RuleId first = 0; first <= rules_.size(); ++first) {
    const RuleId from = first == 0 ? root : first - 1;
    if (marks[from] != Mark::kNew) continue;
    std::vector<Visit> path;
    path.push_back({from, first_calls(from)});
    marks[from] = Mark::kOpen;
    while (!path.empty()) {
      Visit& visit = path.back();
      if (visit.next == visit.calls.size()) {
        marks[visit.rule] = Mark::kDone;
        path.pop_back();
        continue;
      }
      const RuleId called = visit.calls[visit.next++];
      if (marks[called] == Mark::kOpen)
        fail(ErrorKind::kUsage, "structured output",
             "a schema that leads back to itself with nothing in between ($ref to itself); remove the cycle");
      if (marks[called] == Mark::kDone) continue;
      marks[called] = Mark::kOpen;
      path.push_back({called, first_calls(called)});
    }
  }
}

// One way a byte: what overlaps gets a state of its own.
void AutomatonBuilder::separate_overlaps() {
  for (StateId s = 0; s < states_.size(); ++s) {
    std::vector<ByteEdge> edges = std::move(states_[s].bytes);
    std::sort(edges.begin(), edges.end(), [](const ByteEdge& a, const ByteEdge& b) { return a.first < b.first; });
    std::vector<ByteEdge> kept, moved;
    for (const ByteEdge& edge : edges) (kept.empty() || kept.back().last < edge.first ? kept : moved).push_back(edge);
    states_[s].bytes = std::move(kept);
    if (moved.empty()) continue;
    const StateId other = state(states_[s].rule);  // behind s: it is looked at in its turn
    states_[other].bytes = std::move(moved);
    epsilon(s, other);
  }
}

Automaton AutomatonBuilder::finish(RuleId root) {
  separate_overlaps();
  const std::vector<bool> productive = find_productive();
  if (!productive[rules_[root].start])
    fail(ErrorKind::kUsage, "structured output",
         "nothing can satisfy the schema; look for limits that exclude each other, false, or endless required nesting");
  for (State& state : states_) {
    std::erase_if(state.bytes, [&](const ByteEdge& edge) { return !productive[edge.target]; });
    std::erase_if(state.epsilons, [&](const EpsilonEdge& edge) { return !productive[edge.target]; });
    std::erase_if(state.tokens, [&](const TokenEdge& edge) { return !productive[edge.target]; });
    std::erase_if(state.calls, [&](const CallEdge& edge) {
      return !productive[edge.target] || !productive[rules_[edge.rule].start];
    });
  }
  find_nullable();
  find_followed();
  refuse_left_recursion(root);

  Automaton out;
  out.root_ = root;
  out.rules_ = rules_;
  out.states_.reserve(states_.size() + 1);
  const auto position = [&] {
    Automaton::State state;
    state.bytes = static_cast<uint32_t>(out.bytes_.size());
    state.epsilons = static_cast<uint32_t>(out.epsilons_.size());
    state.calls = static_cast<uint32_t>(out.calls_.size());
    state.tokens = static_cast<uint32_t>(out.tokens_.size());
    return state;
  };
  for (const State& made : states_) {
    budget_.work(16);
    Automaton::State state = position();
    state.rule = made.rule;
    state.accept = made.accept;
    state.is_plain =
        made.accept == Automaton::Accept::kNo && made.epsilons.empty() && made.calls.empty() && made.tokens.empty();
    out.bytes_.insert(out.bytes_.end(), made.bytes.begin(), made.bytes.end());
    out.epsilons_.insert(out.epsilons_.end(), made.epsilons.begin(), made.epsilons.end());
    out.calls_.insert(out.calls_.end(), made.calls.begin(), made.calls.end());
    out.tokens_.insert(out.tokens_.end(), made.tokens.begin(), made.tokens.end());
    out.states_.push_back(state);
  }
  out.states_.push_back(position());
  return out;
}

}  // namespace verbatim::text
