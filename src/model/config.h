// The model's sizes and choices, read from config.json. Every field is implemented, known to have no effect, or
// refused.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace verbatim::model {

enum class MixerKind { kLinear, kSparse };  // Kimi delta attention; MLA with the pooled indexer
enum class FfnKind { kDense, kSparse };     // one SwiGLU; routed experts and a shared one

struct VisionConfig {
  int64_t depth = 0, hidden = 0, heads = 0, intermediate = 0, out_hidden = 0, projection_intermediate = 0;
  int64_t channels = 3, patch = 14, temporal_patch = 2, merge = 2;
  float norm_epsilon = 1e-5f, swiglu_limit = 10.0f;

  int64_t head_width() const { return hidden / heads; }
};

struct Config {
  // Values of the released model in comments.
  int64_t vocabulary = 0;     // 154,880
  int64_t hidden = 0;         // 4,096
  int64_t layers = 0;         // 45
  int64_t next_n_layers = 0;  // 1: its index is `layers`
  int64_t max_positions = 0;  // 1,048,576
  std::vector<MixerKind> mixers;
  std::vector<FfnKind> ffns;
  float norm_epsilon = 1e-5f;
  float swiglu_limit = 10.0f;

  int64_t streams = 0;  // 4
  float hyper_epsilon = 1e-6f;
  int sinkhorn_iterations = 20;

  int64_t linear_heads = 0, linear_head_width = 0;  // 64, 128
  int64_t conv_taps = 4;
  float linear_lower_bound = -5.0f;  // 0 where the config says null: no bound

  int64_t heads = 0, query_rank = 0, latent = 0;  // 64, 1,536, 512
  int64_t key_width = 0, value_width = 0;         // 256, 256
  int64_t index_heads = 0, index_width = 0;       // 32, 128
  int64_t index_top = 0, index_pool = 0;          // 2,048, 4
  bool index_select_tail = true;
  bool index_share_for_drafts = false;

  int64_t dense_intermediate = 0;                                       // 12,288
  int64_t experts = 0, experts_per_token = 0, expert_intermediate = 0;  // 288, 8, 2,048
  int64_t shared_experts = 0;                                           // 1
  float routed_scale = 1.0f;                                            // 2.5

  bool has_vision = false;
  VisionConfig vision;
  int64_t image_token = -1, video_token = -1;

  std::vector<int32_t> end_tokens;  // eos_token_id: each of them stops
  std::vector<std::string> notes;   // fields met that have no effect and are not known by name

  int64_t linear_width() const { return linear_heads * linear_head_width; }
  int64_t maps_width() const { return (2 + streams) * streams; }
  int64_t shared_intermediate() const { return shared_experts * expert_intermediate; }
  int64_t all_layers() const { return layers + next_n_layers; }
  bool is_next_n(int64_t layer) const { return layer == layers; }
  // Of any layer, the next-n layer included (sparse attention, routed experts).
  MixerKind mixer(int64_t layer) const;
  FfnKind ffn(int64_t layer) const;
  int64_t count(MixerKind kind) const;  // without the next-n layer
};

// Throws Error(kFormat) for bad JSON, missing or absurd values, Error(kUnsupported) for a field or value that would
// change the arithmetic and is not implemented; the message names the field, what was found and what was expected.
Config parse_config(std::string_view json, const std::string& where);

// The end tokens of generation_config.json override the config's where it names any. Throws Error(kFormat).
void apply_generation_config(Config& config, std::string_view json, const std::string& where);

}  // namespace verbatim::model
