#include "model/step_buffers.h"

#include <algorithm>

namespace verbatim::model {

namespace {

size_t floats(int64_t count) { return static_cast<size_t>(count) * sizeof(float); }
constexpr size_t kGreedyBytes = sizeof(int32_t) * kHeadRows;

// A window is one token and its drafts.
size_t draft_bytes(int64_t sequences) { return sizeof(int32_t) * static_cast<size_t>(ops::kWindowRows * sequences); }

int64_t gathered_width(const Config& config) { return std::max(config.hidden, index_shape(config).budget_pools()); }

}  // namespace

StepBuffers::StepBuffers(ops::Ops& ops, const Config& config, int64_t rows, int64_t sequences)
    : pass(ops, config, rows),
      gathered(ops, floats(rows * gathered_width(config))),
      resumed_hidden(ops, floats(sequences * config.hidden)),
      logits(ops, floats(kHeadRows * config.vocabulary)),
      greedy_ids(ops, kGreedyBytes),
      draft_ids(ops, draft_bytes(sequences)) {
  if (config.next_n_layers > 0) drafting.emplace(ops, config, rows);
}

int64_t StepBuffers::bytes(const Config& config, int64_t rows, int64_t sequences) {
  const int64_t workspaces = config.next_n_layers > 0 ? 2 : 1;
  return workspaces * Workspace::bytes(config, rows) +
         static_cast<int64_t>(
             floats(rows * gathered_width(config) + sequences * config.hidden + kHeadRows * config.vocabulary) +
             kGreedyBytes + draft_bytes(sequences));
}

int64_t StepBuffers::allocated_bytes() const {
  return pass.allocated_bytes() + (drafting ? drafting->allocated_bytes() : 0) +
         static_cast<int64_t>(gathered.bytes() + resumed_hidden.bytes() + logits.bytes() + greedy_ids.bytes() +
                              draft_ids.bytes());
}

}  // namespace verbatim::model
