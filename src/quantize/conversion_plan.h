// What a conversion will write: every tensor, in which shard, from which tensor of the source. From headers alone.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors.h"
#include "model/config.h"
#include "model/tensors.h"
#include "quantize/recipe.h"
#include "quantize/scale_policy.h"

namespace verbatim::quantize {

// One tensor of the source and what it becomes.
struct ConversionItem {
  const checkpoint::TensorView* source = nullptr;
  model::Group group = model::Group::kNorms;
  bool quantised = false;
  // Of quantised matrices:
  std::string module;  // name without ".weight"
  int64_t layer = -1, expert = 0;
  int64_t rows = 0, columns = 0;

  std::vector<checkpoint::TensorSpec> specs;  // copied: one; quantised: weight, weight_scale, weight_scale_2 and, where
                                              // it stands beside the weights, input_scale
  uint64_t bytes = 0;                         // of the specs
};

struct ConversionShard {
  std::string file;
  size_t begin = 0, end = 0;  // items
  uint64_t bytes = 0;         // payload
};

struct ConversionPlan {
  std::vector<ConversionItem> items;  // in the order in which the source stores them
  std::vector<ConversionShard> shards;
  std::vector<size_t> scale_items;  // items whose input_scale goes to the recipe's scales_file, in order
  bool with_activations = false;
  uint64_t tensors = 0, payload_bytes = 0;                     // of the result
  uint64_t matrices = 0;                                       // quantised
  std::array<model::GroupCount, model::kGroups> groups{};      // of the result
  uint64_t source_bytes = 0, largest_matrix_source_bytes = 0;  // payload; of the largest matrix to be quantised
};

// An inventory has no shards of its own: under "as the source" its plan has one. Throws Error(kFormat) when the source
// does not match its config, Error(kUnsupported) when it is quantised already or a target's width has no whole blocks,
// Error(kUsage) when the recipe's targets are not in this model.
ConversionPlan plan_conversion(const checkpoint::Checkpoint& source, const model::Config& config, const Recipe& recipe,
                               bool with_activations);

// Of a quantised item. Throws Error(kUsage) if the scales lack its site.
float input_scale_of(const ActivationScales& scales, const ConversionItem& item);

}  // namespace verbatim::quantize
