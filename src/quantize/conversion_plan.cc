#include "quantize/conversion_plan.h"

#include <algorithm>
#include <charconv>
#include <unordered_map>

#include "base/error.h"

namespace verbatim::quantize {

namespace {

using checkpoint::DType;
using checkpoint::TensorView;

// The number after ".experts.", 0 where there is none.
int64_t expert_of(std::string_view module) {
  static constexpr std::string_view kExperts = ".experts.";
  const size_t at = module.find(kExperts);
  int64_t expert = 0;
  if (at != std::string_view::npos)
    std::from_chars(module.data() + at + kExperts.size(), module.data() + module.size(), expert);
  return expert;
}

void quantise_item(ConversionItem& item, const model::Expected& expected, const std::string& where, bool beside) {
  item.quantised = true;
  item.module = expected.name;
  item.layer = expected.layer;
  item.expert = expert_of(expected.name);
  item.rows = expected.shape[0];
  item.columns = expected.shape[1];
  const DType dtype = item.source->dtype;
  if (dtype != DType::kBF16 && dtype != DType::kF32)
    fail(ErrorKind::kUnsupported, where, "{} is stored as {}; expected BF16 or F32: convert from the BF16 release",
         item.source->name, checkpoint::dtype_name(dtype));
  if (item.columns % 16 != 0)
    fail(ErrorKind::kUnsupported, where, "{} has {} columns; expected whole blocks of 16", item.source->name,
         item.columns);
  item.specs = {{item.module + ".weight", DType::kU8, {item.rows, item.columns / 2}},
                {item.module + ".weight_scale", DType::kF8E4M3, {item.rows, item.columns / 16}},
                {item.module + ".weight_scale_2", DType::kF32, {}}};
  if (beside) item.specs.push_back({item.module + ".input_scale", DType::kF32, {}});
}

// Whole items; a matrix's parts stay together.
void cut_shards(ConversionPlan& plan, const checkpoint::Checkpoint& source, const Recipe& recipe) {
  for (size_t i = 0; i < plan.items.size(); ++i) {
    const ConversionItem& item = plan.items[i];
    bool fresh = plan.shards.empty();
    if (!fresh && recipe.shard_bytes == 0)
      fresh = source.file_of(plan.items[i - 1].source->raw) != source.file_of(item.source->raw);
    else if (!fresh)
      fresh = plan.shards.back().bytes + item.bytes > recipe.shard_bytes;
    if (fresh) plan.shards.push_back({{}, i, i, 0});
    plan.shards.back().end = i + 1;
    plan.shards.back().bytes += item.bytes;
  }
  for (size_t i = 0; i < plan.shards.size(); ++i)
    plan.shards[i].file = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, plan.shards.size());
}

}  // namespace

ConversionPlan plan_conversion(const checkpoint::Checkpoint& source, const model::Config& config, const Recipe& recipe,
                               bool with_activations) {
  const std::string where = source.path().string();
  if (source.quantisation().kind != checkpoint::QuantisationKind::kNone)
    fail(ErrorKind::kUnsupported, where, "its metadata says {}; expected an unquantised source",
         checkpoint::quantisation_name(source.quantisation().kind));
  model::require_sound(source, model::take_census(source, config));

  // What the table says of each stored tensor, by name.
  std::unordered_map<std::string_view, ConversionItem> by_name;
  const bool beside = with_activations && recipe.scales_file.empty();
  model::for_each_expected(config, [&](const model::Expected& expected) {
    const bool matrix = expected.row->kind == model::Kind::kMatrix;
    const TensorView* view = source.find(matrix ? expected.name + ".weight" : expected.name);
    if (view == nullptr) return;  // refused above, unless the table and the census part ways
    ConversionItem item;
    item.source = view;
    item.group = expected.group;
    if (matrix && recipe.quantises(expected.group, expected.layer)) quantise_item(item, expected, where, beside);
    by_name.emplace(view->name, std::move(item));
  });

  ConversionPlan plan;
  plan.with_activations = with_activations;
  for (const TensorView& view : source.tensors()) {
    const auto it = by_name.find(view.name);
    if (it == by_name.end())
      fail(ErrorKind::kUnsupported, where, "{} is part of a quantised matrix; expected an unquantised source",
           view.name);
    ConversionItem& item = it->second;
    if (!item.quantised) item.specs = {{std::string(view.name), view.dtype, view.shape}};
    for (const checkpoint::TensorSpec& spec : item.specs)
      item.bytes += *checkpoint::checked_bytes(spec.dtype, spec.shape);
    plan.items.push_back(std::move(item));
  }
  std::sort(plan.items.begin(), plan.items.end(), [](const ConversionItem& a, const ConversionItem& b) {
    return a.source->raw != b.source->raw ? a.source->raw < b.source->raw
                                          : a.source->offset_bytes < b.source->offset_bytes;
  });
  cut_shards(plan, source, recipe);
  for (size_t i = 0; i < plan.items.size(); ++i) {
    const ConversionItem& item = plan.items[i];
    const bool apart = item.quantised && with_activations && !beside;
    if (apart) plan.scale_items.push_back(i);
    model::GroupCount& count = plan.groups[static_cast<size_t>(item.group)];
    count.tensors += item.specs.size() + (apart ? 1 : 0);
    count.bytes += item.bytes + (apart ? sizeof(float) : 0);
    plan.source_bytes += item.source->bytes;
    if (!item.quantised) continue;
    ++plan.matrices;
    plan.largest_matrix_source_bytes = std::max(plan.largest_matrix_source_bytes, item.source->bytes);
  }
  for (const model::GroupCount& count : plan.groups) {
    plan.tensors += count.tensors;
    plan.payload_bytes += count.bytes;
  }
  if (plan.matrices == 0)
    fail(ErrorKind::kUsage, recipe.name, "none of its targets is in {}; expected matrices to quantise", where);
  return plan;
}

float input_scale_of(const ActivationScales& scales, const ConversionItem& item) {
  const auto it = scales.find({item.group, item.layer, site_of(item.module)});
  if (it == scales.end() || item.expert >= static_cast<int64_t>(it->second.values.size()))
    fail(ErrorKind::kUsage, "input_scale", "no scale for {}; expected one of every site that the recipe quantises",
         item.module);
  return it->second.values[static_cast<size_t>(item.expert)];
}

}  // namespace verbatim::quantize
