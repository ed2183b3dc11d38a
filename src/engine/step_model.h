// What the scheduler needs of a model: steps over spans, logits of rows, draft rows, snapshots. The scheduler sees no
// tensors; tests put a model here that returns at once.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "ops/ops.h"
#include "state/prefix_tree.h"

namespace verbatim::engine {

struct StepModelSizes {
  int32_t vocabulary = 0;        // entries of a row of logits
  int32_t vocabulary_limit = 0;  // ids at or above are never generated
  int64_t max_positions = 0;
  int64_t max_rows = 0;  // of a step
  int64_t slots = 0, pages = 0;
  int64_t snapshot_bytes = 0;
  bool has_next_n = false;
};

// Drafts of one sequence behind a row of the last next_n.
struct DraftChain {
  int32_t row = 0;
  int drafts = 1;  // 1 to kWindowRows - 1
  ops::Span span;  // one row, at the position behind that row's; first_row says nothing
};

class StepModel {
 public:
  virtual ~StepModel() = default;
  virtual const StepModelSizes& sizes() const = 0;

  // Runs a step (ops.h says what spans are). Its hidden rows stay until the next forward.
  virtual void forward(std::span<const ops::Span> spans, std::span<const int32_t> ids) = 0;
  // Logits of rows of the last forward, one row of `vocabulary` after the other; valid until the next call.
  virtual std::span<const float> logits(std::span<const int32_t> rows) = 0;
  // The largest logit's index below the limit, for each of those rows.
  virtual std::span<const int32_t> greedy(std::span<const int32_t> rows) = 0;
  // The token of each of those rows as Ops::sample() chooses it; adjustments in order of rows. Here from logits(), on
  // the host.
  virtual std::span<const int32_t> sample(std::span<const int32_t> rows, std::span<const ops::SampleRow> how,
                                          std::span<const ops::LogitAdjustment> adjustments);

  // Next-n rows: span i covers positions whose following tokens are next_ids[first_row ...]; their hidden vectors are
  // rows hidden_rows[...] of the last forward.
  virtual void next_n(std::span<const ops::Span> spans, std::span<const int32_t> next_ids,
                      std::span<const int32_t> hidden_rows) = 0;
  // The same for the one row before a sequence's resumption, whose hidden vector came with the snapshot.
  virtual void next_n_resumed(const ops::Span& span, int32_t next_id) = 0;
  // Greedy drafts, the ids of one chain behind those of the other: a chain's first is what the layer says at its row,
  // each other what it says of the one before, a position further. The rows of the last next_n are used up.
  virtual std::span<const int32_t> draft(std::span<const DraftChain> chains) = 0;

  // The state of a slot at `position` (a multiple of kPageTokens that `advance` reaches, a span of no rows). The hidden
  // vector of the token before it is row `hidden_row` of the last forward.
  virtual std::shared_ptr<const state::Snapshot> save(const ops::Span& advance, int32_t hidden_row) = 0;
  // Puts it into a slot; the sequence then stands at `position`.
  virtual void restore(const state::Snapshot& snapshot, int32_t slot, int64_t position) = 0;

 private:
  std::vector<float> row_;
  std::vector<int32_t> sampled_;
  ops::SampleSpace space_;
};

}  // namespace verbatim::engine
