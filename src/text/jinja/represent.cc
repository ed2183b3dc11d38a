#include "text/jinja/represent.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>

#include "text/utf8.h"

namespace verbatim::text::jinja {

std::string float_text(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number > 0 ? "inf" : "-inf";
  std::array<char, 64> buffer;
  const auto end =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), number, std::chars_format::scientific).ptr;
  const std::string_view all(buffer.data(), static_cast<size_t>(end - buffer.data()));
  const size_t e = all.find('e');
  std::string digits;
  for (char c : all.substr(0, e))
    if (c >= '0' && c <= '9') digits.push_back(c);
  int exponent = 0;
  const std::string_view exponent_text = all.substr(e + 1 + (all[e + 1] == '+' ? 1 : 0));
  std::from_chars(exponent_text.data(), exponent_text.data() + exponent_text.size(), exponent);
  const std::string sign = all[0] == '-' ? "-" : "";
  // Python writes an exponent below 1e-4 and from 1e16 on.
  if (exponent < -4 || exponent >= 16) {
    std::string text = sign + digits.substr(0, 1);
    if (digits.size() > 1) text.append(1, '.').append(digits, 1);
    return fmt::format("{}e{}{:02}", text, exponent < 0 ? '-' : '+', std::abs(exponent));
  }
  if (exponent < 0) return sign + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  const size_t whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() <= whole) return sign + digits + std::string(whole - digits.size(), '0') + ".0";
  return sign + digits.substr(0, whole) + "." + digits.substr(whole);
}

namespace {

// Grows `out`, within the limit on text.
class Writer {
 public:
  explicit Writer(Meter& meter) : meter_(meter) {}
  void put(std::string_view bytes) {
    meter_.charge(1 + bytes.size() / 16);
    if (bytes.size() > meter_.limits().text_bytes - out_.size()) meter_.charge_text(out_.size() + bytes.size());
    out_.append(bytes);
  }
  Meter& meter() { return meter_; }
  std::string take() { return std::move(out_); }

 private:
  Meter& meter_;
  std::string out_;
};

void escape_character(std::string& out, char32_t character) {
  if (character <= 0xFF) {
    out += fmt::format("\\x{:02x}", static_cast<uint32_t>(character));
  } else if (character <= 0xFFFF) {
    out += fmt::format("\\u{:04x}", static_cast<uint32_t>(character));
  } else {
    out += fmt::format("\\U{:08x}", static_cast<uint32_t>(character));
  }
}

std::string text_repr(const Text& text) {
  const std::string& bytes = text.bytes();
  const char quote = bytes.find('\'') != std::string::npos && bytes.find('"') == std::string::npos ? '"' : '\'';
  std::string out(1, quote);
  for (size_t at = 0; at < bytes.size();) {
    const Utf8Char character = utf8_at(bytes, at);
    const char32_t c = character.code_point;
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out += {'\\', static_cast<char>(c)};
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (is_printable(c)) {
      out.append(bytes, at, character.bytes);
    } else {
      escape_character(out, c);
    }
    at += character.bytes;
  }
  out.push_back(quote);
  return text.markup() ? "Markup(" + out + ")" : out;
}

void put_repr(Writer& writer, const Value& value);

void put_items(Writer& writer, std::string_view open, const std::vector<Value>& items, std::string_view close) {
  writer.put(open);
  bool first = true;
  for (const Value& item : items) {
    if (!first) writer.put(", ");
    first = false;
    put_repr(writer, item);
  }
  writer.put(close);
}

void put_sequence(Writer& writer, const Sequence& sequence) {
  switch (sequence.kind) {
    case Sequence::Kind::kList: return put_items(writer, "[", sequence.items, "]");
    case Sequence::Kind::kTuple: return put_items(writer, "(", sequence.items, sequence.items.size() == 1 ? ",)" : ")");
    case Sequence::Kind::kKeys: return put_items(writer, "dict_keys([", sequence.items, "])");
    case Sequence::Kind::kValues: return put_items(writer, "dict_values([", sequence.items, "])");
    case Sequence::Kind::kItems: return put_items(writer, "dict_items([", sequence.items, "])");
    case Sequence::Kind::kIterator: break;
  }
  fault(ErrorKind::kUnsupported,
        "printing an iterator, which Python shows by its address; make a list of it with |list");
}

void put_repr(Writer& writer, const Value& value) {
  if (value.is_undefined()) {
    writer.put("Undefined");
  } else if (value.is_none()) {
    writer.put("None");
  } else if (value.is_bool()) {
    writer.put(truth(value) ? "True" : "False");
  } else if (value.is_int()) {
    writer.put(fmt::format("{}", value.integer()));
  } else if (value.is_float()) {
    writer.put(float_text(value.number()));
  } else if (const Text* text = value.as_text()) {
    writer.meter().charge_text(text->size());
    writer.put(text_repr(*text));
  } else if (const Sequence* sequence = value.as_sequence()) {
    put_sequence(writer, *sequence);
  } else if (const Dict* dict = value.as_dict()) {
    writer.put("{");
    bool first = true;
    for (const auto& [key, item] : dict->items) {
      if (!first) writer.put(", ");
      first = false;
      put_repr(writer, key);
      writer.put(": ");
      put_repr(writer, item);
    }
    writer.put("}");
  } else if (const Range* range = value.as_range()) {
    writer.put(range->step == 1 ? fmt::format("range({}, {})", range->start, range->stop)
                                : fmt::format("range({}, {}, {})", range->start, range->stop, range->step));
  } else {
    fault(ErrorKind::kUnsupported, "printing a {}; print what it holds or returns", type_name(value));
  }
}

}  // namespace

Text to_text(Meter& meter, const Value& value) {
  if (const Text* text = value.as_text()) return *text;
  if (value.is_undefined()) return {};
  Writer writer(meter);
  put_repr(writer, value);
  return Text(writer.take(), Origin::kInput);
}

namespace {

std::string json_text(std::string_view bytes, bool ensure_ascii) {
  std::string out = "\"";
  for (size_t at = 0; at < bytes.size();) {
    const Utf8Char character = utf8_at(bytes, at);
    const uint32_t c = character.code_point;
    switch (c) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '\n': out += "\\n"; break;
      case '\r': out += "\\r"; break;
      case '\t': out += "\\t"; break;
      case '\f': out += "\\f"; break;
      case '\b': out += "\\b"; break;
      default:
        if (c < 0x20 || (ensure_ascii && c > 0x7E && c <= 0xFFFF)) {
          out += fmt::format("\\u{:04x}", c);
        } else if (ensure_ascii && c > 0xFFFF) {
          out += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + ((c - 0x10000) >> 10), 0xDC00 + ((c - 0x10000) & 0x3FF));
        } else {
          out.append(bytes, at, character.bytes);
        }
    }
    at += character.bytes;
  }
  return out + "\"";
}

class JsonWriter {
 public:
  JsonWriter(Meter& meter, const JsonStyle& style) : writer_(meter), style_(style) {}

  std::string take() { return writer_.take(); }

  void put(const Value& value, size_t level) {
    if (const Text* text = value.as_text()) {
      put_text(text->bytes());
    } else if (value.is_none()) {
      writer_.put("null");
    } else if (value.is_bool()) {
      writer_.put(truth(value) ? "true" : "false");
    } else if (value.is_int()) {
      writer_.put(fmt::format("{}", value.integer()));
    } else if (value.is_float()) {
      writer_.put(number_text(value.number()));
    } else if (const Dict* dict = value.as_dict()) {
      put_dict(*dict, level);
    } else if (const Sequence* sequence = value.as_sequence();
               sequence != nullptr &&
               (sequence->kind == Sequence::Kind::kList || sequence->kind == Sequence::Kind::kTuple)) {
      put_list(*sequence, level);
    } else {
      require_defined(value);
      fault(ErrorKind::kFormat, "tojson: a {} is not JSON serializable", type_name(value));
    }
  }

 private:
  static std::string number_text(double number) {
    if (std::isnan(number)) return "NaN";
    if (std::isinf(number)) return number > 0 ? "Infinity" : "-Infinity";
    return float_text(number);
  }

  void put_text(const std::string& bytes) {
    writer_.meter().charge_text(bytes.size());
    writer_.put(json_text(bytes, style_.ensure_ascii));
  }

  void break_line(size_t level) {
    if (!style_.indent) return;
    writer_.put("\n");
    for (size_t i = 0; i < level; ++i) writer_.put(*style_.indent);
  }

  void put_list(const Sequence& list, size_t level) {
    if (list.items.empty()) return writer_.put("[]");
    writer_.put("[");
    for (size_t i = 0; i < list.items.size(); ++i) {
      if (i != 0) writer_.put(style_.item_separator);
      break_line(level + 1);
      put(list.items[i], level + 1);
    }
    break_line(level);
    writer_.put("]");
  }

  void put_dict(const Dict& dict, size_t level) {
    if (dict.items.empty()) return writer_.put("{}");
    std::vector<const std::pair<Value, Value>*> items;
    items.reserve(dict.items.size());
    for (const auto& item : dict.items) items.push_back(&item);
    if (style_.sort_keys) {
      std::stable_sort(items.begin(), items.end(),
                       [&](const auto* a, const auto* b) { return less(writer_.meter(), a->first, b->first); });
    }
    writer_.put("{");
    for (size_t i = 0; i < items.size(); ++i) {
      if (i != 0) writer_.put(style_.item_separator);
      break_line(level + 1);
      put_key(items[i]->first);
      writer_.put(style_.key_separator);
      put(items[i]->second, level + 1);
    }
    break_line(level);
    writer_.put("}");
  }

  void put_key(const Value& key) {
    if (const Text* text = key.as_text()) return put_text(text->bytes());
    writer_.put("\"");
    put(key, 0);
    writer_.put("\"");
  }

  Writer writer_;
  const JsonStyle& style_;
};

}  // namespace

Text to_json(Meter& meter, const Value& value, const JsonStyle& style) {
  JsonWriter writer(meter, style);
  writer.put(value, 0);
  return Text(writer.take(), Origin::kInput);
}

namespace {

// Python's number texts: white space around, single underscores between digits. None when the underscores are wrong.
std::optional<std::string> number_body(std::string_view text) {
  const Text stripped = strip(Text(std::string(text), Origin::kInput), Side::kBoth);
  std::string body;
  const std::string& bytes = stripped.bytes();
  const auto is_digit = [&](size_t i) {
    return i < bytes.size() && std::isalnum(static_cast<unsigned char>(bytes[i])) != 0;
  };
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] != '_') {
      body.push_back(bytes[i]);
    } else if (i == 0 || !is_digit(i - 1) || !is_digit(i + 1)) {
      return std::nullopt;
    }
  }
  return body;
}

}  // namespace

std::optional<int64_t> parse_integer(std::string_view text, int base) {
  std::optional<std::string> body = number_body(text);
  if (!body || body->empty()) return std::nullopt;
  std::string digits = *body;
  const bool negative = digits[0] == '-';
  if (digits[0] == '-' || digits[0] == '+') digits.erase(0, 1);
  const char prefix = base == 16 ? 'x' : base == 8 ? 'o' : base == 2 ? 'b' : '\0';
  if (prefix != '\0' && digits.size() > 2 && digits[0] == '0' && (digits[1] | 0x20) == prefix) digits.erase(0, 2);
  if (digits.empty() || digits[0] == '-' || digits[0] == '+') return std::nullopt;
  if (negative) digits.insert(0, 1, '-');
  int64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
  if (end != digits.data() + digits.size()) return std::nullopt;
  if (error == std::errc::result_out_of_range)
    fault(ErrorKind::kCapacity, "the integer {} does not fit in 64 bits", *body);
  return error == std::errc() ? std::optional(value) : std::nullopt;
}

std::optional<double> parse_float(std::string_view text) {
  std::optional<std::string> body = number_body(text);
  if (!body || body->empty()) return std::nullopt;
  std::string digits = *body;
  std::transform(digits.begin(), digits.end(), digits.begin(),
                 [](unsigned char c) { return static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c); });
  const bool negative = digits[0] == '-';
  if (digits[0] == '-' || digits[0] == '+') digits.erase(0, 1);
  if (digits == "inf" || digits == "infinity") {
    const double infinity = std::numeric_limits<double>::infinity();
    return negative ? -infinity : infinity;
  }
  if (digits == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (digits.empty() || (digits[0] != '.' && (digits[0] < '0' || digits[0] > '9'))) return std::nullopt;
  double value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (end != digits.data() + digits.size() || error == std::errc::invalid_argument) return std::nullopt;
  if (error == std::errc::result_out_of_range) {
    // Python gives 0.0 or inf here; which one the exponent's sign tells.
    const size_t e = digits.find("e-");
    value = e != std::string::npos ? 0 : std::numeric_limits<double>::infinity();
  }
  return negative ? -value : value;
}

std::optional<int64_t> truncate(double number) {
  if (std::isnan(number) || std::isinf(number)) return std::nullopt;
  const double whole = std::trunc(number);
  if (whole < -0x1p63 || whole >= 0x1p63)
    fault(ErrorKind::kCapacity, "the integer part of {} does not fit in 64 bits", float_text(number));
  return static_cast<int64_t>(whole);
}

}  // namespace verbatim::text::jinja
