// `bench --load`: a checkpoint loaded as generate, chat and serve load it, beside a plain read of the same files.
#pragma once

#include <cstdint>

#include "cli/loaded.h"

namespace verbatim::cli {

// Before each pass the system is asked to drop the files from memory; what it kept is printed. Throws what Checkpoint
// and Loaded throw, before anything is measured, and Error(kIo).
void bench_load(const RunOptions& options, int64_t repeats, bool json);

}  // namespace verbatim::cli
