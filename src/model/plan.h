// Memory from headers and config alone: what each rank holds, what a sequence costs, what fits.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "model/config.h"
#include "model/tensors.h"

namespace verbatim::model {

enum class BackendKind { kCpu, kCuda };
enum class NextNExperts { kStored, kPacked };  // packed: NVFP4 copies for drafting alone

struct PlanOptions {
  int ranks = 1;
  int64_t context_tokens = 0;  // of each sequence; 0: the config's max_position_embeddings
  int64_t sequences = 1;
  int64_t memory_bytes = 0;  // of each rank; 0: not known, nothing is said to fit
  BackendKind backend = BackendKind::kCuda;
  NextNExperts next_n_experts = NextNExperts::kStored;
  bool activation_scales = false;  // --precision checkpoint keeps input_scale
  int64_t chunk_rows = 2048;       // rows of the longest step: sizes the workspace
  int64_t snapshot_bytes = 0;      // budget for prefix snapshots on each rank
};

struct RankPlan {
  std::array<int64_t, kGroups> group_bytes{};  // resident weights
  int64_t weights_bytes = 0;                   // their sum
};

struct Plan {
  std::vector<RankPlan> ranks;
  // Undivided (one rank holding all heads), and what each rank holds of it.
  int64_t sequence_bytes = 0, rank_sequence_bytes = 0;
  int64_t token_bytes = 0;  // latents and pool keys of one token; every rank holds all of it
  int64_t page_bytes = 0;   // kPageTokens tokens
  int64_t snapshot_bytes = 0, rank_snapshot_bytes = 0;
  int64_t workspace_bytes = 0;  // of each rank: what StepBuffers allocates for the sequences asked for
  int64_t working_bytes = 0;    // likewise: what CUDA's operators and its launches take beside
  int64_t context_tokens = 0, pages_per_sequence = 0;
  int64_t needed_bytes = 0;  // of the fullest rank: weights, workspace, working memory, snapshots, sequences with pages
  int64_t memory_bytes = 0;
  bool fits = false;
  int64_t largest_context = 0;            // tokens, for the sequences asked for; 0 if none fits
  int64_t largest_sequences = 0;          // at the context asked for
  std::vector<std::string> not_resident;  // what is stored and not counted
};

// Throws Error(kUnsupported) when sizes do not divide by the ranks, Error(kUsage) for a context beyond the config's.
Plan make_plan(const checkpoint::Checkpoint& checkpoint, const Config& config, const PlanOptions& options);

}  // namespace verbatim::model
