#include "text/grammar/matcher.h"

#include <algorithm>

namespace verbatim::text {
namespace {

constexpr size_t kFewItems = 16;

size_t hash_of(const Item& item) {
  uint64_t hash = item.state * 0x9E3779B97F4A7C15 ^ item.count * 0xC2B2AE3D27D4EB4F ^ item.frame * 0x165667B19E3779F9;
  return hash ^ (hash >> 29);
}

}  // namespace

bool Matcher::take(Item& item, const ByteEdge& edge) const {
  if (edge.counting != Counting::kNone) {
    const Rule& rule = automaton_.rule(automaton_.rule_of(item.state));
    if (edge.counting == Counting::kEnough) {
      if (!has_enough(item, rule)) return false;
    } else if (item.count < Item::kFarFromEnough) {
      if (item.count >= rule.max_count) return false;
      // Without a maximum only whether the minimum is reached matters.
      if (rule.max_count != kNoMaximum || item.count < rule.min_count) ++item.count;
    }
  }
  item.state = edge.target;
  return true;
}

void Matcher::start_closure(const Frames& frames, Position& out) {
  out.items.clear();
  out.is_complete = false;
  reached_.clear();
  ++round_;
  first_new_frame_ = frames.size().frames;
}

void Matcher::add(const Item& item) {
  if (reached_.size() < kFewItems) {
    if (std::find(reached_.begin(), reached_.end(), item) != reached_.end()) return;
    reached_.push_back(item);
    return;
  }
  const auto put = [&](size_t index) {
    size_t slot = hash_of(reached_[index]) & (slots_.size() - 1);
    for (; slots_[slot] != 0; slot = (slot + 1) & (slots_.size() - 1))
      if (reached_[slots_[slot] - 1] == reached_[index]) return false;
    slots_[slot] = static_cast<uint32_t>(index + 1);
    return true;
  };
  if (reached_.size() == kFewItems || reached_.size() * 2 >= slots_.size()) {
    const size_t size = reached_.size() == kFewItems ? 4 * kFewItems : slots_.size() * 2;
    slots_.assign(size, 0);
    for (size_t i = 0; i < reached_.size(); ++i) put(i);
  }
  reached_.push_back(item);
  if (!put(reached_.size() - 1)) reached_.pop_back();
}

uint32_t Matcher::frame_of(RuleId rule, Frames& frames) {
  Called& called = frame_of_rule_[rule];
  if (called.round != round_) {
    called = {round_, frames.add()};
    add({automaton_.rule(rule).start, 0, called.frame});
  }
  return called.frame;
}

// What is reached without reading anything.
void Matcher::close(Frames& frames, Position& out) {
  for (size_t i = 0; i < reached_.size(); ++i) {
    const Item item = reached_[i];
    if (!automaton_.is_plain(item.state)) {
      const Rule& rule = automaton_.rule(automaton_.rule_of(item.state));
      for (const EpsilonEdge& edge : automaton_.epsilons(item.state))
        if (!edge.if_enough || has_enough(item, rule)) add({edge.target, item.count, item.frame});
      for (const CallEdge& call : automaton_.calls(item.state)) {
        const Item behind{call.target, item.count, item.frame};
        if (automaton_.rule(call.rule).is_nullable) add(behind);
        frames.add_return(frame_of(call.rule, frames), behind);
      }
      const Automaton::Accept accept = automaton_.accept(item.state);
      if (accept == Automaton::Accept::kYes || (accept == Automaton::Accept::kIfEnough && has_enough(item, rule))) {
        if (item.frame == Frames::kRoot) {
          out.is_complete = true;
        } else if (item.frame < first_new_frame_) {  // a call of the empty text is the calling edge's affair
          for (uint32_t r = frames.first_return(item.frame); r != Frames::kNone; r = frames.at(r).next)
            add(frames.at(r).item);
        }
      }
    }
    if (!automaton_.bytes(item.state).empty() || !automaton_.tokens(item.state).empty()) out.items.push_back(item);
  }
}

void Matcher::begin(Frames& frames, Position& out) {
  enter({automaton_.rule(automaton_.root()).start, 0, Frames::kRoot}, frames, out);
}

void Matcher::enter(const Item& item, Frames& frames, Position& out) {
  start_closure(frames, out);
  add(item);
  close(frames, out);
}

void Matcher::step(const Position& from, uint8_t byte, Frames& frames, Position& out) {
  if (from.items.size() == 1) {  // the usual case inside a string
    Item item = from.items[0];
    if (!follow(item, byte)) {
      out.items.clear();
      out.is_complete = false;
      return;
    }
    if (automaton_.is_plain(item.state)) {
      out.items.assign(1, item);
      out.is_complete = false;
      return;
    }
    return enter(item, frames, out);
  }
  start_closure(frames, out);
  for (Item item : from.items)
    if (follow(item, byte)) add(item);
  close(frames, out);
}

void Matcher::step_token(const Position& from, int32_t token, Frames& frames, Position& out) {
  start_closure(frames, out);
  for (const Item& item : from.items)
    for (const TokenEdge& edge : automaton_.tokens(item.state))
      if (edge.token == token) add({edge.target, item.count, item.frame});
  close(frames, out);
}

}  // namespace verbatim::text
