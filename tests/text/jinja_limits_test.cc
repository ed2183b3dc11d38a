// What templates may not do: refusals by name, limits, and the line in every error.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "text/jinja/template.h"

namespace verbatim::text::jinja {
namespace {

using Json = nlohmann::ordered_json;

void expect_error(const std::string& source, ErrorKind kind, const std::string& part,
                  const Json& inputs = Json::object(), const Limits& limits = {}) {
  try {
    const std::string text = Template::parse(source, "test.jinja", limits).render(inputs).bytes();
    ADD_FAILURE() << source.substr(0, 200) << "\nrenders: " << text.substr(0, 200);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what() << "\nlacks: " << part;
  }
}

TEST(JinjaRefusals, UnsupportedFeaturesAreNamed) {
  const struct {
    const char* source;
    const char* name;
  } cases[] = {
      {"{% include 'x' %}", "'include'"},
      {"{% import 'x' as y %}", "'import'"},
      {"{% from 'x' import y %}", "'from'"},
      {"{% extends 'x' %}", "'extends'"},
      {"{% block b %}{% endblock %}", "'block'"},
      {"{% call f() %}{% endcall %}", "'call'"},
      {"{% autoescape true %}{% endautoescape %}", "'autoescape'"},
      {"{% do x.append(1) %}", "'do'"},
      {"{% trans %}{% endtrans %}", "'trans'"},
      {"{% for x in y recursive %}{% endfor %}", "'recursive'"},
      {"{% for x in [1] %}{{ loop(x) }}{% endfor %}", "'loop'"},
      {"{{ x | groupby('a') }}", "'groupby'"},
      {"{{ x | random }}", "'random'"},
      {"{{ [1] | map('pprint') | list }}", "'pprint'"},
      {"{{ x is filter }}", "'filter'"},
      {"{{ 1 is sameas 1 }}", "'sameas'"},
      {"{{ [].append(1) }}", "'append'"},
      {"{{ {}.update({}) }}", "'update'"},
      {"{{ 'a'.zfill(3) }}", "'zfill'"},
      {"{{ 'a'.__class__ }}", "'__class__'"},
      {"{{ ''['__class__'] }}", "'__class__'"},
      {"{{ (1).real }}", "'real'"},
      {"{{ f(*x) }}", "'*'"},
      {"{{ f(**x) }}", "'**'"},
      {"{% macro m() %}{{ caller() }}{% endmacro %}", "'caller'"},
      {"{% macro m() %}{{ varargs }}{% endmacro %}", "'varargs'"},
      {"{% macro m() %}{% endmacro %}{{ m.name }}", "'name'"},
      {"{{ self.x() }}", "'self'"},
      {"{{ strftime_now('%Y') }}", "strftime_now"},
      {"{{ lipsum() }}", "'lipsum'"},
      {"{{ joiner(',') }}", "'joiner'"},
      {"{{ '%5d' % 3 }}", "%5"},
      {"{{ '{:>3}'.format(1) }}", "{:>3}"},
      {"{{ '\\N{DASH}' }}", "\\N"},
      {"{{ [1] | map('upper') }}", "iterator"},
      {"{{ range }}", "function"},
      {"{{ {(1, 2): 3} }}", "tuple as a mapping's key"},
      {"{{ 'a' | safe | indent }}", "'indent'"},
      {"{{ ('a' | safe).replace('a', 'b') }}", "'replace'"},
      {"{{ \xC3\xBC }}", "\xC3\xBC"},
      {"{{ x[1, 2] }}", "several items"},
      {"{{ (-8) ** 0.5 }}", "complex"},
  };
  for (const auto& one : cases) expect_error(one.source, ErrorKind::kUnsupported, one.name);
}

TEST(JinjaRefusals, ErrorsCarryTheLine) {
  expect_error("a\nb\n{{ x.y.z }}\n", ErrorKind::kFormat, "[template test.jinja line 3]", {{"x", Json::object()}});
  expect_error("a\n{% if true %}\n\n{{ 1 / 0 }}{% endif %}", ErrorKind::kFormat, "line 4");
  expect_error("{% macro m(a) %}\n\n{{ a + 1 }}\n{% endmacro %}\n\n{{ m('x') }}", ErrorKind::kFormat, "line 3");
  expect_error("{{ 1 }}\n{{ 2\n + }}", ErrorKind::kFormat, "line 3");
  expect_error("\n\n{% nothing %}", ErrorKind::kFormat, "line 3");
  expect_error("\n{{ 'a\n\n", ErrorKind::kFormat, "line 2");
  expect_error("{%- if a -%}\n\n\n{{ raise_exception('no') }}{% endif %}", ErrorKind::kFormat, "line 4", {{"a", 1}});
  expect_error("{{ raise_exception('my reason') }}", ErrorKind::kFormat, "my reason");
  expect_error("{{ x }", ErrorKind::kFormat, "unexpected '}'");
}

TEST(JinjaRefusals, InputsThatCannotBeValues) {
  expect_error("{{ x }}", ErrorKind::kCapacity, "64 bits", {{"x", uint64_t{1} << 63}});
  expect_error("{{ x }}", ErrorKind::kFormat, "UTF-8", {{"x", "a\xFF"}});
  expect_error("{{ x }}", ErrorKind::kFormat, "UTF-8", {{"x", {{"\xC3", 1}}}});
  expect_error("{{ x }}", ErrorKind::kFormat, "object", Json::array());
  expect_error("\xFF", ErrorKind::kFormat, "UTF-8");
  Json deep = 1;
  for (int i = 0; i < 5000; ++i) deep = Json::array({std::move(deep)});
  expect_error("{{ x }}", ErrorKind::kCapacity, "200 levels", {{"x", std::move(deep)}});
}

std::string repeated(const std::string& text, size_t times) {
  std::string out;
  for (size_t i = 0; i < times; ++i) out += text;
  return out;
}

TEST(JinjaLimits, NestingOfTheSource) {
  constexpr size_t kMany = 20'000;
  for (const std::string& source :
       {"{{ " + repeated("(", kMany), "{{ " + repeated("[", kMany), "{{ " + repeated("{1:", kMany),
        "{{ " + repeated("not ", kMany) + "1 }}", "{{ " + repeated("-", kMany) + "1 }}",
        "{{ 1" + repeated(" + 1", kMany) + " }}", "{{ a" + repeated(".a", kMany) + " }}",
        "{{ a" + repeated("|e", kMany) + " }}", "{{ a" + repeated(" or a", kMany) + " }}",
        "{{ 1" + repeated(" if 1 else 1", kMany) + " }}", "{{ a" + repeated("[a", kMany),
        "{{ a" + repeated("(a", kMany), repeated("{% if a %}", kMany), repeated("{% for a in a %}", kMany),
        repeated("{% macro a() %}", kMany), "{{ 1" + repeated(" if 1", kMany) + " }}",
        "{{ a" + repeated(" is string", 1) + repeated("|e", kMany) + " }}"})
    expect_error(source, ErrorKind::kCapacity, "200 levels");
  // What is long without being deep is no trouble.
  const std::string flat = "{{ 1" + repeated(" ~ 1", kMany) + " }}{% if 0 %}" + repeated("{% elif 0 %}", 1000) +
                           "{% endif %}{{ [" + repeated("1,", kMany) + "] | length }}";
  EXPECT_EQ(Template::parse(flat, "test").render(Json::object()).size(), kMany + 1 + 5);
}

TEST(JinjaLimits, StepsAndDepthOfTheRendering) {
  Limits small;
  small.steps = 100'000;
  expect_error("{% for a in range(1000) %}{% for b in range(1000) %}{% endfor %}{% endfor %}", ErrorKind::kCapacity,
               "100000 steps", Json::object(), small);
  expect_error("{% macro m(i) %}{{ m(i) }}{% endmacro %}{{ m(1) }}", ErrorKind::kCapacity, "600 levels");
  expect_error("{% macro m(i) %}{{ m(i - 1) + m(i - 1) if i else '' }}{% endmacro %}{{ m(40) }}", ErrorKind::kCapacity,
               "steps", Json::object(), small);
  // Shared values that would unfold to 2 ** 100 items.
  const std::string fold =
      "{% set ns = namespace(x=[]) %}{% for i in range(100) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}";
  expect_error(fold + "{{ ns.x }}", ErrorKind::kCapacity, "steps", Json::object(), small);
  expect_error(fold + "{{ ns.x | tojson }}", ErrorKind::kCapacity, "steps", Json::object(), small);
  expect_error(
      "{% set ns = namespace(x=[], y=[]) %}{% for i in range(100) %}{% set ns.x = [ns.x, ns.x] %}"
      "{% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ ns.x == ns.y }}",
      ErrorKind::kCapacity, "steps", Json::object(), small);
  expect_error("{% set ns = namespace(x=[]) %}{% for i in range(1000) %}{% set ns.x = [ns.x] %}{% endfor %}",
               ErrorKind::kCapacity, "200 levels");
}

TEST(JinjaLimits, TextAndSequences) {
  Limits small;
  small.text_bytes = 1000;
  const Json inputs = {{"s", std::string(600, 'a')}, {"l", {1, 2, 3}}};
  for (const char* source :
       {"{{ s }}{{ s }}", "{{ s ~ s }}", "{{ s + s }}", "{{ s * 2 }}", "{{ [s, s] | join }}", "{{ ''.join([s, s]) }}",
        "{{ s | replace('a', 'bb') }}", "{{ '%s%s' % (s, s) }}", "{{ '{0}{0}'.format(s) }}", "{{ [s, s] }}",
        "{{ [s, s] | tojson }}", "{{ s | indent(2000) }}", "{{ l | tojson(indent=2000) }}",
        "{% set x %}{{ s }}{{ s }}{% endset %}", "{{ ('a\n' * 300) | indent(4) }}", "{{ (s | e) ~ ('<' * 200) | e }}"})
    expect_error(source, ErrorKind::kCapacity, "limit on text", inputs, small);
  expect_error("{{ s }}", ErrorKind::kCapacity, "limit on text", {{"s", std::string(1001, 'a')}}, small);
  expect_error("{{ 'a' * 9223372036854775807 }}", ErrorKind::kCapacity, "limit on text");
  expect_error("{{ range(10000000) | list }}", ErrorKind::kCapacity, "1048576");
  expect_error("{{ [1, 2] * 9223372036854775807 }}", ErrorKind::kCapacity, "1048576");
  EXPECT_EQ(Template::parse("{{ range(-9223372036854775807, 9223372036854775807)[5] }}", "t").render(inputs).bytes(),
            "-9223372036854775802");
  small.template_bytes = 10;
  expect_error("01234567890", ErrorKind::kCapacity, "10", inputs, small);
}

TEST(JinjaLimits, IntegersPast64Bits) {
  for (const char* source :
       {"{{ 9223372036854775807 + 1 }}", "{{ -9223372036854775807 - 2 }}", "{{ 2 ** 63 }}",
        "{{ 4611686018427387904 * 2 }}", "{{ 9223372036854775808 }}", "{{ '9223372036854775808' | int }}",
        "{{ 1e19 | int }}", "{{ (-9223372036854775807 - 1) | abs }}", "{{ -(-9223372036854775807 - 1) }}",
        "{{ (-9223372036854775807 - 1) // -1 }}", "{{ 9223372036854775807 / 2 }}"})
    expect_error(source, ErrorKind::kCapacity, "");
  EXPECT_EQ(Template::parse("{{ 2 ** 62 }} {{ (-9223372036854775807 - 1) % -1 }}", "t").render(Json::object()).bytes(),
            "4611686018427387904 0");
}

}  // namespace
}  // namespace verbatim::text::jinja
