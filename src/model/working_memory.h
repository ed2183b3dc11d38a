// What operators take for themselves beside workspaces, from headers and config alone.
#pragma once

#include <cstdint>

#include "checkpoint/checkpoint.h"
#include "model/glm.h"

namespace verbatim::model {

struct WorkingOptions {
  int64_t rows = 512;           // of the longest step
  int64_t sequences = 1;        // at once
  int64_t positions = 1 << 20;  // of the longest sequence
  bool activation_scales = false, packed_next_n_experts = false;
  int sum_parts = 1;
};

// Device memory for the CUDA backend's operators (ops/cuda_working.h) in any step of these sizes: a pass of every kind
// of step is asked for, prompts, replies and windows of few and of many rows, with the matrices in the forms that the
// checkpoint (of config `whole`) stores; `config` is a rank's share. Throws what resolve_matrix() throws.
int64_t cuda_working_bytes(const checkpoint::Checkpoint& stored, const Config& whole, const Config& config,
                           const WorkingOptions& options);
// The same for a model that was uploaded, or made, there.
int64_t cuda_working_bytes(const Model& model, const WorkingOptions& options);

}  // namespace verbatim::model
