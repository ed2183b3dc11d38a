// Tool calls: what the mask forces is read back by ReplyParser as calls that satisfy the tools' schemas.
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/text/grammar/grammar_toy.h"
#include "tests/text/grammar/schema_check.h"
#include "text/reply_parser.h"

namespace verbatim::text {
namespace {

using nlohmann::json;
using EventKind = ReplyEvent::Kind;

const GrammarToy& toy() {
  static const GrammarToy made;
  return made;
}

const std::vector<OfferedTool>& tools() {
  static const std::vector<OfferedTool> all = {
      {"get_weather",
       R"({"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1,
           "maximum": 14}}, "required": ["city"]})"},
      {"get_time", ""},
      {"get", R"({"type": "object", "properties": {}})"},
      {"write",
       R"({"type": "object", "properties": {"path": {"type": "string", "pattern": "^[a-z/]+$"}, "mode": {"enum": ["r", "w", "", 7]},
           "note": {"type": ["string", "null"]}, "size": {"anyOf": [{"type": "string", "maxLength": 4}, {"type": "integer", "minimum": 100}]},
           "flags": {"type": "object", "properties": {"x": {"type": "boolean"}}, "required": ["x"]},
           "list": {"type": "array", "items": {"type": "string"}, "maxItems": 2}, "any": {}, "number": {"type": "number"},
           "yes": {"type": "boolean"}, "when": {"type": "string", "format": "date"},
           "mixed": {"anyOf": [{"type": "string"}, {"type": "object", "properties": {"k": {"type": "null"}}, "required": ["k"]}, {"const": true}]}},
           "required": ["path", "flags"]})"},
      {"open",
       R"({"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "boolean"}})"},
      {"tree",
       R"({"$defs": {"n": {"type": "object", "properties": {"left": {"$ref": "#/$defs/n"}, "v": {"type": "integer"}},
           "required": ["v"]}}, "type": "object", "properties": {"root": {"$ref": "#/$defs/n"}}, "required": ["root"]})"},
      {"either", R"({"anyOf": [{"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]},
           {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}]})"},
      {"free", R"({"type": "object"})"}};
  return all;
}

struct Call {
  std::string name, arguments;
  bool complete = false;
};
struct Reply {
  std::string text, reasoning;
  std::vector<Call> calls;
  FinishReason reason = FinishReason::kLength;
};

Reply parse(const std::vector<int32_t>& ids, ReplyStart start) {
  static const ReplyVocabulary vocabulary = [] {
    ReplyVocabulary made;
    for (size_t i = 0; i < made.tags.size(); ++i) made.tags[i] = toy().tag(static_cast<ReplyTag>(i));
    made.piece = [](int32_t id) { return std::string_view(toy().pieces[static_cast<size_t>(id)]); };
    return made;
  }();
  const ToolSet set(tools());
  ReplyParser parser(vocabulary, set, {.start = start, .eos = {toy().end, toy().other_end}});
  std::vector<ReplyEvent> events;
  parser.feed(ids, events);
  Reply reply;
  reply.reason = parser.finish(events);
  for (const ReplyEvent& event : events) {
    if (event.kind == EventKind::kText) reply.text += event.text;
    if (event.kind == EventKind::kReasoning) reply.reasoning += event.text;
    if (event.kind == EventKind::kCallBegin) reply.calls.push_back({event.text, "", false});
    if (event.kind == EventKind::kCallArguments) reply.calls.back().arguments += event.text;
    if (event.kind == EventKind::kCallEnd) reply.calls.back().complete = event.complete;
  }
  return reply;
}

const json& schema_of(const std::string& name) {
  static std::map<std::string, json> schemas;
  if (schemas.empty())
    for (const OfferedTool& tool : tools())
      schemas[tool.name] = tool.parameters.empty() ? json({{"maxProperties", 0}}) : json::parse(tool.parameters);
  return schemas.at(name);
}

TEST(GrammarToolCalls, RandomCallsAreReadBackAndSatisfyTheirSchemas) {
  const TokenMaskFunction mask = make_mask(compile_tool_calls(toy().tokens, tools()), toy().plain());
  std::mt19937 random(5);
  std::map<std::string, size_t> seen;
  size_t parallel = 0, ended = 0;
  for (int i = 0; i < 600; ++i) {
    const std::vector<int32_t> ids = toy().walk(mask, random, 60);
    ASSERT_FALSE(ids.empty());
    if (ids.back() != toy().end && ids.back() != toy().other_end) continue;
    ++ended;
    const Reply reply = parse(ids, ReplyStart::kAnswer);
    ASSERT_FALSE(reply.calls.empty()) << toy().text(ids);
    EXPECT_EQ(reply.reason, FinishReason::kToolCalls);
    // Other keys than the declared ones may repeat; what is repeated comes out as text.
    const bool may_repeat = std::any_of(reply.calls.begin(), reply.calls.end(),
                                        [](const Call& one) { return one.name == "open" || one.name == "free"; });
    if (!may_repeat) {
      EXPECT_EQ(reply.text, "") << toy().text(ids);
    }
    parallel += reply.calls.size() > 1;
    for (const Call& call : reply.calls) {
      ++seen[call.name];
      EXPECT_TRUE(call.complete);
      ASSERT_TRUE(json::accept(call.arguments)) << call.arguments;
      const json arguments = json::parse(call.arguments);
      ASSERT_TRUE(arguments.is_object());
      EXPECT_TRUE(SchemaCheck(schema_of(call.name)).holds(arguments)) << call.name << "\n"
                                                                      << toy().text(ids) << "\n"
                                                                      << call.arguments;
    }
  }
  EXPECT_GT(ended, 500U);
  EXPECT_GT(parallel, 20U);
  EXPECT_EQ(seen.size(), tools().size()) << "every tool was called";
}

// Tags and ends as tokens of their own, the rest a byte each.
std::vector<int32_t> spell(std::string_view text) {
  std::vector<int32_t> ids;
  while (!text.empty()) {
    size_t used = 1;
    int32_t id = static_cast<uint8_t>(text[0]);
    for (int32_t tag = toy().first_tag; tag <= toy().other_end; ++tag) {
      const std::string& piece = toy().pieces[static_cast<size_t>(tag)];
      if (!text.starts_with(piece)) continue;
      used = piece.size();
      id = tag;
    }
    ids.push_back(id);
    text.remove_prefix(used);
  }
  return ids;
}

bool fits(const TokenMaskFunction& mask, const std::vector<int32_t>& ids) {
  for (size_t i = 0; i < ids.size(); ++i) {
    const std::vector<int32_t> allowed = toy().allowed(mask, std::span(ids).first(i));
    if (!std::binary_search(allowed.begin(), allowed.end(), ids[i])) return false;
  }
  return true;
}

std::string argument(const std::string& key, const std::string& value) {
  return "<arg_key>" + key + "</arg_key><arg_value>" + value + "</arg_value>";
}
std::string call(const std::string& name, const std::string& arguments) {
  return "<tool_call>" + name + arguments + "</tool_call>";
}

TEST(GrammarToolCalls, Form) {
  const TokenMaskFunction mask = make_mask(compile_tool_calls(toy().tokens, tools()), toy().plain());
  const std::string end = "<|endoftext|>", city = argument("city", "Oslo"), days = argument("days", "3");
  EXPECT_TRUE(fits(mask, spell(call("get_weather", city) + end)));
  EXPECT_TRUE(fits(mask, spell(call("get_weather", city + days) + end)));
  EXPECT_TRUE(fits(mask, spell(call("get_weather", city) + call("get_time", "") + end)));
  EXPECT_TRUE(fits(mask, spell(call("get_weather", argument("city", "")) + end)));
  EXPECT_TRUE(fits(mask, spell(call("get", "") + end)));
  EXPECT_FALSE(fits(mask, spell(call("get_weather", days) + end))) << "city is required";
  EXPECT_FALSE(fits(mask, spell(call("get_weather", days + city) + end))) << "in the schema's order";
  EXPECT_FALSE(fits(mask, spell(call("get_weather", city + argument("days", "15")) + end)));
  EXPECT_FALSE(fits(mask, spell(call("get_weather", city + argument("days", "\"3\"")) + end)));
  EXPECT_FALSE(fits(mask, spell(call("get_weather", city + city) + end)));
  EXPECT_FALSE(fits(mask, spell(call("get_", "") + end)));
  EXPECT_FALSE(fits(mask, spell(call("get_time", city) + end)));
  EXPECT_FALSE(fits(mask, spell("text" + call("get_time", ""))));
  EXPECT_FALSE(fits(mask, spell(end)));
  EXPECT_FALSE(fits(mask, spell(call("get_time", "") + "\n")));
  for (const char* tag : {"<think>", "</think>", "<tool_call>", "</tool_call>", "<arg_key>", "<|user|>"})
    EXPECT_FALSE(fits(mask, spell("<tool_call>get_weather<arg_key>city</arg_key><arg_value>O" + std::string(tag))))
        << tag;
  std::vector<int32_t> spelt;  // the same characters as ordinary tokens are text
  for (const char c : std::string("</arg_value>")) spelt.push_back(static_cast<uint8_t>(c));
  std::vector<int32_t> ids = spell("<tool_call>get_weather<arg_key>city</arg_key><arg_value>O");
  ids.insert(ids.end(), spelt.begin(), spelt.end());
  EXPECT_TRUE(fits(mask, ids));
}

TEST(GrammarToolCalls, NumberAndName) {
  const std::string time = call("get_time", ""), end = "<|endoftext|>";
  const auto with = [](const ToolCallOptions& options) {
    return make_mask(compile_tool_calls(toy().tokens, tools(), options), toy().plain());
  };
  EXPECT_FALSE(fits(with({.max_calls = 1}), spell(time + time)));
  EXPECT_TRUE(fits(with({.max_calls = 1}), spell(time + end)));
  EXPECT_FALSE(fits(with({.min_calls = 2}), spell(time + end)));
  EXPECT_TRUE(fits(with({.min_calls = 2}), spell(time + time + time + end)));
  EXPECT_TRUE(fits(with({.min_calls = 2, .max_calls = 3}), spell(time + time + time + end)));
  EXPECT_FALSE(fits(with({.min_calls = 2, .max_calls = 3}), spell(time + time + time + time)));
  EXPECT_TRUE(fits(with({.named = "get"}), spell(call("get", "") + end)));
  EXPECT_FALSE(fits(with({.named = "get"}), spell(time)));
}

TEST(GrammarToolCalls, ReasoningComesFirst) {
  const TokenMaskFunction mask = make_mask(compile_tool_calls(toy().tokens, tools()), toy().with_reasoning());
  EXPECT_TRUE(fits(mask, spell("I think {</arg_value></think>" + call("get_time", "") + "<|user|>")));
  EXPECT_FALSE(fits(mask, spell("I think" + call("get_time", ""))));
  EXPECT_FALSE(fits(mask, spell("I think<|user|>")));
}

TEST(GrammarToolCalls, RefusesByName) {
  const auto refused = [](const std::vector<OfferedTool>& offered, const ToolCallOptions& options,
                          const std::string& named) {
    try {
      compile_tool_calls(toy().tokens, offered, options);
      ADD_FAILURE() << named << ": compiles";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(named), std::string::npos) << error.what();
    }
  };
  refused({}, {}, "no tools are offered");
  refused(tools(), {.named = "put"}, "'put' is not offered");
  refused(tools(), {.min_calls = 0}, "from 0");
  refused(tools(), {.min_calls = 3, .max_calls = 2}, "from 3 to 2");
  refused(tools(), {.max_calls = 1000}, "at most 64");
  refused({{"a b", ""}}, {}, "white space");
  refused({{"f", "{"}}, {}, "not JSON");
  refused({{"f", R"({"properties": {"a": {"not": {}}}})"}}, {}, "tool 'f' #/properties/a/not");
  refused({{"f", R"({"type": "string"})"}}, {}, "nothing can satisfy");
  refused({{"f", R"({"type": "object", "additionalProperties": true, "minProperties": 1})"}}, {}, "minProperties");
  refused({{"f", R"({"type": "object", "required": [" a"]})"}}, {}, "white space");
  refused(
      {{"f",
        R"({"type": "object", "patternProperties": {"^x": {"type": "integer"}}, "additionalProperties": {"type": "string"}})"}},
      {}, "its declared types do not tell from text");
  refused({{"f", std::string(300000, ' ') + "{}"}}, {}, "tools of 300003 bytes");
  std::vector<std::string> pieces(toy().pieces.begin(), toy().pieces.begin() + 256);
  std::array<int32_t, kReplyTagText.size()> none{};
  none.fill(-1);
  const auto bare = std::make_shared<const TokenTable>(pieces, std::vector<bool>(256), none);
  try {
    compile_tool_calls(bare, tools());
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
    EXPECT_NE(std::string(error.what()).find("<tool_call>"), std::string::npos);
  }
}

}  // namespace
}  // namespace verbatim::text
