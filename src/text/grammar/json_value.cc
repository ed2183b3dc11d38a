#include "text/grammar/json_value.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "text/grammar/decimal.h"
#include "text/tool_schema.h"

namespace verbatim::text {
namespace {

constexpr size_t kMaxDepth = 64;

// Builds the tree from nlohmann's events.
class Reader : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit Reader(std::string_view where) : where_(where) { open_.push_back(&root_); }

  JsonValue take() { return std::move(root_.items[0]); }

  bool null() override { return put({}) != nullptr; }
  bool boolean(bool value) override { return put({.kind = JsonValue::Kind::kBoolean, .boolean = value}) != nullptr; }
  bool number_integer(number_integer_t value) override { return number(std::to_string(value)); }
  bool number_unsigned(number_unsigned_t value) override { return number(std::to_string(value)); }
  bool number_float(number_float_t, const string_t& text) override { return number(text); }
  bool string(string_t& text) override {
    return put({.kind = JsonValue::Kind::kString, .text = std::move(text)}) != nullptr;
  }
  bool binary(binary_t&) override { return false; }
  bool start_object(size_t) override { return start(JsonValue::Kind::kObject); }
  bool key(string_t& text) override {
    key_ = std::move(text);
    return true;
  }
  bool end_object() override {
    JsonValue& object = *open_.back();
    std::vector<uint32_t>& order = object.by_key;
    for (uint32_t i = 0; i < object.members.size(); ++i) order.push_back(i);
    std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
      const int compared = object.members[a].first.compare(object.members[b].first);
      return compared != 0 ? compared < 0 : a < b;
    });
    for (size_t i = 0; i + 1 < order.size(); ++i)
      if (object.members[order[i]].first == object.members[order[i + 1]].first)
        fail(ErrorKind::kUsage, where_, "the key '{}' twice in one object; keys must differ",
             object.members[order[i]].first);
    open_.pop_back();
    return true;
  }
  bool start_array(size_t) override { return start(JsonValue::Kind::kArray); }
  bool end_array() override {
    open_.pop_back();
    return true;
  }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) override {
    fail(ErrorKind::kUsage, where_, "what is at byte {} is no JSON; expected a JSON schema", position);
  }

 private:
  bool number(const std::string& text) { return put({.kind = JsonValue::Kind::kNumber, .text = text}) != nullptr; }
  bool start(JsonValue::Kind kind) {
    if (open_.size() > kMaxDepth)
      fail(ErrorKind::kUsage, where_, "JSON nested deeper than {}; make it flatter", kMaxDepth);
    JsonValue value;
    value.kind = kind;
    open_.push_back(put(std::move(value)));
    return true;
  }
  JsonValue* put(JsonValue value) {
    JsonValue& into = *open_.back();
    if (into.is(JsonValue::Kind::kObject)) {
      into.members.emplace_back(std::move(key_), std::move(value));
      return &into.members.back().second;
    }
    into.items.push_back(std::move(value));
    return &into.items.back();
  }

  std::string_view where_;
  JsonValue root_{.kind = JsonValue::Kind::kArray};
  std::vector<JsonValue*> open_;  // from the outermost in; only the innermost one's members grow
  std::string key_;
};

bool find_path(const JsonValue& at, const JsonValue& part, std::string& path) {
  if (&at == &part) return true;
  const size_t length = path.size();
  for (size_t i = 0; i < at.items.size(); ++i) {
    path += '/' + std::to_string(i);
    if (find_path(at.items[i], part, path)) return true;
    path.resize(length);
  }
  for (const auto& [key, value] : at.members) {
    path += '/' + key;
    if (find_path(value, part, path)) return true;
    path.resize(length);
  }
  return false;
}

}  // namespace

const JsonValue* JsonValue::find(std::string_view key) const {
  const auto found = std::lower_bound(by_key.begin(), by_key.end(), key, [&](uint32_t index, std::string_view wanted) {
    return members[index].first < wanted;
  });
  return found != by_key.end() && members[*found].first == key ? &members[*found].second : nullptr;
}

const char* JsonValue::kind_name() const {
  switch (kind) {
    case Kind::kNull: return "null";
    case Kind::kBoolean: return "a boolean";
    case Kind::kNumber: return "a number";
    case Kind::kString: return "a string";
    case Kind::kArray: return "an array";
    case Kind::kObject: break;
  }
  return "an object";
}

JsonValue parse_json(std::string_view text, std::string_view where) {
  Reader reader(where);
  nlohmann::json::sax_parse(text, &reader);
  return reader.take();
}

bool equal(const JsonValue& a, const JsonValue& b) {
  if (a.kind != b.kind) return false;
  switch (a.kind) {
    case JsonValue::Kind::kNull: return true;
    case JsonValue::Kind::kBoolean: return a.boolean == b.boolean;
    case JsonValue::Kind::kString: return a.text == b.text;
    case JsonValue::Kind::kNumber: {
      const std::optional<Decimal> x = Decimal::parse(a.text), y = Decimal::parse(b.text);
      return x && y ? compare(*x, *y) == 0 : a.text == b.text;
    }
    case JsonValue::Kind::kArray:
      return std::equal(a.items.begin(), a.items.end(), b.items.begin(), b.items.end(), equal);
    case JsonValue::Kind::kObject: break;
  }
  return a.members.size() == b.members.size() &&
         std::all_of(a.members.begin(), a.members.end(), [&](const auto& member) {
           const JsonValue* other = b.find(member.first);
           return other != nullptr && equal(member.second, *other);
         });
}

void append_json(std::string& out, const JsonValue& value) {
  const auto quoted = [&](const std::string& text) {
    out += '"';
    append_json_escaped(out, text);
    out += '"';
  };
  switch (value.kind) {
    case JsonValue::Kind::kNull: out += "null"; return;
    case JsonValue::Kind::kBoolean: out += value.boolean ? "true" : "false"; return;
    case JsonValue::Kind::kNumber: out += value.text; return;
    case JsonValue::Kind::kString: quoted(value.text); return;
    case JsonValue::Kind::kArray:
      out += '[';
      for (size_t i = 0; i < value.items.size(); ++i) {
        if (i > 0) out += ", ";
        append_json(out, value.items[i]);
      }
      out += ']';
      return;
    case JsonValue::Kind::kObject:
      out += '{';
      for (size_t i = 0; i < value.members.size(); ++i) {
        if (i > 0) out += ", ";
        quoted(value.members[i].first);
        out += ": ";
        append_json(out, value.members[i].second);
      }
      out += '}';
  }
}

std::string json_path(const JsonValue& root, const JsonValue& part) {
  std::string path = "#";
  return find_path(root, part, path) ? path : std::string("#");
}

const JsonValue* json_at(const JsonValue& root, std::string_view reference) {
  if (!reference.starts_with('#')) return nullptr;
  reference.remove_prefix(1);
  const JsonValue* at = &root;
  while (!reference.empty()) {
    if (reference[0] != '/') return nullptr;
    const size_t end = std::min(reference.find('/', 1), reference.size());
    std::string name;
    for (size_t i = 1; i < end; ++i) {
      const bool escape = reference[i] == '~' && i + 1 < end;
      if (escape) ++i;
      name += !escape ? reference[i] : reference[i] == '1' ? '/' : '~';
    }
    reference.remove_prefix(end);
    if (const JsonValue* member = at->find(name)) {
      at = member;
      continue;
    }
    size_t index = 0;
    const auto [stop, error] = std::from_chars(name.data(), name.data() + name.size(), index);
    if (error != std::errc() || stop != name.data() + name.size() || index >= at->items.size()) return nullptr;
    at = &at->items[index];
  }
  return at;
}

}  // namespace verbatim::text
