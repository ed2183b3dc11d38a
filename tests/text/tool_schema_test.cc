#include "text/tool_schema.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace verbatim::text {
namespace {

ToolSet tool_with(const std::string& property, const std::string& rest = "") {
  return ToolSet({{"f", R"({"type": "object", "properties": {"a": )" + property + "}" + rest + "}"}});
}
// The JSON that an argument's text becomes under a property's schema.
std::string typed(const std::string& property, std::string_view text, const std::string& rest = "") {
  return tool_with(property, rest).type(0, "a").to_json(text);
}

TEST(ToolSchema, StringsStayRawText) {
  const std::string schema = R"({"type": "string"})";
  EXPECT_EQ(typed(schema, "12"), R"("12")");
  EXPECT_EQ(typed(schema, "null"), R"("null")");
  EXPECT_EQ(typed(schema, R"({"a": 1})"), R"("{\"a\": 1}")");
  EXPECT_EQ(typed(schema, R"("quoted")"), R"("\"quoted\"")");
  EXPECT_EQ(typed(schema, " \n kept \n"), R"(" \n kept \n")");
  EXPECT_EQ(typed(schema, ""), R"("")");
}

TEST(ToolSchema, OthersParseAsJsonAndKeepTheModelsSpelling) {
  EXPECT_EQ(typed(R"({"type": "integer"})", "12345678901234567890123"), "12345678901234567890123");
  EXPECT_EQ(typed(R"({"type": "number"})", " 1.50 "), "1.50");
  EXPECT_EQ(typed(R"({"type": "number"})", "7"), "7");
  EXPECT_EQ(typed(R"({"type": "integer"})", "3.0"), "3.0");  // an integer to JSON schema
  EXPECT_EQ(typed(R"({"type": "integer"})", "-2e2"), "-2e2");
  EXPECT_EQ(typed(R"({"type": "boolean"})", "\ntrue\n"), "true");
  EXPECT_EQ(typed(R"({"type": "null"})", "null"), "null");
  EXPECT_EQ(typed(R"({"type": "object"})", R"({"b": [1, {"c": "null"}]})"), R"({"b": [1, {"c": "null"}]})");
  EXPECT_EQ(typed(R"({"type": "array", "items": {"type": "string"}})", R"(["1", "x"])"), R"(["1", "x"])");
}

TEST(ToolSchema, WhatFailsToParseAsDeclaredIsKeptAsString) {
  EXPECT_EQ(typed(R"({"type": "integer"})", "twelve"), R"("twelve")");
  EXPECT_EQ(typed(R"({"type": "integer"})", "1.5"), R"("1.5")");
  EXPECT_EQ(typed(R"({"type": "integer"})", "true"), R"("true")");
  EXPECT_EQ(typed(R"({"type": "integer"})", R"("5")"), R"("\"5\"")");
  EXPECT_EQ(typed(R"({"type": "integer"})", "null"), R"("null")");
  EXPECT_EQ(typed(R"({"type": "null"})", "5"), R"("5")");
  EXPECT_EQ(typed(R"({"type": "integer"})", ""), R"("")");
  EXPECT_EQ(typed(R"({"type": "integer"})", "1 2"), R"("1 2")");
  EXPECT_EQ(typed(R"({"type": "number"})", "01"), R"("01")");
  EXPECT_EQ(typed(R"({"type": "number"})", "1e999"), R"("1e999")");
  EXPECT_EQ(typed(R"({"type": "number"})", "NaN"), R"("NaN")");
  EXPECT_EQ(typed(R"({"type": "boolean"})", "True"), R"("True")");
  EXPECT_EQ(typed(R"({"type": "object"})", R"({"a": 1)"), R"("{\"a\": 1")");
  EXPECT_EQ(typed(R"({"type": "object"})", "[1]"), R"("[1]")");
  EXPECT_EQ(typed(R"({"type": "array"})", "[1] and more"), R"("[1] and more")");
}

TEST(ToolSchema, UnknownIsJsonIfItParsesElseString) {
  for (const std::string schema : {"{}", "true", R"({"type": "money"})", R"({"description": "x"})", R"({"type": []})",
                                   R"({"type": 3})", R"({"$ref": "other.json#/x"})", R"({"$ref": "#/$defs/None"})"}) {
    EXPECT_EQ(typed(schema, "12"), "12") << schema;
    EXPECT_EQ(typed(schema, R"("s")"), R"("s")") << schema;
    EXPECT_EQ(typed(schema, "plain"), R"("plain")") << schema;
    EXPECT_EQ(typed(schema, R"("open)"), R"("\"open")") << schema;
    EXPECT_EQ(typed(schema, R"({"a": [null]})"), R"({"a": [null]})") << schema;
  }
  const ToolSet no_schema({{"f", ""}, {"g", "null"}, {"h", "true"}, {"i", "{}"}});
  for (size_t tool = 0; tool < 4; ++tool) EXPECT_EQ(no_schema.type(tool, "any").to_json("1.5"), "1.5");
}

TEST(ToolSchema, UnionsPreferJsonOfAnAdmittedKind) {
  for (const std::string schema :
       {R"({"type": ["string", "null"]})", R"({"anyOf": [{"type": "string"}, {"type": "null"}]})",
        R"({"oneOf": [{"type": "null"}, {"anyOf": [{"type": "string"}]}]})",
        R"({"type": "string", "nullable": true})"}) {
    EXPECT_EQ(typed(schema, "null"), "null") << schema;
    EXPECT_EQ(typed(schema, "nullable"), R"("nullable")") << schema;
    EXPECT_EQ(typed(schema, "12"), R"("12")") << schema;
    EXPECT_EQ(typed(schema, R"("x")"), R"("\"x\"")") << schema;
  }
  const std::string three = R"({"anyOf": [{"type": "integer"}, {"type": "array"}, {"type": "string"}]})";
  EXPECT_EQ(typed(three, "4"), "4");
  EXPECT_EQ(typed(three, "4.5"), R"("4.5")");
  EXPECT_EQ(typed(three, "[4]"), "[4]");
  EXPECT_EQ(typed(three, "[4"), R"("[4")");
  EXPECT_EQ(typed(three, "true"), R"("true")");
}

TEST(ToolSchema, EnumsAndConstantsAreTypedByTheirMembers) {
  EXPECT_EQ(typed(R"({"enum": ["1", "true"]})", "1"), R"("1")");
  EXPECT_EQ(typed(R"({"enum": ["1", "true"]})", "true"), R"("true")");
  EXPECT_EQ(typed(R"({"enum": [1, 2]})", "2"), "2");
  EXPECT_EQ(typed(R"({"enum": [1, 2, "3", null]})", "3"), R"("3")");
  EXPECT_EQ(typed(R"({"enum": [1, 2, "3", null]})", "1"), "1");
  EXPECT_EQ(typed(R"({"enum": [1, 2, "3", null]})", "null"), "null");
  EXPECT_EQ(typed(R"({"enum": [1, "1"]})", "1"), "1");
  EXPECT_EQ(typed(R"({"anyOf": [{"enum": ["7"]}, {"type": "integer"}]})", "7"), R"("7")");
  EXPECT_EQ(typed(R"({"anyOf": [{"enum": ["7"]}, {"type": "integer"}]})", "8"), "8");
  EXPECT_EQ(typed(R"({"const": "5"})", "5"), R"("5")");
  EXPECT_EQ(typed(R"({"const": 5})", "5"), "5");
  EXPECT_EQ(typed(R"({"type": "string", "enum": [1, 2]})", "1"), "1");  // contradicts itself: says nothing
}

TEST(ToolSchema, ReferencesAndIntersections) {
  const std::string definitions = R"(, "$defs": {"Place": {"type": "object"}, "Text": {"type": "string"},
      "a/b~c": {"type": "integer"}, "List": {"anyOf": [{"$ref": "#/$defs/List"}, {"type": "array"}]},
      "Self": {"$ref": "#/$defs/Self"}})";
  EXPECT_EQ(typed(R"({"$ref": "#/$defs/Place"})", R"({"x": 1})", definitions), R"({"x": 1})");
  EXPECT_EQ(typed(R"({"$ref": "#/$defs/Text"})", "12", definitions), R"("12")");
  EXPECT_EQ(typed(R"({"$ref": "#/$defs/a~1b~0c"})", "12", definitions), "12");
  EXPECT_EQ(typed(R"({"$ref": "#/$defs/a~1b~0c"})", "x", definitions), R"("x")");
  EXPECT_EQ(typed(R"({"anyOf": [{"$ref": "#/$defs/Text"}, {"type": "null"}]})", "12", definitions), R"("12")");
  EXPECT_EQ(typed(R"({"$ref": "#/$defs/List"})", "[1]", definitions), "[1]");
  EXPECT_EQ(typed(R"({"$ref": "#/$defs/List"})", "1", definitions), R"("1")");
  EXPECT_EQ(typed(R"({"$ref": "#/$defs/Self"})", "1", definitions), "1");
  EXPECT_EQ(typed(R"({"$ref": "#/properties/a"})", "1"), "1");
  EXPECT_EQ(typed(R"({"allOf": [{"type": ["string", "integer"]}, {"type": ["string", "null"]}]})", "1"), R"("1")");
}

TEST(ToolSchema, PropertiesAreFoundThroughReferencesAndUnions) {
  const ToolSet tools({{"f", R"({"$ref": "#/$defs/In", "$defs": {"In": {"properties": {"a": {"type": "string"}}}}})"},
                       {"g", R"({"anyOf": [{"properties": {"a": {"type": "string"}}},
                                           {"properties": {"a": {"type": "null"}, "b": {"type": "integer"}}}]})"},
                       {"h", R"({"properties": {}, "additionalProperties": {"type": "string"}})"}});
  EXPECT_EQ(tools.type(0, "a").to_json("1"), R"("1")");
  EXPECT_EQ(tools.type(1, "a").kinds, ArgumentType::kString | ArgumentType::kNull);
  EXPECT_EQ(tools.type(1, "b").kinds, ArgumentType::kInteger);
  EXPECT_EQ(tools.type(2, "whatever").to_json("1"), R"("1")");
  EXPECT_TRUE(tools.declares(1, "b"));
  EXPECT_FALSE(tools.declares(2, "whatever"));
}

// What may_be_json says of a beginning, to_json must keep: once false the value is a string.
TEST(ToolSchema, OnceTextAlwaysText) {
  const std::vector<std::string> schemas = {R"({"type": "string"})",  R"({"type": ["string", "null"]})",
                                            R"({"type": "integer"})", R"({})",
                                            R"({"type": "boolean"})", R"({"enum": [1, "2", true]})",
                                            R"({"type": "object"})",  R"({"type": ["array", "string"]})"};
  const std::vector<std::string> texts = {"null",
                                          "nulls",
                                          " null ",
                                          "n",
                                          "true",
                                          "truth",
                                          "false ",
                                          "12",
                                          "-",
                                          "-1.5e+3",
                                          "1-1",
                                          "12 x",
                                          "{\"a\":1}",
                                          "{",
                                          "[1,2]",
                                          "[",
                                          "\"a\"",
                                          "\"a",
                                          "plain",
                                          " \n\t",
                                          "\xEF\xBB\xBF"
                                          "1",
                                          std::string(2000, ' ') + "1",
                                          std::string(2000, '1'),
                                          "true" + std::string(2000, ' ')};
  for (const std::string& schema : schemas) {
    const ToolSet tools = tool_with(schema);
    const ArgumentType& type = tools.type(0, "a");
    for (const std::string& text : texts) {
      bool may_be = true;
      for (size_t n = 0; n <= text.size(); ++n) {
        const bool now = type.may_be_json(std::string_view(text).substr(0, n));
        EXPECT_TRUE(may_be || !now) << schema << " " << text.substr(0, n);
        may_be = now;
      }
      std::string as_string = "\"";
      append_json_escaped(as_string, text);
      as_string += '"';
      EXPECT_TRUE(may_be || type.to_json(text) == as_string) << schema << " " << text;
      EXPECT_TRUE(nlohmann::json::accept(type.to_json(text))) << schema << " " << text;
    }
  }
}

TEST(ToolSchema, EscapesLikeEveryJsonWriter) {
  std::string all;
  for (int c = 0; c < 0x80; ++c) all += static_cast<char>(c);
  all += "é\u2028한🙂";
  std::string out = "\"";
  append_json_escaped(out, all);
  out += '"';
  EXPECT_EQ(out, nlohmann::json(all).dump());
  EXPECT_EQ(nlohmann::json::parse(out).get<std::string>(), all);
}

TEST(ToolSchema, HostileSchemasEnd) {
  // Sixteen definitions that each name the next one twice: 2^40 paths.
  std::string definitions = R"(, "$defs": {)";
  for (int i = 0; i < 40; ++i)
    definitions += "\"D" + std::to_string(i) + R"(": {"anyOf": [{"$ref": "#/$defs/D)" + std::to_string(i + 1) +
                   R"("}, {"$ref": "#/$defs/D)" + std::to_string(i + 1) + "\"}]}, ";
  definitions += R"("D40": {"type": "string"}})";
  EXPECT_EQ(typed(R"({"$ref": "#/$defs/D0"})", "1", definitions), "1");
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += R"({"anyOf": [)";
  deep += "{}";
  for (int i = 0; i < 100'000; ++i) deep += "]}";
  EXPECT_EQ(typed(deep, "1"), "1");
  const std::string nested = std::string(100'000, '[') + std::string(100'000, ']');
  EXPECT_EQ(typed(R"({"enum": [)" + nested + ", \"" + nested + "\"]}", "[1]"), "[1]");
  EXPECT_EQ(typed("{}", nested), nested);
}

TEST(ToolSet, FindsNamesAndTheirBeginnings) {
  const ToolSet tools({{"get_weather", ""}, {"get", ""}, {"zeit", ""}});
  EXPECT_EQ(tools.find("get"), std::optional<size_t>(1));
  EXPECT_EQ(tools.find("get_"), std::nullopt);
  EXPECT_TRUE(tools.has_name_with_prefix(""));
  EXPECT_TRUE(tools.has_name_with_prefix("get_w"));
  EXPECT_FALSE(tools.has_name_with_prefix("get_x"));
  EXPECT_FALSE(ToolSet().has_name_with_prefix(""));
}

TEST(ToolSet, RefusesWhatIsNoTool) {
  const auto message = [](const std::vector<OfferedTool>& tools) -> std::string {
    try {
      ToolSet set(tools);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      return error.what();
    }
    return "accepted";
  };
  EXPECT_EQ(message({{"", "{}"}}), "[tools] tool 0 has no name; give it one");
  EXPECT_EQ(message({{"f", ""}, {"f", ""}}), "[tools] the name 'f' is offered twice; names must differ");
  EXPECT_EQ(message({{"f", "{"}}), "[tools] the parameters of 'f' are not JSON; expected a JSON schema");
  EXPECT_EQ(message({{"f", "[1]"}}),
            "[tools] the parameters of 'f' are of type array; expected a JSON schema, an object");
}

}  // namespace
}  // namespace verbatim::text
