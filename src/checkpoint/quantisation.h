// What a checkpoint's metadata says about its quantisation: `quantization_config` of config.json and
// hf_quant_config.json. It is checked against itself and decides W4A16 versus W4A4; it never decides the form of a
// tensor (stored_matrix.h does, from what is stored).
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/module_patterns.h"

namespace verbatim::checkpoint {

enum class QuantisationKind {
  kNone,
  kNvfp4,              // ModelOpt NVFP4
  kMixedPrecision,     // ModelOpt MIXED_PRECISION: quantized_layers names what is quantised
  kW4A16Nvfp4,         // ModelOpt W4A16_NVFP4: weights only
  kFp8Block,           // FP8 e4m3 in blocks of 128 x 128
  kCompressedTensors,  // nvfp4-pack-quantized, possibly with groups of FP8 blocks
};

// "none", "NVFP4", "MIXED_PRECISION", "W4A16_NVFP4", "FP8 blocks", "compressed-tensors".
const char* quantisation_name(QuantisationKind kind);

struct Quantisation {
  QuantisationKind kind = QuantisationKind::kNone;
  bool weight_only = false;   // activations are said not to be quantised anywhere (W4A16)
  bool fp8_kv_cache = false;  // a permission, not an order
  std::string producer;       // "modelopt 0.47.0"; empty when not stated
  ModulePatterns ignore;      // ignore, exclude_modules or modules_to_not_convert
  // MIXED_PRECISION: canonical container, expert or projection (or a glob) -> "NVFP4" or "W4A16_NVFP4".
  std::map<std::string, std::string, std::less<>> quantized_layers;
  std::vector<std::string> notes;  // harmless disagreements, for inspect

  // Whether the metadata says that this module's activations are not quantised: W4A4 may then not be used for it,
  // though it stores an input scale.
  bool is_weight_only(std::string_view module) const;
  // Whether the metadata says that this module's weight is stored quantised.
  bool claims(std::string_view module) const;

 private:
  const std::string* layer_algorithm(std::string_view module) const;
};

// Parses the text of config.json and, where present, of hf_quant_config.json; `where` names the former in messages.
// Throws Error(kFormat) for bad JSON or disagreement on the algorithm, Error(kUnsupported) naming the method, algorithm
// or field that is not implemented.
Quantisation parse_quantisation(std::string_view config_text, const std::optional<std::string>& hf_quant_config_text,
                                const std::string& where);

}  // namespace verbatim::checkpoint
