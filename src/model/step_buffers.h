// Everything a step needs besides weights and state: the workspaces of the pass and of drafting, and the rows that go
// to the head. Allocated once; `plan` prints the bytes.
#pragma once

#include <cstdint>
#include <optional>

#include "model/glm.h"
#include "ops/ops.h"

namespace verbatim::model {

inline constexpr int64_t kHeadRows = 64;  // rows of logits that the backend holds at a time

class StepBuffers {
 public:
  // For steps of at most `rows` rows over at most `sequences` sequences. Throws Error(kCapacity) when memory runs out.
  StepBuffers(ops::Ops& ops, const Config& config, int64_t rows, int64_t sequences);
  static int64_t bytes(const Config& config, int64_t rows, int64_t sequences);
  int64_t allocated_bytes() const;

  Workspace pass;
  std::optional<Workspace> drafting;  // with a next-n layer
  ops::Buffer gathered;  // [rows, D]: hidden vectors that go to the head or the next-n layer; also pools on their way
  ops::Buffer resumed_hidden;  // [sequences, D]: of the token before a slot's resumption
  ops::Buffer logits;          // [kHeadRows, V]
  ops::Buffer greedy_ids;      // [kHeadRows]
  ops::Buffer draft_ids;       // [1 + most drafts, sequences]: those made last, then all of a chain in order
};

}  // namespace verbatim::model
