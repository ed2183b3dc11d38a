#include "engine/budget.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/error.h"

namespace verbatim::engine {

namespace {

std::string gib(int64_t bytes) { return fmt::format("{:.3f} GiB", static_cast<double>(bytes) / 0x1p30); }

}  // namespace

std::string Budget::text() const {
  return fmt::format(
      "memory: weights {}, workspace {}, {} sequences {}, {} pages of {} tokens {}, snapshots {}; context {} tokens",
      gib(weights_bytes), gib(workspace_bytes + working_bytes), model.slots, gib(slots_bytes), model.pages,
      ops::kPageTokens, gib(pages_bytes), gib(snapshot_bytes), model.max_positions);
}

Budget make_budget(const checkpoint::Checkpoint& checkpoint, const model::Config& config,
                   const BudgetOptions& options) {
  if (options.memory_bytes <= 0 || options.sequences < 1 || options.chunk_rows < 1)
    fail(ErrorKind::kUsage, "memory", "an amount of memory, sequences and rows of a step must be positive");
  // A window of every sequence fits in a step.
  const int64_t rows = std::max(options.chunk_rows, options.sequences * ops::kWindowRows);
  const model::Plan plan = model::make_plan(checkpoint, config,
                                            {.context_tokens = options.context_tokens,
                                             .sequences = options.sequences,
                                             .memory_bytes = options.memory_bytes,
                                             .backend = options.backend,
                                             .next_n_experts = options.next_n_experts,
                                             .activation_scales = options.activation_scales,
                                             .chunk_rows = rows});
  Budget budget;
  budget.weights_bytes = plan.ranks.front().weights_bytes;
  budget.workspace_bytes = plan.workspace_bytes;
  budget.working_bytes = plan.working_bytes;
  budget.slots_bytes = options.sequences * plan.rank_sequence_bytes;
  const int64_t left =
      options.memory_bytes - budget.weights_bytes - budget.working_bytes - budget.workspace_bytes - budget.slots_bytes;
  // A run keeps one page more than its tokens fill: its next token is written before it is known to be the last.
  const int64_t context_pages = state::pages_for(plan.context_tokens + 1);
  const int64_t least_pages = options.context_tokens > 0 ? context_pages : options.sequences;
  budget.snapshot_bytes = options.snapshot_bytes;
  if (options.snapshot_bytes < 0)
    budget.snapshot_bytes =
        std::clamp<int64_t>(left - least_pages * plan.page_bytes, 0, std::max<int64_t>(left, 0) / 4);
  const int64_t pages = (left - budget.snapshot_bytes) / plan.page_bytes;
  if (left < budget.snapshot_bytes || pages < least_pages)
    fail(ErrorKind::kCapacity, "memory",
         "{} given; weights {}, workspace {}, {} sequences {} and snapshots {} leave {} pages, and {} are needed ({} "
         "each, {} tokens); give more memory, fewer sequences, a shorter context or smaller steps",
         gib(options.memory_bytes), gib(budget.weights_bytes), gib(budget.workspace_bytes + budget.working_bytes),
         options.sequences, gib(budget.slots_bytes), gib(budget.snapshot_bytes), std::max<int64_t>(pages, 0),
         least_pages, gib(plan.page_bytes), ops::kPageTokens);
  budget.model.max_rows = rows;
  budget.model.slots = options.sequences;
  budget.model.pages = std::min({pages, 2 * options.sequences * context_pages, int64_t{INT32_MAX}});
  budget.pages_bytes = budget.model.pages * plan.page_bytes;
  budget.model.max_positions = std::min(plan.context_tokens, budget.model.pages * ops::kPageTokens - 1);
  return budget;
}

}  // namespace verbatim::engine
