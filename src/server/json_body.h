// Request bodies to JSON within limits, and typed access to their fields.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace verbatim::server {

struct JsonLimits {
  int depth = 64;
  int64_t members = 1024;             // of one object
  int64_t memory_bytes = 96LL << 20;  // of the tree, estimated
};

// Members keep their order. Throws ApiFailure (400, or 413 for memory) for what is not one JSON text in UTF-8, for an
// integer that does not fit in 64 bits, a member given twice, and beyond the limits; never recurses.
nlohmann::ordered_json parse_json(std::string_view text, const JsonLimits& limits = {});
// The same, and an object.
nlohmann::ordered_json parse_body(std::string_view text, const JsonLimits& limits = {});

// The members of an object, each with its type. null counts as absent. A wrong type or a value out of range throws
// ApiFailure, 400, that names the field.
class Fields {
 public:
  // `object` must be an object and outlive this. `prefix` stands before the names ("stream_options.").
  explicit Fields(const nlohmann::ordered_json& object, std::string prefix = "");

  std::optional<bool> boolean(const char* name);
  std::optional<int64_t> integer(const char* name, int64_t least, int64_t most);
  // least <= value <= most.
  std::optional<double> number(const char* name, double least, double most);
  std::optional<std::string> string(const char* name);
  const nlohmann::ordered_json* object(const char* name);
  const nlohmann::ordered_json* array(const char* name);
  const nlohmann::ordered_json* any(const char* name);
  // Known, and without effect here.
  void accept(std::initializer_list<const char*> names);

  // Members that nothing above asked for.
  std::vector<std::string> unknown() const;
  std::string path(std::string_view name) const { return prefix_ + std::string(name); }

 private:
  const nlohmann::ordered_json* find(const char* name);
  [[noreturn]] void wrong_type(const char* name, const nlohmann::ordered_json& found, const char* expected) const;

  const nlohmann::ordered_json& object_;
  std::string prefix_;
  std::set<std::string, std::less<>> asked_;
};

}  // namespace verbatim::server
