// Whether a value satisfies a JSON schema: the keywords that the tests use, written without regard to the compiler.
#pragma once

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>

namespace verbatim::text {

class SchemaCheck {
 public:
  using json = nlohmann::json;
  explicit SchemaCheck(json root) : root_(std::move(root)) {}

  bool holds(const json& value) const { return holds(value, root_); }

 private:
  static bool is_type(const json& value, const std::string& type) {
    if (type == "integer")
      return value.is_number_integer() || (value.is_number() && std::floor(value.get<double>()) == value);
    if (type == "number") return value.is_number();
    return value.type_name() == type;
  }
  static size_t characters(const std::string& text) {
    return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
  }
  static bool found(const std::string& pattern, const std::string& text) {
    return std::regex_search(text, std::regex(pattern, std::regex::ECMAScript));
  }

  bool holds(const json& value, const json& schema) const {
    if (schema.is_boolean()) return schema.get<bool>();
    const auto all = [&](const json& list, auto test) { return std::all_of(list.begin(), list.end(), test); };
    const auto count = [&](const json& list) {
      return std::count_if(list.begin(), list.end(), [&](const json& one) { return holds(value, one); });
    };
    for (const auto& [key, said] : schema.items()) {
      if (key == "type") {
        const bool fits = said.is_array()
                              ? std::any_of(said.begin(), said.end(), [&](const json& t) { return is_type(value, t); })
                              : is_type(value, said);
        if (!fits && !(value.is_null() && schema.value("nullable", false))) return false;
      }
      if (key == "enum" && std::find(said.begin(), said.end(), value) == said.end()) return false;
      if (key == "const" && said != value) return false;
      if (key == "$ref" && !holds(value, root_.at(json::json_pointer(said.get<std::string>().substr(1))))) return false;
      if (key == "allOf" && !all(said, [&](const json& one) { return holds(value, one); })) return false;
      if (key == "anyOf" && count(said) == 0) return false;
      if (key == "oneOf" && count(said) != 1) return false;
    }
    if (value.is_number()) return number(value.get<double>(), schema);
    if (value.is_string()) return string(value.get<std::string>(), schema);
    if (value.is_array()) return array(value, schema);
    return !value.is_object() || object(value, schema);
  }

  static bool number(double value, const json& schema) {
    return value >= schema.value("minimum", -1e300) && value <= schema.value("maximum", 1e300) &&
           value > schema.value("exclusiveMinimum", -1e300) && value < schema.value("exclusiveMaximum", 1e300);
  }
  static bool string(const std::string& value, const json& schema) {
    const size_t length = characters(value);
    return length >= schema.value("minLength", size_t{0}) && length <= schema.value("maxLength", size_t{1000000}) &&
           (!schema.contains("pattern") || found(schema.at("pattern"), value));
  }
  bool array(const json& value, const json& schema) const {
    if (value.size() < schema.value("minItems", size_t{0}) || value.size() > schema.value("maxItems", size_t{1000000}))
      return false;
    const json prefix = schema.value("prefixItems", json::array());
    for (size_t i = 0; i < value.size(); ++i) {
      if (i < prefix.size() ? !holds(value[i], prefix[i])
                            : schema.contains("items") && !holds(value[i], schema.at("items")))
        return false;
    }
    return true;
  }
  bool object(const json& value, const json& schema) const {
    const json required = schema.value("required", json::array());
    const json patterned = schema.value("patternProperties", json::object());
    for (const json& name : required)
      if (!value.contains(name.get<std::string>())) return false;
    if (value.size() < schema.value("minProperties", size_t{0}) ||
        value.size() > schema.value("maxProperties", size_t{1000000}))
      return false;
    for (const auto& [key, part] : value.items()) {
      if (schema.contains("propertyNames") && !holds(json(key), schema.at("propertyNames"))) return false;
      bool is_covered = false;
      if (schema.contains("properties") && schema.at("properties").contains(key)) {
        is_covered = true;
        if (!holds(part, schema.at("properties").at(key))) return false;
      }
      for (const auto& [pattern, rule] : patterned.items()) {
        if (!found(pattern, key)) continue;
        is_covered = true;
        if (!holds(part, rule)) return false;
      }
      if (!is_covered && schema.contains("additionalProperties") && !holds(part, schema.at("additionalProperties")))
        return false;
    }
    return true;
  }

  json root_;
};

}  // namespace verbatim::text
