// What must hold for every reply: random ones from a grammar of well-formed and broken pieces.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "tests/text/reply_toy.h"
#include "text/utf8.h"

namespace verbatim::text {
namespace {

using Kind = ReplyEvent::Kind;

const ToolSet& tools() {
  static const ToolSet set({{"get", R"({"properties": {"s": {"type": "string"}, "i": {"type": "integer"},
                                         "n": {"type": ["string", "null"]}, "e": {"enum": [1, "1x", null]}}})"},
                            {"get_all", ""}});
  return set;
}

class RandomReply {
 public:
  RandomReply(ReplyToy& toy, uint32_t seed) : toy_(toy), random_(seed) {}

  std::vector<int32_t> make() {
    ids_.clear();
    for (size_t n = random_() % 8; n > 0; --n) piece();
    if (one_in(2)) control(one_in(2) ? "<|user|>" : "<|observation|>");
    return ids_;
  }
  bool one_in(uint32_t n) { return random_() % n == 0; }
  uint32_t below(uint32_t n) { return static_cast<uint32_t>(random_() % n); }

 private:
  void control(const std::string& text) { ids_.push_back(toy_.id(text)); }
  void text(const std::string& bytes) {
    for (const int32_t id : toy_.plain(bytes)) ids_.push_back(id);
  }
  void words() {
    static const std::vector<std::string> kWords = {"so ",  "\n",     " ",    "한",       "é",    "🙂",
                                                    "STOP", "ST",     "OP",   "\xE2\x82", "\xFF", "</think>",
                                                    "get",  "\u3000", "null", "\"",       "\\",   "\x01"};
    for (uint32_t n = below(5); n > 0; --n) text(kWords[below(kWords.size())]);
  }
  void maybe_space() {
    if (one_in(3)) text("\n");
  }
  void any_tag() {
    if (one_in(8)) return control(one_in(2) ? "<tool_response>" : "</tool_response>");
    control(std::string(kReplyTagText[below(8)]));
  }
  void piece() {
    switch (below(6)) {
      case 0: return any_tag();
      case 1: return control("</think>");
      case 2:
      case 3: return call();
      default: return words();
    }
  }
  void call() {
    static const std::vector<std::string> kNames = {"get", "get_all", "get_al", "none", ""};
    static const std::vector<std::string> kKeys = {"s", "i", "n", "e", "x", "s", " i "};
    static const std::vector<std::string> kValues = {"12",   "null", "nul", "{\"a\": [1]}", "[1", "\"q\"", "1x",
                                                     "true", "-",    "",    " 3 ",          "é",  "a\nb"};
    control("<tool_call>");
    maybe_space();
    text(kNames[below(one_in(4) ? 5 : 2)]);
    maybe_space();
    for (uint32_t n = below(4); n > 0; --n) {
      if (!one_in(12)) control("<arg_key>");
      text(kKeys[below(kKeys.size())]);
      if (!one_in(12)) control("</arg_key>");
      maybe_space();
      if (!one_in(12)) control("<arg_value>");
      text(kValues[below(kValues.size())]);
      if (one_in(6)) words();
      if (one_in(12)) any_tag();
      if (!one_in(12)) control("</arg_value>");
      maybe_space();
    }
    if (!one_in(12)) control("</tool_call>");
  }

  ReplyToy& toy_;
  std::mt19937 random_;
  std::vector<int32_t> ids_;
};

struct Outcome {
  std::vector<ReplyEvent> events;  // as they came
  FinishReason reason = FinishReason::kLength;
  size_t tokens = 0;
  std::optional<size_t> stop;
};

// Feeds `steps[i]` ids at a time, in turn.
Outcome run(const ReplyToy& toy, const ToolSet& offered, const ReplyOptions& options, std::span<const int32_t> ids,
            const std::vector<size_t>& steps) {
  ReplyParser parser(toy.vocabulary(), offered, options);
  Outcome outcome;
  for (size_t i = 0; !ids.empty(); i = (i + 1) % steps.size()) {
    std::vector<ReplyEvent> events;
    const size_t step = std::min(steps[i], ids.size());
    const size_t used = parser.feed(ids.first(step), events);
    outcome.events.insert(outcome.events.end(), events.begin(), events.end());
    if (used < step) break;
    ids = ids.subspan(step);
  }
  std::vector<ReplyEvent> events;
  outcome.reason = parser.finish(events);
  outcome.events.insert(outcome.events.end(), events.begin(), events.end());
  outcome.tokens = parser.tokens();
  outcome.stop = parser.matched_stop();
  return outcome;
}

// The same bytes between the same controls in other tokens.
std::vector<int32_t> respell(ReplyToy& toy, const std::vector<int32_t>& ids, RandomReply& random) {
  std::vector<int32_t> out;
  std::string bytes;
  const auto flush = [&] {
    if (!bytes.empty()) out.push_back(toy.add(bytes));
    bytes.clear();
  };
  for (const int32_t id : ids) {
    if (toy.is_control(id)) {
      flush();
      out.push_back(id);
      continue;
    }
    bytes += toy.piece(id);
    if (random.one_in(4)) flush();
  }
  flush();
  return out;
}

ReplyOptions options_for(const ReplyToy& toy, RandomReply& random) {
  constexpr ReplyStart kStarts[] = {ReplyStart::kReasoning, ReplyStart::kReasoning,   ReplyStart::kAnswer,
                                    ReplyStart::kMidAnswer, ReplyStart::kUnspecified, ReplyStart::kPlain};
  ReplyOptions options;
  options.start = kStarts[random.below(6)];
  options.eos = toy.eos();
  if (random.one_in(2)) options.stop = {"STOP", "OPS", "\n\n"};
  return options;
}

TEST(ReplyProperties, EveryGroupingOfAShortReplyGivesTheSameEvents) {
  ReplyToy toy;
  const std::vector<int32_t> ids =
      toy.spell("é<tool_call>get<arg_key>n</arg_key><arg_value>nu</arg_value></tool_call>ok<|user|>");
  ASSERT_LT(ids.size(), 20u);
  const ReplyOptions options{.eos = toy.eos()};
  const Outcome expected = run(toy, tools(), options, ids, {ids.size()});
  EXPECT_EQ(script(expected.events), "R|é\n[0 get call_0\n0|{\"n\": \"nu\"}\n0]\nT|ok\n");
  for (uint32_t cuts = 0; cuts < 1u << (ids.size() - 1); ++cuts) {
    std::vector<size_t> steps = {1};
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      if (cuts >> i & 1)
        steps.push_back(1);
      else
        ++steps.back();
    }
    const Outcome outcome = run(toy, tools(), options, ids, steps);
    ASSERT_EQ(joined(outcome.events), joined(expected.events)) << cuts;
    ASSERT_EQ(outcome.reason, expected.reason);
  }
}

TEST(ReplyProperties, EverySplitGivesTheSameEvents) {
  size_t calls = 0;
  size_t cut_calls = 0;
  size_t stops = 0;
  for (uint32_t seed = 0; seed < 20'000; ++seed) {
    ReplyToy toy;
    RandomReply random(toy, seed);
    const std::vector<int32_t> ids = random.make();
    const ReplyOptions options = options_for(toy, random);
    const ToolSet& offered = random.one_in(8) ? ToolSet() : tools();
    const Outcome expected = run(toy, offered, options, ids, {1});
    const std::vector<ReplyEvent> events = joined(expected.events);
    for (const ReplyEvent& event : events) {
      calls += event.kind == Kind::kCallEnd && event.complete;
      cut_calls += event.kind == Kind::kCallEnd && !event.complete;
    }
    stops += expected.stop.has_value();
    for (int round = 0; round < 4; ++round) {
      const std::vector<size_t> steps = {1 + random.below(4), 1 + random.below(30), 1 + random.below(2)};
      const Outcome grouped = run(toy, offered, options, ids, steps);
      ASSERT_EQ(script(grouped.events), script(expected.events)) << seed;
      ASSERT_EQ(joined(grouped.events), events);
      ASSERT_EQ(grouped.tokens, expected.tokens) << seed;
      ASSERT_EQ(grouped.reason, expected.reason) << seed;
      const Outcome respelt = run(toy, offered, options, respell(toy, ids, random), steps);
      ASSERT_EQ(script(respelt.events), script(expected.events)) << seed;
      ASSERT_EQ(joined(respelt.events), events);
      ASSERT_EQ(respelt.reason, expected.reason) << seed;
      ASSERT_EQ(respelt.stop, expected.stop) << seed;
    }
  }
  // The generator reaches what it is meant to reach.
  EXPECT_GT(calls, 10'000u);
  EXPECT_GT(cut_calls, 500u);
  EXPECT_GT(stops, 500u);
}

TEST(ReplyProperties, EventsAreWellFormed) {
  for (uint32_t seed = 0; seed < 20'000; ++seed) {
    ReplyToy toy;
    RandomReply random(toy, seed);
    const std::vector<int32_t> ids = random.make();
    const Outcome outcome = run(toy, tools(), options_for(toy, random), ids, {1});
    size_t calls = 0;
    bool is_open = false;
    std::string arguments;
    for (const ReplyEvent& event : outcome.events) {
      ASSERT_EQ(valid_utf8_bytes(event.text, 0), event.text.size()) << seed;  // each, not only all of them
      switch (event.kind) {
        case Kind::kReasoning:
        case Kind::kText:
          ASSERT_FALSE(is_open) << seed;
          ASSERT_FALSE(event.text.empty()) << seed;
          break;
        case Kind::kCallBegin:
          ASSERT_FALSE(is_open) << seed;
          is_open = true;
          ASSERT_EQ(event.call, calls) << seed;
          ASSERT_EQ(event.id, "call_" + std::to_string(calls)) << seed;
          ASSERT_TRUE(tools().find(event.text)) << seed;
          arguments.clear();
          break;
        case Kind::kCallArguments:
          ASSERT_TRUE(is_open) << seed;
          ASSERT_EQ(event.call, calls) << seed;
          ASSERT_FALSE(event.text.empty()) << seed;
          arguments += event.text;
          // No fragment ends inside an escape: what has come so far can be closed as a string or already is whole.
          ASSERT_TRUE(!arguments.ends_with('\\') || arguments.ends_with("\\\\")) << arguments;
          break;
        case Kind::kCallEnd: {
          ASSERT_TRUE(is_open) << seed;
          is_open = false;
          ++calls;
          const nlohmann::json value = nlohmann::json::parse(arguments, nullptr, false);
          ASSERT_EQ(value.is_object(), event.complete) << arguments;
          break;
        }
      }
    }
    ASSERT_FALSE(is_open) << seed;
  }
}

// With no tools offered nothing can be a call: whatever the tags, every character of the reply comes out, in order, but
// the </think> that ended reasoning and white space around the text.
TEST(ReplyProperties, NothingIsLost) {
  const auto without_space = [](const std::string& text) {
    std::string out;
    for (size_t at = 0; at < text.size();) {
      const Utf8Char c = utf8_at(text, at);
      if (c.code_point > 0x20 && c.code_point != 0x3000) out.append(text, at, c.bytes);
      at += c.bytes;
    }
    return out;
  };
  for (uint32_t seed = 0; seed < 20'000; ++seed) {
    ReplyToy toy;
    RandomReply random(toy, seed);
    const std::vector<int32_t> ids = random.make();
    std::string expected;
    StreamDecoder decoder;
    bool is_reasoning = true;
    for (const int32_t id : ids) {
      if (!toy.is_control(id)) {
        expected += decoder.push(toy.piece(id));
        continue;
      }
      expected += decoder.flush();
      if (id >= toy.eos()[0]) break;
      if (id == toy.id("</think>") && is_reasoning)
        is_reasoning = false;
      else
        expected += toy.piece(id);
    }
    expected += decoder.flush();
    std::string found;
    for (const ReplyEvent& event : run(toy, ToolSet(), {.eos = toy.eos()}, ids, {1}).events) found += event.text;
    ASSERT_EQ(without_space(found), without_space(expected)) << seed;
  }
}

}  // namespace
}  // namespace verbatim::text
