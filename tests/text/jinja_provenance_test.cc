// Which bytes of a rendering the template wrote, through every operation that moves text.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "text/jinja/template.h"

namespace verbatim::text::jinja {
namespace {

using Json = nlohmann::ordered_json;

// Template bytes as they are, runs of input bytes in < >. The texts below have no such characters of their own.
std::string marked(const Text& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool input = text.origin_at(i) == Origin::kInput;
    const bool input_before = i > 0 && text.origin_at(i - 1) == Origin::kInput;
    if (input && !input_before) out += '<';
    if (!input && input_before) out += '>';
    out += text.bytes()[i];
  }
  if (!text.empty() && text.origin_at(text.size() - 1) == Origin::kInput) out += '>';
  return out;
}

const Json& inputs() {
  static const Json values = {{"u", "user"},
                              {"s", " a-b "},
                              {"dash", "-"},
                              {"l", {"x", "y"}},
                              {"d", {{"k", "v"}}},
                              {"n", 3},
                              {"sharp", "stra\u00dfe"},
                              {"lines", "p\nq"},
                              {"empty", ""},
                              {"f", 2.5},
                              {"yes", true},
                              {"html", "&"}};
  return values;
}

struct Case {
  const char* source;
  const char* expected;
};

void expect_marked(const Case& one) {
  EXPECT_EQ(marked(Template::parse(one.source, "test").render(inputs())), one.expected) << one.source;
}

TEST(JinjaProvenance, OutputAndOperators) {
  for (const Case& one : {
           Case{"A{{ u }}B", "A<user>B"},
           Case{"A{{ 'c' }}B", "AcB"},
           Case{"A{{ n }}B{{ f }}{{ yes }}{{ none }}{{ 7 }}", "A<3>B<2.5TrueNone7>"},
           Case{"{{ 'a' ~ u ~ 'b' }}{{ 'a' + u + 'b' }}{{ u ~ n }}", "a<user>ba<user>b<user3>"},
           Case{"{{ ('a' ~ u) * 2 }}", "a<user>a<user>"},
           Case{"{{ 'a%sb%s' % (u, 'c') }}{{ 'a{}b{}'.format(u, 'c') }}", "a<user>bca<user>bc"},
           Case{"{{ l }}{{ ['a'] }}{{ d }}", "<['x', 'y']['a']{'k': 'v'}>"},
           Case{"A{{ empty }}B", "AB"},
       })
    expect_marked(one);
}

TEST(JinjaProvenance, MethodsAndSlices) {
  for (const Case& one : {
           Case{"{{ ('T-' ~ s).split('-') | join('+') }}", "T+< a>+<b >"},
           Case{"{{ ('T' ~ s ~ 'T').strip('T') }}{{ (' T' ~ s).strip() }}", "< a-b >T< a-b>"},
           Case{"{{ ('abc' ~ u)[1:5] }}{{ ('abc' ~ u)[-5:] }}{{ ('ab' ~ u)[::-1] }}{{ ('ab' ~ u)[1:4:2] }}",
                "bc<us>c<userresu>bab<s>"},
           Case{"{{ ('a' ~ u)[0] }}{{ ('a' ~ u)[1] }}{{ ('a' ~ u) | first }}{{ ('a' ~ u) | last }}", "a<u>a<r>"},
           Case{"{{ ('t' ~ u).capitalize() }}{{ ('t' ~ u) | upper }}{{ (u ~ 't').title() }}", "T<user>T<USERUser>t"},
           Case{"{{ (sharp ~ '\u00df').upper() }}", "<STRASSE>SS"},
           Case{"{{ ('a' ~ lines ~ 'b').splitlines() | join('|') }}", "a<p>|<q>b"},
           Case{"{{ (u ~ 'x').removeprefix('us') }}{{ (u ~ 'x') | reverse }}", "<er>xx<resu>"},
           Case{"{% for c in 'a' ~ u %}{{ c }}.{% endfor %}", "a.<u>.<s>.<e>.<r>."},
           Case{"{{ ('a b' ~ s).split() | join(',') }}", "a,b,<a-b>"},
       })
    expect_marked(one);
}

TEST(JinjaProvenance, Replacement) {
  for (const Case& one : {
           Case{"{{ 'a{x}b'.replace('{x}', u) }}{{ 'a.b' | replace('.', u) }}", "a<user>ba<user>b"},
           Case{"{{ ('a' ~ u).replace('s', 'S') }}", "a<u>S<er>"},
           // What to cut out is the input's choice: nothing of the result counts as the template's.
           Case{"A{{ 'x-y'.replace(dash, '') }}A{{ 'x-y'.split(dash) | join }}A", "A<xy>A<xy>A"},
           Case{"A{{ 'x-y'.strip(dash) }}", "Ax-y"},
       })
    expect_marked(one);
}

TEST(JinjaProvenance, FiltersAndStatements) {
  for (const Case& one : {
           Case{"{{ u | tojson }}{{ 'a' | tojson }}{{ d | tojson }}", "<\"user\"\"a\"{\"k\": \"v\"}>"},
           Case{"{{ ['a', u, 'b'] | join(',') }}{{ l | join('+') }}{{ l | map('upper') | join }}",
                "a,<user>,b<x>+<yXY>"},
           Case{"{% for k, v in d.items() %}{{ k }}={{ v }}{% endfor %}{% for k in d | list %}{{ k }}{% endfor %}",
                "<k>=<vk>"},
           Case{"{% set t %}a{{ u }}b{% endset %}{{ t }}{{ t | upper }}", "a<user>bA<USER>B"},
           Case{"{% macro m(x, y='d') %}[{{ x }}{{ y }}]{% endmacro %}{{ m(u) }}{{ m('a', u) }}", "[<user>d][a<user>]"},
           Case{"{% filter upper %}a{{ u }}{% endfilter %}", "A<USER>"},
           Case{"{{ ('a' ~ lines) | indent(1) }}{{ html | e }}{{ '&' | e }}", "a<p>\n <q&amp;>&amp;"},
           Case{"{{ missing | default('a') }}{{ missing | default(u) }}{{ u | default('a') }}", "a<useruser>"},
           Case{"{{ u | string }}{{ n | string }}{{ ('a' ~ u) | trim }}{{ 'a b' | title }}", "<user3>a<user>A B"},
           Case{"{{ 'a' if u else 'b' }}{{ u or 'a' }}{{ empty or 'a' }}{{ [u, 'a'] | last }}", "a<user>aa"},
           Case{"{% set ns = namespace(t='a') %}{% set ns.t = ns.t ~ u %}{{ ns.t }}{{ dict(a='b').a }}", "a<user>b"},
           Case{"{{ ['b', u, 'a'] | sort | join }}{{ ['b', 'a'] | min }}", "ab<user>a"},
       })
    expect_marked(one);
}

// Pieces that the template wrote and that come to touch are one span: the template put them side by side.
TEST(JinjaProvenance, TouchingTemplatePiecesAreOneSpan) {
  const Text text = Template::parse("ab{{ empty }}{{ 'cd' ~ empty ~ 'ef' }}{{ u }}gh", "test").render(inputs());
  const std::vector<Span> expected = {{0, 6}, {10, 12}};
  EXPECT_EQ(text.template_spans(), expected);
}

TEST(JinjaProvenance, CheckpointVariablesCountAsTheTemplates) {
  const Template parsed = Template::parse("{{ bos_token }}{{ eos_token }}{{ u }}", "test");
  const Json own = {{"bos_token", "B"}, {"eos_token", "E"}, {"u", "overridden"}};
  EXPECT_EQ(marked(parsed.render(inputs(), own)), "BE<user>");
  EXPECT_EQ(marked(parsed.render({{"bos_token", "x"}}, own)), "<x>Eoverridden");
}

}  // namespace
}  // namespace verbatim::text::jinja
