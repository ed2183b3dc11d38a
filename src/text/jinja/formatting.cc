#include "text/jinja/formatting.h"

#include <algorithm>

#include "text/jinja/represent.h"

namespace verbatim::text::jinja {
namespace {

Text percent_field(Meter& meter, char conversion, const Value& value) {
  if (conversion == 's') return to_text(meter, value);
  if (conversion == 'd' || conversion == 'i') {
    require_defined(value);
    if (value.is_integral()) return Text(fmt::format("{}", value.integer()), Origin::kInput);
    if (value.is_float())
      if (const std::optional<int64_t> whole = truncate(value.number()))
        return Text(fmt::format("{}", *whole), Origin::kInput);
    fault(ErrorKind::kFormat, "%{}: a number is needed, not {}", conversion, type_name(value));
  }
  fault(ErrorKind::kUnsupported, "the string format '%{}': %s, %d, %i and %% are supported", conversion);
}

}  // namespace

Text format_percent(Meter& meter, const Text& pattern, const Value& values) {
  if (pattern.markup()) fault(ErrorKind::kUnsupported, "'%' of text marked safe or escaped");
  const Sequence* tuple = values.as_sequence();
  if (tuple != nullptr && tuple->kind != Sequence::Kind::kTuple) tuple = nullptr;
  const size_t available = tuple != nullptr ? tuple->items.size() : 1;
  size_t used = 0;
  Text out;
  const std::string& bytes = pattern.bytes();
  size_t kept = 0;
  for (size_t at = bytes.find('%'); at != std::string::npos; at = bytes.find('%', kept)) {
    out.append(pattern, kept, at);
    if (at + 1 == bytes.size()) fault(ErrorKind::kFormat, "the string format ends in '%'");
    kept = at + 2;
    if (bytes[at + 1] == '%') {
      out.append(pattern, at, at + 1);
      continue;
    }
    if (used == available) fault(ErrorKind::kFormat, "too few values for the string format");
    const Text field = percent_field(meter, bytes[at + 1], tuple != nullptr ? tuple->items[used] : values);
    ++used;
    meter.charge_text(out.size() + field.size());
    out.append(field);
  }
  // Python lets what could be a mapping go unused.
  const bool may_be_unused = tuple == nullptr && values.as_text() == nullptr &&
                             (values.as_dict() != nullptr || values.as_sequence() != nullptr ||
                              values.as_range() != nullptr || values.is_undefined());
  if (used < available && !may_be_unused) fault(ErrorKind::kFormat, "too many values for the string format");
  out.append(pattern, kept, bytes.size());
  return out;
}

Text format_braces(Meter& meter, const Text& pattern, const Arguments& arguments) {
  Text out;
  const std::string& bytes = pattern.bytes();
  size_t automatic = 0;
  bool numbered = false;
  const auto field = [&](std::string_view name) -> const Value& {
    if (name.find_first_of(".[!:{") != std::string_view::npos)
      fault(ErrorKind::kUnsupported, "the format field '{{{}}}': only {{}}, {{0}} and {{name}} are supported", name);
    const bool digits = std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (!digits) {
      for (const auto& [keyword, value] : arguments.keywords)
        if (keyword == name) return value;
      fault(ErrorKind::kFormat, "format() was given no '{}'", name);
    }
    if (name.empty() ? numbered : automatic != 0)
      fault(ErrorKind::kFormat, "format(): numbered and unnumbered fields cannot be mixed");
    if (!name.empty()) numbered = true;
    const size_t index = name.empty() ? automatic++ : static_cast<size_t>(parse_integer(name).value_or(0));
    if (index >= arguments.positional.size()) fault(ErrorKind::kFormat, "format() was given too few values");
    return arguments.positional[index];
  };
  for (size_t at = 0; at < bytes.size();) {
    const size_t brace = std::min(bytes.find_first_of("{}", at), bytes.size());
    out.append(pattern, at, brace);
    if (brace == bytes.size()) break;
    if (brace + 1 < bytes.size() && bytes[brace + 1] == bytes[brace]) {
      out.append(pattern, brace, brace + 1);
      at = brace + 2;
      continue;
    }
    const size_t close = bytes[brace] == '{' ? bytes.find('}', brace) : std::string::npos;
    if (close == std::string::npos) fault(ErrorKind::kFormat, "format(): a single '{}'", bytes[brace]);
    const Text value = to_text(meter, field(std::string_view(bytes).substr(brace + 1, close - brace - 1)));
    meter.charge_text(out.size() + value.size());
    out.append(value);
    at = close + 1;
  }
  return out;
}

}  // namespace verbatim::text::jinja
