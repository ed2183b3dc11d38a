// One sequence alone, undrafted and uncached: what `generate` runs, and what every other way of running is judged by.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/glm.h"
#include "ops/ops.h"
#include "state/storage.h"

namespace verbatim::state {

class Solo {
 public:
  // Room for `tokens` tokens, fed at most `chunk_rows` at a time. `ops` and `model` must outlive it.
  Solo(ops::Ops& ops, const model::Model& model, int64_t tokens, int64_t chunk_rows);

  // Feeds tokens. The logits [V] of every one are appended to `every_logits` if given; those of the last are kept.
  void feed(std::span<const int32_t> ids, std::vector<float>* every_logits = nullptr);

  // After a feed: logits of the token to come.
  std::span<const float> logits() const { return logits_; }
  // Final-normed hidden vectors [rows, D] of the last chunk fed.
  const float* hidden() const { return workspace_.hidden; }
  // The id of the largest logit below `limit`; the lower one on a tie.
  int32_t greedy(int64_t limit) const;

  int64_t length() const { return sequence_.length(); }
  int64_t allocated_bytes() const { return storage_.allocated_bytes(); }

 private:
  ops::Ops& ops_;
  const model::Model& model_;
  Storage storage_;
  Sequence sequence_;
  model::Workspace workspace_;
  ops::Buffer row_logits_;
  std::vector<float> logits_;
};

}  // namespace verbatim::state
