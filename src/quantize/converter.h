// From a BF16 checkpoint to an NVFP4 one, shard by shard.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "checkpoint/checkpoint.h"
#include "model/config.h"
#include "quantize/calibration.h"
#include "quantize/recipe.h"

namespace verbatim {
class ThreadPool;
}

namespace verbatim::quantize {

struct ConvertOptions {
  std::filesystem::path out;
  bool resume = false;
  std::string tool_version;
  // Source bytes in flight at a time; a larger matrix is taken whole. Three batches live at once (one is read, one
  // quantised, one written), each with its result: memory is 3 x 1.29 x the larger of this and the largest matrix to be
  // quantised, and what the headers take.
  uint64_t batch_bytes = 128 << 20;
};

// Checks that `out` can be written beside `source`: another directory, neither inside the other, empty unless resumed.
// Returns false when it already holds a finished conversion (only with resume). Creates it. Throws Error(kUsage),
// Error(kIo).
bool prepare_output(const checkpoint::Checkpoint& source, const std::filesystem::path& out, bool resume);

// Writes the whole checkpoint: shards, scales, other files of the source, index, metadata, then the manifest. Every
// file is written under a temporary name, synced and renamed, so that a final name always holds a whole file; finished
// shards are journalled and kept. The bytes depend on source, recipe, calibration and version alone, resumed or not.
// The source is only read. `calibration` may be null: then no input_scale is written (W4A16). Throws Error(kUsage) for
// an `out` that is not empty or of another conversion, Error(kCapacity) for too little free space, Error(kIo),
// Error(kFormat) for weights that are not finite; the shards finished so far stay, to be resumed.
void convert(const checkpoint::Checkpoint& source, const model::Config& config, const Recipe& recipe,
             const Calibration* calibration, const ConvertOptions& options, ThreadPool& pool);

}  // namespace verbatim::quantize
