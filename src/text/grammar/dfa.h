// Finite automata over bytes: regexes, strings and numbers.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "text/grammar/budget.h"
#include "text/grammar/code_points.h"

namespace verbatim::text {

struct DfaEdge {
  uint8_t first, last;
  uint32_t target;
};

// Begins in state 0; no states: matches nothing. Every state can reach an accepting one.
struct Dfa {
  struct State {
    std::vector<DfaEdge> edges = {};  // ascending and disjoint
    bool accepts = false;
  };
  std::vector<State> states;

  bool matches(std::string_view text) const;
};

// Drawn by adding ways between states, then made deterministic.
class Nfa {
 public:
  explicit Nfa(Budget& budget) : budget_(budget) {}

  uint32_t state();
  void epsilon(uint32_t from, uint32_t to) { states_[from].epsilons.push_back(to); }
  void bytes(uint32_t from, uint8_t first, uint8_t last, uint32_t to) {
    states_[from].edges.push_back({first, last, to});
  }
  void literal(uint32_t from, std::string_view text, uint32_t to);
  // One character of the set, in UTF-8.
  void characters(uint32_t from, const CodePoints& set, uint32_t to);
  // What `dfa` matches.
  void draw(const Dfa& dfa, uint32_t from, uint32_t to);

  // What leads from `start` to `end`. Its states count against the budget too.
  Dfa determinize(uint32_t start, uint32_t end) const;
  Budget& budget() const { return budget_; }

 private:
  struct State {
    std::vector<uint32_t> epsilons;
    std::vector<DfaEdge> edges;
  };
  Budget& budget_;
  std::vector<State> states_;
};

// What both match; what `a` matches and `b` does not.
Dfa intersect(const Dfa& a, const Dfa& b, Budget& budget);
Dfa subtract(const Dfa& a, const Dfa& b, Budget& budget);

}  // namespace verbatim::text
