#include "text/grammar/dfa.h"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>

namespace verbatim::text {
namespace {

using Ranges = std::vector<std::pair<uint32_t, uint32_t>>;

// The part of `ranges` in [first, last], counted from `first`.
Ranges clipped(const Ranges& ranges, uint32_t first, uint32_t last) {
  Ranges out;
  for (const auto& [from, to] : ranges)
    if (from <= last && to >= first) out.emplace_back(std::max(from, first) - first, std::min(to, last) - first);
  return out;
}

// Draws the bytes of UTF-8 characters; equal endings once.
class Utf8Drawer {
 public:
  Utf8Drawer(Nfa& nfa, uint32_t to) : nfa_(nfa), to_(to) {}

  // From `from`: a lead byte, one of `count` from `lead` on, then `continuations` bytes; together one of `values`.
  void lead(uint32_t from, uint8_t lead, uint32_t count, int continuations, const Ranges& values) {
    edges(from, lead, count, continuations, values);
  }

 private:
  void edges(uint32_t from, uint8_t lowest, uint32_t count, int continuations, const Ranges& values) {
    const uint32_t size = uint32_t{1} << (6 * continuations);
    Ranges open;
    uint32_t open_from = 0;
    const auto put = [&](uint32_t end) {
      if (open.empty()) return;
      nfa_.bytes(from, static_cast<uint8_t>(lowest + open_from), static_cast<uint8_t>(lowest + end - 1),
                 continuation(continuations, open));
    };
    for (uint32_t i = 0; i < count; ++i) {
      Ranges part = clipped(values, i * size, (i + 1) * size - 1);
      if (part == open) continue;
      put(i);
      open = std::move(part);
      open_from = i;
    }
    put(count);
  }
  uint32_t continuation(int bytes, const Ranges& values) {
    if (bytes == 0) return to_;
    const auto [place, is_new] = states_.try_emplace({bytes, values}, 0);
    if (!is_new) return place->second;
    const uint32_t state = place->second = nfa_.state();
    edges(state, 0x80, 64, bytes - 1, values);
    return state;
  }

  Nfa& nfa_;
  uint32_t to_;
  std::map<std::pair<int, Ranges>, uint32_t> states_;
};

struct VectorHash {
  size_t operator()(const std::vector<uint32_t>& values) const {
    uint64_t hash = 0xcbf29ce484222325;
    for (const uint32_t value : values) hash = (hash ^ value) * 0x100000001b3;
    return hash;
  }
};

// Without the states that no way to acceptance passes.
void trim(Dfa& dfa) {
  const size_t count = dfa.states.size();
  std::vector<std::vector<uint32_t>> before(count);
  std::vector<uint32_t> work;
  std::vector<bool> keeps(count);
  for (uint32_t i = 0; i < count; ++i) {
    for (const DfaEdge& edge : dfa.states[i].edges) before[edge.target].push_back(i);
    if (!dfa.states[i].accepts) continue;
    keeps[i] = true;
    work.push_back(i);
  }
  while (!work.empty()) {
    const uint32_t state = work.back();
    work.pop_back();
    for (const uint32_t from : before[state]) {
      if (keeps[from]) continue;
      keeps[from] = true;
      work.push_back(from);
    }
  }
  if (count == 0 || !keeps[0]) {
    dfa.states.clear();
    return;
  }
  std::vector<uint32_t> renamed(count);
  uint32_t kept = 0;
  for (uint32_t i = 0; i < count; ++i)
    if (keeps[i]) renamed[i] = kept++;
  for (uint32_t i = 0; i < count; ++i) {
    if (!keeps[i]) continue;
    Dfa::State state = std::move(dfa.states[i]);
    std::erase_if(state.edges, [&](const DfaEdge& edge) { return !keeps[edge.target]; });
    for (DfaEdge& edge : state.edges) edge.target = renamed[edge.target];
    dfa.states[renamed[i]] = std::move(state);
  }
  dfa.states.resize(kept);
}

void append_edge(std::vector<DfaEdge>& edges, uint32_t first, uint32_t last, uint32_t target) {
  if (!edges.empty() && edges.back().target == target && edges.back().last + 1u == first)
    edges.back().last = static_cast<uint8_t>(last);
  else
    edges.push_back({static_cast<uint8_t>(first), static_cast<uint8_t>(last), target});
}

// Pairs of states that one text leads to: `b` may have come to nothing if `keeps_without_b`.
template <typename Accepts>
Dfa product(const Dfa& a, const Dfa& b, bool keeps_without_b, Budget& budget, Accepts accepts) {
  constexpr uint32_t kNothing = 0xFFFFFFFF;
  Dfa out;
  if (a.states.empty() || (b.states.empty() && !keeps_without_b)) return out;
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> known;
  std::vector<std::pair<uint32_t, uint32_t>> pairs;
  const auto state_of = [&](uint32_t x, uint32_t y) {
    const auto [place, is_new] = known.try_emplace({x, y}, static_cast<uint32_t>(pairs.size()));
    if (is_new) {
      budget.states(1);
      pairs.emplace_back(x, y);
      out.states.emplace_back();
    }
    return place->second;
  };
  state_of(0, b.states.empty() ? kNothing : 0);
  static const std::vector<DfaEdge> kNone;
  for (uint32_t i = 0; i < pairs.size(); ++i) {
    const auto [x, y] = pairs[i];
    const std::vector<DfaEdge>& others = y == kNothing ? kNone : b.states[y].edges;
    std::vector<DfaEdge> edges;
    size_t j = 0;
    for (const DfaEdge& edge : a.states[x].edges) {
      uint32_t next = edge.first;
      while (next <= edge.last) {
        budget.work(4);
        while (j < others.size() && others[j].last < next) ++j;
        const bool inside = j < others.size() && others[j].first <= next;
        uint32_t end = edge.last;
        if (inside)
          end = std::min<uint32_t>(end, others[j].last);
        else if (j < others.size())
          end = std::min<uint32_t>(end, others[j].first - 1u);
        if (inside || keeps_without_b)
          append_edge(edges, next, end, state_of(edge.target, inside ? others[j].target : kNothing));
        next = end + 1;
      }
    }
    out.states[i].edges = std::move(edges);
    out.states[i].accepts = accepts(a.states[x].accepts, y != kNothing && b.states[y].accepts);
  }
  trim(out);
  return out;
}

}  // namespace

bool Dfa::matches(std::string_view text) const {
  if (states.empty()) return false;
  uint32_t state = 0;
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    const std::vector<DfaEdge>& edges = states[state].edges;
    const auto edge = std::find_if(edges.begin(), edges.end(),
                                   [&](const DfaEdge& one) { return one.first <= byte && byte <= one.last; });
    if (edge == edges.end()) return false;
    state = edge->target;
  }
  return states[state].accepts;
}

uint32_t Nfa::state() {
  budget_.states(1);
  states_.emplace_back();
  return static_cast<uint32_t>(states_.size() - 1);
}

void Nfa::literal(uint32_t from, std::string_view text, uint32_t to) {
  for (size_t i = 0; i < text.size(); ++i) {
    const uint32_t next = i + 1 == text.size() ? to : state();
    bytes(from, static_cast<uint8_t>(text[i]), static_cast<uint8_t>(text[i]), next);
    from = next;
  }
  if (text.empty()) epsilon(from, to);
}

void Nfa::characters(uint32_t from, const CodePoints& set, uint32_t to) {
  Ranges ranges;
  for (const CodePointRange& range : set.ranges()) ranges.emplace_back(range.first, range.last);
  budget_.work(ranges.size() * 16);
  Utf8Drawer drawer(*this, to);
  const auto draw = [&](uint8_t lead, uint32_t count, int continuations, uint32_t first, uint32_t last) {
    Ranges part = clipped(ranges, first, last);
    for (auto& [begin, end] : part) {  // values count from the lead byte's first one
      begin += first;
      end += first;
    }
    if (!part.empty()) drawer.lead(from, lead, count, continuations, part);
  };
  draw(0x00, 0x80, 0, 0, 0x7F);
  draw(0xC0, 0x20, 1, 0x80, 0x7FF);
  draw(0xE0, 0x10, 2, 0x800, 0xFFFF);
  draw(0xF0, 0x05, 3, 0x10000, 0x10FFFF);
}

void Nfa::draw(const Dfa& dfa, uint32_t from, uint32_t to) {
  const auto base = static_cast<uint32_t>(states_.size());
  for (size_t i = 0; i < dfa.states.size(); ++i) state();
  for (size_t i = 0; i < dfa.states.size(); ++i) {
    const auto at = base + static_cast<uint32_t>(i);
    for (const DfaEdge& edge : dfa.states[i].edges) bytes(at, edge.first, edge.last, base + edge.target);
    if (dfa.states[i].accepts) epsilon(at, to);
  }
  if (!dfa.states.empty()) epsilon(from, base);
}

Dfa Nfa::determinize(uint32_t start, uint32_t end) const {
  std::vector<uint32_t> seen(states_.size(), 0);
  uint32_t round = 0;
  // Sorted: `targets` and what is reached from them without a byte, of that what has edges, and `end`.
  const auto closure = [&](std::vector<uint32_t> reached) {
    ++round;
    std::erase_if(reached, [&](uint32_t state) { return std::exchange(seen[state], round) == round; });
    for (size_t i = 0; i < reached.size(); ++i)
      for (const uint32_t next : states_[reached[i]].epsilons)
        if (std::exchange(seen[next], round) != round) reached.push_back(next);
    budget_.work(reached.size());
    std::erase_if(reached, [&](uint32_t state) { return states_[state].edges.empty() && state != end; });
    std::sort(reached.begin(), reached.end());
    return reached;
  };
  Dfa out;
  std::unordered_map<std::vector<uint32_t>, uint32_t, VectorHash> known;
  std::vector<const std::vector<uint32_t>*> sets;
  const auto state_of = [&](std::vector<uint32_t> set) {
    const auto [place, is_new] = known.try_emplace(std::move(set), static_cast<uint32_t>(sets.size()));
    if (is_new) {
      budget_.states(1);
      sets.push_back(&place->first);
      out.states.emplace_back();
    }
    return place->second;
  };
  state_of(closure({start}));
  std::vector<DfaEdge> edges;
  std::vector<uint32_t> bounds;
  for (uint32_t i = 0; i < sets.size(); ++i) {
    const std::vector<uint32_t>& set = *sets[i];
    edges.clear();
    bounds.clear();
    for (const uint32_t state : set) {
      edges.insert(edges.end(), states_[state].edges.begin(), states_[state].edges.end());
      if (state == end) out.states[i].accepts = true;
    }
    for (const DfaEdge& edge : edges) {
      bounds.push_back(edge.first);
      bounds.push_back(edge.last + 1u);
    }
    std::sort(bounds.begin(), bounds.end());
    bounds.erase(std::unique(bounds.begin(), bounds.end()), bounds.end());
    std::vector<DfaEdge> found;
    for (size_t k = 0; k + 1 < bounds.size(); ++k) {
      std::vector<uint32_t> targets;
      for (const DfaEdge& edge : edges)
        if (edge.first <= bounds[k] && edge.last >= bounds[k]) targets.push_back(edge.target);
      budget_.work(edges.size() + 4);
      if (!targets.empty()) append_edge(found, bounds[k], bounds[k + 1] - 1, state_of(closure(std::move(targets))));
    }
    out.states[i].edges = std::move(found);
  }
  trim(out);
  return out;
}

Dfa intersect(const Dfa& a, const Dfa& b, Budget& budget) {
  return product(a, b, false, budget, [](bool x, bool y) { return x && y; });
}

Dfa subtract(const Dfa& a, const Dfa& b, Budget& budget) {
  return product(a, b, true, budget, [](bool x, bool y) { return x && !y; });
}

}  // namespace verbatim::text
