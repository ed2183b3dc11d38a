#include "text/jinja/methods.h"

#include <algorithm>
#include <array>
#include <limits>

#include "text/jinja/access.h"
#include "text/jinja/formatting.h"
#include "text/jinja/represent.h"
#include "text/utf8.h"

namespace verbatim::text::jinja {
namespace {

constexpr size_t kNowhere = std::string::npos;

// Markup makes join, replace and format escape what they put in. Refused, so that no template gets other text silently.
void refuse_markup(const Text& text, std::string_view name) {
  if (text.markup())
    fault(ErrorKind::kUnsupported, "'{}' of text marked safe or escaped; apply it before |safe or |escape", name);
}

Text of_input(Text text, bool forget) {
  if (forget) text = text.without_origin();
  return text;
}

size_t find_last(std::string_view bytes, std::string_view part, size_t begin, size_t end) {
  const size_t found = bytes.substr(0, end).rfind(part);
  return found != kNowhere && found >= begin ? found : kNowhere;
}

using Pieces = std::vector<Span>;

Pieces split_by(std::string_view bytes, std::string_view separator, int64_t limit) {
  Pieces pieces;
  size_t begin = 0;
  while (limit < 0 || static_cast<int64_t>(pieces.size()) < limit) {
    const size_t at = find_bytes(bytes, separator, begin);
    if (at == kNowhere) break;
    pieces.push_back({begin, at});
    begin = at + separator.size();
  }
  pieces.push_back({begin, bytes.size()});
  return pieces;
}

Pieces rsplit_by(Meter& meter, std::string_view bytes, std::string_view separator, int64_t limit) {
  // The search from the right may take time in the product of the sizes.
  meter.charge(1 + bytes.size() / 16 * (1 + separator.size() / 16));
  Pieces pieces;
  size_t end = bytes.size();
  while (limit < 0 || static_cast<int64_t>(pieces.size()) < limit) {
    const size_t at = find_last(bytes, separator, 0, end);
    if (at == kNowhere) break;
    pieces.push_back({at + separator.size(), end});
    end = at;
  }
  pieces.push_back({0, end});
  std::reverse(pieces.begin(), pieces.end());
  return pieces;
}

// The runs of characters that are not white space.
Pieces words(std::string_view bytes) {
  Pieces pieces;
  bool in_word = false;
  for (size_t at = 0; at < bytes.size();) {
    const Utf8Char character = utf8_at(bytes, at);
    const bool space = is_space(character.code_point);
    if (!space && !in_word) pieces.push_back({at, at});
    in_word = !space;
    at += character.bytes;
    if (in_word) pieces.back().end = at;
  }
  return pieces;
}

// Keeps `limit` cuts: what is beyond them stays one piece, with the white space inside and at its far end.
Pieces limited_words(std::string_view bytes, int64_t limit, bool from_right) {
  Pieces pieces = words(bytes);
  if (limit < 0 || static_cast<int64_t>(pieces.size()) <= limit) return pieces;
  const auto cuts = static_cast<size_t>(limit);
  if (pieces.size() == cuts) return pieces;
  if (from_right) {
    const Span rest{0, pieces[pieces.size() - cuts - 1].end};
    pieces.erase(pieces.begin(), pieces.end() - static_cast<std::ptrdiff_t>(cuts));
    pieces.insert(pieces.begin(), rest);
  } else {
    const Span rest{pieces[cuts].begin, bytes.size()};
    pieces.resize(cuts);
    pieces.push_back(rest);
  }
  return pieces;
}

Value pieces_to_list(Meter& meter, const Text& text, const Pieces& pieces, bool forget) {
  meter.charge_text(text.size());
  meter.charge_items(pieces.size());
  std::vector<Value> items;
  items.reserve(pieces.size());
  for (const Span& piece : pieces) items.emplace_back(of_input(text.slice(piece.begin, piece.end), forget));
  return make_list(meter, std::move(items));
}

Value split(Meter& meter, const Text& text, const Arguments& arguments, bool from_right) {
  const Bound bound(from_right ? "rsplit" : "split", arguments, {"sep", "maxsplit"});
  const int64_t limit = bound.integer(1, -1);
  if (bound.is_none(0)) return pieces_to_list(meter, text, limited_words(text.bytes(), limit, from_right), false);
  const Text& separator = bound.text(0);
  if (separator.empty()) fault(ErrorKind::kFormat, "split(): the separator is empty");
  const Pieces pieces = from_right ? rsplit_by(meter, text.bytes(), separator.bytes(), limit)
                                   : split_by(text.bytes(), separator.bytes(), limit);
  return pieces_to_list(meter, text, pieces, !separator.wholly_template());
}

Value split_lines(Meter& meter, const Text& text, const Arguments& arguments) {
  const Bound bound("splitlines", arguments, {"keepends"});
  const bool keep = bound.flag(0, false);
  const std::string& bytes = text.bytes();
  Pieces pieces;
  size_t begin = 0;
  for (size_t at = 0; at < bytes.size();) {
    const Utf8Char character = utf8_at(bytes, at);
    size_t after = at + character.bytes;
    if (is_line_break(character.code_point)) {
      if (character.code_point == '\r' && after < bytes.size() && bytes[after] == '\n') ++after;
      pieces.push_back({begin, keep ? after : at});
      begin = after;
    }
    at = after;
  }
  if (begin < bytes.size()) pieces.push_back({begin, bytes.size()});
  return pieces_to_list(meter, text, pieces, false);
}

Text join(Meter& meter, const Text& separator, const Arguments& arguments) {
  refuse_markup(separator, "join");
  const Bound bound("join", arguments, {"iterable"}, 1);
  Text out;
  bool first = true;
  for (const Value& item : iterate(meter, bound.at(0))) {
    const Text* part = item.as_text();
    if (part == nullptr) fault(ErrorKind::kFormat, "join(): an item is a {}, a str is expected", type_name(item));
    meter.charge_text(out.size() + separator.size() + part->size());
    if (!first) out.append(separator);
    first = false;
    out.append(*part);
  }
  return out;
}

// The bytes that optional start and end arguments (characters, as in a slice) leave; none when start is past the end.
struct Window {
  size_t begin, end;
  bool valid;
};
Window window(const Text& text, const Bound& bound, size_t start_at, size_t end_at) {
  const auto count = static_cast<int64_t>(text.characters());
  const auto adjusted = [&](size_t i, int64_t fallback) {
    if (bound.is_none(i)) return fallback;
    const int64_t at = bound.integer(i, fallback);
    return at < 0 ? std::max<int64_t>(at + count, 0) : at;
  };
  const int64_t start = adjusted(start_at, 0);
  const int64_t end = std::min(adjusted(end_at, count), count);
  if (start > end) return {0, 0, false};
  return {text.offset_of(static_cast<size_t>(start)), text.offset_of(static_cast<size_t>(end)), true};
}

Value has_affix(Meter& meter, const Text& text, const Arguments& arguments, bool at_start) {
  const std::string_view name = at_start ? "startswith" : "endswith";
  const Bound bound(name, arguments, {"prefix", "start", "end"}, 1);
  const Window part = window(text, bound, 1, 2);
  const std::string_view bytes = std::string_view(text.bytes()).substr(part.begin, part.end - part.begin);
  const auto matches = [&](const Value& affix) {
    const Text* wanted = affix.as_text();
    if (wanted == nullptr) fault(ErrorKind::kFormat, "{}(): a {} is not a str", name, type_name(affix));
    return part.valid && (at_start ? bytes.starts_with(wanted->bytes()) : bytes.ends_with(wanted->bytes()));
  };
  require_defined(bound.at(0));
  if (const Sequence* choices = bound.at(0).as_sequence(); choices && choices->kind == Sequence::Kind::kTuple) {
    meter.charge(choices->items.size());
    return std::any_of(choices->items.begin(), choices->items.end(), matches);
  }
  return matches(bound.at(0));
}

// find, rfind, index, rindex.
Value find(Meter& meter, const Text& text, std::string_view name, const Arguments& arguments) {
  const Bound bound(name, arguments, {"sub", "start", "end"}, 1);
  const std::string& wanted = bound.text(0).bytes();
  const Window part = window(text, bound, 1, 2);
  meter.charge(1 + text.size() / 16);
  size_t found = kNowhere;
  if (part.valid && name[0] == 'r') {
    meter.charge(text.size() / 16 * (1 + wanted.size() / 16));
    found = find_last(text.bytes(), wanted, part.begin, part.end);
  } else if (part.valid) {
    found = find_bytes(std::string_view(text.bytes()).substr(0, part.end), wanted, part.begin);
  }
  if (found != kNowhere) return static_cast<int64_t>(characters_before(text.bytes(), found));
  if (name.ends_with("index")) fault(ErrorKind::kFormat, "{}(): the substring was not found", name);
  return int64_t{-1};
}

Value count(Meter& meter, const Text& text, const Arguments& arguments) {
  const Bound bound("count", arguments, {"sub", "start", "end"}, 1);
  const std::string& wanted = bound.text(0).bytes();
  const Window part = window(text, bound, 1, 2);
  meter.charge(1 + text.size() / 16);
  if (!part.valid) return int64_t{0};
  const std::string_view bytes = std::string_view(text.bytes()).substr(part.begin, part.end - part.begin);
  if (wanted.empty()) return static_cast<int64_t>(characters_before(bytes, bytes.size())) + 1;
  int64_t found = 0;
  for (size_t at = find_bytes(bytes, wanted, 0); at != kNowhere; at = find_bytes(bytes, wanted, at + wanted.size()))
    ++found;
  return found;
}

Text strip_method(const Text& text, std::string_view name, const Arguments& arguments) {
  const Bound bound(name, arguments, {"chars"});
  const Side side = name == "strip" ? Side::kBoth : name == "lstrip" ? Side::kLeft : Side::kRight;
  return bound.is_none(0) ? strip(text, side) : strip(text, side, bound.text(0).bytes());
}

Text remove_affix(const Text& text, std::string_view name, const Arguments& arguments) {
  const Bound bound(name, arguments, {"affix"}, 1);
  const std::string& affix = bound.text(0).bytes();
  if (name == "removeprefix") return text.slice(text.bytes().starts_with(affix) ? affix.size() : 0, text.size());
  return text.slice(0, text.size() - (text.bytes().ends_with(affix) ? affix.size() : 0));
}

Value text_method(Meter& meter, const Text& text, std::string_view name, const Arguments& arguments) {
  if (name == "split" || name == "rsplit") return split(meter, text, arguments, name == "rsplit");
  if (name == "splitlines") return split_lines(meter, text, arguments);
  if (name == "join") return join(meter, text, arguments);
  if (name == "startswith" || name == "endswith") return has_affix(meter, text, arguments, name == "startswith");
  if (name == "count") return count(meter, text, arguments);
  if (name.ends_with("find") || name.ends_with("index")) return find(meter, text, name, arguments);
  meter.charge_text(text.size());
  if (name.ends_with("strip")) return strip_method(text, name, arguments);
  if (name.starts_with("remove")) return remove_affix(text, name, arguments);
  if (name == "format") {
    refuse_markup(text, name);
    return format_braces(meter, text, arguments);
  }
  if (name == "replace") {
    refuse_markup(text, name);
    const Bound bound(name, arguments, {"old", "new", "count"}, 2);
    return replace_text(meter, text, bound.text(0), bound.text(1), bound.integer(2, -1));
  }
  const Bound none(name, arguments, {});
  if (name == "upper") return upper(text);
  if (name == "lower") return lower(text);
  if (name == "title") return title(text);
  return capitalize(text);
}

Value dict_method(Meter& meter, const Dict& dict, std::string_view name, const Arguments& arguments) {
  if (name == "get") {
    const Bound bound(name, arguments, {"key", "default"}, 1);
    const Value* found = dict.find(bound.at(0));
    return found != nullptr ? *found : bound.has(1) ? bound.at(1) : Value(None{});
  }
  const Bound none(name, arguments, {});
  meter.charge_items(dict.items.size());
  std::vector<Value> items;
  items.reserve(dict.items.size());
  for (const auto& [key, value] : dict.items) {
    if (name == "keys") items.push_back(key);
    if (name == "values") items.push_back(value);
    if (name == "items") items.push_back(make_sequence(meter, Sequence::Kind::kTuple, {key, value}));
  }
  return make_sequence(meter,
                       name == "keys"     ? Sequence::Kind::kKeys
                       : name == "values" ? Sequence::Kind::kValues
                                          : Sequence::Kind::kItems,
                       std::move(items));
}

Value sequence_method(Meter& meter, const Sequence& sequence, std::string_view name, const Arguments& arguments) {
  const Bound bound(name, arguments, {"value"}, 1);
  int64_t found = 0;
  for (size_t i = 0; i < sequence.items.size(); ++i) {
    if (!equal(meter, sequence.items[i], bound.at(0))) continue;
    if (name == "index") return static_cast<int64_t>(i);
    ++found;
  }
  if (name == "index") fault(ErrorKind::kFormat, "index(): the value is not in the {}", type_name(bound.at(0)));
  return found;
}

Value loop_method(Meter& meter, Loop& loop, std::string_view name, const Arguments& arguments) {
  if (!arguments.keywords.empty()) fault(ErrorKind::kFormat, "loop.{}() takes no keyword arguments", name);
  if (name == "cycle") {
    if (arguments.positional.empty()) fault(ErrorKind::kFormat, "loop.cycle() needs something to cycle through");
    return arguments.positional[loop.index0 % arguments.positional.size()];
  }
  bool same = loop.changed_called && loop.last_changed.size() == arguments.positional.size();
  for (size_t i = 0; same && i < loop.last_changed.size(); ++i)
    same = equal(meter, loop.last_changed[i], arguments.positional[i]);
  loop.changed_called = true;
  loop.last_changed = arguments.positional;
  return !same;
}

constexpr std::array kTextMethods = {
    std::string_view("capitalize"), std::string_view("count"),        std::string_view("endswith"),
    std::string_view("find"),       std::string_view("format"),       std::string_view("index"),
    std::string_view("join"),       std::string_view("lower"),        std::string_view("lstrip"),
    std::string_view("replace"),    std::string_view("removeprefix"), std::string_view("removesuffix"),
    std::string_view("rfind"),      std::string_view("rindex"),       std::string_view("rsplit"),
    std::string_view("rstrip"),     std::string_view("split"),        std::string_view("splitlines"),
    std::string_view("startswith"), std::string_view("strip"),        std::string_view("title"),
    std::string_view("upper")};

}  // namespace

Text replace_text(Meter& meter, const Text& text, const Text& old, const Text& replacement, int64_t count) {
  Text out;
  const std::string& bytes = text.bytes();
  size_t kept = 0;
  size_t next = 0;
  for (int64_t done = 0; count < 0 || done < count; ++done) {
    const size_t at = find_bytes(bytes, old.bytes(), next);
    if (at == kNowhere) break;
    meter.charge_text(out.size() + (at - kept) + replacement.size());
    out.append(text, kept, at);
    out.append(replacement);
    kept = at + old.size();
    next = kept;
    if (old.empty()) {
      // Between any two characters, and at both ends.
      if (at == bytes.size()) break;
      next = at + utf8_at(bytes, at).bytes;
    }
  }
  meter.charge_text(out.size() + bytes.size() - kept);
  out.append(text, kept, bytes.size());
  return of_input(std::move(out), !old.wholly_template());
}

bool has_method(const Value& self, std::string_view name) {
  if (self.as_text() != nullptr) return std::find(kTextMethods.begin(), kTextMethods.end(), name) != kTextMethods.end();
  if (self.as_dict() != nullptr) return name == "get" || name == "items" || name == "keys" || name == "values";
  if (const Sequence* sequence = self.as_sequence())
    return (sequence->kind == Sequence::Kind::kList || sequence->kind == Sequence::Kind::kTuple) &&
           (name == "index" || name == "count");
  return false;
}

Value call_method(Meter& meter, const Value& self, std::string_view name, const Arguments& arguments) {
  meter.charge(1);
  if (const Text* text = self.as_text()) return text_method(meter, *text, name, arguments);
  if (const Dict* dict = self.as_dict()) return dict_method(meter, *dict, name, arguments);
  if (Loop* loop = self.as_loop()) return loop_method(meter, *loop, name, arguments);
  return sequence_method(meter, *self.as_sequence(), name, arguments);
}

}  // namespace verbatim::text::jinja
