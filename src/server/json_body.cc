#include "server/json_body.h"

#include <fmt/core.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "server/api_error.h"

namespace verbatim::server {
namespace {

using Json = nlohmann::ordered_json;

[[noreturn]] void refuse_json(const std::string& message, int status = 400) {
  throw ApiFailure({.status = status, .message = "the body: " + message, .code = "invalid_json"});
}

// Builds the tree as the parser meets its parts. Open containers are on a stack, complete ones inside their parents.
class Builder final : public nlohmann::json_sax<Json> {
 public:
  explicit Builder(const JsonLimits& limits) : limits_(limits) {}
  Json take() { return std::move(root_); }

  bool null() override { return put(Json()); }
  bool boolean(bool value) override { return put(Json(value)); }
  bool number_integer(int64_t value) override { return put(Json(value)); }
  bool number_unsigned(uint64_t value) override {
    if (value > static_cast<uint64_t>(INT64_MAX)) too_large(std::to_string(value));
    return put(Json(static_cast<int64_t>(value)));
  }
  bool number_float(double value, const std::string& text) override {
    if (text.find_first_of(".eE") == std::string::npos) too_large(text);
    if (!std::isfinite(value)) too_large(text);
    return put(Json(value));
  }
  bool string(std::string& value) override {
    count(static_cast<int64_t>(value.size()) + 48);
    return put(Json(std::move(value)));
  }
  bool binary(Json::binary_t&) override { return false; }
  bool start_object(size_t) override { return open(Json::object()); }
  bool start_array(size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(std::string& name) override {
    Open& object = open_.back();
    count(static_cast<int64_t>(name.size()) + 64);
    auto& members = *object.value.get_ptr<Json::object_t*>();
    if (std::ssize(members) >= limits_.members)
      refuse_json(fmt::format("an object of more than {} members", limits_.members));
    for (const auto& [other, value] : members)
      if (other == name) refuse_json(fmt::format("the member '{}' is given twice in one object", name.substr(0, 200)));
    object.key = std::move(name);
    return true;
  }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception& problem) override {
    // "[json.exception.parse_error.101] parse error at line 1, column 2: syntax error while ..." without its head.
    std::string what = problem.what();
    if (const size_t colon = what.find(": "); colon != std::string::npos) what.erase(0, colon + 2);
    if (what.size() > 300) what = what.substr(0, 300) + " ...";
    refuse_json(fmt::format("not JSON at byte {}: {}", position, printable(what)));
  }

 private:
  struct Open {
    Json value;
    std::string key;  // where the next member goes
  };

  static std::string printable(const std::string& text) {
    std::string out;
    for (const char c : text) out += c >= 0x20 && c < 0x7f ? c : '?';
    return out;
  }
  [[noreturn]] static void too_large(const std::string& number) {
    refuse_json(fmt::format("the number {} is too large", number.substr(0, 40)));
  }
  void count(int64_t bytes) {
    bytes_ += bytes;
    if (bytes_ > limits_.memory_bytes) refuse_json("it would take too much memory as JSON", 413);
  }
  bool open(Json container) {
    if (std::ssize(open_) >= limits_.depth) refuse_json(fmt::format("nested deeper than {} levels", limits_.depth));
    count(64);
    open_.push_back({std::move(container), {}});
    return true;
  }
  bool close() {
    Json whole = std::move(open_.back().value);
    open_.pop_back();
    return put(std::move(whole));
  }
  bool put(Json value) {
    count(32);
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (open_.back().value.is_array()) {
      open_.back().value.get_ptr<Json::array_t*>()->push_back(std::move(value));
    } else {
      // Not ordered_map's own insertion, which looks for the key again.
      Json::object_t& members = *open_.back().value.get_ptr<Json::object_t*>();
      members.Json::object_t::Container::emplace_back(std::move(open_.back().key), std::move(value));
    }
    return true;
  }

  const JsonLimits& limits_;
  int64_t bytes_ = 0;
  std::vector<Open> open_;
  Json root_;
};

std::string describe(const Json& value) {
  switch (value.type()) {
    case Json::value_t::number_float: return "a fraction";
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned: return "an integer";
    case Json::value_t::string: return "a string";
    case Json::value_t::boolean: return "a boolean";
    case Json::value_t::array: return "an array";
    case Json::value_t::object: return "an object";
    default: return value.type_name();
  }
}

}  // namespace

Json parse_json(std::string_view text, const JsonLimits& limits) {
  Builder builder(limits);
  if (!Json::sax_parse(text, &builder)) refuse_json("not JSON");
  return builder.take();
}

Json parse_body(std::string_view text, const JsonLimits& limits) {
  if (text.empty()) refuse_json("it is empty; a JSON object is expected");
  Json body = parse_json(text, limits);
  if (!body.is_object()) refuse_json(fmt::format("found {}; a JSON object is expected", describe(body)));
  return body;
}

Fields::Fields(const Json& object, std::string prefix) : object_(object), prefix_(std::move(prefix)) {}

const Json* Fields::find(const char* name) {
  asked_.insert(name);
  const auto found = object_.find(name);
  return found != object_.end() && !found->is_null() ? &*found : nullptr;
}

void Fields::wrong_type(const char* name, const Json& found, const char* expected) const {
  throw ApiFailure({.status = 400,
                    .message = fmt::format("{}: {} is expected; found {}", path(name), expected, describe(found)),
                    .code = "invalid_type",
                    .param = path(name)});
}

std::optional<bool> Fields::boolean(const char* name) {
  const Json* found = find(name);
  if (found == nullptr) return std::nullopt;
  if (!found->is_boolean()) wrong_type(name, *found, "a boolean");
  return found->get<bool>();
}

std::optional<int64_t> Fields::integer(const char* name, int64_t least, int64_t most) {
  const Json* found = find(name);
  if (found == nullptr) return std::nullopt;
  if (!found->is_number_integer()) wrong_type(name, *found, "an integer");
  const auto value = found->get<int64_t>();
  if (value < least || value > most) refuse_field(path(name), "{}; expected {} to {}", value, least, most);
  return value;
}

std::optional<double> Fields::number(const char* name, double least, double most) {
  const Json* found = find(name);
  if (found == nullptr) return std::nullopt;
  if (!found->is_number()) wrong_type(name, *found, "a number");
  const auto value = found->get<double>();
  if (!(value >= least && value <= most)) refuse_field(path(name), "{}; expected {} to {}", value, least, most);
  return value;
}

std::optional<std::string> Fields::string(const char* name) {
  const Json* found = find(name);
  if (found == nullptr) return std::nullopt;
  if (!found->is_string()) wrong_type(name, *found, "a string");
  return found->get<std::string>();
}

const Json* Fields::object(const char* name) {
  const Json* found = find(name);
  if (found != nullptr && !found->is_object()) wrong_type(name, *found, "an object");
  return found;
}

const Json* Fields::array(const char* name) {
  const Json* found = find(name);
  if (found != nullptr && !found->is_array()) wrong_type(name, *found, "an array");
  return found;
}

const Json* Fields::any(const char* name) { return find(name); }

void Fields::accept(std::initializer_list<const char*> names) {
  for (const char* name : names) asked_.insert(name);
}

std::vector<std::string> Fields::unknown() const {
  std::vector<std::string> names;
  for (const auto& [name, value] : object_.items())
    if (!asked_.contains(name)) names.push_back(path(name));
  return names;
}

}  // namespace verbatim::server
