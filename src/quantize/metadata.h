// What a converted checkpoint says of itself: config.json's quantization_config and hf_quant_config.json, in the
// structure of the released files.
#pragma once

#include <string>

#include "model/config.h"
#include "quantize/recipe.h"

namespace verbatim::quantize {

struct MetadataTexts {
  std::string config;           // config.json: the source's, members in its order, with quantization_config
  std::string hf_quant_config;  // hf_quant_config.json
};

// Without `with_activations` the algorithm is W4A16_NVFP4. `where` names the source's config.json.
MetadataTexts make_metadata(const Recipe& recipe, bool with_activations, const model::Config& config,
                            const std::string& source_config, const std::string& where);

}  // namespace verbatim::quantize
