// Tensor names. The released naming is canonical:
//     model.language_model.layers.3.self_attn.q_a_proj.weight     model.visual....     lm_head.weight
// Names of other namespaces are accepted as aliases and mapped here, before anything else sees them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/dtype.h"

namespace verbatim::checkpoint {

// The canonical name of a tensor or module stored under `raw`, or nullopt when `raw` is canonical already (or unknown:
// what the model has no tensor for is not judged here). Prefixes `language_model.model.`, `language_model.lm_head.`,
// `vision_tower.`, `model.vision_tower.`; transformers' modules `attn_hc`, `ffn_hc`, `self_attn.forget_gate`.
std::optional<std::string> canonical_name(std::string_view raw);

// One canonical tensor inside a raw one.
struct FusedPart {
  std::string name;
  Shape shape;
  uint64_t offset_elements = 0;
};

// The parts of a tensor that transformers stores fused; empty when `canonical` is not such a tensor:
//     layers.L.self_attn.conv1d.weight [3*N*d, 1, 4]  -> q_conv1d, k_conv1d, v_conv1d .weight [N*d, 1, 4]
//     layers.L.mlp.experts.gate_up_proj [E, 2I, D]    -> experts.e.gate_proj, up_proj .weight [I, D], gate first
//     layers.L.mlp.experts.down_proj    [E, D, I]     -> experts.e.down_proj.weight [D, I]
// Throws Error(kFormat), naming `where` and the tensor, when the shape cannot be cut so.
std::vector<FusedPart> fused_parts(std::string_view canonical, const Shape& shape, const std::string& where);

}  // namespace verbatim::checkpoint
