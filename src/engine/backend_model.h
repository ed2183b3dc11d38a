// StepModel over an operator backend: the model, its storage and its workspaces.
#pragma once

#include <vector>

#include "engine/step_model.h"
#include "model/glm.h"
#include "model/step_buffers.h"
#include "state/storage.h"

namespace verbatim::engine {

struct BackendModelOptions {
  int64_t max_rows = 512;
  int64_t slots = 16;
  int64_t pages = 1024;
  int32_t vocabulary_limit = 0;  // 0: the whole vocabulary
  int64_t max_positions = 0;     // prompt and reply of a sequence; 0: the config's
};

class BackendModel final : public StepModel {
 public:
  // `ops` and `model` must outlive it. Throws Error(kCapacity) when memory runs out.
  BackendModel(ops::Ops& ops, const model::Model& model, const BackendModelOptions& options);

  const StepModelSizes& sizes() const override { return sizes_; }
  void forward(std::span<const ops::Span> spans, std::span<const int32_t> ids) override;
  std::span<const float> logits(std::span<const int32_t> rows) override;
  std::span<const int32_t> greedy(std::span<const int32_t> rows) override;
  std::span<const int32_t> sample(std::span<const int32_t> rows, std::span<const ops::SampleRow> how,
                                  std::span<const ops::LogitAdjustment> adjustments) override;
  void next_n(std::span<const ops::Span> spans, std::span<const int32_t> next_ids,
              std::span<const int32_t> hidden_rows) override;
  void next_n_resumed(const ops::Span& span, int32_t next_id) override;
  std::span<const int32_t> draft(std::span<const DraftChain> chains) override;
  std::shared_ptr<const state::Snapshot> save(const ops::Span& advance, int32_t hidden_row) override;
  void restore(const state::Snapshot& snapshot, int32_t slot, int64_t position) override;

  const state::Storage& storage() const { return storage_; }
  const model::StepBuffers& buffers() const { return buffers_; }

 private:
  // Copies rows of `width` floats; both are backend memory.
  void gather(const float* from, std::span<const int32_t> rows, int64_t width, float* to);
  // Leaves the logits of the next rows, at most kHeadRows, in the buffers.
  void head_of(std::span<const int32_t> rows);
  // The next-n layer on the hidden vectors gathered last.
  void next_n_of(std::span<const ops::Span> spans, std::span<const int32_t> ids);
  // Moves those rows of `numbers`, which are of 32 bits, to the front by way of `gathered`.
  void move_to_front(void* numbers, std::span<const int32_t> rows, int64_t width);
  // The last next-n outputs' greedy ids, to the first of draft_ids.
  void draft_greedily(int64_t rows);
  // Visits every array of a slot that a snapshot holds: visit(pointer, floats).
  template <typename Visit>
  void visit_slot(int32_t slot, int64_t position, const Visit& visit);

  ops::Ops& ops_;
  const model::Model& model_;
  uint64_t tags_;  // of Ops::step, this object's own
  StepModelSizes sizes_;
  state::Storage storage_;
  model::StepBuffers buffers_;
  std::vector<float> host_logits_;
  std::vector<int32_t> host_ids_, draft_ids_;
  std::vector<ops::LogitAdjustment> own_adjustments_;
};

}  // namespace verbatim::engine
