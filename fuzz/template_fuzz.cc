// A chat template, and inputs for it: the bytes up to the first NUL are the template, the rest is JSON. What it renders
// must be valid UTF-8 with spans in order inside it, and the same again; what the template did not write is never
// marked as written by it: the inputs' strings are of one private character, which must not turn up in a template span.
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/error.h"
#include "text/jinja/template.h"
#include "text/utf8.h"

namespace {

using Json = nlohmann::ordered_json;
using verbatim::text::jinja::Limits;
using verbatim::text::jinja::Span;
using verbatim::text::jinja::Template;
using verbatim::text::jinja::Text;

constexpr std::string_view kInputMark = "\U000F1234";  // of a private area; has no case, is no white space

void check(bool holds) {
  if (!holds) std::abort();
}

const Json& usual_inputs() {
  static const Json inputs =
      Json::parse(R"({"messages": [{"role": "user", "content": "hi \u00df"}, {"role": "assistant",
      "content": [{"type": "text", "text": "a b"}], "tool_calls": [{"function": {"name": "f", "arguments": {"k": [1, 2.5, null]}}}]},
      {"role": "tool", "content": "x\ny", "tool_call_id": "1"}], "tools": [{"function": {"name": "f", "strict": true}}],
      "a": "A-b", "b": 3, "c": -2.5, "d": {"x": 1, "y": "z"}, "l": [3, 1, 2], "e": "", "add_generation_prompt": true})");
  return inputs;
}

// Every string of the inputs becomes the mark, repeated as often as the string has bytes.
Json marked(const Json& value) {
  if (value.is_string()) {
    std::string out;
    for (size_t i = 0; i < std::min<size_t>(value.get_ref<const std::string&>().size(), 8); ++i) out += kInputMark;
    return out;
  }
  if (!value.is_structured()) return value;
  Json out = value;
  for (auto& item : out) item = marked(item);
  return out;
}

void render(const Template& parsed, const Json& inputs, bool is_marked) {
  const Text text = parsed.render(inputs);
  const std::string& bytes = text.bytes();
  check(verbatim::text::valid_utf8_bytes(bytes, 0) == bytes.size());
  size_t end = 0;
  for (const Span& span : text.template_spans()) {
    check(span.begin < span.end && span.end <= bytes.size() && (span.begin > end || end == 0));
    end = span.end;
    check(!is_marked || bytes.substr(span.begin, span.end - span.begin).find(kInputMark) == std::string::npos);
  }
  check(parsed.render(inputs).bytes() == bytes);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t end = std::min(input.find('\0'), size);
  const std::string_view source = input.substr(0, end);
  Json inputs = Json::parse(input.substr(std::min(end + 1, size)), nullptr, false);
  if (!inputs.is_object()) inputs = usual_inputs();
  Limits limits;
  limits.steps = 20'000;
  limits.text_bytes = 1 << 16;
  limits.sequence_items = 1 << 12;
  try {
    const Template parsed = Template::parse(source, "fuzz", limits);
    try {
      render(parsed, inputs, false);
    } catch (const verbatim::Error&) {  // a refusal
    }
    // A template that writes the mark itself, or makes it of numbers, would be found guilty of nothing.
    const bool writes_mark =
        source.find(kInputMark) != std::string_view::npos || source.find("\\U") != std::string_view::npos;
    render(parsed, marked(inputs), !writes_mark);
  } catch (const verbatim::Error&) {  // a refusal
  }
  return 0;
}
