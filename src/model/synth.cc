#include "model/synth.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "base/formats.h"
#include "base/mapped_file.h"
#include "base/progress.h"
#include "base/synthetic.h"
#include "base/thread_pool.h"
#include "checkpoint/index.h"
#include "checkpoint/safetensors.h"
#include "model/config.h"
#include "model/synth_parts.h"
#include "model/tensors.h"
#include "quantize/nvfp4.h"

namespace verbatim::model {

namespace {

using checkpoint::DType;
using checkpoint::SafetensorsWriter;
using checkpoint::TensorSpec;
using json = nlohmann::ordered_json;

// ---- configs
// ---------------------------------------------------------------------------------------------------------
struct Sizes {
  int64_t vocabulary, hidden, dense, inner, heads, query_rank, latent, key, value, index_heads, index_width, index_top,
      linear_heads, linear_width, top, positions;
  double swiglu_limit;
  int64_t vision_hidden, vision_heads, vision_inner, vision_projection;
  std::array<int, 3> end_tokens;
  int first_control_token;  // image, video, then the begin and end markers, in the released order
};
constexpr Sizes kTinySizes = {512, 128, 256, 64,    4,   96, 64, 48, 32,  16,        32, 16,
                              4,   32,  4,   65536, 1.5, 64, 4,  96, 160, {1, 2, 3}, 500};
constexpr Sizes kReleasedSizes = {
    154880, 4096, 12288, 2048, 64,      1536, 512,  256, 256,  32,    128,
    2048,   64,   128,   8,    1048576, 10.0, 1024, 16,  4096, 10240, {154820, 154827, 154829},
    154854};

const Sizes& sizes_of(const SynthOptions& options) {
  return options.size == SynthSize::kTiny ? kTinySizes : kReleasedSizes;
}
int64_t layers_of(const SynthOptions& options) {
  return options.layers > 0 ? options.layers : (options.size == SynthSize::kTiny ? 8 : 4);
}
int64_t experts_of(const SynthOptions& options) { return options.experts > 0 ? options.experts : 16; }

json quantised_layers(const Config& config) {
  json layers = json::object();
  for (int64_t layer = 0; layer < config.layers; ++layer)
    if (config.ffn(layer) == FfnKind::kSparse)
      layers[tensor_name("model.language_model.layers.{L}.mlp.experts", layer, 0)] = {{"quant_algo", "NVFP4"},
                                                                                      {"group_size", 16}};
  return layers;
}

json ignored_modules(const Config& config) {
  json modules = {"lm_head", "model.language_model.embed_tokens"};
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const std::string prefix = tensor_name("model.language_model.layers.{L}.", layer, 0);
    modules.push_back(prefix + "self_attn*");
    if (config.ffn(layer) != FfnKind::kSparse) continue;
    modules.push_back(prefix + "mlp.gate");
    modules.push_back(prefix + "mlp.shared_experts*");
  }
  modules.push_back("model.visual*");
  return modules;
}

const json kProducer = {{"name", "verbatim-synth"}};

json quantisation_config(const SynthOptions& options, const Config& config) {
  if (options.form == SynthForm::kW4a4Experts)
    return {{"quant_method", "modelopt"},
            {"quant_algo", "MIXED_PRECISION"},
            {"quantized_layers", quantised_layers(config)},
            {"ignore", json::array()},
            {"producer", kProducer}};
  const json group = {{"dynamic", false}, {"num_bits", 4}, {"type", "float"}, {"group_size", 16}};
  return {{"config_groups",
           {{"group_0", {{"input_activations", group}, {"weights", group}, {"targets", json::array({"Linear"})}}}}},
          {"ignore", ignored_modules(config)},
          {"producer", kProducer},
          {"quant_algo", "NVFP4"},
          {"quant_method", "modelopt"}};
}

json hf_quant_config(const SynthOptions& options, const Config& config) {
  json quantisation;
  if (options.form == SynthForm::kW4a4Experts)
    quantisation = {{"quant_algo", "MIXED_PRECISION"},
                    {"kv_cache_quant_algo", nullptr},
                    {"quantized_layers", quantised_layers(config)}};
  else
    quantisation = {{"quant_algo", "NVFP4"},
                    {"kv_cache_quant_algo", nullptr},
                    {"group_size", 16},
                    {"exclude_modules", ignored_modules(config)}};
  return {{"producer", kProducer}, {"quantization", quantisation}};
}

// ---- writing
// ---------------------------------------------------------------------------------------------------------
constexpr int64_t kBlockElements = 1 << 22;  // generated and written at a time
constexpr const char* kScalesFile = "activation-scales.safetensors";

// One table entry as the tensors it is stored as.
struct Item {
  Expected expected;
  std::vector<TensorSpec> specs;
  uint64_t bytes = 0;
};

std::vector<TensorSpec> specs_of(const Expected& expected, SynthForm form) {
  if (!is_quantised(expected, form)) {
    const std::string suffix = expected.row->kind == Kind::kMatrix ? ".weight" : "";
    return {{expected.name + suffix, stored_dtype(expected, form), expected.shape}};
  }
  const int64_t rows = expected.shape[0], columns = expected.shape[1];
  std::vector<TensorSpec> specs = {{expected.name + ".weight", DType::kU8, {rows, columns / 2}},
                                   {expected.name + ".weight_scale", DType::kF8E4M3, {rows, columns / 16}},
                                   {expected.name + ".weight_scale_2", DType::kF32, {}}};
  if (form == SynthForm::kNvfp4) specs.push_back({expected.name + ".input_scale", DType::kF32, {}});
  return specs;
}

template <typename T>
std::span<const std::byte> bytes_of(const T& values) {
  return std::as_bytes(std::span(values));
}

void write_item(const Item& item, const SynthOptions& options, ThreadPool& pool, SafetensorsWriter& writer) {
  const uint64_t key = synthetic_key(options.seed, item.expected.name);
  const Distribution distribution = distribution_of(item.expected);
  const int64_t count = item.expected.shape.elements();
  auto generate = [&](int64_t first, std::span<float> out) {
    pool.for_each(static_cast<int64_t>(out.size()), 1 << 16, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        out[static_cast<size_t>(i)] = distribution.mean + distribution.spread * synthetic_number(key, first + i);
    });
  };
  if (is_quantised(item.expected, options.form)) {
    std::vector<float> values(static_cast<size_t>(count));
    generate(0, values);
    const quantize::Nvfp4Matrix matrix =
        quantize::quantise_nvfp4(values, item.expected.shape[0], item.expected.shape[1], pool);
    writer.append(bytes_of(matrix.codes));
    writer.append(bytes_of(matrix.block_scales));
    writer.append(bytes_of(std::array{matrix.matrix_scale}));
    if (options.form == SynthForm::kNvfp4) writer.append(bytes_of(std::array{activation_scale(item.expected)}));
    return;
  }
  std::vector<float> values;
  std::vector<uint16_t> halves;
  for (int64_t first = 0; first < count; first += kBlockElements) {
    values.resize(static_cast<size_t>(std::min(kBlockElements, count - first)));
    generate(first, values);
    if (item.specs[0].dtype == DType::kF32) {
      writer.append(bytes_of(values));
      continue;
    }
    halves.resize(values.size());
    std::transform(values.begin(), values.end(), halves.begin(), float_to_bf16);
    writer.append(bytes_of(halves));
  }
}

void write_scales(const std::filesystem::path& directory, const std::vector<Item>& items, const SynthOptions& options,
                  std::map<std::string, std::string>& weight_map) {
  std::vector<TensorSpec> specs;
  std::vector<float> values;
  for (const Item& item : items) {
    if (!is_quantised(item.expected, options.form)) continue;
    specs.push_back({item.expected.name + ".input_scale", DType::kF32, {}});
    values.push_back(activation_scale(item.expected));
    weight_map[specs.back().name] = kScalesFile;
  }
  SafetensorsWriter writer(directory / kScalesFile, std::move(specs), {{"format", "pt"}});
  writer.append(bytes_of(values));
  writer.finish();
}

}  // namespace

// ---- values
// ---------------------------------------------------------------------------------------------------------
Distribution distribution_of(const Expected& expected) {
  const std::string_view name = expected.name;
  auto ends = [&](const char* suffix) { return name.ends_with(suffix); };
  if (ends("A_log")) return {0, 0.3f};
  if (ends("dt_bias")) return {-1, 0.5f};
  if (ends("_base") || ends("_ape") || ends("conv1d.weight")) return {0, 0.5f};
  if (ends("_scale")) return {1, 0.1f};
  if (ends("embed_tokens")) return {0, 1};
  if (ends("bias")) return {0, 0.1f};
  if (expected.shape.size() == 1) return {1, 0.1f};  // norm weights
  int64_t fan_in = 1;
  for (size_t i = 1; i < expected.shape.size(); ++i) fan_in *= expected.shape[i];
  return {0, 1.0f / std::sqrt(static_cast<float>(fan_in))};
}

DType stored_dtype(const Expected& expected, SynthForm form) {
  const std::string_view name = expected.name;
  if (name.ends_with("A_log") || name.ends_with("dt_bias") || name.ends_with("e_score_correction_bias"))
    return DType::kF32;
  const bool hyper = name.find(".hc_") != std::string_view::npos && !name.ends_with("_fn");
  if (hyper) return form == SynthForm::kNvfp4 ? DType::kBF16 : DType::kF32;
  if (name.ends_with("conv1d.weight")) return form == SynthForm::kNvfp4 ? DType::kF32 : DType::kBF16;
  return DType::kBF16;
}

bool is_quantised(const Expected& expected, SynthForm form) {
  if (expected.row->kind != Kind::kMatrix || form == SynthForm::kBf16) return false;
  return expected.group == Group::kRoutedExperts || (expected.group == Group::kDenseMlp && form == SynthForm::kNvfp4);
}

float activation_scale(const Expected& expected) {
  return (expected.name.ends_with("down_proj") ? 3.0f : 5.0f) / 2688.0f;
}

std::string synth_config(const SynthOptions& options) {
  const Sizes& s = sizes_of(options);
  const int64_t layers = layers_of(options);
  json mixers = json::array(), ffns = json::array(), kda = json::array(), full = json::array(),
       indexers = json::array();
  for (int64_t layer = 0; layer < layers; ++layer) {
    const bool sparse = layer % 4 == 3;
    mixers.push_back(sparse ? "deepseek_sparse_attention" : "linear_attention");
    ffns.push_back(layer < 3 ? "dense" : "sparse");
    (sparse ? full : kda).push_back(layer);
    indexers.push_back("full");
  }
  const json text = {{"model_type", "glm5_next_text"},
                     {"attention_bias", false},
                     {"dtype", "bfloat16"},
                     {"eos_token_id", s.end_tokens},
                     {"pad_token_id", s.end_tokens[0]},
                     {"first_k_dense_replace", 3},
                     {"hidden_size", s.hidden},
                     {"intermediate_size", s.dense},
                     {"moe_intermediate_size", s.inner},
                     {"hidden_act", "silu"},
                     {"num_hidden_layers", layers},
                     {"num_nextn_predict_layers", 1},
                     {"num_attention_heads", s.heads},
                     {"num_key_value_heads", s.heads},
                     {"q_lora_rank", s.query_rank},
                     {"kv_lora_rank", s.latent},
                     {"qk_head_dim", s.key},
                     {"qk_nope_head_dim", s.key},
                     {"qk_rope_head_dim", 0},
                     {"v_head_dim", s.value},
                     {"mla_use_nope", true},
                     {"n_routed_experts", experts_of(options)},
                     {"n_shared_experts", 1},
                     {"num_experts_per_tok", std::min(s.top, experts_of(options))},
                     {"n_group", 1},
                     {"topk_group", 1},
                     {"topk_method", "noaux_tc"},
                     {"scoring_func", "sigmoid"},
                     {"norm_topk_prob", true},
                     {"routed_scaling_factor", 2.5},
                     {"moe_router_dtype", "float32"},
                     {"swiglu_limit", s.swiglu_limit},
                     {"rms_norm_eps", 1e-5},
                     {"max_position_embeddings", s.positions},
                     {"vocab_size", s.vocabulary},
                     {"tie_word_embeddings", false},
                     {"mhc", true},
                     {"hc_mult", 4},
                     {"hc_eps", 1e-6},
                     {"hc_sinkhorn_iters", 20},
                     {"index_head_dim", s.index_width},
                     {"index_n_heads", s.index_heads},
                     {"index_topk", s.index_top},
                     {"index_kpool", 4},
                     {"index_kpool_compress", true},
                     {"index_kpool_always_select_tail", true},
                     {"index_share_for_mtp_iteration", true},
                     {"indexer_types", indexers},
                     {"layer_types", mixers},
                     {"mlp_layer_types", ffns},
                     {"linear_attn_config",
                      {{"num_heads", s.linear_heads},
                       {"head_dim", s.linear_width},
                       {"short_conv_kernel_size", 4},
                       {"gate_lower_bound", -5.0},
                       {"kda_layers", kda},
                       {"full_attn_layers", full}}}};
  const json vision = {{"model_type", "glm5_next_vision"},
                       {"depth", 2},
                       {"hidden_size", s.vision_hidden},
                       {"num_heads", s.vision_heads},
                       {"intermediate_size", s.vision_inner},
                       {"out_hidden_size", s.hidden},
                       {"projection_intermediate_size", s.vision_projection},
                       {"patch_size", 14},
                       {"temporal_patch_size", 2},
                       {"spatial_merge_size", 2},
                       {"in_channels", 3},
                       {"hidden_act", "silu"},
                       {"attention_bias", true},
                       {"rms_norm_eps", 1e-5},
                       {"swiglu_limit", s.swiglu_limit}};
  const int token = s.first_control_token;
  json config = {{"architectures", {"Glm5NextForConditionalGeneration"}},
                 {"model_type", "glm5_next"},
                 {"tie_word_embeddings", false},
                 {"image_token_id", token},
                 {"video_token_id", token + 1},
                 {"text_config", text},
                 {"vision_config", vision}};
  if (options.form != SynthForm::kBf16)
    config["quantization_config"] = quantisation_config(options, parse_config(config.dump(), "synth"));
  return config.dump(1) + "\n";
}

void synthesise(const std::filesystem::path& directory, const SynthOptions& options, ThreadPool& pool) {
  namespace fs = std::filesystem;
  if (fs::exists(directory / "config.json"))
    fail(ErrorKind::kUsage, directory.string(), "holds a config.json already; choose another directory");
  const std::string config_text = synth_config(options);
  const Config config = parse_config(config_text, "synth");
  std::error_code error;
  fs::create_directories(directory, error);
  if (error) fail(ErrorKind::kIo, directory.string(), "cannot create: {}", error.message());

  std::vector<Item> items;
  for_each_expected(config, [&](const Expected& expected) {
    Item item{expected, specs_of(expected, options.form), 0};
    for (const TensorSpec& spec : item.specs) item.bytes += *checkpoint::checked_bytes(spec.dtype, spec.shape);
    items.push_back(std::move(item));
  });

  // Cut into shards in table order; a matrix's parts stay together.
  std::vector<std::pair<size_t, size_t>> shards;
  uint64_t total = 0, in_shard = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    if (shards.empty() || in_shard + items[i].bytes > options.shard_bytes) {
      shards.emplace_back(i, i);
      in_shard = 0;
    }
    shards.back().second = i + 1;
    in_shard += items[i].bytes;
    total += items[i].bytes;
  }

  std::map<std::string, std::string> weight_map;
  Progress progress("writing " + directory.string(), total >> 20, "MiB");
  uint64_t written = 0;
  for (size_t shard = 0; shard < shards.size(); ++shard) {
    const auto [begin, end] = shards[shard];
    const std::string file = fmt::format("model-{:05}-of-{:05}.safetensors", shard + 1, shards.size());
    std::vector<TensorSpec> specs;
    for (size_t i = begin; i < end; ++i) {
      specs.insert(specs.end(), items[i].specs.begin(), items[i].specs.end());
      for (const TensorSpec& spec : items[i].specs) weight_map[spec.name] = file;
    }
    SafetensorsWriter writer(directory / file, std::move(specs), {{"format", "pt"}});
    for (size_t i = begin; i < end; ++i) {
      write_item(items[i], options, pool, writer);
      progress.advance((written += items[i].bytes) >> 20);
    }
    writer.finish();
  }
  if (options.form == SynthForm::kW4a4Experts) {
    write_scales(directory, items, options, weight_map);
    for (const Item& item : items) total += is_quantised(item.expected, options.form) ? sizeof(float) : 0;
  }
  checkpoint::write_index(directory, weight_map, total);
  const json generation = {{"eos_token_id", sizes_of(options).end_tokens}, {"temperature", 1.0}, {"top_p", 0.95}};
  write_file_atomically(directory / "generation_config.json", generation.dump(1) + "\n");
  if (options.form != SynthForm::kBf16)
    write_file_atomically(directory / "hf_quant_config.json", hf_quant_config(options, config).dump(1) + "\n");
  write_file_atomically(directory / "config.json", config_text);
}

}  // namespace verbatim::model
