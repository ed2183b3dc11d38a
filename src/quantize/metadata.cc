#include "quantize/metadata.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "quantize/calibration.h"

namespace verbatim::quantize {

namespace {

using Json = nlohmann::ordered_json;
using model::FfnKind;
using model::Group;

const char* algorithm_of(bool with_activations) { return with_activations ? "NVFP4" : "W4A16_NVFP4"; }

// MIXED_PRECISION: routed experts by their container, others projection by projection.
Json quantized_layers(const Recipe& recipe, bool with_activations, const model::Config& config) {
  const Json entry = {{"quant_algo", algorithm_of(with_activations)}, {"group_size", 16}};
  Json layers = Json::object();
  for (int64_t layer = 0; layer < config.layers; ++layer)
    for (const Group group : {Group::kDenseMlp, Group::kRoutedExperts, Group::kSharedExperts}) {
      if (!recipe.quantises(group, layer) || (group == Group::kDenseMlp) != (config.ffn(layer) == FfnKind::kDense))
        continue;
      const std::string container = container_name(group, layer);
      if (group == Group::kRoutedExperts)
        layers[container] = entry;
      else
        for (const char* projection : {".gate_proj", ".up_proj", ".down_proj"}) layers[container + projection] = entry;
    }
  return layers;
}

// NVFP4: what is not quantised, as NVIDIA's release lists it, with the next-n layer, which that list leaves out.
Json ignored_modules(const Recipe& recipe, const model::Config& config) {
  Json modules = {"lm_head", "model.language_model.embed_tokens"};
  auto add = [&](const char* pattern, int64_t layer) { modules.push_back(model::tensor_name(pattern, layer, 0)); };
  for (int64_t layer = 0; layer < config.layers; ++layer) add("model.language_model.layers.{L}.self_attn*", layer);
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    if (config.ffn(layer) == FfnKind::kDense) {
      if (!recipe.quantises(Group::kDenseMlp, layer)) add("model.language_model.layers.{L}.mlp*", layer);
      continue;
    }
    add("model.language_model.layers.{L}.mlp.gate", layer);
    if (!recipe.quantises(Group::kSharedExperts, layer))
      add("model.language_model.layers.{L}.mlp.shared_experts*", layer);
    if (!recipe.quantises(Group::kRoutedExperts, layer)) add("model.language_model.layers.{L}.mlp.experts*", layer);
  }
  if (config.next_n_layers > 0) add("model.language_model.layers.{L}.*", config.layers);
  if (config.has_vision) modules.push_back("model.visual*");
  return modules;
}

}  // namespace

MetadataTexts make_metadata(const Recipe& recipe, bool with_activations, const model::Config& config,
                            const std::string& source_config, const std::string& where) {
  const Json producer = {{"name", recipe.producer_name}, {"version", recipe.producer_version}};
  Json in_config, in_hf;
  if (recipe.form == OutputForm::kMixedPrecision) {
    const Json layers = quantized_layers(recipe, with_activations, config);
    in_config = {{"quant_method", "modelopt"},
                 {"quant_algo", "MIXED_PRECISION"},
                 {"quantized_layers", layers},
                 {"ignore", Json::array()}};
    if (recipe.permits_fp8_cache)
      in_config["kv_cache_scheme"] = {{"dynamic", false}, {"num_bits", 8}, {"type", "float"}};
    in_config["producer"] = producer;
    in_hf = {{"quant_algo", "MIXED_PRECISION"}, {"kv_cache_quant_algo", nullptr}, {"quantized_layers", layers}};
  } else {
    const Json scheme = {{"dynamic", false}, {"num_bits", 4}, {"type", "float"}, {"group_size", 16}};
    const Json ignored = ignored_modules(recipe, config);
    Json group = Json::object();
    if (with_activations) group["input_activations"] = scheme;
    group["weights"] = scheme;
    group["targets"] = Json::array({"Linear"});
    in_config = {{"config_groups", {{"group_0", group}}}, {"ignore", ignored}};
    if (recipe.permits_fp8_cache)
      in_config["kv_cache_scheme"] = {{"dynamic", false}, {"num_bits", 8}, {"type", "float"}};
    in_config["producer"] = producer;
    in_config["quant_algo"] = algorithm_of(with_activations);
    in_config["quant_method"] = "modelopt";
    in_hf = {{"quant_algo", algorithm_of(with_activations)},
             {"kv_cache_quant_algo", nullptr},
             {"group_size", 16},
             {"exclude_modules", ignored}};
  }
  if (recipe.permits_fp8_cache) in_hf["kv_cache_quant_algo"] = "FP8";
  Json out;
  try {
    out = Json::parse(source_config);
  } catch (const Json::exception& error) {
    fail(ErrorKind::kFormat, where, "not valid JSON ({}); expected an object", error.what());
  }
  out["quantization_config"] = in_config;
  const Json hf = {{"producer", producer}, {"quantization", in_hf}};
  return {out.dump(2) + "\n", hf.dump(2) + "\n"};
}

}  // namespace verbatim::quantize
