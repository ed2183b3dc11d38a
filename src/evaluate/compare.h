// How two checkpoints of one model differ: in what they store, and in what they predict.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/stored_matrix.h"
#include "model/config.h"
#include "model/glm.h"
#include "model/tensors.h"
#include "ops/ops.h"

namespace verbatim {
class ThreadPool;
}

namespace verbatim::evaluate {

// One matrix or tensor of the table, dequantised on both sides.
struct TensorDifference {
  std::string name;  // of the table: matrices without ".weight"
  model::Group group = model::Group::kNorms;
  checkpoint::Form form_a = checkpoint::Form::kBf16, form_b = checkpoint::Form::kBf16;
  bool same_bytes = false;                     // everything stored for it, input_scale aside
  double squared_error = 0;                    // sum (a - b)^2, in float64
  double squared_weight = 0;                   // sum a^2
  float largest_error = 0;                     // of one element
  float input_scale_a = 0, input_scale_b = 0;  // 0 where none is stored
  double relative_error() const;
};

struct GroupDifference {
  uint64_t tensors = 0, same_bytes = 0;
  double squared_error = 0, squared_weight = 0;
  float largest_error = 0;
  uint64_t input_scales = 0, different_input_scales = 0;  // stored on both sides; of those, with other bits
  uint64_t input_scales_of_one = 0;                       // stored on one side alone
  double largest_scale_ratio = 1;                         // the larger over the smaller
  double relative_error() const;
};

struct WeightComparison {
  std::vector<TensorDifference> tensors;  // in table order
  std::array<GroupDifference, model::kGroups> groups{};
};

// Reads every tensor of both, in blocks of rows: memory is a few MiB a thread. The result does not depend on the pool.
// Throws Error(kFormat) when one lacks a tensor that `config` asks for or has it in another shape.
WeightComparison compare_weights(const checkpoint::Checkpoint& a, const checkpoint::Checkpoint& b,
                                 const model::Config& config, ThreadPool& pool);

// Over all positions of all prompts. Natural logarithms.
struct PredictionComparison {
  int64_t positions = 0;       // with a distribution of the next token
  int64_t targets = 0;         // of these, with a next token in the prompt
  double mean_divergence = 0;  // KL(A || B), a position
  double largest_divergence = 0;
  double same_first = 0;                      // share of positions at which both rank the same token first
  double perplexity_a = 0, perplexity_b = 0;  // exp of the mean -log p of the prompts' own next tokens; 0 without any
};

// Runs both models over the prompts, 64 tokens at a time. Distributions are softmaxes of the float32 logits below
// `limit`, in float64. Throws Error(kUsage) for other vocabularies or no prompts.
PredictionComparison compare_predictions(ops::Ops& ops, const model::Model& a, const model::Model& b,
                                         std::span<const std::vector<int32_t>> prompts, int64_t limit);

// KL(p || q) of the softmaxes of two rows of logits, their first ranks and log p, log q of `target` (-1: none).
struct RowComparison {
  double divergence = 0;
  bool same_first = false;
  double log_a = 0, log_b = 0;
};
RowComparison compare_rows(std::span<const float> a, std::span<const float> b, int64_t target);

}  // namespace verbatim::evaluate
