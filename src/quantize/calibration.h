// What a calibration run saw: the activations that enter gate, up and down projections. Kept in a safetensors file;
// files of several runs can be merged.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "model/config.h"
#include "model/tensors.h"
#include "quantize/recipe.h"

namespace verbatim::quantize {

struct SiteKey {
  model::Group group = model::Group::kRoutedExperts;
  int64_t layer = 0;
  Site site = Site::kW13;
  auto operator<=>(const SiteKey&) const = default;
};
// "model.language_model.layers.3.mlp.experts": what holds a group's projections in a layer, and the site.
std::string container_name(model::Group group, int64_t layer);
std::string site_text(const SiteKey& key);  // "model.language_model.layers.3.mlp.experts w13"

// Bins of float32 magnitudes, four an octave: bin 0 holds what is below 2^-24, zero too; bin i from 1 on begins at
// 2^(-24 + (i - 1) div 4) x (1 + ((i - 1) mod 4) / 4); the last one holds all from 2^15 x 1.5 on.
inline constexpr int64_t kHistogramBins = 160;
int64_t histogram_bin(float magnitude);
float histogram_bin_begin(int64_t bin);

// By expert; dense_mlp and shared_experts have one.
struct SiteRecord {
  explicit SiteRecord(int64_t experts = 0);
  int64_t experts() const { return static_cast<int64_t>(largest.size()); }
  // Whether a scale can be made of it: zeros alone tell nothing.
  bool has_data(int64_t expert) const { return largest[static_cast<size_t>(expert)] > 0; }
  // One row of activations of an expert. A value that is not finite makes `largest` infinite.
  void add(int64_t expert, std::span<const float> row);
  void merge(const SiteRecord& other);

  std::vector<float> largest;      // magnitude, 0 where nothing was seen
  std::vector<int64_t> seen;       // rows recorded
  std::vector<int64_t> histogram;  // [experts, kHistogramBins] elements
};

struct Calibration {
  std::map<SiteKey, SiteRecord> sites;
  // Tokens that the router sent to each expert, by layer. Without every_expert these are the rows recorded.
  std::map<int64_t, std::vector<int64_t>> routed;
  int64_t tokens = 0, sequences = 0;
  bool every_expert = false;      // all experts saw all tokens
  std::string model_sha256;       // of the source's config.json and tensor headers: runs of one model can be merged
  std::vector<std::string> runs;  // SHA-256 of each run's token ids
};

// Throws Error(kIo).
void save_calibration(const Calibration& calibration, const std::filesystem::path& path);
// Throws Error(kIo), Error(kFormat) for a file that is not a whole calibration.
Calibration load_calibration(const std::filesystem::path& path);

// Adds `other`'s counts, keeps the larger magnitudes. Throws Error(kUsage) for another model, other sites, a run that
// is in both, or runs of which only one evaluated every expert.
void merge_calibration(Calibration& into, const Calibration& other);

// SHA-256 of a checkpoint's config and of every tensor's name, dtype and shape: what calibrations name their model by.
std::string model_identity(const checkpoint::Checkpoint& source);

// An empty record for every site of the model: routed experts, dense MLPs and shared experts of the main layers.
Calibration empty_calibration(const model::Config& config);

}  // namespace verbatim::quantize
