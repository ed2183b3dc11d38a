// The tools offered with a request, and how the text of an argument becomes JSON by the tool's schema.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace verbatim::text {

// What a JSON schema admits, as far as it decides how a value's text is read.
struct ArgumentType {
  enum Kind : uint8_t {
    kString = 1,
    kInteger = 2,
    kFraction = 4,  // a number that is not whole
    kBoolean = 8,
    kNull = 16,
    kObject = 32,
    kArray = 64,
    kUnknown = 127,  // everything
  };
  uint8_t kinds = kUnknown;
  // Strings that an enum or const lists beside values of other kinds: "3" in [1, 2, "3"] is the string.
  std::vector<std::string> strings;

  // True while some continuation of `text` could be JSON of an admitted kind other than a plain string. Once false it
  // stays false for every longer text, and to_json(text) is the text as a JSON string: it can be streamed from there.
  bool may_be_json(std::string_view text) const;
  // The value as JSON, the model's own spelling of numbers and objects kept. Text that is no JSON of an admitted kind
  // becomes a JSON string, whatever the schema says: nothing is lost, and the caller sees what was written.
  std::string to_json(std::string_view text) const;
};

// Appends `text` (valid UTF-8) with what JSON strings escape escaped; everything else, non-ASCII too, stays as it is.
void append_json_escaped(std::string& out, std::string_view text);

struct OfferedTool {
  std::string name;
  std::string parameters;  // JSON schema of the arguments, as text; empty or "null": none given
};

// The tools of one request. Immutable, so that several replies may share it.
class ToolSet {
 public:
  ToolSet() = default;
  // Throws Error(kUsage): an empty name or one offered twice, parameters that are not JSON or not a schema.
  explicit ToolSet(const std::vector<OfferedTool>& tools);

  size_t size() const { return tools_.size(); }
  const std::string& name(size_t tool) const { return tools_[tool].name; }
  std::optional<size_t> find(std::string_view name) const;
  // Whether a name begins with `text`.
  bool has_name_with_prefix(std::string_view text) const;

  bool declares(size_t tool, std::string_view key) const;
  // Understands type (also a list), enum, const, anyOf, oneOf, allOf, nullable, $ref within the schema; an argument
  // that `properties` does not list has the type of additionalProperties. The rest says nothing about the type.
  const ArgumentType& type(size_t tool, std::string_view key) const;

 private:
  struct Tool {
    std::string name;
    std::map<std::string, ArgumentType, std::less<>> arguments;
    ArgumentType others;
  };
  std::vector<Tool> tools_;
  std::map<std::string, size_t, std::less<>> by_name_;
};

}  // namespace verbatim::text
