// The reply parser on arbitrary token streams and arbitrary tool schemas: nothing crashes, every way of splitting the
// stream gives the same events, and the events are well formed.
//
// Input: a byte of options; a JSON schema up to the first 0 byte; then a token a byte: 0x80-0x9F from the table below,
// the others the token of that byte.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "tests/text/reply_toy.h"
#include "text/utf8.h"

namespace {

using namespace verbatim::text;
using Kind = ReplyEvent::Kind;

void check(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", what);
  std::abort();
}

int32_t token_of(ReplyToy& toy, uint8_t byte) {
  static const std::vector<std::string> kControls = {
      "<think>",     "</think>",     "<tool_call>",     "</tool_call>",     "<arg_key>",     "</arg_key>",
      "<arg_value>", "</arg_value>", "<tool_response>", "</tool_response>", "<|endoftext|>", "<|user|>"};
  static const std::vector<std::string> kPieces = {"get",  "get_all", "null",         "true",  "{\"a\":",  "[1,",
                                                   "]",    "}",       "STOP",         "ST",    "\xED\x95", "\x9C",
                                                   "\x80", "\n\n",    "\xE3\x80\x80", "-1.5e", "1x"};
  if (byte < 0x80 || byte >= 0xA0) return byte;
  const size_t index = byte - 0x80u;
  if (index < kControls.size()) return toy.id(kControls[index]);
  return toy.add(kPieces[(index - kControls.size()) % kPieces.size()]);
}

struct Outcome {
  std::vector<ReplyEvent> events;
  FinishReason reason;
  std::optional<size_t> stop;
};

// Feeds as many ids at a time as the low bits of `steps` say, over and over.
Outcome run(const ReplyToy& toy, const ToolSet& tools, const ReplyOptions& options, std::span<const int32_t> ids,
            uint32_t steps) {
  ReplyParser parser(toy.vocabulary(), tools, options);
  Outcome outcome;
  while (!ids.empty()) {
    const size_t step = std::min<size_t>(1 + steps % 8, ids.size());
    steps = steps >> 3 | steps << 29;
    std::vector<ReplyEvent> events;
    const size_t used = parser.feed(ids.first(step), events);
    for (const ReplyEvent& event : events) {
      check(valid_utf8_bytes(event.text, 0) == event.text.size(), "events are UTF-8");
      outcome.events.push_back(event);
    }
    check(used == step || parser.ended(), "ids are used up until the reply ends");
    if (used < step) break;
    ids = ids.subspan(step);
  }
  outcome.reason = parser.finish(outcome.events);
  outcome.stop = parser.matched_stop();
  outcome.events = joined(outcome.events);
  return outcome;
}

void check_form(const std::vector<ReplyEvent>& events) {
  size_t calls = 0;
  bool is_open = false;
  std::string arguments;
  for (const ReplyEvent& event : events) {
    const bool is_of_call = event.kind == Kind::kCallArguments || event.kind == Kind::kCallEnd;
    check(is_of_call == is_open, "events of a call stand together");
    check(event.kind == Kind::kCallEnd || !event.text.empty(), "fragments are not empty");
    if (event.kind == Kind::kCallBegin) {
      is_open = true;
      arguments.clear();
    } else if (event.kind == Kind::kCallArguments) {
      arguments += event.text;
    } else if (event.kind == Kind::kCallEnd) {
      is_open = false;
      check(event.call == calls++, "calls are numbered");
      check(arguments.starts_with('{') && nlohmann::json::accept(arguments) == event.complete,
            "whole arguments are an object, cut ones are not JSON");
    }
  }
  check(!is_open, "every call ends");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const uint8_t choice = data[0];
  const std::string_view input(reinterpret_cast<const char*>(data) + 1, size - 1);
  const size_t end = input.find('\0');
  const std::string_view stream = end == std::string_view::npos ? input : input.substr(end + 1);
  std::vector<OfferedTool> offered = {
      {"get", R"({"properties": {"s": {"type": "string"}, "i": {"type": "integer"}, "n": {"type": ["string", "null"]},
                 "o": {"type": "object"}, "e": {"enum": [1, "1x", null]}}})"},
      {"get_all", ""}};
  static const ToolSet usual(offered);
  ToolSet tools;
  bool is_usual = true;
  if (end != std::string_view::npos) {
    offered[1].parameters = input.substr(0, end);
    try {
      tools = ToolSet(offered);
      is_usual = false;
    } catch (const verbatim::Error&) {
    }
  }

  static ReplyToy toy;
  toy.forget_added();
  std::vector<int32_t> ids;
  std::vector<int32_t> respelt;
  std::string bytes;
  uint32_t steps = 2166136261u;
  const auto flush = [&] {
    if (!bytes.empty()) respelt.push_back(toy.add(bytes));
    bytes.clear();
  };
  for (const char byte : stream) {
    steps = (steps ^ static_cast<uint8_t>(byte)) * 16777619u;
    ids.push_back(token_of(toy, static_cast<uint8_t>(byte)));
    if (toy.is_control(ids.back())) {
      flush();
      respelt.push_back(ids.back());
      continue;
    }
    bytes += toy.piece(ids.back());
    if (steps >> 30 == 0) flush();
  }
  flush();

  const ToolSet& chosen = is_usual ? usual : tools;
  ReplyOptions options;
  options.start = static_cast<ReplyStart>(choice % 5);
  options.eos = toy.eos();
  if (choice & 8) options.stop = {"STOP", "OPS", "\n\n", "</arg_key>"};
  const Outcome one_by_one = run(toy, chosen, options, ids, 0);
  check_form(one_by_one.events);
  for (const Outcome& other : {run(toy, chosen, options, ids, steps), run(toy, chosen, options, respelt, steps)}) {
    check(other.events == one_by_one.events, "every split gives the same events");
    check(other.reason == one_by_one.reason, "every split gives the same reason");
    check(other.stop == one_by_one.stop, "every split gives the same stop string");
  }
  return 0;
}
