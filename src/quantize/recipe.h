// A recipe: which matrices become NVFP4, and by which rules their scales are chosen. Data, in JSON (recipes/*.json;
// docs/converting.md lists every field).
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/tensors.h"

namespace verbatim::quantize {

// Matrices that read the same activations: gate and up projections (w13), the down projection (w2).
enum class Site { kW13, kW2 };
inline constexpr size_t kSites = 2;
const char* site_name(Site site);  // "w13"
// Of a projection's name, "....down_proj".
Site site_of(std::string_view module);

struct LayerRange {
  int64_t first = 0, last = std::numeric_limits<int64_t>::max();  // both included
  bool contains(int64_t layer) const { return first <= layer && layer <= last; }
};

enum class OutputForm { kNvfp4, kMixedPrecision };

enum class ActivationRule {
  kNone,        // no input_scale is stored: W4A16
  kLargest,     // each matrix: the largest activation it met
  kPercentile,  // one value a layer and site: margin x percentile over its experts
};

struct Recipe {
  struct Target {
    model::Group group = model::Group::kRoutedExperts;  // routed_experts, dense_mlp or shared_experts
    LayerRange layers;
  };
  struct Exception {
    Site site = Site::kW13;
    LayerRange layers;
    double percentile = 0;
  };

  std::string name, description;
  OutputForm form = OutputForm::kNvfp4;
  std::string producer_name, producer_version;  // what readers of the metadata are told
  std::vector<Target> targets;
  ActivationRule activations = ActivationRule::kNone;
  double percentile = 100, margin = 1;
  std::vector<Exception> exceptions;  // the last that fits wins
  bool permits_fp8_cache = false;
  std::string scales_file;   // input_scale in a shard of their own; empty: beside the weights
  uint64_t shard_bytes = 0;  // most bytes of a shard; 0: cut as the source is
  std::string text;          // the JSON it was read from, members in order, without spaces

  bool quantises(model::Group group, int64_t layer) const;
  double percentile_of(Site site, int64_t layer) const;
};

// Throws Error(kFormat), naming the field, for anything that is not exactly a recipe.
Recipe parse_recipe(std::string_view json, const std::string& where);

// Names of the recipes that ship with the program.
std::vector<std::string> shipped_recipes();
// The shipped recipe `name`, or the file that it names when it ends in .json. Throws Error(kUsage) for an unknown name,
// Error(kIo), Error(kFormat).
Recipe find_recipe(const std::string& name);

}  // namespace verbatim::quantize
