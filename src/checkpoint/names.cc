#include "checkpoint/names.h"

#include <array>
#include <utility>

#include "base/error.h"
#include "checkpoint/quote_name.h"

namespace verbatim::checkpoint {

namespace {

constexpr std::string_view kLayers = "model.language_model.layers.";

constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kPrefixes{
    {{"language_model.model.", "model.language_model."},
     {"language_model.lm_head.", "lm_head."},
     {"vision_tower.", "model.visual."},
     {"model.vision_tower.", "model.visual."}}};

// Bounds what one header entry can grow to.
constexpr int64_t kMaxFusedExperts = 65536;

// Inside a layer of the language model.
constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kModules{
    {{".attn_hc.", ".hc_attn_"}, {".ffn_hc.", ".hc_ffn_"}, {".self_attn.forget_gate.", ".self_attn."}}};

// "3" of "model.language_model.layers.3.self_attn...": the length of everything up to and with the layer's number, or
// 0 when `name` is not inside a layer.
size_t layer_prefix(std::string_view name) {
  if (!name.starts_with(kLayers)) return 0;
  size_t end = kLayers.size();
  while (end < name.size() && name[end] >= '0' && name[end] <= '9') ++end;
  return end > kLayers.size() && end < name.size() && name[end] == '.' ? end : 0;
}

}  // namespace

std::optional<std::string> canonical_name(std::string_view raw) {
  std::string name;
  for (const auto& [alias, canonical] : kPrefixes)
    if (raw.starts_with(alias)) {
      name = std::string(canonical).append(raw.substr(alias.size()));
      break;
    }
  const std::string_view current = name.empty() ? raw : std::string_view(name);
  if (const size_t prefix = layer_prefix(current))
    for (const auto& [alias, canonical] : kModules)
      if (current.substr(prefix).starts_with(alias))
        return std::string(current.substr(0, prefix)).append(canonical).append(current.substr(prefix + alias.size()));
  if (name.empty()) return std::nullopt;
  return name;
}

std::vector<FusedPart> fused_parts(std::string_view canonical, const Shape& shape, const std::string& where) {
  const size_t prefix = layer_prefix(canonical);
  if (prefix == 0) return {};
  const std::string layer(canonical.substr(0, prefix));
  const std::string_view leaf = canonical.substr(prefix);
  auto refuse = [&](const char* expected) {
    fail(ErrorKind::kFormat, where, "tensor {}: a fused tensor of shape {}; expected {}", quote_name(canonical),
         shape.text(), expected);
  };

  std::vector<FusedPart> parts;
  if (leaf == ".self_attn.conv1d.weight") {
    if (shape.size() != 3 || shape[0] % 3 != 0) refuse("[3 * width, 1, taps], q then k then v");
    const Shape part{shape[0] / 3, shape[1], shape[2]};
    uint64_t offset = 0;
    for (const char* name : {"q", "k", "v"}) {
      parts.push_back({fmt::format("{}.self_attn.{}_conv1d.weight", layer, name), part, offset});
      offset += static_cast<uint64_t>(part.elements());
    }
  } else if (leaf == ".mlp.experts.gate_up_proj" || leaf == ".mlp.experts.down_proj") {
    const bool gate_up = leaf.ends_with("gate_up_proj");
    if (shape.size() != 3 || (gate_up && shape[1] % 2 != 0) || shape[0] > kMaxFusedExperts)
      refuse(gate_up ? "[experts, 2 * width, hidden], gate then up" : "[experts, hidden, width]");
    const Shape part{gate_up ? shape[1] / 2 : shape[1], shape[2]};
    // A dimension of 0 makes a tensor without bytes, of which no number of parts would be in proportion to the file.
    if (part.elements() == 0) refuse("no dimension of 0");
    uint64_t offset = 0;
    for (int64_t expert = 0; expert < shape[0]; ++expert)
      for (const char* name : {gate_up ? "gate" : "down", "up"}) {
        if (!gate_up && name[0] == 'u') continue;
        parts.push_back({fmt::format("{}.mlp.experts.{}.{}_proj.weight", layer, expert, name), part, offset});
        offset += static_cast<uint64_t>(part.elements());
      }
  }
  return parts;
}

}  // namespace verbatim::checkpoint
