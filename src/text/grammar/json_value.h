// A JSON text as a tree that keeps what schemas need: the order of members and the spelling of numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace verbatim::text {

struct JsonValue {
  enum class Kind : uint8_t { kNull, kBoolean, kNumber, kString, kArray, kObject };
  Kind kind = Kind::kNull;
  bool boolean = false;
  std::string text = {};                                        // of a string; of a number as it is written
  std::vector<JsonValue> items = {};                            // of an array
  std::vector<std::pair<std::string, JsonValue>> members = {};  // of an object; of equal keys the last alone
  std::vector<uint32_t> by_key = {};                            // indices of members, in the order of keys

  const JsonValue* find(std::string_view key) const;  // null: not there, or not an object
  bool is(Kind other) const { return kind == other; }
  const char* kind_name() const;
};

// Throws Error(kUsage): not JSON, or nested too deeply. `where` begins the message.
JsonValue parse_json(std::string_view text, std::string_view where);
// Numbers by value, members in any order.
bool equal(const JsonValue& a, const JsonValue& b);
// As JSON: ", " and ": " between parts, nothing but what must be escaped in strings.
void append_json(std::string& out, const JsonValue& value);
// Where `part` is in `root`: "#/properties/a".
std::string json_path(const JsonValue& root, const JsonValue& part);
// The part of `root` that "#/a/b" names; null if there is none.
const JsonValue* json_at(const JsonValue& root, std::string_view reference);

}  // namespace verbatim::text
