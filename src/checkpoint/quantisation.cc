#include "checkpoint/quantisation.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/error.h"
#include "checkpoint/names.h"
#include "checkpoint/quote_name.h"

namespace verbatim::checkpoint {

namespace {

using Json = nlohmann::json;

// A member of a JSON object with the path to it, so that every message can name the field.
class Field {
 public:
  Field(const Json* value, std::string path, const std::string* where)
      : value_(value), path_(std::move(path)), where_(where) {}

  // Absent and null are the same.
  explicit operator bool() const { return value_ != nullptr && !value_->is_null(); }
  const std::string& path() const { return path_; }
  bool is_object() const { return *this && value_->is_object(); }

  Field operator[](const char* key) const {
    const bool present = is_object() && value_->contains(key);
    return {present ? &(*value_)[key] : nullptr, path_ + "." + key, where_};
  }

  std::string text() const {
    if (!*this || !value_->is_string()) refuse_form("a string");
    return value_->get<std::string>();
  }
  std::string text_or(const char* otherwise) const { return *this ? text() : otherwise; }

  bool boolean_or(bool otherwise) const {
    if (!*this) return otherwise;
    if (!value_->is_boolean()) refuse_form("true or false");
    return value_->get<bool>();
  }

  // Calls visit(pattern) for each string of a list; absent is empty.
  template <typename Visit>
  void each_text(const Visit& visit) const {
    if (!*this) return;
    if (!value_->is_array()) refuse_form("a list of strings");
    for (const Json& item : *value_) {
      if (!item.is_string()) refuse_form("a list of strings");
      visit(item.get_ref<const std::string&>());
    }
  }

  // Calls visit(key, field) for each member of an object; absent is empty.
  template <typename Visit>
  void each_member(const Visit& visit) const {
    if (!*this) return;
    if (!value_->is_object()) refuse_form("an object");
    for (auto it = value_->begin(); it != value_->end(); ++it)
      visit(it.key(), Field(&it.value(), path_ + "." + it.key(), where_));
  }

  // Refuses, by name, a value other than `expected`; absent is accepted where `optional`.
  void require(const Json& expected, bool optional) const {
    if (*this ? *value_ == expected : optional) return;
    refuse_value(expected.dump());
  }

  [[noreturn]] void refuse_value(const std::string& expected) const {
    fail(ErrorKind::kUnsupported, *where_, "{}: {}; expected {}; this quantisation is not implemented", path_, found(),
         expected);
  }
  [[noreturn]] void refuse_form(const std::string& expected) const {
    fail(ErrorKind::kFormat, *where_, "{}: {}; expected {}", path_, found(), expected);
  }

 private:
  std::string found() const {
    if (value_ == nullptr) return "absent";
    return quote_name(value_->dump(-1, ' ', false, Json::error_handler_t::replace));
  }

  const Json* value_;
  std::string path_;
  const std::string* where_;
};

bool is_nvfp4_algorithm(const std::string& algorithm) { return algorithm == "NVFP4" || algorithm == "W4A16_NVFP4"; }

void read_producer(const Field& field, Quantisation& out) {
  const Field producer = field["producer"];
  if (!producer.is_object()) return;
  out.producer = producer["name"].text_or("");
  if (producer["version"]) out.producer.append(" ").append(producer["version"].text());
}

// KV caches are declared without scales: what is declared permits, so an unknown declaration is only noted.
void read_kv_cache(const Field& field, Quantisation& out) {
  if (const Field algorithm = field["kv_cache_quant_algo"]) {
    if (algorithm.text() == "FP8")
      out.fp8_kv_cache = true;
    else
      out.notes.push_back(fmt::format("{} is {}: not used, the cache is not quantised", algorithm.path(),
                                      quote_name(algorithm.text())));
  }
  if (const Field scheme = field["kv_cache_scheme"]) {
    if (!scheme.is_object()) scheme.refuse_form("an object");
    out.fp8_kv_cache = true;
    scheme["num_bits"].require(8, false);
    scheme["type"].require("float", false);
  }
}

void read_ignore(const Field& list, Quantisation& out) {
  list.each_text([&](const std::string& pattern) { out.ignore.add(pattern); });
}

// A 4-bit float scheme in groups of 16.
void require_nvfp4_scheme(const Field& scheme) {
  if (!scheme.is_object()) scheme.refuse_form("an object");
  scheme["num_bits"].require(4, false);
  scheme["type"].require("float", false);
  scheme["group_size"].require(16, false);
}

// ModelOpt, from either file: in hf_quant_config.json the members stand under "quantization".
Quantisation read_modelopt(const Field& outer) {
  Quantisation out;
  const Field field = outer["quantization"] ? outer["quantization"] : outer;
  read_producer(outer, out);
  const Field algorithm = field["quant_algo"];
  const std::string name = algorithm.text_or("");
  if (name == "NVFP4")
    out.kind = QuantisationKind::kNvfp4;
  else if (name == "MIXED_PRECISION")
    out.kind = QuantisationKind::kMixedPrecision;
  else if (name == "W4A16_NVFP4")
    out.kind = QuantisationKind::kW4A16Nvfp4;
  else
    algorithm.refuse_value("NVFP4, W4A16_NVFP4 or MIXED_PRECISION");
  out.weight_only = out.kind == QuantisationKind::kW4A16Nvfp4;
  field["group_size"].require(16, true);
  read_kv_cache(field, out);
  read_ignore(field["ignore"] ? field["ignore"] : field["exclude_modules"], out);

  std::set<bool> with_activations;
  field["config_groups"].each_member([&](const std::string&, const Field& group) {
    require_nvfp4_scheme(group["weights"]);
    if (group["input_activations"]) require_nvfp4_scheme(group["input_activations"]);
    with_activations.insert(static_cast<bool>(group["input_activations"]));
  });
  if (with_activations.size() == 1 && !*with_activations.begin()) out.weight_only = true;

  field["quantized_layers"].each_member([&](const std::string& module, const Field& layer) {
    if (!is_nvfp4_algorithm(layer["quant_algo"].text_or(""))) layer["quant_algo"].refuse_value("NVFP4 or W4A16_NVFP4");
    layer["group_size"].require(16, true);
    const std::optional<std::string> mapped = canonical_name(module);
    out.quantized_layers.emplace(mapped ? *mapped : module, layer["quant_algo"].text());
  });
  if (out.kind == QuantisationKind::kMixedPrecision && out.quantized_layers.empty())
    out.notes.push_back(algorithm.path() + " is MIXED_PRECISION, but no quantized_layers are listed");
  return out;
}

Quantisation read_fp8(const Field& field) {
  Quantisation out;
  out.kind = QuantisationKind::kFp8Block;
  field["fmt"].require("e4m3", true);
  field["activation_scheme"].require("dynamic", true);
  field["weight_block_size"].require(Json::array({128, 128}), false);
  read_ignore(field["modules_to_not_convert"] ? field["modules_to_not_convert"] : field["ignored_layers"], out);
  return out;
}

// compressed-tensors: groups of 4-bit floats in 16s (packed), or of FP8 in blocks of 128 x 128.
Quantisation read_compressed_tensors(const Field& field) {
  Quantisation out;
  out.kind = QuantisationKind::kCompressedTensors;
  const std::string format = field["format"].text_or("");
  if (format != "nvfp4-pack-quantized" && format != "mixed-precision" && format != "float-quantized")
    field["format"].refuse_value("nvfp4-pack-quantized, float-quantized or mixed-precision");
  field["quantization_status"].require("compressed", true);
  if (!field["config_groups"].is_object()) field["config_groups"].refuse_form("an object of groups");
  std::set<bool> with_activations;
  field["config_groups"].each_member([&](const std::string&, const Field& group) {
    const Field weights = group["weights"];
    if (!weights.is_object()) weights.refuse_form("an object");
    weights["type"].require("float", false);
    weights["symmetric"].require(true, true);
    if (weights["strategy"].text_or("") == "block") {
      weights["num_bits"].require(8, false);
      weights["block_structure"].require(Json::array({128, 128}), false);
      group["format"].require("float-quantized", true);
      return;
    }
    if (weights["strategy"] && weights["strategy"].text() != "tensor_group" && weights["strategy"].text() != "group")
      weights["strategy"].refuse_value("tensor_group, or block");
    require_nvfp4_scheme(weights);
    group["format"].require("nvfp4-pack-quantized", true);
    if (group["input_activations"]) require_nvfp4_scheme(group["input_activations"]);
    with_activations.insert(static_cast<bool>(group["input_activations"]));
  });
  if (with_activations.size() > 1)
    field["config_groups"].refuse_value("4-bit groups that all quantise activations, or none of them");
  out.weight_only = !with_activations.empty() && !*with_activations.begin();
  read_kv_cache(field, out);
  read_ignore(field["ignore"], out);
  return out;
}

Quantisation read_quantization_config(const Field& field) {
  if (!field.is_object()) field.refuse_form("an object");
  const std::string method = field["quant_method"].text_or("");
  if (method == "modelopt" || method == "modelopt_fp4") return read_modelopt(field);
  if (method == "fp8") return read_fp8(field);
  if (method == "compressed-tensors") return read_compressed_tensors(field);
  field["quant_method"].refuse_value("modelopt, fp8 or compressed-tensors");
}

Json parse_object(std::string_view text, const std::string& where) {
  // Printing or comparing a value recurses, so depth is bounded while parsing, which does not.
  constexpr int kMaxDepth = 64;
  auto bounded = [&](int depth, Json::parse_event_t, Json&) {
    if (depth > kMaxDepth) fail(ErrorKind::kFormat, where, "JSON nested past {} levels; expected a config", kMaxDepth);
    return true;
  };
  Json parsed;
  try {
    parsed = Json::parse(text, bounded);
  } catch (const Json::exception& error) {
    fail(ErrorKind::kFormat, where, "not valid JSON ({}); expected an object", quote_name(error.what()));
  }
  if (!parsed.is_object()) fail(ErrorKind::kFormat, where, "JSON of type {}; expected an object", parsed.type_name());
  return parsed;
}

bool same_patterns(const ModulePatterns& a, const ModulePatterns& b) {
  return std::set<std::string>(a.all().begin(), a.all().end()) == std::set<std::string>(b.all().begin(), b.all().end());
}

// Both files describe one checkpoint: they must agree on the algorithm; lists that differ are only noted.
Quantisation merge(Quantisation config, Quantisation other, const std::string& where) {
  if (config.kind != other.kind)
    fail(ErrorKind::kFormat, where,
         "quantization_config says {}, hf_quant_config.json beside it says {}; expected the same algorithm in both",
         quantisation_name(config.kind), quantisation_name(other.kind));
  if (config.producer.empty()) config.producer = std::move(other.producer);
  if (config.ignore.empty())
    config.ignore = std::move(other.ignore);
  else if (!other.ignore.empty() && !same_patterns(config.ignore, other.ignore))
    config.notes.emplace_back("config.json and hf_quant_config.json list different modules as not quantised");
  if (config.quantized_layers.empty())
    config.quantized_layers = std::move(other.quantized_layers);
  else if (!other.quantized_layers.empty() && config.quantized_layers != other.quantized_layers)
    config.notes.emplace_back("config.json and hf_quant_config.json differ in quantized_layers");
  if (config.fp8_kv_cache != other.fp8_kv_cache && config.kind != QuantisationKind::kMixedPrecision)
    config.notes.emplace_back("config.json and hf_quant_config.json differ in whether an FP8 cache is permitted");
  config.fp8_kv_cache |= other.fp8_kv_cache;
  config.weight_only |= other.weight_only;
  for (std::string& note : other.notes) config.notes.push_back(std::move(note));
  return config;
}

}  // namespace

const char* quantisation_name(QuantisationKind kind) {
  switch (kind) {
    case QuantisationKind::kNone: return "none";
    case QuantisationKind::kNvfp4: return "NVFP4";
    case QuantisationKind::kMixedPrecision: return "MIXED_PRECISION";
    case QuantisationKind::kW4A16Nvfp4: return "W4A16_NVFP4";
    case QuantisationKind::kFp8Block: return "FP8 blocks";
    case QuantisationKind::kCompressedTensors: return "compressed-tensors";
  }
  return "unknown";
}

const std::string* Quantisation::layer_algorithm(std::string_view module) const {
  const std::string* found = nullptr;
  any_ancestor(module, [&](std::string_view name) {
    const auto it = quantized_layers.find(name);
    if (it != quantized_layers.end()) found = &it->second;
    return found != nullptr;
  });
  if (found != nullptr) return found;
  for (const auto& [pattern, algorithm] : quantized_layers)
    if (pattern.find('*') != std::string::npos && glob_matches(pattern, module)) return &algorithm;
  return nullptr;
}

bool Quantisation::is_weight_only(std::string_view module) const {
  if (weight_only) return true;
  const std::string* algorithm = kind == QuantisationKind::kMixedPrecision ? layer_algorithm(module) : nullptr;
  return algorithm != nullptr && *algorithm == "W4A16_NVFP4";
}

bool Quantisation::claims(std::string_view module) const {
  if (kind == QuantisationKind::kNone) return false;
  if (kind == QuantisationKind::kMixedPrecision) return layer_algorithm(module) != nullptr;
  return !ignore.matches(module);
}

Quantisation parse_quantisation(std::string_view config_text, const std::optional<std::string>& hf_quant_config_text,
                                const std::string& where) {
  const Json config = parse_object(config_text, where);
  const Field top(&config, "config", &where);
  const Field nested = top["text_config"]["quantization_config"];
  const Field field(top["quantization_config"] ? &config["quantization_config"]
                    : nested                   ? &config["text_config"]["quantization_config"]
                                               : nullptr,
                    "quantization_config", &where);
  Quantisation out;
  if (field) out = read_quantization_config(field);
  if (!hf_quant_config_text) return out;

  const std::string hf_where = where + ", hf_quant_config.json beside it";
  const Json hf = parse_object(*hf_quant_config_text, hf_where);
  Quantisation other = read_modelopt(Field(&hf, "hf_quant_config", &hf_where));
  return field ? merge(std::move(out), std::move(other), where) : other;
}

}  // namespace verbatim::checkpoint
