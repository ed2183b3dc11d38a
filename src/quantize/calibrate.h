// Running a model over prompts to see which activations enter its gate, up and down projections.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "model/config.h"
#include "ops/ops.h"
#include "quantize/calibration.h"

namespace verbatim::quantize {

struct CalibrateOptions {
  bool every_expert = false;  // record every expert on every token, not only where the router sends it
  int64_t chunk_rows = 512;
};

// Runs `sequences` of token ids (each from position 0) through the main layers, one layer at a time over all of them:
// the weights of one layer are in use at once, and their pages are let go behind it. The streams of all tokens stay in
// memory: 4 x S x D bytes a token (64 KiB for the released model). What is recorded are the float32 activations of this
// engine's pass, before any rounding. Throws Error(kUsage) for no tokens or ids out of range, Error(kFormat) when an
// activation is not finite, what load_model throws.
Calibration calibrate(const checkpoint::Checkpoint& source, const model::Config& config,
                      std::span<const std::vector<int32_t>> sequences, const CalibrateOptions& options, ops::Ops& ops);

}  // namespace verbatim::quantize
