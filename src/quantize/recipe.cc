#include "quantize/recipe.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/mapped_file.h"
#include "quantize/shipped_recipes.h"

namespace verbatim::quantize {

namespace {

using Json = nlohmann::ordered_json;
using model::Group;

constexpr size_t kMaxRecipeBytes = 1 << 20;

// One object of the recipe. Every member must be asked for: what is left over is an error.
class Object {
 public:
  Object(const Json& value, std::string path, const std::string& where)
      : value_(value), path_(std::move(path)), where_(where) {
    if (!value.is_object()) refuse("", "an object");
  }

  // nullptr if absent.
  const Json* find(const char* key) {
    asked_.insert(key);
    const auto it = value_.find(key);
    return it == value_.end() ? nullptr : &*it;
  }
  const Json& at(const char* key, const char* expected) {
    const Json* member = find(key);
    if (member == nullptr) refuse(key, expected);
    return *member;
  }
  std::string text(const char* key, const char* expected = "a text") {
    const Json& member = at(key, expected);
    if (!member.is_string()) refuse(key, expected);
    return member.get<std::string>();
  }
  double number(const char* key, double low, double high) {
    const std::string expected = fmt::format("a number from {} to {}", low, high);
    const Json& member = at(key, expected.c_str());
    if (!member.is_number() || !(member.get<double>() >= low) || !(member.get<double>() <= high)) refuse(key, expected);
    return member.get<double>();
  }
  LayerRange layers() {
    const Json* member = find("layers");
    if (member == nullptr) return {};
    if (!member->is_array() || member->size() != 2 || !(*member)[0].is_number_unsigned() ||
        !(*member)[1].is_number_unsigned() || (*member)[0].get<int64_t>() > (*member)[1].get<int64_t>())
      refuse("layers", "[first, last], both included");
    return {(*member)[0].get<int64_t>(), (*member)[1].get<int64_t>()};
  }
  Object object(const char* key) { return {at(key, "an object"), path_ + key + ".", where_}; }
  // Calls visit(Object) for each element of a list of objects.
  template <typename Visit>
  void each(const char* key, const Visit& visit) {
    const Json& list = at(key, "a list of objects");
    if (!list.is_array()) refuse(key, "a list of objects");
    for (size_t i = 0; i < list.size(); ++i) {
      Object element(list[i], fmt::format("{}{}[{}].", path_, key, i), where_);
      visit(element);
      element.done();
    }
  }

  void done() const {
    for (const auto& [key, member] : value_.items())
      if (!asked_.contains(key)) refuse(key, "no such field");
  }

  [[noreturn]] void refuse(const std::string& key, const std::string& expected) const {
    const auto it = value_.is_object() ? value_.find(key) : value_.end();
    const std::string found = key.empty() ? value_.dump() : it == value_.end() ? "absent" : it->dump();
    fail(ErrorKind::kFormat, where_, "{}{}: {}; expected {}", path_, key, found, expected);
  }

 private:
  const Json& value_;
  std::string path_;
  const std::string& where_;
  std::set<std::string> asked_;
};

Group target_group(Object& target) {
  static constexpr const char* kExpected = "routed_experts, dense_mlp or shared_experts";
  const std::string name = target.text("group", kExpected);
  for (const Group group : {Group::kRoutedExperts, Group::kDenseMlp, Group::kSharedExperts})
    if (name == model::group_name(group)) return group;
  target.refuse("group", kExpected);
}

void read_activations(Object activations, Recipe& recipe) {
  static constexpr const char* kExpected = "none, largest or percentile";
  const std::string rule = activations.text("rule", kExpected);
  if (rule == "percentile") {
    recipe.activations = ActivationRule::kPercentile;
    recipe.percentile = activations.number("percentile", 0, 100);
    if (activations.find("exceptions") != nullptr)
      activations.each("exceptions", [&](Object& exception) {
        const std::string site = exception.text("site", "w13 or w2");
        if (site != "w13" && site != "w2") exception.refuse("site", "w13 or w2");
        recipe.exceptions.push_back(
            {site == "w13" ? Site::kW13 : Site::kW2, exception.layers(), exception.number("percentile", 0, 100)});
      });
  } else if (rule == "largest") {
    recipe.activations = ActivationRule::kLargest;
  } else if (rule != "none") {
    activations.refuse("rule", kExpected);
  }
  if (rule != "none" && activations.find("margin") != nullptr) recipe.margin = activations.number("margin", 0.01, 100);
  activations.done();
}

}  // namespace

const char* site_name(Site site) { return site == Site::kW13 ? "w13" : "w2"; }

Site site_of(std::string_view module) { return module.ends_with("down_proj") ? Site::kW2 : Site::kW13; }

bool Recipe::quantises(Group group, int64_t layer) const {
  for (const Target& target : targets)
    if (target.group == group && target.layers.contains(layer)) return true;
  return false;
}

double Recipe::percentile_of(Site site, int64_t layer) const {
  double result = percentile;
  for (const Exception& exception : exceptions)
    if (exception.site == site && exception.layers.contains(layer)) result = exception.percentile;
  return result;
}

Recipe parse_recipe(std::string_view json, const std::string& where) {
  Json parsed;
  try {
    parsed = Json::parse(json);
  } catch (const Json::exception& error) {
    fail(ErrorKind::kFormat, where, "not valid JSON ({}); expected a recipe", error.what());
  }
  Recipe recipe;
  recipe.text = parsed.dump(-1, ' ', false, Json::error_handler_t::replace);
  Object top(parsed, "", where);
  recipe.name = top.text("name");
  if (top.find("description") != nullptr) recipe.description = top.text("description");
  const std::string form = top.text("form", "NVFP4 or MIXED_PRECISION");
  if (form != "NVFP4" && form != "MIXED_PRECISION") top.refuse("form", "NVFP4 or MIXED_PRECISION");
  recipe.form = form == "NVFP4" ? OutputForm::kNvfp4 : OutputForm::kMixedPrecision;
  Object producer = top.object("producer");
  recipe.producer_name = producer.text("name");
  recipe.producer_version = producer.text("version");
  producer.done();
  top.each("quantise", [&](Object& target) {
    const Group group = target_group(target);
    recipe.targets.push_back({group, target.layers()});
  });
  if (recipe.targets.empty()) top.refuse("quantise", "at least one group");
  Object weights = top.object("weights");
  if (weights.text("rule", "largest") != "largest")
    weights.refuse("rule", "largest: weight_scale_2 = largest magnitude / 2688");
  weights.done();
  read_activations(top.object("activations"), recipe);
  if (top.find("kv_cache") != nullptr) {
    if (top.text("kv_cache", "FP8") != "FP8") top.refuse("kv_cache", "FP8, or no such field");
    recipe.permits_fp8_cache = true;
  }
  if (top.find("scales_file") != nullptr) {
    recipe.scales_file = top.text("scales_file");
    if (!recipe.scales_file.ends_with(".safetensors") || recipe.scales_file.find('/') != std::string::npos ||
        recipe.scales_file.starts_with("model") || recipe.scales_file == "calibration.safetensors")
      top.refuse("scales_file", "a name as activation-scales.safetensors, not beginning with model");
  }
  const Json& shards = top.at("shards", "\"as the source\" or bytes");
  if (shards.is_number_unsigned() && shards.get<uint64_t>() > 0)
    recipe.shard_bytes = shards.get<uint64_t>();
  else if (shards != "as the source")
    top.refuse("shards", "\"as the source\", or the most bytes of a shard");
  top.done();
  return recipe;
}

std::vector<std::string> shipped_recipes() {
  std::vector<std::string> names;
  for (const ShippedRecipe& recipe : shipped_recipe_files()) names.emplace_back(recipe.name);
  return names;
}

Recipe find_recipe(const std::string& name) {
  if (name.ends_with(".json")) return parse_recipe(read_text_file(name, kMaxRecipeBytes), name);
  for (const ShippedRecipe& recipe : shipped_recipe_files())
    if (name == recipe.name) return parse_recipe(recipe.json, name);
  fail(ErrorKind::kUsage, "--recipe", "{}; expected a file ending in .json or one of {}", name,
       fmt::join(shipped_recipes(), ", "));
}

}  // namespace verbatim::quantize
