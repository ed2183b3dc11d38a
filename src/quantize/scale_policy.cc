#include "quantize/scale_policy.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace verbatim::quantize {

namespace {

// Gate and up read the same input and store a scale each; the down projection is alone.
int matrices_of(Site site) { return site == Site::kW13 ? 2 : 1; }

}  // namespace

double percentile_of(std::span<const double> values, double percentile) {
  if (values.empty() || !(percentile >= 0) || !(percentile <= 100))
    fail(ErrorKind::kUsage, "percentile", "{} of {} values; expected 0 to 100 of at least one", percentile,
         values.size());
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  const double position = percentile / 100 * static_cast<double>(sorted.size() - 1);
  const auto below = std::min(static_cast<size_t>(position), sorted.size() - 1);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (sorted[above] - sorted[below]) * (position - static_cast<double>(below));
}

float scale_of_largest(float largest) { return largest / (6.0f * 448.0f); }

float pooled_scale(std::span<const float> scales, double percentile, double margin) {
  const std::vector<double> values(scales.begin(), scales.end());
  return static_cast<float>(percentile_of(values, percentile) * margin);
}

SiteScales choose_scales(const Recipe& recipe, const SiteKey& key, const SiteRecord& record) {
  SiteScales out;
  out.rule = recipe.activations;
  out.margin = recipe.margin;
  float most = 0;
  std::vector<float> pool;
  for (int64_t expert = 0; expert < record.experts(); ++expert) {
    if (!record.has_data(expert)) {
      out.without_data.push_back(expert);
      continue;
    }
    most = std::max(most, record.largest[static_cast<size_t>(expert)]);
    pool.insert(pool.end(), static_cast<size_t>(matrices_of(key.site)),
                scale_of_largest(record.largest[static_cast<size_t>(expert)]));
  }
  if (pool.empty())
    fail(ErrorKind::kFormat, site_text(key),
         "calibration reached none of its {} experts; expected activations; give more prompts or --all-experts",
         record.experts());
  out.values.resize(static_cast<size_t>(record.experts()));
  if (recipe.activations == ActivationRule::kPercentile) {
    out.percentile = recipe.percentile_of(key.site, key.layer);
    out.pooled = static_cast<int64_t>(pool.size());
    std::fill(out.values.begin(), out.values.end(), pooled_scale(pool, out.percentile, recipe.margin));
  } else {
    out.percentile = 100;
    for (int64_t expert = 0; expert < record.experts(); ++expert) {
      const auto e = static_cast<size_t>(expert);
      out.values[e] = static_cast<float>(
          static_cast<double>(scale_of_largest(record.has_data(expert) ? record.largest[e] : most)) * recipe.margin);
    }
  }
  for (const float value : out.values)
    if (!std::isfinite(value) || !(value > 0))
      fail(ErrorKind::kFormat, site_text(key), "an input_scale of {}; expected a finite number above 0", value);
  return out;
}

ActivationScales choose_all_scales(const Recipe& recipe, const model::Config& config, const Calibration& calibration) {
  ActivationScales out;
  if (recipe.activations == ActivationRule::kNone) return out;
  for (const auto& [key, empty] : empty_calibration(config).sites) {
    if (!recipe.quantises(key.group, key.layer)) continue;
    const auto it = calibration.sites.find(key);
    if (it == calibration.sites.end() || it->second.experts() != empty.experts())
      fail(ErrorKind::kFormat, "calibration", "{}: {} experts; expected {}: it is of another model", site_text(key),
           it == calibration.sites.end() ? 0 : it->second.experts(), empty.experts());
    out.emplace(key, choose_scales(recipe, key, it->second));
  }
  return out;
}

}  // namespace verbatim::quantize
