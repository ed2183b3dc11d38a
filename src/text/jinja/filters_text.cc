// Filters that make text or numbers of one value.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "text/jinja/access.h"
#include "text/jinja/filters.h"
#include "text/jinja/formatting.h"
#include "text/jinja/methods.h"
#include "text/jinja/represent.h"
#include "text/utf8.h"

namespace verbatim::text::jinja {
namespace {

Text charged_text(Meter& meter, const Value& value) {
  Text text = to_text(meter, value);
  meter.charge_text(text.size());
  return text;
}

Value filter_upper(Meter& meter, const Value& value, const Arguments& arguments) {
  const Bound none("upper", arguments, {});
  return upper(charged_text(meter, value));
}
Value filter_lower(Meter& meter, const Value& value, const Arguments& arguments) {
  const Bound none("lower", arguments, {});
  return lower(charged_text(meter, value));
}
Value filter_capitalize(Meter& meter, const Value& value, const Arguments& arguments) {
  const Bound none("capitalize", arguments, {});
  return capitalize(charged_text(meter, value));
}
Value filter_title(Meter& meter, const Value& value, const Arguments& arguments) {
  const Bound none("title", arguments, {});
  return title_words(charged_text(meter, value));
}
Value filter_string(Meter& meter, const Value& value, const Arguments& arguments) {
  const Bound none("string", arguments, {});
  return to_text(meter, value);
}
Value filter_safe(Meter& meter, const Value& value, const Arguments& arguments) {
  const Bound none("safe", arguments, {});
  Text text = to_text(meter, value);
  text.set_markup(true);
  return text;
}
Value filter_escape(Meter& meter, const Value& value, const Arguments& arguments) {
  const Bound none("escape", arguments, {});
  const Text text = to_text(meter, value);
  meter.charge_text(text.size() * 5);
  return escape_html(text);
}

Value filter_trim(Meter& meter, const Value& value, const Arguments& arguments) {
  const Bound bound("trim", arguments, {"chars"});
  const Text text = charged_text(meter, value);
  return bound.is_none(0) ? strip(text, Side::kBoth) : strip(text, Side::kBoth, bound.text(0).bytes());
}

Value filter_replace(Meter& meter, const Value& value, const Arguments& arguments) {
  const Bound bound("replace", arguments, {"old", "new", "count"}, 2);
  Text text = charged_text(meter, value);
  text.set_markup(false);
  const int64_t count = bound.is_none(2) ? -1 : bound.integer(2, -1);
  return replace_text(meter, text, to_text(meter, bound.at(0)), to_text(meter, bound.at(1)), count);
}

Value filter_format(Meter& meter, const Value& value, const Arguments& arguments) {
  if (!arguments.keywords.empty())
    fault(ErrorKind::kUnsupported, "the filter 'format' with keywords; positional values are supported");
  return format_percent(meter, to_text(meter, value),
                        make_sequence(meter, Sequence::Kind::kTuple, arguments.positional));
}

Value filter_indent(Meter& meter, const Value& value, const Arguments& arguments) {
  const Bound bound("indent", arguments, {"width", "first", "blank"});
  const Text* own = value.as_text();
  if (own == nullptr) {
    require_defined(value);
    fault(ErrorKind::kFormat, "indent needs a str, not {}", type_name(value));
  }
  if (own->markup()) fault(ErrorKind::kUnsupported, "the filter 'indent' of text marked safe or escaped");
  Text indention;
  if (bound.has(0) && bound.at(0).as_text() != nullptr) {
    indention = bound.text(0);
  } else {
    const int64_t width = std::max<int64_t>(bound.integer(0, 4), 0);
    meter.charge_text(static_cast<size_t>(width));
    indention = Text(std::string(static_cast<size_t>(width), ' '), Origin::kTemplate);
  }
  const bool blank = bound.flag(2, false);
  // Jinja2 adds a newline and cuts into lines, so a newline at the end stays and one more does not appear.
  Text source = *own;
  source.append("\n", Origin::kTemplate);
  const Value lines_value = call_method(meter, source, "splitlines", {});
  const std::vector<Value>& lines = lines_value.as_sequence()->items;
  Text out;
  if (bound.flag(1, false)) out.append(indention);
  for (size_t i = 0; i < lines.size(); ++i) {
    const Text& line = *lines[i].as_text();
    meter.charge_text(out.size() + indention.size() + line.size() + 1);
    if (i != 0) out.append("\n", Origin::kTemplate);
    if (i != 0 && (blank || !line.empty())) out.append(indention);
    out.append(line);
  }
  return out;
}

Value filter_tojson(Meter& meter, const Value& value, const Arguments& arguments) {
  const Bound bound("tojson", arguments, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ensure_ascii = bound.flag(0, false);
  style.sort_keys = bound.flag(3, false);
  if (!bound.is_none(1)) {
    if (const Text* indent = bound.at(1).as_text()) {
      style.indent = indent->bytes();
    } else {
      const int64_t width = std::max<int64_t>(bound.integer(1, 0), 0);
      meter.charge_text(static_cast<size_t>(width));
      style.indent = std::string(static_cast<size_t>(width), ' ');
    }
    style.item_separator = std::string(",");
  }
  if (!bound.is_none(2)) {
    const std::vector<Value> pair = iterate(meter, bound.at(2));
    if (pair.size() != 2 || pair[0].as_text() == nullptr || pair[1].as_text() == nullptr)
      fault(ErrorKind::kFormat, "tojson(): separators must be two strings");
    style.item_separator = pair[0].as_text()->bytes();
    style.key_separator = pair[1].as_text()->bytes();
  }
  return to_json(meter, value, style);
}

Value filter_int(Meter&, const Value& value, const Arguments& arguments) {
  const Bound bound("int", arguments, {"default", "base"});
  require_defined(value);
  const int64_t base = bound.integer(1, 10);
  if (base != 2 && base != 8 && base != 10 && base != 16)
    fault(ErrorKind::kUnsupported, "int(): base {}; 2, 8, 10 and 16 are supported", base);
  const Value fallback = bound.has(0) ? bound.at(0) : Value(int64_t{0});
  std::optional<int64_t> whole;
  if (const Text* text = value.as_text()) {
    whole = parse_integer(text->bytes(), static_cast<int>(base));
    if (!whole)
      if (const std::optional<double> number = parse_float(text->bytes())) whole = truncate(*number);
  } else if (value.is_number()) {
    whole = value.is_float() ? truncate(value.number()) : value.integer();
  }
  return whole ? Value(*whole) : fallback;
}

Value filter_float(Meter&, const Value& value, const Arguments& arguments) {
  const Bound bound("float", arguments, {"default"});
  require_defined(value);
  std::optional<double> number;
  if (const Text* text = value.as_text()) number = parse_float(text->bytes());
  if (value.is_number()) number = value.number();
  return number ? Value(*number) : bound.has(0) ? bound.at(0) : Value(0.0);
}

Value filter_abs(Meter&, const Value& value, const Arguments& arguments) {
  const Bound none("abs", arguments, {});
  require_defined(value);
  if (value.is_float()) return std::abs(value.number());
  if (!value.is_integral()) fault(ErrorKind::kFormat, "abs needs a number, not {}", type_name(value));
  int64_t result = value.integer();
  if (result < 0 && __builtin_sub_overflow(int64_t{0}, result, &result))
    fault(ErrorKind::kCapacity, "an integer result does not fit in 64 bits");
  return result;
}

Value filter_round(Meter&, const Value& value, const Arguments& arguments) {
  const Bound bound("round", arguments, {"precision", "method"});
  const int64_t precision = bound.integer(0, 0);
  const std::string method = bound.has(1) ? bound.text(1).bytes() : "common";
  require_defined(value);
  if (!value.is_number()) fault(ErrorKind::kFormat, "round needs a number, not {}", type_name(value));
  if (precision < 0 || precision > 15)
    fault(ErrorKind::kUnsupported, "round(): a precision of {}; 0 to 15 are supported", precision);
  if (method == "common") {
    if (value.is_integral()) return value.integer();
    if (!std::isfinite(value.number())) return value;
    // Python rounds the exact binary value to decimal, half to even; so does printf.
    std::array<char, 400> digits;
    std::snprintf(digits.data(), digits.size(), "%.*f", static_cast<int>(precision), value.number());
    return std::strtod(digits.data(), nullptr);
  }
  if (method != "ceil" && method != "floor")
    fault(ErrorKind::kFormat, "round(): the method is common, ceil or floor, not '{}'", method);
  double power = 1;
  for (int64_t i = 0; i < precision; ++i) power *= 10;
  const double scaled = value.number() * power;
  const double whole = method == "ceil" ? std::ceil(scaled) : std::floor(scaled);
  if (!(std::abs(whole) <= 0x1p53)) fault(ErrorKind::kCapacity, "round(): {} is too large", float_text(value.number()));
  return (whole == 0 ? 0.0 : whole) / power;  // through an integer in Python, which has no -0
}

Value filter_default(Meter&, const Value& value, const Arguments& arguments) {
  const Bound bound("default", arguments, {"default_value", "boolean"});
  if (!value.is_undefined() && !(bound.flag(1, false) && !truth(value))) return value;
  return bound.has(0) ? bound.at(0) : Value(Text());
}

constexpr Filter kFilters[] = {
    {"abs", filter_abs},       {"capitalize", filter_capitalize},
    {"d", filter_default},     {"default", filter_default},
    {"e", filter_escape},      {"escape", filter_escape},
    {"float", filter_float},   {"format", filter_format},
    {"indent", filter_indent}, {"int", filter_int},
    {"lower", filter_lower},   {"replace", filter_replace},
    {"round", filter_round},   {"safe", filter_safe},
    {"string", filter_string}, {"title", filter_title},
    {"tojson", filter_tojson}, {"trim", filter_trim},
    {"upper", filter_upper},
};

constexpr std::string_view kRefused[] = {
    "attr",  "batch",     "center",   "filesizeformat", "forceescape", "groupby",   "pprint",   "random",
    "slice", "striptags", "truncate", "urlencode",      "urlize",      "wordcount", "wordwrap", "xmlattr"};

}  // namespace

FilterFunction find_text_filter(std::string_view name) {
  const auto* found =
      std::find_if(std::begin(kFilters), std::end(kFilters), [&](const Filter& f) { return f.name == name; });
  return found != std::end(kFilters) ? found->function : nullptr;
}

FilterFunction find_filter(std::string_view name) {
  if (std::find(std::begin(kRefused), std::end(kRefused), name) != std::end(kRefused))
    fault(ErrorKind::kUnsupported, "the filter '{}' is not supported", name);
  const FilterFunction function = find_text_filter(name);
  return function != nullptr ? function : find_sequence_filter(name);
}

}  // namespace verbatim::text::jinja
