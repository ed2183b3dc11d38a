#include "text/tool_schema.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace verbatim::text {
namespace {

using nlohmann::json;

constexpr std::string_view kJsonSpace = " \t\n\r";
// Longer runs of white space before a value, and longer numbers, are text. Bounds the work of looking again at a value
// that arrives token by token.
constexpr size_t kMaxScalarBytes = 1024;
// Schemas come from clients: deeper nesting, or more of it than this for one argument, says nothing about its type.
constexpr int kMaxDepth = 64;
constexpr int kMaxNodes = 4096;

std::string_view trim_json_space(std::string_view text) {
  const size_t begin = text.find_first_not_of(kJsonSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kJsonSpace) - begin + 1);
}

uint8_t kinds_of_name(const json& name) {
  static const std::map<std::string, uint8_t, std::less<>> kNames = {
      {"string", ArgumentType::kString},   {"integer", ArgumentType::kInteger},
      {"boolean", ArgumentType::kBoolean}, {"number", ArgumentType::kInteger | ArgumentType::kFraction},
      {"null", ArgumentType::kNull},       {"object", ArgumentType::kObject},
      {"array", ArgumentType::kArray}};
  if (!name.is_string()) return ArgumentType::kUnknown;
  const auto found = kNames.find(name.get_ref<const std::string&>());
  return found == kNames.end() ? uint8_t{ArgumentType::kUnknown} : found->second;
}

uint8_t kind_of_value(const json& value) {
  if (value.is_string()) return ArgumentType::kString;
  if (value.is_number_integer()) return ArgumentType::kInteger;
  if (value.is_number()) return ArgumentType::kFraction;
  if (value.is_boolean()) return ArgumentType::kBoolean;
  if (value.is_null()) return ArgumentType::kNull;
  return value.is_object() ? ArgumentType::kObject : ArgumentType::kArray;
}

// The part of `root` that a reference within it ("#/$defs/Place") names; null for others.
const json* referenced(const json& root, const std::string& reference) {
  if (reference.empty() || reference[0] != '#') return nullptr;
  const json* at = &root;
  size_t begin = 1;
  while (begin < reference.size()) {
    if (reference[begin] != '/') return nullptr;
    const size_t end = std::min(reference.find('/', begin + 1), reference.size());
    std::string name;
    for (size_t i = begin + 1; i < end; ++i) {
      const bool escape = reference[i] == '~' && i + 1 < end;
      if (escape) ++i;
      name += !escape ? reference[i] : reference[i] == '1' ? '/' : '~';
    }
    if (at->is_object() && at->contains(name)) {
      at = &(*at)[name];
    } else {
      size_t index = 0;
      const auto [stop, error] = std::from_chars(name.data(), name.data() + name.size(), index);
      if (!at->is_array() || error != std::errc() || stop != name.data() + name.size() || index >= at->size())
        return nullptr;
      at = &(*at)[index];
    }
    begin = end;
  }
  return at;
}

// Types of one argument. Kinds 0 stands for "nothing learnt": a reference that leads back to itself.
class Resolver {
 public:
  explicit Resolver(const json& root) : root_(root) {}

  ArgumentType resolve(const json& schema) {
    ArgumentType type = at(schema, 0);
    if (type.kinds == 0) type.kinds = ArgumentType::kUnknown;
    // 1 in [1, "1"]: the two are written alike, and the one that is not a string wins.
    std::erase_if(type.strings, [&](const std::string& string) {
      const json value = json::parse(string, nullptr, false);
      return std::find(values_.begin(), values_.end(), value) != values_.end();
    });
    return type;
  }

 private:
  ArgumentType at(const json& schema, int depth) {
    ArgumentType type;
    if (!schema.is_object() || depth > kMaxDepth || --nodes_left_ < 0) return type;
    if (const auto reference = schema.find("$ref"); reference != schema.end() && reference->is_string()) {
      const json* target = referenced(root_, reference->get_ref<const std::string&>());
      if (target != nullptr) {
        if (std::find(path_.begin(), path_.end(), target) != path_.end()) {
          type.kinds = 0;
        } else {
          path_.push_back(target);
          intersect(type, at(*target, depth + 1));
          path_.pop_back();
        }
      }
    }
    if (const auto name = schema.find("type"); name != schema.end()) {
      ArgumentType named{name->is_array() && !name->empty() ? uint8_t{0} : kinds_of_name(*name), {}};
      if (name->is_array())
        for (const json& one : *name) named.kinds |= kinds_of_name(one);
      intersect(type, named);
    }
    if (const auto list = schema.find("enum"); list != schema.end() && list->is_array()) {
      ArgumentType listed{0, {}};
      for (const json& value : *list) add_value(listed, value);
      intersect(type, listed);
    }
    if (const auto value = schema.find("const"); value != schema.end()) {
      ArgumentType only{0, {}};
      add_value(only, *value);
      intersect(type, only);
    }
    for (const char* keyword : {"anyOf", "oneOf"}) {
      const auto list = schema.find(keyword);
      if (list == schema.end() || !list->is_array()) continue;
      ArgumentType any{0, {}};
      for (const json& one : *list) unite(any, at(one, depth + 1));
      intersect(type, any);
    }
    if (const auto list = schema.find("allOf"); list != schema.end() && list->is_array())
      for (const json& one : *list) intersect(type, at(one, depth + 1));
    if (const auto nullable = schema.find("nullable"); nullable != schema.end() && *nullable == true)
      type.kinds |= ArgumentType::kNull;
    return type;
  }

  void add_value(ArgumentType& type, const json& value) {
    type.kinds |= kind_of_value(value);
    if (value.is_string())
      type.strings.push_back(value.get<std::string>());
    else if (value.is_primitive())  // copies and comparisons of nested values recurse as deep as a client likes
      values_.push_back(value);
  }
  static void unite(ArgumentType& type, const ArgumentType& other) {
    type.kinds |= other.kinds;
    type.strings.insert(type.strings.end(), other.strings.begin(), other.strings.end());
  }
  // What contradicts itself says nothing.
  static void intersect(ArgumentType& type, const ArgumentType& other) {
    const uint8_t both = type.kinds & other.kinds;
    type.kinds = both != 0          ? both
                 : type.kinds == 0  ? other.kinds
                 : other.kinds == 0 ? type.kinds
                                    : uint8_t{ArgumentType::kUnknown};
    type.strings.insert(type.strings.end(), other.strings.begin(), other.strings.end());
  }

  const json& root_;
  std::vector<const json*> path_;
  std::vector<json> values_;  // numbers, booleans and null that an enum or const lists
  int nodes_left_ = kMaxNodes;
};

struct Declared {
  std::map<std::string, ArgumentType, std::less<>>& arguments;
  ArgumentType& others;
  int nodes_left = kMaxNodes;
};

void declare(Declared& declared, const json& root, const json& schema, int depth) {
  if (!schema.is_object() || depth > kMaxDepth || --declared.nodes_left < 0) return;
  if (const auto properties = schema.find("properties"); properties != schema.end() && properties->is_object()) {
    for (const auto& [key, value] : properties->items()) {
      ArgumentType type = Resolver(root).resolve(value);
      const auto [place, is_new] = declared.arguments.try_emplace(key, type);
      if (is_new) continue;
      place->second.kinds |= type.kinds;
      place->second.strings.insert(place->second.strings.end(), type.strings.begin(), type.strings.end());
    }
  }
  if (const auto others = schema.find("additionalProperties"); others != schema.end() && others->is_object())
    declared.others = Resolver(root).resolve(*others);
  if (const auto reference = schema.find("$ref"); reference != schema.end() && reference->is_string())
    if (const json* target = referenced(root, reference->get_ref<const std::string&>()))
      declare(declared, root, *target, depth + 1);
  for (const char* keyword : {"allOf", "anyOf", "oneOf"})
    if (const auto list = schema.find(keyword); list != schema.end() && list->is_array())
      for (const json& one : *list) declare(declared, root, one, depth + 1);
}

}  // namespace

bool ArgumentType::may_be_json(std::string_view text) const {
  if (kinds == kString) return false;
  const size_t begin = text.find_first_not_of(kJsonSpace);
  if (begin == std::string_view::npos) return text.size() <= kMaxScalarBytes;
  if (begin > kMaxScalarBytes) return false;
  const std::string_view value = text.substr(begin);
  const auto may_be_word = [&](std::string_view word) {
    const std::string_view seen = value.substr(0, word.size());
    if (!word.starts_with(seen)) return false;
    return value.size() <= kMaxScalarBytes &&
           value.find_first_not_of(kJsonSpace, seen.size()) == std::string_view::npos;
  };
  switch (value[0]) {
    case '{': return (kinds & kObject) != 0;
    case '[': return (kinds & kArray) != 0;
    case '"': return kinds == kUnknown;  // where strings are declared their text is raw: a quote in it is a quote
    case 't': return (kinds & kBoolean) != 0 && may_be_word("true");
    case 'f': return (kinds & kBoolean) != 0 && may_be_word("false");
    case 'n': return (kinds & kNull) != 0 && may_be_word("null");
    default: {
      if ((kinds & (kInteger | kFraction)) == 0 || value.size() > kMaxScalarBytes) return false;
      if (value[0] != '-' && (value[0] < '0' || value[0] > '9')) return false;
      const size_t end = std::min(value.find_first_not_of("0123456789+-.eE"), value.size());
      return value.find_first_not_of(kJsonSpace, end) == std::string_view::npos;
    }
  }
}

std::string ArgumentType::to_json(std::string_view text) const {
  const auto as_string = [&] {
    std::string out = "\"";
    append_json_escaped(out, text);
    out += '"';
    return out;
  };
  const std::string_view value = trim_json_space(text);
  if (value.empty() || !may_be_json(text) || !json::accept(value)) return as_string();
  if (std::find(strings.begin(), strings.end(), text) != strings.end()) return as_string();
  const bool is_number = value[0] == '-' || (value[0] >= '0' && value[0] <= '9');
  if (is_number && (kinds & kFraction) == 0 && value.find_first_of(".eE") != std::string_view::npos) {
    const double number = std::strtod(std::string(value).c_str(), nullptr);  // 3.0 is an integer to JSON schema
    if (number != std::floor(number)) return as_string();
  }
  return std::string(value);
}

void append_json_escaped(std::string& out, std::string_view text) {
  constexpr char kHex[] = "0123456789abcdef";
  for (const char byte : text) {
    const auto value = static_cast<uint8_t>(byte);
    switch (byte) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '\b': out += "\\b"; break;
      case '\f': out += "\\f"; break;
      case '\n': out += "\\n"; break;
      case '\r': out += "\\r"; break;
      case '\t': out += "\\t"; break;
      default:
        if (value < 0x20) {
          out += "\\u00";
          out += kHex[value >> 4];
          out += kHex[value & 15];
        } else {
          out += byte;
        }
    }
  }
}

ToolSet::ToolSet(const std::vector<OfferedTool>& tools) {
  for (const OfferedTool& offered : tools) {
    if (offered.name.empty()) fail(ErrorKind::kUsage, "tools", "tool {} has no name; give it one", tools_.size());
    if (!by_name_.try_emplace(offered.name, tools_.size()).second)
      fail(ErrorKind::kUsage, "tools", "the name '{}' is offered twice; names must differ", offered.name);
    Tool& tool = tools_.emplace_back();
    tool.name = offered.name;
    if (offered.parameters.empty()) continue;
    const json schema = json::parse(offered.parameters, nullptr, false);
    if (schema.is_discarded())
      fail(ErrorKind::kUsage, "tools", "the parameters of '{}' are not JSON; expected a JSON schema", offered.name);
    if (schema.is_null() || schema.is_boolean()) continue;
    if (!schema.is_object())
      fail(ErrorKind::kUsage, "tools", "the parameters of '{}' are of type {}; expected a JSON schema, an object",
           offered.name, schema.type_name());
    Declared declared{tool.arguments, tool.others};
    declare(declared, schema, schema, 0);
  }
}

std::optional<size_t> ToolSet::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? std::nullopt : std::optional(found->second);
}

bool ToolSet::has_name_with_prefix(std::string_view text) const {
  const auto found = by_name_.lower_bound(text);
  return found != by_name_.end() && std::string_view(found->first).starts_with(text);
}

bool ToolSet::declares(size_t tool, std::string_view key) const {
  return tools_[tool].arguments.find(key) != tools_[tool].arguments.end();
}

const ArgumentType& ToolSet::type(size_t tool, std::string_view key) const {
  const auto found = tools_[tool].arguments.find(key);
  return found == tools_[tool].arguments.end() ? tools_[tool].others : found->second;
}

}  // namespace verbatim::text
