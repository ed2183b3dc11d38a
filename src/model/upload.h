// From mapped files to a backend, without holding the weights twice.
#pragma once

#include <cstdint>

#include "checkpoint/checkpoint.h"
#include "model/glm.h"

namespace verbatim::model {

// As upload_weights(ops, model), but shows progress, reads the files of `stored` (which the model was loaded from) some
// way ahead, and drops the pages of each matrix, of large ones in pieces, once the backend has its copy: machines whose
// device shares the host's memory never hold the model twice. Where the backend computes on the mapped bytes
// themselves, nothing is read, dropped or shown. Returns the bytes of matrices in the files that were copied. Throws
// Error(kCapacity), and Error(kIo) where a file cannot be read.
uint64_t upload_weights(ops::Ops& ops, Model& model, const checkpoint::Checkpoint& stored);

}  // namespace verbatim::model
