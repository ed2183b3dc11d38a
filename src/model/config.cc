#include "model/config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "ops/ops.h"

namespace verbatim::model {

namespace {

using nlohmann::json;

// One JSON object of the config. Every access marks the field as seen; what is left over is judged at the end.
class Fields {
 public:
  Fields(const json& object, std::string where) : object_(object), where_(std::move(where)) {
    if (!object.is_object()) fail(ErrorKind::kFormat, where_, "found {}; expected a JSON object", object.type_name());
  }

  const json* find(const std::string& name) {
    seen_.insert(name);
    const auto it = object_.find(name);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }
  bool has(const std::string& name) const { return object_.contains(name); }

  int64_t integer(const std::string& name, int64_t low, int64_t high, std::optional<int64_t> absent = {}) {
    const json* value = find(name);
    if (value == nullptr) {
      if (!absent) missing(name, fmt::format("a whole number from {} to {}", low, high));
      return *absent;
    }
    if (!value->is_number_integer() || (value->is_number_unsigned() && value->get<uint64_t>() > INT64_MAX) ||
        value->get<int64_t>() < low || value->get<int64_t>() > high)
      wrong(name, *value, fmt::format("a whole number from {} to {}", low, high));
    return value->get<int64_t>();
  }

  float number(const std::string& name, double low, double high, std::optional<double> absent = {}) {
    const json* value = find(name);
    if (value == nullptr) {
      if (!absent) missing(name, fmt::format("a number from {} to {}", low, high));
      return static_cast<float>(*absent);
    }
    if (!value->is_number() || !(value->get<double>() >= low && value->get<double>() <= high))
      wrong(name, *value, fmt::format("a number from {} to {}", low, high));
    return value->get<float>();
  }

  bool boolean(const std::string& name, bool absent) {
    const json* value = find(name);
    if (value == nullptr) return absent;
    if (!value->is_boolean()) wrong(name, *value, "true or false");
    return value->get<bool>();
  }

  // The only value implemented; absent means it.
  void only(const std::string& name, const json& implemented) {
    const json* value = find(name);
    if (value != nullptr && *value != implemented)
      fail(ErrorKind::kUnsupported, where_, "field {} is {}; only {} is implemented", name, shorten(*value),
           implemented.dump());
  }

  void ignore(std::initializer_list<const char*> names) { seen_.insert(names.begin(), names.end()); }

  // Leftovers: harmless ones become notes, others are refused by name.
  void finish(std::vector<std::string>& notes) const {
    for (const auto& [name, value] : object_.items()) {
      if (seen_.contains(name)) continue;
      if (!is_harmless(name, value))
        fail(ErrorKind::kUnsupported, where_,
             "unknown field {} = {}; it may change the arithmetic and this engine does not implement it; remove the "
             "field if it has no effect",
             name, shorten(value));
      notes.push_back(
          fmt::format("{}: unknown field {} = {} is taken to have no effect", where_, name, shorten(value)));
    }
  }

  [[noreturn]] void wrong(const std::string& name, const json& found, const std::string& expected) const {
    fail(ErrorKind::kFormat, where_, "field {} is {}; expected {}", name, shorten(found), expected);
  }
  [[noreturn]] void missing(const std::string& name, const std::string& expected) const {
    fail(ErrorKind::kFormat, where_, "field {} is missing; expected {}", name, expected);
  }
  const std::string& where() const { return where_; }

 private:
  static std::string shorten(const json& value) {
    std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
    if (text.size() > 80) text = text.substr(0, 77) + "...";
    return text;
  }

  // A feature that is switched off (null, false, empty) or a field about training, files or people. Anything else may
  // change what the model computes.
  static bool is_harmless(const std::string& name, const json& value) {
    if (value.is_null() || value == json(false)) return true;
    if ((value.is_string() || value.is_array() || value.is_object()) && value.empty()) return true;
    if (value.is_string() && value.get_ref<const std::string&>().empty()) return true;
    if (name.starts_with("_") || name.starts_with("chunk_size_feed_forward")) return true;
    static constexpr std::array kAbout = {"dropout",
                                          "dtype",
                                          "version",
                                          "author",
                                          "comment",
                                          "description",
                                          "license",
                                          "path",
                                          "revision",
                                          "label",
                                          "plan",
                                          "loss",
                                          "initializer",
                                          "token_id",
                                          "tokenizer",
                                          "problem",
                                          "checkpointing",
                                          "return_dict",
                                          "output_attentions",
                                          "output_hidden_states",
                                          "architectures",
                                          "auto_map",
                                          "task_specific",
                                          "finetun",
                                          "producer",
                                          "created",
                                          "date",
                                          "base_model"};
    return std::any_of(kAbout.begin(), kAbout.end(),
                       [&](const char* part) { return name.find(part) != std::string::npos; });
  }

  const json& object_;
  std::string where_;
  std::set<std::string> seen_;
};

// Two spellings of one size: either may be given, both must agree.
template <typename Read>
auto agreed(Fields& first, const std::string& first_name, Fields* second, const std::string& second_name, Read read,
            decltype(read(first, first_name)) absent) {
  const bool in_first = first.has(first_name), in_second = second != nullptr && second->has(second_name);
  if (!in_first && !in_second) return absent;
  const auto a = in_first ? read(first, first_name) : read(*second, second_name);
  const auto b = in_second ? read(*second, second_name) : a;
  if (a != b)
    fail(ErrorKind::kFormat, first.where(), "{} is {} but {} is {}; expected the same value", first_name, a,
         second_name, b);
  return a;
}

std::vector<int32_t> token_list(Fields& fields, const std::string& name) {
  const json* value = fields.find(name);
  std::vector<int32_t> ids;
  if (value == nullptr) return ids;
  const json list = value->is_array() ? *value : json::array({*value});
  for (const json& id : list) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() > INT32_MAX)
      fields.wrong(name, *value, "token ids");
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

// Kinds by layer from a list of names, or from `absent` where the list is not given.
template <typename Kind>
std::vector<Kind> kinds(Fields& fields, const std::string& name, int64_t layers,
                        std::initializer_list<std::pair<const char*, Kind>> names, std::vector<Kind> absent) {
  const json* value = fields.find(name);
  if (value == nullptr) return absent;
  if (!value->is_array() || static_cast<int64_t>(value->size()) != layers)
    fields.wrong(name, *value, fmt::format("a list of {} layer kinds (num_hidden_layers)", layers));
  std::vector<Kind> list;
  for (const json& entry : *value) {
    const auto found =
        std::find_if(names.begin(), names.end(), [&](const auto& known) { return entry == known.first; });
    if (found == names.end())
      fail(ErrorKind::kUnsupported, fields.where(), "field {} has {}; implemented are {} and {}", name,
           entry.dump(-1, ' ', true, json::error_handler_t::replace), names.begin()->first,
           std::next(names.begin())->first);
    list.push_back(found->second);
  }
  if (!absent.empty() && list != absent)
    fail(ErrorKind::kFormat, fields.where(), "field {} disagrees with the other list of layer kinds in this config",
         name);
  return list;
}

// Mixer kinds from linear_attn_config's two lists of 0-based layers; empty if it has none.
std::vector<MixerKind> listed_mixers(Fields& linear, int64_t layers) {
  const json* kda = linear.find("kda_layers");
  const json* full = linear.find("full_attn_layers");
  if (kda == nullptr && full == nullptr) return {};
  std::vector<int> claims(static_cast<size_t>(layers), 0);
  std::vector<MixerKind> mixers(static_cast<size_t>(layers), MixerKind::kSparse);
  auto take = [&](const json* list, const char* name, MixerKind kind) {
    if (list == nullptr || !list->is_array()) linear.missing(name, "a list of layer numbers");
    for (const json& layer : *list) {
      if (!layer.is_number_integer() || layer.get<int64_t>() < 0 || layer.get<int64_t>() >= layers)
        linear.wrong(name, layer, fmt::format("layer numbers from 0 to {}", layers - 1));
      ++claims[layer.get<size_t>()];
      mixers[layer.get<size_t>()] = kind;
    }
  };
  take(kda, "kda_layers", MixerKind::kLinear);
  take(full, "full_attn_layers", MixerKind::kSparse);
  for (size_t layer = 0; layer < claims.size(); ++layer)
    if (claims[layer] != 1)
      fail(ErrorKind::kFormat, linear.where(),
           "layer {} stands {} times in kda_layers and full_attn_layers; expected once", layer, claims[layer]);
  return mixers;
}

void multiple_of(const Fields& fields, const char* name, int64_t value, int64_t unit) {
  if (value % unit != 0)
    fail(ErrorKind::kUnsupported, fields.where(), "field {} is {}; expected a multiple of {}", name, value, unit);
}

void parse_linear_attention(Fields& text, Config& config) {
  std::optional<Fields> linear;
  if (const json* object = text.find("linear_attn_config"))
    linear.emplace(*object, text.where() + ".linear_attn_config");
  Fields* second = linear ? &*linear : nullptr;
  auto size = [](int64_t high) {
    return [high](Fields& fields, const std::string& name) { return fields.integer(name, 1, high); };
  };
  config.linear_heads = agreed(text, "linear_num_heads", second, "num_heads", size(4096), int64_t{64});
  config.linear_head_width = agreed(text, "linear_head_dim", second, "head_dim", size(1024), int64_t{128});
  config.conv_taps = agreed(text, "linear_conv_kernel_dim", second, "short_conv_kernel_size", size(64), int64_t{4});
  // null means no bound, which is stored as 0 here; a bound is negative.
  auto bound = [](Fields& fields, const std::string& name) {
    return fields.find(name) == nullptr ? 0.0f : fields.number(name, -64.0, -1e-3);
  };
  config.linear_lower_bound = agreed(text, "linear_lower_bound", second, "gate_lower_bound", bound, -5.0f);
  if (config.conv_taps != ops::kConvTaps)
    fail(ErrorKind::kUnsupported, text.where(), "field linear_conv_kernel_dim is {}; only {} is implemented",
         config.conv_taps, ops::kConvTaps);
  multiple_of(text, "linear_head_dim", config.linear_head_width, 16);

  std::vector<MixerKind> mixers;
  if (linear) {
    mixers = listed_mixers(*linear, config.layers);
    // transformers turns a null bound into -5 unless this is false.
    if (config.linear_lower_bound == 0.0f && linear->boolean("safe_gate", true)) config.linear_lower_bound = -5.0f;
    linear->ignore({"safe_gate"});
    linear->finish(config.notes);
  }
  if (mixers.empty() && !text.has("layer_types")) {
    for (int64_t layer = 0; layer < config.layers; ++layer)
      mixers.push_back(layer % 4 == 3 ? MixerKind::kSparse : MixerKind::kLinear);
  }
  config.mixers = kinds<MixerKind>(text, "layer_types", config.layers,
                                   {{"linear_attention", MixerKind::kLinear},
                                    {"deepseek_sparse_attention", MixerKind::kSparse},
                                    {"full_attention", MixerKind::kSparse}},
                                   mixers);
}

void parse_sparse_attention(Fields& text, Config& config) {
  config.heads = text.integer("num_attention_heads", 1, 4096);
  text.only("num_key_value_heads", config.heads);
  config.query_rank = text.integer("q_lora_rank", 16, 1 << 20);
  config.latent = text.integer("kv_lora_rank", 16, 1 << 20);
  config.key_width = text.integer("qk_nope_head_dim", 1, 1 << 16);
  config.value_width = text.integer("v_head_dim", 1, 1 << 16);
  text.only("qk_head_dim", config.key_width);
  text.only("qk_rope_head_dim", 0);
  text.only("mla_use_nope", true);
  text.only("attention_bias", false);
  config.index_heads = text.integer("index_n_heads", 1, 4096);
  config.index_width = text.integer("index_head_dim", 16, 1 << 16);
  config.index_top = text.integer("index_topk", 1, 1 << 24);
  config.index_pool = text.integer("index_kpool", 1, ops::kPageTokens);
  config.index_select_tail = text.boolean("index_kpool_always_select_tail", true);
  config.index_share_for_drafts = text.boolean("index_share_for_mtp_iteration", false);
  text.only("index_kpool_compress", true);
  if (const json* types = text.find("indexer_types")) {
    if (!types->is_array() || std::any_of(types->begin(), types->end(), [](const json& t) { return t != "full"; }))
      fail(ErrorKind::kUnsupported, text.where(),
           "field indexer_types has entries other than \"full\"; only \"full\" is implemented");
  }
  text.only("index_topk_freq", 1);
  multiple_of(text, "q_lora_rank", config.query_rank, 16);
  multiple_of(text, "kv_lora_rank", config.latent, 16);
  multiple_of(text, "index_head_dim", config.index_width, 16);
  multiple_of(text, "qk_nope_head_dim", config.key_width, 16);
  multiple_of(text, "v_head_dim", config.value_width, 16);
  if (config.index_top % config.index_pool != 0)
    fail(ErrorKind::kFormat, text.where(), "field index_topk is {}; expected a multiple of index_kpool ({})",
         config.index_top, config.index_pool);
  if (ops::kPageTokens % config.index_pool != 0)
    fail(ErrorKind::kUnsupported, text.where(), "field index_kpool is {}; expected a divisor of {}", config.index_pool,
         ops::kPageTokens);
  // Without rotary positions nothing reads these.
  text.ignore({"rope_theta", "rope_scaling", "rope_parameters", "rope_interleave", "partial_rotary_factor",
               "indexer_rope_interleave", "head_dim", "index_skip_topk_offset"});
}

void parse_feed_forward(Fields& text, Config& config) {
  config.dense_intermediate = text.integer("intermediate_size", 16, 1 << 24);
  config.expert_intermediate = text.integer("moe_intermediate_size", 16, 1 << 24);
  config.experts = text.integer("n_routed_experts", 1, 1 << 16);
  text.only("num_local_experts", config.experts);
  config.experts_per_token = text.integer("num_experts_per_tok", 1, 256);
  config.shared_experts = text.integer("n_shared_experts", 1, 64);
  config.routed_scale = text.number("routed_scaling_factor", 1e-6, 1e6);
  config.swiglu_limit = text.number("swiglu_limit", 1e-6, 1e6);
  if (config.experts_per_token > config.experts)
    fail(ErrorKind::kFormat, text.where(), "field num_experts_per_tok is {}; expected at most n_routed_experts ({})",
         config.experts_per_token, config.experts);
  text.only("n_group", 1);
  text.only("topk_group", 1);
  text.only("scoring_func", "sigmoid");
  text.only("topk_method", "noaux_tc");
  text.only("norm_topk_prob", true);
  text.only("moe_router_dtype", "float32");
  text.only("hidden_act", "silu");
  multiple_of(text, "intermediate_size", config.dense_intermediate, 16);
  multiple_of(text, "moe_intermediate_size", config.expert_intermediate, 16);

  const int64_t dense = std::min(config.layers, text.integer("first_k_dense_replace", 0, 1 << 20, 3));
  std::vector<FfnKind> absent;
  if (text.has("first_k_dense_replace") || !text.has("mlp_layer_types"))
    for (int64_t layer = 0; layer < config.layers; ++layer)
      absent.push_back(layer < dense ? FfnKind::kDense : FfnKind::kSparse);
  config.ffns = kinds<FfnKind>(text, "mlp_layer_types", config.layers,
                               {{"dense", FfnKind::kDense}, {"sparse", FfnKind::kSparse}}, absent);
}

void parse_text(Fields& text, Config& config) {
  config.layers = text.integer("num_hidden_layers", 1, 4096);
  config.next_n_layers = text.integer("num_nextn_predict_layers", 0, 1, 0);
  config.vocabulary = text.integer("vocab_size", 1, 1 << 24);
  config.hidden = text.integer("hidden_size", 16, 1 << 20);
  config.max_positions = text.integer("max_position_embeddings", 1, int64_t{1} << 40, 1048576);
  config.norm_epsilon = text.number("rms_norm_eps", 1e-12, 1.0);
  config.streams = text.integer("hc_mult", 1, 16);
  config.hyper_epsilon = text.number("hc_eps", 0.0, 1.0);
  config.sinkhorn_iterations = static_cast<int>(text.integer("hc_sinkhorn_iters", 1, 1000));
  text.only("mhc", true);
  text.only("tie_word_embeddings", false);
  multiple_of(text, "hidden_size", config.hidden, 16);
  parse_linear_attention(text, config);
  parse_sparse_attention(text, config);
  parse_feed_forward(text, config);
  config.end_tokens = token_list(text, "eos_token_id");
  for (const int32_t id : config.end_tokens)
    if (id >= config.vocabulary)
      fail(ErrorKind::kFormat, text.where(), "field eos_token_id has {}; expected ids below vocab_size ({})", id,
           config.vocabulary);
  text.ignore({"model_type", "pad_token_id", "bos_token_id", "attention_dropout", "initializer_range",
               "router_aux_loss_coef", "output_router_logits", "use_cache", "base_model_ep_plan", "base_model_tp_plan",
               "base_model_pp_plan", "dtype", "torch_dtype", "transformers_version", "architectures"});
}

void parse_vision(Fields& fields, int64_t text_hidden, VisionConfig& vision) {
  vision.depth = fields.integer("depth", 1, 1024);
  vision.hidden = fields.integer("hidden_size", 16, 1 << 16);
  vision.heads = fields.integer("num_heads", 1, 1024);
  vision.intermediate = fields.integer("intermediate_size", 1, 1 << 20);
  vision.out_hidden = fields.integer("out_hidden_size", 1, 1 << 20);
  vision.projection_intermediate = fields.integer("projection_intermediate_size", 1, 1 << 20);
  vision.channels = fields.integer("in_channels", 1, 16, 3);
  vision.patch = fields.integer("patch_size", 1, 256, 14);
  vision.temporal_patch = fields.integer("temporal_patch_size", 1, 16, 2);
  vision.merge = fields.integer("spatial_merge_size", 1, 16, 2);
  vision.norm_epsilon = fields.number("rms_norm_eps", 1e-12, 1.0);
  vision.swiglu_limit = fields.number("swiglu_limit", 1e-6, 1e6, 10.0);
  fields.only("hidden_act", "silu");
  fields.only("attention_bias", true);
  fields.only("num_attention_heads", vision.heads);
  if (const json* rope = fields.find("rope_parameters")) {
    Fields parameters(*rope, fields.where() + ".rope_parameters");
    parameters.only("rope_theta", 10000.0);
    parameters.only("rope_type", "axial");
    std::vector<std::string> notes;
    parameters.finish(notes);
  }
  if (vision.hidden % vision.heads != 0 || vision.head_width() % 4 != 0)
    fail(ErrorKind::kFormat, fields.where(),
         "hidden_size {} and num_heads {}; expected a head width that is a multiple of 4", vision.hidden, vision.heads);
  if (vision.out_hidden != text_hidden)
    fail(ErrorKind::kFormat, fields.where(), "field out_hidden_size is {}; expected the text model's hidden_size ({})",
         vision.out_hidden, text_hidden);
  fields.ignore({"model_type", "image_size", "attention_dropout", "initializer_range", "dtype", "torch_dtype"});
}

constexpr int kMaxDepth = 64;

json parse_json(std::string_view text, const std::string& where) {
  // Printing a value in a message recurses, so depth is bounded while parsing, which does not.
  auto bounded = [&](int depth, json::parse_event_t, json&) {
    if (depth > kMaxDepth) fail(ErrorKind::kFormat, where, "JSON nested past {} levels; expected a config", kMaxDepth);
    return true;
  };
  try {
    return json::parse(text, bounded);
  } catch (const json::exception& error) {
    fail(ErrorKind::kFormat, where, "not valid JSON: {}", error.what());
  }
}

}  // namespace

MixerKind Config::mixer(int64_t layer) const {
  return is_next_n(layer) ? MixerKind::kSparse : mixers[static_cast<size_t>(layer)];
}

FfnKind Config::ffn(int64_t layer) const {
  return is_next_n(layer) ? FfnKind::kSparse : ffns[static_cast<size_t>(layer)];
}

int64_t Config::count(MixerKind kind) const { return std::count(mixers.begin(), mixers.end(), kind); }

Config parse_config(std::string_view text, const std::string& where) {
  const json document = parse_json(text, where);
  Fields top(document, where);
  Config config;
  top.only("model_type", "glm5_next");
  top.only("tie_word_embeddings", false);

  const json* text_object = top.find("text_config");
  if (text_object == nullptr) top.missing("text_config", "an object with the text model's sizes");
  Fields text_fields(*text_object, where + ": text_config");
  parse_text(text_fields, config);
  text_fields.finish(config.notes);

  if (const json* vision_object = top.find("vision_config")) {
    config.has_vision = true;
    Fields vision_fields(*vision_object, where + ": vision_config");
    parse_vision(vision_fields, config.hidden, config.vision);
    vision_fields.finish(config.notes);
  }
  config.image_token = top.integer("image_token_id", 0, config.vocabulary - 1, -1);
  config.video_token = top.integer("video_token_id", 0, config.vocabulary - 1, -1);
  top.ignore({"architectures", "dtype", "torch_dtype", "transformers_version", "image_start_token_id",
              "image_end_token_id", "video_start_token_id", "video_end_token_id", "quantization_config", "eos_token_id",
              "pad_token_id"});
  top.finish(config.notes);
  return config;
}

void apply_generation_config(Config& config, std::string_view text, const std::string& where) {
  const json document = parse_json(text, where);
  Fields fields(document, where);
  const std::vector<int32_t> ids = token_list(fields, "eos_token_id");
  if (ids.empty()) return;
  for (const int32_t id : ids)
    if (id >= config.vocabulary)
      fail(ErrorKind::kFormat, where, "field eos_token_id has {}; expected ids below vocab_size ({})", id,
           config.vocabulary);
  config.end_tokens = ids;
}

}  // namespace verbatim::model
