// Sublayers that the main layers and the next-n layer share. Internal to model/.
#pragma once

#include <cmath>
#include <span>

#include "model/glm.h"

namespace verbatim::model {

// What every sublayer of one step works on.
struct Pass {
  ops::Ops& ops;
  const Model& model;
  std::span<const ops::Span> spans;
  int64_t rows;
  Workspace& space;
};

// Of the indexer's LayerNorm; the low-rank RMS norms use rms_norm_eps.
inline constexpr float kIndexNormEpsilon = 1e-6f;

inline float attention_scale(const Config& config) { return 1.0f / std::sqrt(static_cast<float>(config.key_width)); }

void sparse_attention(const Pass& pass, const SparseAttention& weights, const ops::LatentCache& cache,
                      ops::IndexShape index, bool keep_selection);
void moe(const Pass& pass, const Moe& weights);

// Throws Error(kUsage) unless the spans cover the ids' rows in order and all is in range, but for ids that the host
// does not know.
void check_step(const Model& model, std::span<const ops::Span> spans, const ops::StepIds& ids,
                const Workspace& workspace);

}  // namespace verbatim::model
