// JSON schemas: what their grammars take, and that nothing else comes out of a mask.
#include <gtest/gtest.h>

#include <ctime>

#include "base/error.h"
#include "tests/text/grammar/grammar_toy.h"
#include "tests/text/grammar/schema_check.h"

namespace verbatim::text {
namespace {

using nlohmann::json;

const GrammarToy& toy() {
  static const GrammarToy made;
  return made;
}

struct Case {
  std::string schema;
  std::vector<std::string> yes, no;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}, "c": {"type": "null"}},
           "required": ["b"]})",
       {R"({"b":true})", R"({"a": 1, "b": false, "c": null})", "{\n  \"a\": 1,\n  \"b\": true\n}", R"({ "b": true })"},
       {"{}", R"({"a": 1})", R"({"b": true, "a": 1})", R"({"b": true,})", R"({"b": true, "d": 1})", R"({"b" : true})",
        R"({"b":  true})", "{\n\n\"b\": true}", "{\"b\":\ttrue}", R"( {"b": true})", R"({"b": true} )"}},
      {R"({"type": "object", "properties": {"a": {}, "b": {}, "c": {}}})",
       {"{}", R"({"c": [1, {"x": "y"}]})", R"({"a": 1, "c": 2})", R"({"a": 1, "b": 2, "c": 3})"},
       {R"({"c": 1, "a": 2})", R"({,"a": 1})", "{ }"}},
      {R"({"type": "object"})", {"{}", R"({"any": [{}, "\u00e9\n", -0.5e10]})"}, {"[]", "1", R"({"a": 01})"}},
      {R"({"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 4})",
       {"[1, 2]", "[1,2,3,4]", "[\n  1,\n  2\n]"},
       {"[]", "[1]", "[1, 2, 3, 4, 5]", "[1, 2.5]", "[1 ,2]"}},
      {R"({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": false, "minItems": 1})",
       {"[1]", R"([1, "x"])"},
       {"[]", R"(["x"])", R"([1, "x", 2])"}},
      {R"({"type": "array", "prefixItems": [{"type": "integer"}], "items": {"type": "null"}, "minItems": 3, "maxItems": 5})",
       {"[1, null, null]", "[1, null, null, null, null]"},
       {"[1, null]", "[1, null, null, null, null, null]"}},
      {R"({"anyOf": [{"type": "array", "prefixItems": [{"type": "null"}], "items": false, "minItems": 2}, {"type": "null"}]})",
       {"null"},
       {"[null]", "[null, null]"}},
      {R"({"type": "array", "maxItems": 0})", {"[]"}, {"[1]"}},
      {R"({"type": "array", "items": false})", {"[]"}, {"[1]", "[null]"}},
      {R"({"type": "string", "minLength": 2, "maxLength": 3})",
       {R"("ab")", R"("中文字")", R"("\n\u00e9")", R"("\ud83d\ude00x")", "\"\xF0\x9F\x98\x80x\""},
       {R"("a")", R"("abcd")", R"("")", R"("\ud83d\ude00")", R"("ab\ud83d\ud83d")", R"("ab\ud83d\udb00")",
        R"("ab\ud83d")", "\"ab\n\""}},
      {R"({"type": "string", "pattern": "^[a-z]{2,}\"?$"})",
       {R"("ab")", R"("ab\"")"},
       {R"("a")", R"("ab\u0022")", R"("aB")"}},
      {R"({"type": "string", "pattern": "b+\\d", "maxLength": 5})",
       {R"("b1")", R"("abb2x")", R"("\nb0\t")"},
       {R"("abc")", R"("abb2xy")", R"("b")"}},
      {R"({"type": "integer"})", {"0", "-1", "1234567"}, {"-0", "01", "1.0", "1e3", "+1", ""}},
      {R"({"type": "number"})", {"0", "-0", "-0.5", "1e10", "12.25E-3"}, {".5", "1.", "00", "1e", "NaN", "1e999"}},
      {R"({"type": "integer", "minimum": -12, "maximum": 105})",
       {"-12", "-9", "0", "7", "99", "105"},
       {"-13", "-20", "106", "110", "1000", "-0"}},
      {R"({"type": "integer", "exclusiveMinimum": 9, "maximum": 1000})",
       {"10", "999", "1000"},
       {"9", "1001", "-10", "0"}},
      {R"({"type": "integer", "minimum": 2.5, "exclusiveMaximum": 5.0})", {"3", "4"}, {"2", "5"}},
      {R"({"type": "integer", "maximum": -7})", {"-7", "-8", "-1000"}, {"-6", "0", "7"}},
      {R"({"type": "number", "minimum": -1.25, "exclusiveMaximum": 3.5})",
       {"-1.25", "-1.2", "-1.250", "-0.0001", "0", "3", "3.4999", "3.05"},
       {"-1.2501", "-1.3", "-2", "3.5", "3.50", "3.6", "4", "1e0"}},
      {R"({"type": "number", "exclusiveMinimum": 0})", {"0.001", "1", "12.5"}, {"0", "0.0", "-1", "-0.5"}},
      {R"({"type": "number", "maximum": 0.05})",
       {"0.05", "0.0499", "0", "-3.5", "0.050"},
       {"0.051", "0.06", "0.1", "1"}},
      {R"({"enum": ["a", 1, 2.50, null, true, {"k": [1, "2"]}, "q\"", ""]})",
       {R"("a")", "1", "2.50", "null", "true", R"({"k": [1, "2"]})", R"("q\"")", R"("")"},
       {R"("b")", "2", "false", R"({"k":[1,"2"]})"}},
      {R"({"const": "fixed"})", {R"("fixed")"}, {R"("other")", "1"}},
      {R"({"enum": ["a", "bb", "ccc", 4], "minLength": 2, "type": "string"})",
       {R"("bb")", R"("ccc")"},
       {R"("a")", "4"}},
      {R"({"type": ["string", "null"], "maxLength": 1})", {"null", R"("a")"}, {R"("ab")", "1"}},
      {R"({"type": "integer", "nullable": true})", {"null", "3"}, {R"("3")"}},
      {R"({"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 5}], "enum": ["x", 3, 7]})",
       {R"("x")", "7"},
       {"3"}},
      {R"({"oneOf": [{"type": "object", "properties": {"kind": {"const": "a"}, "n": {"type": "integer"}}, "required": ["kind", "n"]},
                     {"type": "object", "properties": {"kind": {"const": "b"}, "s": {"type": "string"}}, "required": ["kind"]}]})",
       {R"({"kind": "a", "n": 1})", R"({"kind": "b"})", R"({"kind": "b", "s": "x"})"},
       {R"({"kind": "a"})", R"({"kind": "a", "s": "x"})", R"({"kind": "c"})"}},
      {R"({"oneOf": [{"type": "object", "properties": {"kind": {"const": "a"}}}, {"$ref": "#/$defs/b"}],
           "$defs": {"b": {"type": "object", "properties": {"kind": {"const": "b"}}}},
           "discriminator": {"propertyName": "kind"}, "type": "object"})",
       {R"({"kind": "a"})", R"({"kind": "b"})"},
       {"{}"}},
      {R"({"allOf": [{"type": "object", "properties": {"a": {"type": "integer", "minimum": 3}}, "required": ["a"]},
                     {"properties": {"b": {"type": "string"}, "a": {"maximum": 5}}, "required": ["b"]}]})",
       {R"({"a": 3, "b": ""})", R"({"a": 5, "b": "x"})"},
       {R"({"a": 2, "b": ""})", R"({"a": 6, "b": ""})", R"({"a": 3})"}},
      {R"({"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "boolean"}})",
       {R"({"a": 1, "b": true})", R"({"x": true, "y": false})", "{}"},
       {R"({"a": true})", R"({"b": 1})", R"({"b": true, "a": 1})"}},
      {R"({"type": "object", "additionalProperties": false})", {"{}"}, {R"({"a": 1})"}},
      {R"({"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 1, "maxProperties": 2})",
       {R"({"a": 1})", R"({"a": 1, "b": 2})"},
       {"{}", R"({"a": 1, "b": 2, "c": 3})"}},
      {R"({"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"], "additionalProperties": true,
           "minProperties": 2, "maxProperties": 3})",
       {R"({"a": null, "b": 1})", R"({"a": null, "b": 1, "c": 2})"},
       {R"({"a": null})", R"({"a": null, "b": 1, "c": 2, "d": 3})"}},
      {R"({"type": "object", "patternProperties": {"^x": {"type": "integer"}, "y$": {"type": ["integer", "null"], "minimum": 3}},
           "additionalProperties": {"type": "string"}})",
       {R"({"x": 1})", R"({"ay": null})", R"({"xy": 3})", R"({"a": "s"})"},
       {R"({"x": "s"})", R"({"ay": 2})", R"({"xy": null})", R"({"xy": 2})", R"({"a": 1})"}},
      {R"({"type": "object", "propertyNames": {"pattern": "^[a-z]+$", "maxLength": 3}, "additionalProperties": true})",
       {R"({"abc": 1})", "{}"},
       {R"({"abcd": 1})", R"({"A": 1})"}},
      {R"({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["b", "a"]})",
       {R"({"a": 1, "b": [2]})"},
       {R"({"a": 1})", R"({"b": 1, "a": 2})"}},
      {R"({"$defs": {"node": {"type": "object", "properties": {"v": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
           "required": ["v", "next"]}}, "$ref": "#/$defs/node"})",
       {R"({"v": 1, "next": {"v": 2, "next": null}})"},
       {R"({"v": 1})", R"({"v": 1, "next": {}})"}},
      {R"({"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#"}}}})",
       {"{}", R"({"children": [{}, {"children": [{}]}]})"},
       {R"({"children": [1]})"}},
      {R"({"definitions": {"a b~/": {"type": "null"}}, "$ref": "#/definitions/a b~0~1"})", {"null"}, {"1"}},
      {"true", {"1", R"({"a": [null]})"}, {"", "x"}},
      {"{}", {R"("s")", "[]"}, {"tru"}},
      {R"({"title": "t", "description": "d", "default": 1, "examples": [2], "x-mine": 3, "type": "integer"})",
       {"5"},
       {"\"5\""}},
      {R"({"type": "integer", "multipleOf": 1, "format": "int32"})", {"2147483647"}, {"2147483648"}},
  };
  return all;
}

TEST(GrammarSchema, TakesWhatTheSchemaAllows) {
  for (const Case& one : cases()) {
    const GrammarPointer grammar = compile_json_schema(toy().tokens, one.schema);
    const SchemaCheck check(json::parse(one.schema));
    for (const std::string& text : one.yes) {
      EXPECT_TRUE(grammar->accepts(text)) << one.schema << "\n" << text;
      EXPECT_TRUE(check.holds(json::parse(text))) << one.schema << "\n" << text << " (the test's own check)";
    }
    for (const std::string& text : one.no) EXPECT_FALSE(grammar->accepts(text)) << one.schema << "\n" << text;
  }
}

// Whatever the mask lets through is JSON that satisfies the schema, and it is never empty.
TEST(GrammarSchema, RandomRepliesSatisfyTheirSchemas) {
  std::mt19937 random(3);
  size_t ended = 0, walked = 0;
  for (const Case& one : cases()) {
    const GrammarPointer grammar = compile_json_schema(toy().tokens, one.schema);
    const TokenMaskFunction mask = make_mask(grammar, toy().plain());
    const SchemaCheck check(json::parse(one.schema));
    for (int i = 0; i < 40; ++i) {
      const std::vector<int32_t> ids = toy().walk(mask, random, 25);
      ++walked;
      ASSERT_FALSE(ids.empty()) << one.schema;
      const std::string text = toy().text(ids);
      if (ids.back() != toy().end && ids.back() != toy().other_end) {
        ASSERT_FALSE(toy().allowed(mask, ids).empty()) << one.schema << "\n" << text;
        continue;
      }
      ++ended;
      ASSERT_TRUE(grammar->accepts(text)) << text;
      ASSERT_TRUE(json::accept(text)) << text;
      EXPECT_TRUE(check.holds(json::parse(text))) << one.schema << "\n" << text;
    }
  }
  EXPECT_GT(ended * 10, walked * 9);
}

TEST(GrammarSchema, IntegerBoundsAreExact) {
  for (const auto& [low, high] :
       std::vector<std::pair<int, int>>{{-120, 120}, {80, 199}, {8, 88}, {-99, -8}, {0, 0}, {-1, 109}}) {
    const json both = {{"type", "integer"}, {"minimum", low}, {"maximum", high}};
    const json least = {{"type", "integer"}, {"minimum", low}},
               most = {{"type", "integer"}, {"exclusiveMaximum", high}};
    const GrammarPointer in = compile_json_schema(toy().tokens, both.dump());
    const GrammarPointer above = compile_json_schema(toy().tokens, least.dump());
    const GrammarPointer below = compile_json_schema(toy().tokens, most.dump());
    for (int i = -1100; i <= 1100; ++i) {
      EXPECT_EQ(in->accepts(std::to_string(i)), i >= low && i <= high) << i << " " << both;
      EXPECT_EQ(above->accepts(std::to_string(i)), i >= low) << i << " " << least;
      EXPECT_EQ(below->accepts(std::to_string(i)), i < high) << i << " " << most;
    }
  }
}

TEST(GrammarSchema, IndentationIsBounded) {
  const GrammarPointer grammar = compile_json_object(toy().tokens);
  EXPECT_TRUE(grammar->accepts("{\n" + std::string(32, ' ') + "\"a\": 1\n}"));
  EXPECT_FALSE(grammar->accepts("{\n" + std::string(33, ' ') + "\"a\": 1\n}"));
  EXPECT_FALSE(grammar->accepts("{\"a\": 1\n\n}"));
}

TEST(GrammarSchema, FormatsAreExact) {
  const std::vector<std::tuple<std::string, std::vector<std::string>, std::vector<std::string>>> formats = {
      {"date",
       {"2024-02-29", "1996-02-29", "0004-02-29", "1200-02-29", "2000-02-29", "1999-12-31"},
       {"2023-02-29", "1997-02-29", "1900-02-29", "1300-02-29", "2024-04-31", "0000-01-01", "24-01-01", "2024-13-01"}},
      {"time", {"00:00:00Z", "23:59:59.5+05:30"}, {"24:00:00Z", "12:60:00Z", "12:00Z", "12:00:00"}},
      {"date-time", {"2024-02-29T12:00:00Z"}, {"2024-02-30T12:00:00Z", "2024-02-29 12:00:00Z"}},
      {"duration", {"P1Y2M3DT4H5M6S", "P3W", "PT36H", "P1D"}, {"P", "PT", "P1Y3D", "1D", "P1S"}},
      {"uuid",
       {"123e4567-e89b-12d3-a456-426614174000"},
       {"123e4567e89b12d3a456426614174000", "123e4567-e89b-12d3-a456-42661417400g"}},
      {"email", {"a.b+c@example.org", "x@y"}, {"a@", "@b", "a..b@c", "a@-b", "a b@c"}},
      {"hostname", {"example.org", "a-b.c"}, {"-a", "a-", "a..b", ""}},
      {"ipv4", {"0.0.0.0", "255.249.99.1"}, {"256.1.1.1", "1.1.1", "01.1.1.1"}},
      {"ipv6",
       {"::", "::1", "1:2:3:4:5:6:7:8", "fe80::1:2", "1::8", "::ffff:1.2.3.4", "1:2:3:4:5:6:7::"},
       {":", "1:2:3", "1:2:3:4:5:6:7:8:9", "1::2::3", "12345::", "::1.2.3"}},
      {"uri",
       {"https://user@example.org:80/a/b?q=1#f", "mailto:a@b.c", "urn:x:y", "file:///a%20b"},
       {"example.org", "http://a b", "1a:b", "http://%zz"}},
      {"uri-reference", {"/a/b", "a", "//x/y", "?q", "#f", "", "https://x"}, {"a b", "%"}},
      {"json-pointer", {"", "/a/b~0~1"}, {"a", "/~2"}}};
  for (const auto& [format, yes, no] : formats) {
    const json schema = {{"type", "string"}, {"format", format}};
    const GrammarPointer grammar = compile_json_schema(toy().tokens, schema.dump());
    for (const std::string& text : yes) EXPECT_TRUE(grammar->accepts(json(text).dump())) << format << ": " << text;
    for (const std::string& text : no) EXPECT_FALSE(grammar->accepts(json(text).dump())) << format << ": " << text;
  }
}

void expect_refused(const std::string& schema, const std::string& named) {
  try {
    compile_json_schema(toy().tokens, schema);
    ADD_FAILURE() << schema << " compiles";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage) << error.what();
    EXPECT_NE(std::string(error.what()).find(named), std::string::npos) << schema << "\n" << error.what();
  }
}

TEST(GrammarSchema, RefusesByNameAndPlace) {
  for (const char* keyword :
       {"not", "if", "then", "else", "dependentRequired", "dependentSchemas", "dependencies", "contains", "minContains",
        "maxContains", "$dynamicRef", "$recursiveRef", "unevaluatedItems"})
    expect_refused(std::string(R"({"properties": {"deep": {")") + keyword + R"(": {}}}})",
                   std::string("#/properties/deep/") + keyword + "] " + keyword);
  expect_refused(R"({"type": "array", "uniqueItems": true})", "#/uniqueItems");
  expect_refused(R"({"type": "number", "multipleOf": 0.1})", "#/multipleOf");
  expect_refused(R"({"unevaluatedProperties": {"type": "string"}})", "unevaluatedProperties");
  expect_refused(R"({"type": "string", "format": "color"})", "the format 'color'");
  expect_refused(R"~({"type": "string", "pattern": "(?=a)"})~", "#/pattern] look-around");
  expect_refused(R"~({"patternProperties": {"(": true}})~", "#/patternProperties/(");
  expect_refused(R"({"oneOf": [{"type": "integer"}, {"type": "number"}]})", "#/oneOf] oneOf whose branches 0 and 1");
  expect_refused(R"({"properties": {"a": {"oneOf": [{"type": "string"}, {"minLength": 3}]}}})", "#/properties/a/oneOf");
  expect_refused(R"({"nullable": true, "$ref": "#/$defs/x", "$defs": {"x": {}}})", "nullable without type");
  expect_refused(R"({"enum": [{"a": 1}], "required": ["a"]})", "an object or array in enum");
  expect_refused(R"({"properties": {"a": {}, "b": {}}, "minProperties": 1, "additionalProperties": true})",
                 "minProperties");
  expect_refused(R"({"$ref": "other.json"})", "leads nowhere");
  expect_refused(R"({"$ref": "#/$defs/none"})", "leads nowhere");
  expect_refused(R"({"$ref": "#"})", "nothing can satisfy");
  expect_refused(R"({"type": "object", "$ref": "#"})", "leads back to itself");
  expect_refused(R"({"anyOf": [{"$ref": "#"}, {"type": "string"}]})", "leads back to itself");
  expect_refused(R"({"properties": {"a": {"$id": "x", "type": "null"}}})", "$id inside a schema");
}

TEST(GrammarSchema, RefusesWhatIsNoSchema) {
  for (const char* schema : {"",
                             "{",
                             "[]",
                             "1",
                             "\"string\"",
                             "null",
                             "{} {}",
                             R"({"type": "strin"})",
                             R"({"type": 1})",
                             R"({"type": ["string", "text"]})",
                             R"({"properties": []})",
                             R"({"properties": {"a": 1}})",
                             R"({"required": "a"})",
                             R"({"required": [1]})",
                             R"({"enum": []})",
                             R"({"enum": 1})",
                             R"({"anyOf": []})",
                             R"({"allOf": {}})",
                             R"({"minLength": -1})",
                             R"({"minLength": "1"})",
                             R"({"maxItems": 1.5})",
                             R"({"minimum": "1"})",
                             R"({"pattern": 1})",
                             R"({"format": 1})",
                             R"({"$ref": 1})",
                             R"({"prefixItems": {}})",
                             R"({"uniqueItems": 1})",
                             R"({"a": 1, "a": 2})",
                             "{\"title\": \"\xFF\"}"})
    EXPECT_THROW(compile_json_schema(toy().tokens, schema), Error) << schema;
}

TEST(GrammarSchema, RefusesWhatNothingSatisfies) {
  for (const char* schema :
       {"false", R"({"type": "string", "minLength": 3, "maxLength": 2})",
        R"({"type": "integer", "minimum": 3, "maximum": 2})",
        R"({"type": "integer", "exclusiveMinimum": 2, "exclusiveMaximum": 3})", R"({"type": "string", "enum": [1]})",
        R"({"allOf": [{"type": "string"}, {"type": "null"}]})", R"({"type": "array", "items": false, "minItems": 1})",
        R"({"type": "object", "properties": {"a": false}, "required": ["a"]})",
        R"({"type": "string", "pattern": "^a$", "minLength": 2})",
        R"({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]})",
        R"({"type": "array", "prefixItems": [{"type": "null"}], "items": false, "minItems": 2})",
        R"({"type": "array", "items": {"$ref": "#"}, "minItems": 1})", R"({"const": 1, "enum": [2]})",
        R"({"type": "object", "additionalProperties": false, "required": ["a"]})",
        R"({"type": "object", "additionalProperties": {"$ref": "#"}, "minProperties": 1})"})
    expect_refused(schema, "nothing can satisfy");
}

std::string repeated(const std::string& text, size_t times) {
  std::string out;
  for (size_t i = 0; i < times; ++i) out += text;
  return out;
}

// Each compiles or is refused, within a second: of CPU time, since other tests run beside this one.
TEST(GrammarSchema, HostileOnesEndInTime) {
  std::vector<std::string> schemas;
  const auto pattern = [&](const std::string& regex) {
    schemas.push_back(json({{"type", "string"}, {"pattern", regex}}).dump());
  };
  pattern("(a|b)*a(a|b){40}");
  pattern("((a{100}){100}){100}");
  pattern("(((((((((a?){9}){9}){9}){9}){9}){9}){9}){9}){9}");
  pattern(repeated("(", 5000) + "a" + repeated(")", 5000));
  pattern(repeated("a*", 20000));
  pattern(repeated("(a|aa)+", 3000));
  pattern("[\\s\\S]{50000}x");
  pattern(repeated("\\p{L}", 3000));
  pattern("(x+x+)+y");
  pattern("^(\\w+\\s?){1,1000}$");
  schemas.push_back(R"({"type": "string", "minLength": 999999999})");
  schemas.push_back(R"({"type": "string", "pattern": "a", "minLength": 99999, "maxLength": 100000})");
  schemas.push_back(R"({"type": "array", "minItems": 99999999, "maxItems": 999999999999})");
  schemas.push_back(repeated("[", 100000));
  schemas.push_back(repeated(R"({"items": )", 100) + "{}" + repeated("}", 100));
  schemas.push_back(repeated(R"({"anyOf": [)", 30) + "{}" + repeated("]}", 30));
  {
    json chain = {{"$ref", "#/$defs/0"}}, doubling = chain, products = chain;
    for (int i = 0; i < 3000; ++i)
      chain["$defs"][std::to_string(i)] = {{"$ref", "#/$defs/" + std::to_string((i + 1) % 3000)}};
    schemas.push_back(chain.dump());
    chain["$defs"]["2999"] = {{"type", "null"}};
    schemas.push_back(chain.dump());
    for (int i = 0; i < 40; ++i) {
      const json next = {{"$ref", "#/$defs/" + std::to_string(i + 1)}};
      doubling["$defs"][std::to_string(i)] = {{"allOf", {next, next}}};
      products["$defs"][std::to_string(i)] = {{"type", "object"}, {"anyOf", {next, next}}, {"required", {"a"}}};
    }
    doubling["$defs"]["40"] = {{"type", "null"}};
    products["$defs"]["40"] = {{"properties", {{"a", {{"type", "null"}}}}}};
    schemas.push_back(doubling.dump());
    schemas.push_back(products.dump());
    json values = json::array(), branches = json::array(), properties = json::object(), patterns = json::object();
    for (int i = 0; i < 12000; ++i) values.push_back("value" + std::to_string(i * 7919));
    for (int i = 0; i < 1500; ++i) branches.push_back({{"minLength", i}});
    schemas.push_back(json({{"enum", values}}).dump());
    schemas.push_back(json({{"enum", values}, {"anyOf", branches}}).dump());
    json objects = json::array();
    for (int i = 0; i < 2000; ++i)
      objects.push_back({{"type", "object"}, {"required", {"k"}}, {"properties", {{"k", {{"const", i}}}}}});
    schemas.push_back(json({{"oneOf", objects}}).dump());
    for (int i = 0; i < 4000; ++i) properties["property" + std::to_string(i)] = {{"type", "string"}};
    schemas.push_back(json({{"properties", properties}}).dump());
    schemas.push_back(json({{"properties", properties}, {"additionalProperties", {{"type", "null"}}}}).dump());
    for (int i = 0; i < 300; ++i) patterns["[a-z]{" + std::to_string(i % 40) + "}" + std::to_string(i)] = true;
    schemas.push_back(json({{"patternProperties", patterns}}).dump());
    schemas.push_back(json({{"properties", properties}, {"patternProperties", patterns}}).dump());
    json required = json::array();
    for (int i = 0; i < 5000; ++i) required.push_back("r" + std::to_string(i));
    json all = json::array();
    for (int i = 0; i < 5; ++i) all.push_back({{"required", required}});
    schemas.push_back(json({{"allOf", all}, {"additionalProperties", true}}).dump());
    schemas.push_back(
        json({{"oneOf", {{{"required", required}}, {{"required", required}}}}, {"type", "object"}}).dump());
    json formats = json::object();
    for (int i = 0; i < 3000; ++i)
      formats["f" + std::to_string(i)] = {
          {"type", "string"}, {"format", i % 2 == 0 ? "ipv6" : "uri"}, {"maxLength", i + 1}};
    schemas.push_back(json({{"properties", formats}}).dump());
    json numbers = json::object();
    for (int i = 0; i < 2500; ++i)
      numbers["n" + std::to_string(i)] = {
          {"type", "number"}, {"minimum", -i - 0.123456789}, {"maximum", i * 1e9 + 0.987654321}};
    schemas.push_back(json({{"properties", numbers}}).dump());
  }
  schemas.push_back("{" + std::string(300000, ' ') + "}");
  for (const std::string& schema : schemas) {
    const std::clock_t begin = std::clock();
    std::string outcome = "compiled";
    try {
      compile_json_schema(toy().tokens, schema);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage) << error.what();
      outcome = error.what();
    }
    const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
    EXPECT_LT(seconds, 1.0) << schema.substr(0, 120) << "\n" << outcome;
  }
}

TEST(GrammarSchema, LimitsAreObeyed) {
  EXPECT_THROW(compile_json_schema(toy().tokens, "{}          ", {.schema_bytes = 10}), Error);
  EXPECT_THROW(compile_json_schema(toy().tokens, R"({"type": "string"})", {.states = 10}), Error);
  EXPECT_NO_THROW(compile_json_schema(toy().tokens, R"({"type": "string"})", {.states = 200}));
}

// A schema's value nests without bound; memory and time per byte stay flat.
TEST(GrammarSchema, DeepNestingIsFollowed) {
  const GrammarPointer grammar = compile_json_schema(
      toy().tokens,
      R"({"type": "array", "items": {"anyOf": [{"$ref": "#"}, {"type": "object", "properties": {"a": {"$ref": "#"}}}]}})");
  const size_t depth = 20000;
  EXPECT_TRUE(grammar->accepts(std::string(depth, '[') + std::string(depth, ']')));
  EXPECT_FALSE(grammar->accepts(std::string(depth, '[') + std::string(depth - 1, ']')));
  EXPECT_TRUE(grammar->accepts(repeated(R"([{"a": )", depth) + "[]" + repeated("}]", depth)));
}

}  // namespace
}  // namespace verbatim::text
