#include "text/reply_parser.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "tests/text/reply_toy.h"

namespace verbatim::text {
namespace {

using Kind = ReplyEvent::Kind;

const ToolSet& tools() {
  static const ToolSet set({{"get_weather", R"({"properties": {"city": {"type": "string"}, "days": {"type": "integer"},
                           "where": {"type": "object"}, "note": {"type": ["string", "null"]}}})"},
                            {"list_files", R"({"type": "object", "properties": {}})"},
                            {"get", ""}});
  return set;
}

struct Reply {
  std::string script;
  FinishReason reason = FinishReason::kLength;
  size_t reasoning_tokens = 0;
  size_t tokens = 0;
  std::optional<size_t> stop;
  size_t replaced = 0;
};

Reply parse_ids(const ReplyToy& toy, const std::vector<int32_t>& ids, ReplyOptions options = {},
                const ToolSet& offered = tools()) {
  options.eos = toy.eos();
  options.call_id_prefix.resize(1);  // "c"
  ReplyParser parser(toy.vocabulary(), offered, options);
  std::vector<ReplyEvent> events;
  parser.feed(ids, events);
  Reply reply;
  reply.reason = parser.finish(events);
  reply.script = script(events);
  reply.reasoning_tokens = parser.reasoning_tokens();
  reply.tokens = parser.tokens();
  reply.stop = parser.matched_stop();
  reply.replaced = parser.replaced();
  return reply;
}
Reply parse(std::string_view text, ReplyOptions options = {}, const ToolSet& offered = tools()) {
  const ReplyToy toy;
  return parse_ids(toy, toy.spell(text), std::move(options), offered);
}
ReplyOptions answer() { return {.start = ReplyStart::kAnswer}; }

TEST(ReplyParser, StartsInsideReasoningAndLeavesItAtTheTag) {
  const Reply reply = parse("hm,\n so </think>Hello<|user|>");
  EXPECT_EQ(reply.script, "R|hm,\n so \nT|Hello\n");
  EXPECT_EQ(reply.reason, FinishReason::kStop);
  EXPECT_EQ(reply.reasoning_tokens, 9u);  // </think> is one of them
  EXPECT_EQ(reply.tokens, 15u);
}

// enable_thinking=false means nothing to the released template: the prompt ends in <think> all the same.
TEST(ReplyParser, ReasoningNeverBecomesContentWithoutItsTag) {
  EXPECT_EQ(parse("only thoughts").script, "R|only thoughts\n");
  EXPECT_EQ(parse("only thoughts<|endoftext|>").script, "R|only thoughts\n");
}

TEST(ReplyParser, TagsSpeltWithOrdinaryTokensAreText) {
  const ReplyToy toy;
  std::vector<int32_t> ids = toy.plain("</think><tool_call>get</tool_call><|user|>");
  EXPECT_EQ(parse_ids(toy, ids).script, "R|</think><tool_call>get</tool_call><|user|>\n");
  EXPECT_EQ(parse_ids(toy, ids, answer()).script, "T|</think><tool_call>get</tool_call><|user|>\n");
}

TEST(ReplyParser, ToolCall) {
  const Reply reply = parse(
      "I look.</think>Let me see.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Köln \"west\"\n"
      "</arg_value><arg_key>days</arg_key><arg_value> 3\n</arg_value></tool_call><|observation|>");
  EXPECT_EQ(reply.script,
            "R|I look.\nT|Let me see.\n[0 get_weather c0\n"
            "0|{\"city\": \"Köln \\\"west\\\"\\n\", \"days\": 3}\n0]\n");
  EXPECT_EQ(reply.reason, FinishReason::kToolCalls);
}

TEST(ReplyParser, ToolCallInsideReasoningIsNotLost) {
  const Reply reply = parse("I look<tool_call>list_files</tool_call> then text</think><|observation|>");
  EXPECT_EQ(reply.script, "R|I look\n[0 list_files c0\n0|{}\n0]\nT|then text</think>\n");
  EXPECT_EQ(reply.reason, FinishReason::kToolCalls);
  EXPECT_EQ(reply.reasoning_tokens, 6u);
}

TEST(ReplyParser, ZeroArgumentCallsAndParallelCalls) {
  const Reply reply = parse(
      "</think><tool_call>list_files</tool_call>\n<tool_call> get\n</tool_call> <tool_call>get<arg_key>n</arg_key>"
      "<arg_value>1</arg_value></tool_call><|observation|>");
  EXPECT_EQ(reply.script, "[0 list_files c0\n0|{}\n0]\n[1 get c1\n1|{}\n1]\n[2 get c2\n2|{\"n\": 1}\n2]\n");
}

TEST(ReplyParser, TheNameComesOnceAndWhole) {
  const ReplyToy toy;
  ReplyParser parser(toy.vocabulary(), tools(), answer());
  std::vector<ReplyEvent> events;
  for (const int32_t id : toy.spell("<tool_call>get_weather")) {
    parser.feed({&id, 1}, events);
    EXPECT_TRUE(events.empty());  // "get" is offered too
    EXPECT_EQ(parser.part(), Kind::kCallArguments);
  }
  parser.feed(toy.spell("<arg_key>"), events);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].text, "get_weather");
}

TEST(ReplyParser, StringValuesStreamAndOthersComeAtOnce) {
  const ReplyToy toy;
  ReplyParser parser(toy.vocabulary(), tools(), answer());
  const auto feed = [&](std::string_view text) {
    std::vector<ReplyEvent> events;
    for (const int32_t id : toy.spell(text)) parser.feed({&id, 1}, events);
    return events.empty() ? std::string() : script(events);
  };
  EXPECT_EQ(feed("<tool_call>get_weather<arg_key>city</arg_key><arg_value>"),
            "[0 get_weather call_0\n0|{\"city\": \"\n");
  EXPECT_EQ(feed("a\n"), "0|a\\n\n");
  EXPECT_EQ(feed("\xF0\x9F"), "");  // never half a character
  EXPECT_EQ(feed("\x99\x82"), "0|🙂\n");
  EXPECT_EQ(feed("</arg_value><arg_key>days</arg_key><arg_value>"), "0|\", \"days\": \n");
  EXPECT_EQ(feed("12"), "");
  EXPECT_EQ(feed("</arg_value>"), "0|12\n");
  EXPECT_EQ(feed("<arg_key>note</arg_key><arg_value>nu"), "0|, \"note\": \n");  // may become null
  EXPECT_EQ(feed("m"), "0|\"num\n");                                            // cannot any more
  EXPECT_EQ(feed("</arg_value></tool_call>"), "0|\"}\n0]\n");
}

TEST(ReplyParser, ValuesAreTypedBySchema) {
  const auto value = [](const std::string& key, const std::string& text) {
    return parse("<tool_call>get_weather<arg_key>" + key + "</arg_key><arg_value>" + text + "</arg_value></tool_call>",
                 answer())
        .script;
  };
  const auto expected = [](const std::string& arguments) { return "[0 get_weather c0\n0|" + arguments + "\n0]\n"; };
  EXPECT_EQ(value("city", "12"), expected(R"({"city": "12"})"));
  EXPECT_EQ(value("city", ""), expected(R"({"city": ""})"));
  EXPECT_EQ(value("days", "soon"), expected(R"({"days": "soon"})"));
  EXPECT_EQ(value("where", R"({"lat": [1.0, {"x": null}]})"), expected(R"({"where": {"lat": [1.0, {"x": null}]}})"));
  EXPECT_EQ(value("note", "null"), expected(R"({"note": null})"));
  EXPECT_EQ(value("note", "none"), expected(R"({"note": "none"})"));
  EXPECT_EQ(value("undeclared", "[1, 2]"), expected(R"({"undeclared": [1, 2]})"));
  EXPECT_EQ(value("undeclared", "[1, 2"), expected(R"({"undeclared": "[1, 2"})"));
  EXPECT_EQ(value(" city\n", "12"), expected(R"({"city": "12"})"));
  EXPECT_EQ(value("a \"b\"", "1"), expected(R"({"a \"b\"": 1})"));
}

TEST(ReplyParser, InsideAValueOnlyItsEndIsATag) {
  EXPECT_EQ(parse("<tool_call>get_weather<arg_key>city</arg_key><arg_value>a</think><tool_call>b</tool_call><arg_key>"
                  "</arg_value></tool_call>",
                  answer())
                .script,
            "[0 get_weather c0\n0|{\"city\": \"a</think><tool_call>b</tool_call><arg_key>\"}\n0]\n");
}

TEST(ReplyParser, ANameNotOfferedComesOutAsTextWhole) {
  const std::string call = "<tool_call>get_news<arg_key>k</arg_key>\n<arg_value>v</arg_value></tool_call>";
  Reply reply = parse("</think>Hm " + call + " ok<|observation|>");
  EXPECT_EQ(reply.script, "T|Hm " + call + " ok\n");
  EXPECT_EQ(reply.reason, FinishReason::kStop);
  EXPECT_EQ(parse("</think>" + call, {}, ToolSet()).script, "T|" + call + "\n");
  EXPECT_EQ(parse("<tool_call></tool_call>", answer()).script, "T|<tool_call></tool_call>\n");
  EXPECT_EQ(parse("<tool_call>GET</tool_call>", answer()).script, "T|<tool_call>GET</tool_call>\n");
  EXPECT_EQ(parse("<tool_call>not a name at all", answer()).script, "T|<tool_call>not a name at all\n");
}

// The user sees what was tried; the reasoning around it stays reasoning.
TEST(ReplyParser, ANameNotOfferedAmidReasoning) {
  const std::string call = "<tool_call>get_news<arg_key>k</arg_key><arg_value>v</arg_value></tool_call>";
  EXPECT_EQ(parse("let me" + call + " or not</think>Hi").script, "R|let me\nT|" + call + "\nR| or not\nT|Hi\n");
  EXPECT_EQ(parse("let me<tool_call>get_news<arg_key>k</think>Hi").script,
            "R|let me\nT|<tool_call>get_news<arg_key>kHi\n");
  EXPECT_EQ(parse("a<tool_call>x<arg_key><tool_call>get</tool_call>").script,
            "R|a\nT|<tool_call>x<arg_key>\n[0 get c0\n0|{}\n0]\n");
}

// A tag that opens nothing is talked about, not used.
TEST(ReplyParser, WhatIsNoCallComesOutWhereItStood) {
  const Reply reply = parse("the <tool_call> tag</think>It is <tool_call> or so.<|user|>");
  EXPECT_EQ(reply.script, "R|the <tool_call> tag\nT|It is <tool_call> or so.\n");
  EXPECT_EQ(reply.reasoning_tokens, 10u);
  EXPECT_EQ(parse("a<tool_call>get</think>b").script, "R|a<tool_call>get\nT|b\n");
  EXPECT_EQ(parse("a<tool_call>get<tool_call>get</tool_call>").script, "R|a<tool_call>get\n[0 get c0\n0|{}\n0]\n");
  EXPECT_EQ(parse("<tool_call>get<arg_value>x", answer()).script, "T|<tool_call>get<arg_value>x\n");
}

TEST(ReplyParser, StrayTagsAreText) {
  EXPECT_EQ(
      parse("a<think>b</arg_key>c</tool_call><tool_response>d</think>e</think>f<think>g</arg_value></tool_response>")
          .script,
      "R|a<think>b</arg_key>c</tool_call><tool_response>d\nT|e</think>f<think>g</arg_value></tool_response>\n");
}

TEST(ReplyParser, WhatIsNoPartOfACallComesOutAfterIt) {
  EXPECT_EQ(parse("<tool_call>get<arg_key>a</arg_key>x<arg_value>1</arg_value> y <arg_key>lone</arg_key></arg_value>"
                  "<arg_key>b</arg_key><arg_value>2</arg_value></tool_call>z",
                  answer())
                .script,
            "[0 get c0\n0|{\"a\": 1, \"b\": 2}\n0]\nT|x y <arg_key>lone</arg_key></arg_value>z\n");
  EXPECT_EQ(parse("<tool_call>get<arg_key>a</tool_call>", answer()).script, "[0 get c0\n0|{}\n0]\nT|<arg_key>a\n");
  EXPECT_EQ(parse("<tool_call>get<arg_key>a<arg_key>b<arg_value>1</arg_value></tool_call>", answer()).script,
            "[0 get c0\n0|{\"b\": 1}\n0]\nT|<arg_key>a\n");
}

TEST(ReplyParser, OfEqualKeysTheFirstCounts) {
  EXPECT_EQ(
      parse("<tool_call>get<arg_key>a</arg_key><arg_value>1</arg_value><arg_key>a</arg_key><arg_value>2</arg_value>"
            "<arg_key>b</arg_key><arg_value>3</arg_value></tool_call>",
            answer())
          .script,
      "[0 get c0\n0|{\"a\": 1, \"b\": 3}\n0]\nT|<arg_key>a</arg_key><arg_value>2</arg_value>\n");
}

TEST(ReplyParser, ACallWithoutItsEndTag) {
  const std::string call = "<tool_call>get<arg_key>a</arg_key><arg_value>1</arg_value>";
  Reply reply = parse(call + "<|observation|>", answer());  // the model ended it
  EXPECT_EQ(reply.script, "[0 get c0\n0|{\"a\": 1}\n0]\n");
  EXPECT_EQ(reply.reason, FinishReason::kToolCalls);
  EXPECT_EQ(parse(call + call + "</tool_call>", answer()).script,
            "[0 get c0\n0|{\"a\": 1}\n0]\n[1 get c1\n1|{\"a\": 1}\n1]\n");
}

// No JSON parser takes what is left open for arguments, so a cut call cannot be run by mistake.
TEST(ReplyParser, ACutCallIsFlaggedAndLeftOpen) {
  const std::string whole =
      "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Bo\"</arg_value> <arg_key>days</arg_key><arg_value>12"
      "</arg_value></tool_call>";
  const ReplyToy toy;
  const std::vector<int32_t> ids = toy.spell(whole);
  for (size_t n = 0; n < ids.size(); ++n) {
    ReplyParser parser(toy.vocabulary(), tools(), answer());
    std::vector<ReplyEvent> events;
    parser.feed(std::span(ids).first(n), events);
    EXPECT_EQ(parser.finish(events), FinishReason::kLength);
    if (parser.calls() == 0) continue;
    std::string arguments;
    for (const ReplyEvent& event : events)
      if (event.kind == Kind::kCallArguments) arguments += event.text;
    EXPECT_FALSE(nlohmann::json::accept(arguments)) << arguments;
    EXPECT_TRUE(nlohmann::json::accept(arguments + "}") || nlohmann::json::accept(arguments + "\"}") ||
                nlohmann::json::accept(arguments + "\":0}"))
        << arguments;
    EXPECT_EQ(events.back().kind, Kind::kCallEnd);
    EXPECT_FALSE(events.back().complete);
  }
  const auto cut = [](const std::string& text) { return parse(text, answer()).script; };
  EXPECT_EQ(cut("<tool_call>get_wea"), "T|<tool_call>get_wea\n");
  EXPECT_EQ(cut("<tool_call>get_weather<arg_key>ci"), "[0 get_weather c0\n0|{\"ci\n0]cut\n");
  EXPECT_EQ(cut("<tool_call>get_weather<arg_key>city</arg_key>"), "[0 get_weather c0\n0|{\"city\n0]cut\n");
  EXPECT_EQ(cut("<tool_call>get_weather<arg_key>city</arg_key><arg_value>B\""),
            "[0 get_weather c0\n0|{\"city\": \"B\\\"\n0]cut\n");
  EXPECT_EQ(cut("<tool_call>get_weather<arg_key>days</arg_key><arg_value>1"),
            "[0 get_weather c0\n0|{\"days\": \"1\n0]cut\n");
  EXPECT_EQ(cut("<tool_call>get<arg_key>a</arg_key><arg_key>"), "[0 get c0\n0|{\"\n0]cut\nT|<arg_key>a</arg_key>\n");
  // An eos inside a value does not end the call either.
  const Reply reply = parse("<tool_call>get<arg_key>a</arg_key><arg_value>1<|user|>", answer());
  EXPECT_EQ(reply.script, "[0 get c0\n0|{\"a\": \"1\n0]cut\n");
  EXPECT_EQ(reply.reason, FinishReason::kStop);
}

TEST(ReplyParser, WhiteSpaceAroundTheAnswerIsWhatTheTemplateStrips) {
  EXPECT_EQ(parse(" a \n</think>\n\n  Hi \n there\u3000 \n<|user|>").script, "R| a \n\nT|Hi \n there\n");
  EXPECT_EQ(parse("</think>\n<tool_call>get</tool_call>\n<|observation|>").script, "[0 get c0\n0|{}\n0]\n");
  EXPECT_EQ(parse("</think>a\n<tool_call>get</tool_call>\nb<|observation|>").script,
            "T|a\n[0 get c0\n0|{}\n0]\nT|\n\nb\n");  // between two texts it stays
  EXPECT_EQ(parse(" and more ", {.start = ReplyStart::kMidAnswer}).script, "T| and more\n");
}

TEST(ReplyParser, EveryEosEndsTheReplyAndSaysNothing) {
  for (const std::string eos : {"<|endoftext|>", "<|user|>", "<|observation|>"}) {
    const ReplyToy toy;
    ReplyParser parser(toy.vocabulary(), tools(), {.start = ReplyStart::kAnswer, .eos = toy.eos()});
    std::vector<ReplyEvent> events;
    const std::vector<int32_t> ids = toy.spell("Hi" + eos + "Hi");
    EXPECT_EQ(parser.feed(ids, events), 3u);
    EXPECT_TRUE(parser.ended());
    EXPECT_EQ(parser.feed(ids, events), 0u);
    EXPECT_EQ(parser.tokens(), 3u);
    EXPECT_EQ(parser.finish(events), FinishReason::kStop);
    EXPECT_EQ(script(events), "T|Hi\n");
  }
}

TEST(ReplyParser, EveryReplyHasAFinishReason) {
  EXPECT_EQ(parse("").reason, FinishReason::kLength);
  EXPECT_EQ(parse("a").reason, FinishReason::kLength);
  EXPECT_EQ(parse("</think>a<tool_call>get</tool_call>").reason, FinishReason::kLength);  // cut after the call
  EXPECT_STREQ(to_string(FinishReason::kStop), "stop");
  EXPECT_STREQ(to_string(FinishReason::kToolCalls), "tool_calls");
  EXPECT_STREQ(to_string(FinishReason::kLength), "length");
  const ReplyToy toy;
  ReplyParser parser(toy.vocabulary(), tools(), {.start = ReplyStart::kAnswer});
  std::vector<ReplyEvent> events;
  parser.feed(toy.spell("a<tool_call>ge"), events);
  EXPECT_EQ(parser.finish(events), FinishReason::kLength);
  const std::vector<ReplyEvent> first = events;
  EXPECT_EQ(parser.finish(events), FinishReason::kLength);  // again: nothing more
  EXPECT_EQ(events, first);
}

TEST(ReplyParser, StopStringsEndTheText) {
  ReplyOptions options{.stop = {"END", "\n\n", "</tool_call>"}};
  Reply reply = parse("END</think>\n\nOne END two", options);  // not in reasoning, nor in white space that is dropped
  EXPECT_EQ(reply.script, "R|END\nT|One\n");
  EXPECT_EQ(reply.reason, FinishReason::kStop);
  EXPECT_EQ(reply.stop, std::optional<size_t>(0));
  EXPECT_EQ(reply.tokens, 13u);
  EXPECT_EQ(parse("</think>EN<|user|>", options).script, "T|EN\n");
  EXPECT_EQ(parse("</think>EN", options).script, "T|EN\n");
  // Not in arguments; across a call there is no match; a call's text is searched once it turns out to be text.
  EXPECT_EQ(parse("</think>E<tool_call>get<arg_key>END</arg_key><arg_value>\"END\"</arg_value></tool_call>ND", options)
                .script,
            "T|E\n[0 get c0\n0|{\"END\": \"END\"}\n0]\nT|ND\n");
  reply = parse("</think><tool_call>nothing</tool_call>more", options);
  EXPECT_EQ(reply.script, "T|<tool_call>nothing\n");
  EXPECT_EQ(reply.stop, std::optional<size_t>(2));
  reply = parse("</think><tool_call>get</tool_call>so END", options);  // the call is to be run all the same
  EXPECT_EQ(reply.reason, FinishReason::kToolCalls);
  EXPECT_EQ(reply.stop, std::optional<size_t>(0));
}

TEST(ReplyParser, BytesThatAreNoTextAreReplacedAndCounted) {
  Reply reply = parse("a\xFF\xE2\x82</think>\xE2\x82\xAC\xF0\x9F<|user|>");
  EXPECT_EQ(reply.script, "R|a\uFFFD\uFFFD\nT|€\uFFFD\n");
  EXPECT_EQ(reply.replaced, 3u);
  // Held while it may become whole, whatever the tokens.
  const ReplyToy toy;
  ReplyParser parser(toy.vocabulary(), tools(), answer());
  std::vector<ReplyEvent> events;
  parser.feed(toy.plain("\xED\x95"), events);
  EXPECT_TRUE(events.empty());
  parser.feed(toy.plain("\x9C"), events);
  EXPECT_EQ(script(events), "T|한\n");
  EXPECT_EQ(parser.replaced(), 0u);
}

TEST(ReplyParser, RepliesShareNothing) {
  const ReplyToy toy;
  ReplyParser one(toy.vocabulary(), tools(), {});
  ReplyParser two(toy.vocabulary(), tools(), {});
  std::vector<ReplyEvent> first;
  std::vector<ReplyEvent> second;
  const std::vector<int32_t> a =
      toy.spell("x</think>1<tool_call>get_weather<arg_key>city</arg_key><arg_value>Rome</arg_value></tool_call>");
  const std::vector<int32_t> b = toy.spell("y<tool_call>get<arg_key>n</arg_key><arg_value>2</arg_value></tool_call>2");
  for (size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
    if (i < a.size()) one.feed({&a[i], 1}, first);
    if (i < b.size()) two.feed({&b[i], 1}, second);
  }
  one.finish(first);
  two.finish(second);
  EXPECT_EQ(script(first), "R|x\nT|1\n[0 get_weather call_0\n0|{\"city\": \"Rome\"}\n0]\n");
  EXPECT_EQ(script(second), "R|y\n[0 get call_0\n0|{\"n\": 2}\n0]\nT|2\n");
}

TEST(ReplyParser, NoToolsNoDuplicates) {
  EXPECT_EQ(parse("why</think>Because.<|user|>", {}, ToolSet()).script, "R|why\nT|Because.\n");
}

TEST(ReplyParser, OtherStarts) {
  EXPECT_EQ(parse("<think>a</think>b<think>c", {.start = ReplyStart::kUnspecified}).script, "R|a\nT|b<think>c\n");
  EXPECT_EQ(parse("\n<think>a", {.start = ReplyStart::kUnspecified}).script, "R|a\n");
  EXPECT_EQ(parse("b<think>c</think>", {.start = ReplyStart::kUnspecified}).script, "T|b<think>c</think>\n");
  EXPECT_EQ(parse("<think>c", answer()).script, "T|<think>c\n");
  const Reply reply = parse("\n a</think><tool_call>get</tool_call> \n<|user|>b", {.start = ReplyStart::kPlain});
  EXPECT_EQ(reply.script, "T|\n a</think><tool_call>get</tool_call> \n\n");
  EXPECT_EQ(parse(" a END", {.start = ReplyStart::kPlain, .stop = {"END"}}).script, "T| a \n");
}

TEST(ReplyParser, UnknownIdsSayNothing) {
  const ReplyToy toy;
  EXPECT_EQ(parse_ids(toy, {'a', 100'000, -1, 'b'}, answer()).script, "T|ab\n");
}

TEST(ReplyParser, LongValuesCostLinearWork) {
  const ReplyToy toy;
  for (const std::string start : {"\"", "{", "1", " ", "n"}) {
    ReplyParser parser(toy.vocabulary(), tools(), answer());
    std::vector<ReplyEvent> events;
    parser.feed(toy.spell("<tool_call>get<arg_key>a</arg_key><arg_value>" + start), events);
    const int32_t id = static_cast<uint8_t>(start[0]);
    for (int i = 0; i < 500'000; ++i) parser.feed({&id, 1}, events);
    parser.feed(toy.spell("</arg_value></tool_call>"), events);
    ASSERT_EQ(joined(events).size(), 3u);
    EXPECT_TRUE(nlohmann::json::accept(joined(events)[1].text));
  }
}

}  // namespace
}  // namespace verbatim::text
