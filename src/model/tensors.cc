#include "model/tensors.h"

#include <algorithm>
#include <iterator>

#include "base/error.h"

namespace verbatim::model {

namespace {

using checkpoint::Checkpoint;
using checkpoint::DType;
using checkpoint::Form;
using checkpoint::Shape;
using checkpoint::StoredMatrix;
using checkpoint::TensorView;

// ---- dimensions, by the names of MODEL.md --------------------------------------------------------------------------
constexpr Dimension D = [](const Config& c) { return c.hidden; };
constexpr Dimension V = [](const Config& c) { return c.vocabulary; };
constexpr Dimension Maps = [](const Config& c) { return c.maps_width(); };
constexpr Dimension Streams = [](const Config& c) { return c.streams * c.hidden; };
constexpr Dimension Three = [](const Config&) { return int64_t{3}; };
constexpr Dimension Nd = [](const Config& c) { return c.linear_width(); };
constexpr Dimension N = [](const Config& c) { return c.linear_heads; };
constexpr Dimension d = [](const Config& c) { return c.linear_head_width; };
constexpr Dimension One = [](const Config&) { return int64_t{1}; };
constexpr Dimension Taps = [](const Config& c) { return c.conv_taps; };
constexpr Dimension Rq = [](const Config& c) { return c.query_rank; };
constexpr Dimension R = [](const Config& c) { return c.latent; };
constexpr Dimension HeadKeys = [](const Config& c) { return c.heads * c.key_width; };
constexpr Dimension HeadValues = [](const Config& c) { return c.heads * c.value_width; };
constexpr Dimension HeadKeysValues = [](const Config& c) { return c.heads * (c.key_width + c.value_width); };
constexpr Dimension IndexQueries = [](const Config& c) { return c.index_heads * c.index_width; };
constexpr Dimension IndexHeads = [](const Config& c) { return c.index_heads; };
constexpr Dimension IndexWidth = [](const Config& c) { return c.index_width; };
constexpr Dimension Pool = [](const Config& c) { return c.index_pool; };
constexpr Dimension Dense = [](const Config& c) { return c.dense_intermediate; };
constexpr Dimension Inner = [](const Config& c) { return c.expert_intermediate; };
constexpr Dimension Shared = [](const Config& c) { return c.shared_intermediate(); };
constexpr Dimension Experts = [](const Config& c) { return c.experts; };
constexpr Dimension TwoD = [](const Config& c) { return 2 * c.hidden; };
constexpr Dimension Vh = [](const Config& c) { return c.vision.hidden; };
constexpr Dimension Vh3 = [](const Config& c) { return 3 * c.vision.hidden; };
constexpr Dimension Vw = [](const Config& c) { return c.vision.head_width(); };
constexpr Dimension Vi = [](const Config& c) { return c.vision.intermediate; };
constexpr Dimension Vo = [](const Config& c) { return c.vision.out_hidden; };
constexpr Dimension Vp = [](const Config& c) { return c.vision.projection_intermediate; };
constexpr Dimension Vc = [](const Config& c) { return c.vision.channels; };
constexpr Dimension Vt = [](const Config& c) { return c.vision.temporal_patch; };
constexpr Dimension Vpatch = [](const Config& c) { return c.vision.patch; };
constexpr Dimension Vmerge = [](const Config& c) { return c.vision.merge; };

// ---- the table -----------------------------------------------------------------------------------------------------
#define LAYER "model.language_model.layers.{L}."
#define BLOCK "model.visual.blocks.{B}."
using enum Where;
using enum Kind;
using enum Split;
using enum Group;

// clang-format off
constexpr TensorRow kTable[] = {
  {"lm_head",                                          kOnce,         kMatrix, {V, D},                 kRows,          kHead},
  {"model.language_model.embed_tokens",                kOnce,         kMatrix, {V, D},                 kReplicated,    kEmbedding},
  {"model.language_model.norm.weight",                 kOnce,         kTensor, {D},                    kReplicated,    kNorms},

  {LAYER "input_layernorm.weight",                     kEveryLayer,   kTensor, {D},                    kReplicated,    kNorms},
  {LAYER "post_attention_layernorm.weight",            kEveryLayer,   kTensor, {D},                    kReplicated,    kNorms},
  {LAYER "hc_attn_fn",                                 kMainLayers,   kTensor, {Maps, Streams},        kReplicated,    kHyperConnections},
  {LAYER "hc_attn_base",                               kMainLayers,   kTensor, {Maps},                 kReplicated,    kHyperConnections},
  {LAYER "hc_attn_scale",                              kMainLayers,   kTensor, {Three},                kReplicated,    kHyperConnections},
  {LAYER "hc_ffn_fn",                                  kMainLayers,   kTensor, {Maps, Streams},        kReplicated,    kHyperConnections},
  {LAYER "hc_ffn_base",                                kMainLayers,   kTensor, {Maps},                 kReplicated,    kHyperConnections},
  {LAYER "hc_ffn_scale",                               kMainLayers,   kTensor, {Three},                kReplicated,    kHyperConnections},

  {LAYER "self_attn.q_proj",                           kLinearLayers, kMatrix, {Nd, D},                kRows,          kKda},
  {LAYER "self_attn.k_proj",                           kLinearLayers, kMatrix, {Nd, D},                kRows,          kKda},
  {LAYER "self_attn.v_proj",                           kLinearLayers, kMatrix, {Nd, D},                kRows,          kKda},
  {LAYER "self_attn.q_conv1d.weight",                  kLinearLayers, kTensor, {Nd, One, Taps},        kElements,      kKda},
  {LAYER "self_attn.k_conv1d.weight",                  kLinearLayers, kTensor, {Nd, One, Taps},        kElements,      kKda},
  {LAYER "self_attn.v_conv1d.weight",                  kLinearLayers, kTensor, {Nd, One, Taps},        kElements,      kKda},
  {LAYER "self_attn.A_log",                            kLinearLayers, kTensor, {N},                    kElements,      kKda},
  {LAYER "self_attn.dt_bias",                          kLinearLayers, kTensor, {Nd},                   kElements,      kKda},
  {LAYER "self_attn.f_a_proj",                         kLinearLayers, kMatrix, {d, D},                 kReplicated,    kKda},
  {LAYER "self_attn.f_b_proj",                         kLinearLayers, kMatrix, {Nd, d},                kRows,          kKda},
  {LAYER "self_attn.g_a_proj",                         kLinearLayers, kMatrix, {d, D},                 kReplicated,    kKda},
  {LAYER "self_attn.g_b_proj",                         kLinearLayers, kMatrix, {Nd, d},                kRows,          kKda},
  {LAYER "self_attn.b_proj",                           kLinearLayers, kMatrix, {N, D},                 kRows,          kKda},
  {LAYER "self_attn.o_norm.weight",                    kLinearLayers, kTensor, {d},                    kReplicated,    kKda},
  {LAYER "self_attn.o_proj",                           kLinearLayers, kMatrix, {D, Nd},                kColumns,       kKda},

  {LAYER "self_attn.q_a_proj",                         kSparseLayers, kMatrix, {Rq, D},                kReplicated,    kMla},
  {LAYER "self_attn.q_a_layernorm.weight",             kSparseLayers, kTensor, {Rq},                   kReplicated,    kMla},
  {LAYER "self_attn.q_b_proj",                         kSparseLayers, kMatrix, {HeadKeys, Rq},         kRows,          kMla},
  {LAYER "self_attn.kv_a_proj_with_mqa",               kSparseLayers, kMatrix, {R, D},                 kReplicated,    kMla},
  {LAYER "self_attn.kv_a_layernorm.weight",            kSparseLayers, kTensor, {R},                    kReplicated,    kMla},
  {LAYER "self_attn.kv_b_proj",                        kSparseLayers, kMatrix, {HeadKeysValues, R},    kHeadKeyValues, kMla},
  {LAYER "self_attn.o_proj",                           kSparseLayers, kMatrix, {D, HeadValues},        kColumns,       kMla},
  {LAYER "self_attn.indexer.wq_b",                     kSparseLayers, kMatrix, {IndexQueries, Rq},     kReplicated,    kIndexer},
  {LAYER "self_attn.indexer.wk",                       kSparseLayers, kMatrix, {IndexWidth, D},        kReplicated,    kIndexer},
  {LAYER "self_attn.indexer.weights_proj",             kSparseLayers, kMatrix, {IndexHeads, D},        kReplicated,    kIndexer},
  {LAYER "self_attn.indexer.k_norm.weight",            kSparseLayers, kTensor, {IndexWidth},           kReplicated,    kIndexer},
  {LAYER "self_attn.indexer.k_norm.bias",              kSparseLayers, kTensor, {IndexWidth},           kReplicated,    kIndexer},
  {LAYER "self_attn.indexer.index_kpool_compress_gate", kSparseLayers, kTensor, {IndexWidth, D},       kReplicated,    kIndexer},
  {LAYER "self_attn.indexer.index_kpool_compress_ape", kSparseLayers, kTensor, {Pool, IndexWidth},     kReplicated,    kIndexer},

  {LAYER "mlp.gate_proj",                              kDenseLayers,  kMatrix, {Dense, D},             kRows,          kDenseMlp},
  {LAYER "mlp.up_proj",                                kDenseLayers,  kMatrix, {Dense, D},             kRows,          kDenseMlp},
  {LAYER "mlp.down_proj",                              kDenseLayers,  kMatrix, {D, Dense},             kColumns,       kDenseMlp},
  {LAYER "mlp.gate.weight",                            kMoeLayers,    kTensor, {Experts, D},           kReplicated,    kRouter},
  {LAYER "mlp.gate.e_score_correction_bias",           kMoeLayers,    kTensor, {Experts},              kReplicated,    kRouter},
  {LAYER "mlp.shared_experts.gate_proj",               kMoeLayers,    kMatrix, {Shared, D},            kRows,          kSharedExperts},
  {LAYER "mlp.shared_experts.up_proj",                 kMoeLayers,    kMatrix, {Shared, D},            kRows,          kSharedExperts},
  {LAYER "mlp.shared_experts.down_proj",               kMoeLayers,    kMatrix, {D, Shared},            kColumns,       kSharedExperts},
  {LAYER "mlp.experts.{E}.gate_proj",                  kMoeLayers,    kMatrix, {Inner, D},             kRows,          kRoutedExperts},
  {LAYER "mlp.experts.{E}.up_proj",                    kMoeLayers,    kMatrix, {Inner, D},             kRows,          kRoutedExperts},
  {LAYER "mlp.experts.{E}.down_proj",                  kMoeLayers,    kMatrix, {D, Inner},             kColumns,       kRoutedExperts},

  {LAYER "eh_proj",                                    kNextNLayer,   kMatrix, {D, TwoD},              kReplicated,    kNextNRest},
  {LAYER "enorm.weight",                               kNextNLayer,   kTensor, {D},                    kReplicated,    kNextNRest},
  {LAYER "hnorm.weight",                               kNextNLayer,   kTensor, {D},                    kReplicated,    kNextNRest},
  {LAYER "shared_head.norm.weight",                    kNextNLayer,   kTensor, {D},                    kReplicated,    kNextNRest},

  {"model.visual.patch_embed.proj.weight",             kVisionOnce,   kTensor, {Vh, Vc, Vt, Vpatch, Vpatch}, kNotResident, kVision},
  {"model.visual.patch_embed.proj.bias",               kVisionOnce,   kTensor, {Vh},                   kNotResident,   kVision},
  {"model.visual.post_layernorm.weight",               kVisionOnce,   kTensor, {Vh},                   kNotResident,   kVision},
  {"model.visual.downsample.weight",                   kVisionOnce,   kTensor, {Vo, Vh, Vmerge, Vmerge}, kNotResident, kVision},
  {"model.visual.downsample.bias",                     kVisionOnce,   kTensor, {Vo},                   kNotResident,   kVision},
  {"model.visual.merger.proj",                         kVisionOnce,   kMatrix, {Vo, Vo},               kNotResident,   kVision},
  {"model.visual.merger.post_projection_norm.weight",  kVisionOnce,   kTensor, {Vo},                   kNotResident,   kVision},
  {"model.visual.merger.post_projection_norm.bias",    kVisionOnce,   kTensor, {Vo},                   kNotResident,   kVision},
  {"model.visual.merger.gate_proj",                    kVisionOnce,   kMatrix, {Vp, Vo},               kNotResident,   kVision},
  {"model.visual.merger.up_proj",                      kVisionOnce,   kMatrix, {Vp, Vo},               kNotResident,   kVision},
  {"model.visual.merger.down_proj",                    kVisionOnce,   kMatrix, {Vo, Vp},               kNotResident,   kVision},
  {BLOCK "norm1.weight",                               kVisionBlocks, kTensor, {Vh},                   kNotResident,   kVision},
  {BLOCK "norm2.weight",                               kVisionBlocks, kTensor, {Vh},                   kNotResident,   kVision},
  {BLOCK "attn.qkv",                                   kVisionBlocks, kMatrix, {Vh3, Vh},              kNotResident,   kVision},
  {BLOCK "attn.qkv.bias",                              kVisionBlocks, kTensor, {Vh3},                  kNotResident,   kVision},
  {BLOCK "attn.q_norm.weight",                         kVisionBlocks, kTensor, {Vw},                   kNotResident,   kVision},
  {BLOCK "attn.k_norm.weight",                         kVisionBlocks, kTensor, {Vw},                   kNotResident,   kVision},
  {BLOCK "attn.proj",                                  kVisionBlocks, kMatrix, {Vh, Vh},               kNotResident,   kVision},
  {BLOCK "attn.proj.bias",                             kVisionBlocks, kTensor, {Vh},                   kNotResident,   kVision},
  {BLOCK "mlp.gate_proj",                              kVisionBlocks, kMatrix, {Vi, Vh},               kNotResident,   kVision},
  {BLOCK "mlp.gate_proj.bias",                         kVisionBlocks, kTensor, {Vi},                   kNotResident,   kVision},
  {BLOCK "mlp.up_proj",                                kVisionBlocks, kMatrix, {Vi, Vh},               kNotResident,   kVision},
  {BLOCK "mlp.up_proj.bias",                           kVisionBlocks, kTensor, {Vi},                   kNotResident,   kVision},
  {BLOCK "mlp.down_proj",                              kVisionBlocks, kMatrix, {Vh, Vi},               kNotResident,   kVision},
  {BLOCK "mlp.down_proj.bias",                         kVisionBlocks, kTensor, {Vh},                   kNotResident,   kVision},
};
// clang-format on
#undef LAYER
#undef BLOCK

bool exists_in(Where where, const Config& config, int64_t layer) {
  switch (where) {
    case kEveryLayer: return true;
    case kMainLayers: return !config.is_next_n(layer);
    case kLinearLayers: return config.mixer(layer) == MixerKind::kLinear;
    case kSparseLayers: return config.mixer(layer) == MixerKind::kSparse;
    case kDenseLayers: return config.ffn(layer) == FfnKind::kDense;
    case kMoeLayers: return config.ffn(layer) == FfnKind::kSparse;
    case kNextNLayer: return config.is_next_n(layer);
    default: return false;
  }
}

Group group_in(const TensorRow& row, const Config& config, int64_t layer) {
  if (layer < 0 || !config.is_next_n(layer)) return row.group;
  return row.group == kRoutedExperts ? kNextNExperts : kNextNRest;
}

void replace(std::string& text, std::string_view placeholder, int64_t number) {
  const size_t at = text.find(placeholder);
  if (at != std::string::npos) text.replace(at, placeholder.size(), std::to_string(number));
}

// Lists the first few problems of a kind and counts the rest.
class Problems {
 public:
  Problems(std::string what, std::vector<std::string>& list) : what_(std::move(what)), list_(list) {}
  void add(const std::string& text) {
    if (++count_ <= kShown) list_.push_back(text);
  }
  ~Problems() {
    if (count_ > kShown) list_.push_back(fmt::format("... and {} more {}", count_ - kShown, what_));
  }

 private:
  static constexpr uint64_t kShown = 5;
  std::string what_;
  std::vector<std::string>& list_;
  uint64_t count_ = 0;
};

// What is stored, in one word: the names that synth's --form takes where it can write it.
std::string name_form(const std::array<std::array<uint64_t, 4>, kGroups>& forms, const Census& census, bool inverse) {
  auto only = [&](Group group, Form form) {
    const auto& counts = forms[static_cast<size_t>(group)];
    const uint64_t total = counts[0] + counts[1] + counts[2] + counts[3];
    return total > 0 && counts[static_cast<size_t>(form)] == total;
  };
  const uint64_t nvfp4 = census.matrices[static_cast<size_t>(Form::kNvfp4)];
  const uint64_t fp8 = census.matrices[static_cast<size_t>(Form::kFp8Block)];
  if (inverse) return "compressed-tensors";
  if (nvfp4 == 0) return fp8 == 0 ? "bf16" : "fp8";
  if (!only(kRoutedExperts, Form::kNvfp4)) return "mixed";
  const bool weight_only = census.input_scales < nvfp4;
  if (only(kDenseMlp, Form::kNvfp4)) return weight_only ? "nvfp4-w4a16" : "nvfp4";
  return weight_only ? "w4a16-experts" : "w4a4-experts";
}

}  // namespace

const char* group_name(Group group) {
  static constexpr const char* kNames[kGroups] = {
      "routed_experts", "dense_mlp",         "shared_experts", "router",    "kda",  "mla",
      "indexer",        "hyper_connections", "norms",          "embedding", "head", "vision",
      "next_n_experts", "next_n_rest"};
  return kNames[static_cast<size_t>(group)];
}

std::span<const TensorRow> tensor_table() { return kTable; }

std::string tensor_name(std::string_view pattern, int64_t layer, int64_t expert_or_block) {
  std::string name(pattern);
  replace(name, "{L}", layer);
  replace(name, "{E}", expert_or_block);
  replace(name, "{B}", expert_or_block);
  return name;
}

void for_each_expected(const Config& config, const std::function<void(const Expected&)>& visit) {
  for (const TensorRow& row : kTable) {
    Expected expected{&row, {}, {}, -1, row.group};
    for (const Dimension dimension : row.dimensions)
      if (dimension != nullptr && !expected.shape.push_back(dimension(config))) break;
    auto give = [&](int64_t layer, int64_t inner) {
      expected.name = tensor_name(row.pattern, layer, inner);
      expected.layer = layer;
      expected.group = group_in(row, config, layer);
      visit(expected);
    };
    if (row.where == kOnce) {
      give(-1, 0);
    } else if (row.where == kVisionOnce) {
      if (config.has_vision) give(-1, 0);
    } else if (row.where == kVisionBlocks) {
      for (int64_t block = 0; config.has_vision && block < config.vision.depth; ++block) give(-1, block);
    } else {
      const bool per_expert = std::string_view(row.pattern).find("{E}") != std::string_view::npos;
      for (int64_t layer = 0; layer < config.all_layers(); ++layer) {
        if (!exists_in(row.where, config, layer)) continue;
        for (int64_t expert = 0; expert < (per_expert ? config.experts : 1); ++expert) give(layer, expert);
      }
    }
  }
}

Census take_census(const Checkpoint& stored, const Config& config) {
  Census census;
  std::vector<bool> taken(stored.tensors().size(), false);
  std::array<std::array<uint64_t, 4>, kGroups> forms{};
  bool inverse_scales = false;
  {
    Problems missing("missing tensors", census.problems), wrong("tensors with problems", census.problems);
    auto take = [&](const TensorView* view, Group group) {
      if (view == nullptr) return;
      taken[static_cast<size_t>(view - stored.tensors().data())] = true;
      GroupCount& count = census.groups[static_cast<size_t>(group)];
      ++count.tensors;
      count.bytes += view->bytes;
    };
    for_each_expected(config, [&](const Expected& expected) {
      if (expected.row->kind == kTensor) {
        const TensorView* view = stored.find(expected.name);
        if (view == nullptr) {
          missing.add(fmt::format("{} is missing; expected BF16 or F32 {}", expected.name, expected.shape.text()));
          return;
        }
        take(view, expected.group);
        if ((view->dtype != DType::kBF16 && view->dtype != DType::kF32) || view->shape != expected.shape)
          wrong.add(fmt::format("{} is {} {}; expected BF16 or F32 {}", expected.name,
                                checkpoint::dtype_name(view->dtype), view->shape.text(), expected.shape.text()));
        return;
      }
      try {
        const StoredMatrix matrix =
            checkpoint::resolve_matrix(stored, expected.name, expected.shape[0], expected.shape[1]);
        for (const TensorView* view : {matrix.weight, matrix.block_scale, matrix.matrix_scale, matrix.input_scale})
          take(view, expected.group);
        inverse_scales = inverse_scales || matrix.inverse_scales;
        ++census.matrices[static_cast<size_t>(matrix.form)];
        ++forms[static_cast<size_t>(expected.group)][static_cast<size_t>(matrix.form)];
        if (matrix.input_scale != nullptr) {
          ++census.input_scales;
          census.input_scale_bytes += matrix.input_scale->bytes;
          if (stored.has_data()) checkpoint::input_scale(stored, matrix);
        }
        if (matrix.matrix_scale != nullptr && stored.has_data()) checkpoint::matrix_scale(stored, matrix);
      } catch (const Error& error) {
        // Whatever of it is stored is accounted for, so that it is not called unknown as well.
        for (const TensorView& part : stored.with_prefix(expected.name + "."))
          if (part.name.find('.', expected.name.size() + 1) == std::string_view::npos && !part.name.ends_with(".bias"))
            taken[static_cast<size_t>(&part - stored.tensors().data())] = true;
        const bool absent = stored.with_prefix(expected.name + ".weight").empty();
        (absent ? missing : wrong).add(error.what());
      }
    });
    Problems unknown("unknown tensors", census.problems);
    for (size_t i = 0; i < taken.size(); ++i)
      if (!taken[i])
        unknown.add(fmt::format("{} {} {} is not a tensor of this model; expected none under this name",
                                stored.tensors()[i].name, checkpoint::dtype_name(stored.tensors()[i].dtype),
                                stored.tensors()[i].shape.text()));
  }
  census.form = name_form(forms, census, inverse_scales);
  return census;
}

void require_sound(const Checkpoint& stored, const Census& census) {
  if (census.problems.empty()) return;
  std::string text;
  for (const std::string& problem : census.problems) text += "\n  " + problem;
  fail(ErrorKind::kFormat, stored.path().string(), "the checkpoint does not match its config:{}", text);
}

}  // namespace verbatim::model
