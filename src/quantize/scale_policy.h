// From what calibration saw to the input_scale that each matrix stores.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "quantize/calibration.h"
#include "quantize/recipe.h"

namespace verbatim::quantize {

// Linear interpolation between order statistics: position percentile / 100 x (count - 1) in the sorted values, in
// float64. Throws Error(kUsage) for no values or a percentile outside 0 to 100.
double percentile_of(std::span<const double> values, double percentile);

// input_scale of an activation whose largest magnitude is `largest`: largest / 2688 (6 x 448), in float32.
float scale_of_largest(float largest);

// The scales of one layer and site. `weight` is how many matrices read each expert's input (gate and up: 2), so that
// they are pooled as that many values.
struct SiteScales {
  std::vector<float> values;  // input_scale by expert (one for dense_mlp and shared_experts)
  ActivationRule rule = ActivationRule::kNone;
  double percentile = 0, margin = 1;
  int64_t pooled = 0;                 // values that the percentile was taken over
  std::vector<int64_t> without_data;  // experts that calibration never reached
};

// The rule for experts without data: under kLargest they take the largest activation that the site's other experts met;
// under kPercentile they add nothing to the pool and take the layer's value like the others. Throws Error(kFormat) when
// no expert of the site has data.
SiteScales choose_scales(const Recipe& recipe, const SiteKey& key, const SiteRecord& record);

// The same from per-expert input_scales with data for all: what the published recipe does to a checkpoint's scales.
float pooled_scale(std::span<const float> scales, double percentile, double margin);

using ActivationScales = std::map<SiteKey, SiteScales>;

// Of every site that the recipe quantises in this model. Empty under kNone. Throws Error(kFormat), naming the site,
// when the calibration lacks one or has another number of experts.
ActivationScales choose_all_scales(const Recipe& recipe, const model::Config& config, const Calibration& calibration);

}  // namespace verbatim::quantize
