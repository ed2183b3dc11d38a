// One amount of memory divided into weights, step buffers, sequence slots, pages and snapshots, with the numbers of
// model::make_plan.
#pragma once

#include <cstdint>
#include <string>

#include "engine/backend_model.h"
#include "model/plan.h"

namespace verbatim::engine {

struct BudgetOptions {
  int64_t memory_bytes = 0;     // for everything
  int64_t sequences = 16;       // running at once
  int64_t context_tokens = 0;   // of a prompt and its reply; 0: what fits, at most the config's
  int64_t snapshot_bytes = -1;  // of the prefix cache; -1: a quarter of what is left for pages and snapshots; 0: none
  int64_t chunk_rows = 512;     // of a step at most
  model::BackendKind backend = model::BackendKind::kCpu;
  model::NextNExperts next_n_experts = model::NextNExperts::kStored;
  bool activation_scales = false;  // --precision checkpoint
};

struct Budget {
  BackendModelOptions model;  // rows, slots, pages, context
  int64_t weights_bytes = 0, working_bytes = 0, workspace_bytes = 0, slots_bytes = 0, pages_bytes = 0,
          snapshot_bytes = 0;
  int64_t needed_bytes() const {
    return weights_bytes + working_bytes + workspace_bytes + slots_bytes + pages_bytes + snapshot_bytes;
  }
  // One line for a log: what the memory goes to.
  std::string text() const;
};

// Pages take what the rest leaves, but no more than every sequence at full context and as much again for the prefix
// cache can use. Throws Error(kCapacity) with these numbers when the context asked for (or, with 0, a single page per
// sequence) does not fit, Error(kUsage) for amounts that make no sense.
Budget make_budget(const checkpoint::Checkpoint& checkpoint, const model::Config& config, const BudgetOptions& options);

}  // namespace verbatim::engine
