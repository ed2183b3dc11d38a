// THE table: every tensor of the model once. Loading, checking, inspect, plan, synth, conversion and sharding read it.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/stored_matrix.h"
#include "model/config.h"

namespace verbatim::model {

// What a tensor counts to in inspect and plan.
enum class Group {
  kRoutedExperts,
  kDenseMlp,
  kSharedExperts,
  kRouter,
  kKda,
  kMla,
  kIndexer,
  kHyperConnections,
  kNorms,
  kEmbedding,
  kHead,
  kVision,
  kNextNExperts,
  kNextNRest,
};
inline constexpr size_t kGroups = 14;
const char* group_name(Group group);  // "routed_experts"

// Where a row of the table exists. {L} of its pattern runs over those layers, {E} over experts, {B} over vision blocks.
enum class Where {
  kOnce,
  kEveryLayer,    // with the next-n layer
  kMainLayers,    // without it
  kLinearLayers,  // linear attention
  kSparseLayers,  // sparse attention, with the next-n layer
  kDenseLayers,   // dense feed-forward
  kMoeLayers,     // routed experts, with the next-n layer
  kNextNLayer,
  kVisionOnce,
  kVisionBlocks,
};

enum class Kind {
  kMatrix,  // [out, in]; BF16, F32, NVFP4 or FP8 blocks, decided from what is stored; the name gets ".weight"
  kTensor,  // BF16 or F32 under exactly this name
};

// How tensor-parallel ranks share it.
enum class Split {
  kReplicated,
  kRows,           // output features, in contiguous equal parts
  kColumns,        // input features (the sum is cut): the parts of ops.h
  kElements,       // first dimension of a tensor
  kHeadKeyValues,  // rows, head by head: kv_b_proj
  kNotResident,    // not loaded by a text engine: the vision tower
};

using Dimension = int64_t (*)(const Config&);

struct TensorRow {
  const char* pattern;  // canonical name with {L}, {E}, {B}, without ".weight" for matrices
  Where where;
  Kind kind;
  std::array<Dimension, 5> dimensions;  // unused ones null
  Split split;
  Group group;  // in the next-n layer: kNextNExperts for routed experts, kNextNRest for everything else
};

std::span<const TensorRow> tensor_table();

// One tensor or matrix that a config asks for.
struct Expected {
  const TensorRow* row;
  std::string name;         // canonical, {L} etc. replaced
  checkpoint::Shape shape;  // [out, in] for matrices
  int64_t layer = -1;       // of the text model; -1 outside layers
  Group group;
};

// Calls visit for every tensor the config asks for, in table order, layer by layer within a row.
void for_each_expected(const Config& config, const std::function<void(const Expected&)>& visit);

// Canonical name of a row's tensor: tensor_name("...layers.{L}....", 3, 7).
std::string tensor_name(std::string_view pattern, int64_t layer, int64_t expert_or_block);

struct GroupCount {
  uint64_t tensors = 0, bytes = 0;
};

struct Census {
  std::array<GroupCount, kGroups> groups{};  // stored tensors (weights with their scales) and bytes
  std::array<uint64_t, 4> matrices{};        // by checkpoint::Form
  uint64_t input_scales = 0;                 // matrices that store an activation scale
  uint64_t input_scale_bytes = 0;
  std::vector<std::string> problems;  // missing, unknown, wrong shape or dtype: by tensor name, the first few of a kind
  std::string form;  // what is stored, in one word: bf16, fp8, nvfp4, w4a4-experts, compressed-tensors, mixed, ...
};

// Matches every stored tensor with the table. With data, also reads every scalar scale (NaN, zero and negative are
// problems). Throws nothing: what is wrong is listed.
Census take_census(const checkpoint::Checkpoint& checkpoint, const Config& config);

// Throws Error(kFormat) with the first problems if there are any: a model is never started on such a checkpoint.
void require_sound(const checkpoint::Checkpoint& checkpoint, const Census& census);

}  // namespace verbatim::model
