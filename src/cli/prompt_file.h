// Prompts for calibration and comparison: JSON lines, each {"messages": [...]}, {"text": "..."} or {"ids": [...]}.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/config.h"

namespace verbatim::cli {

// Token ids line by line, until `budget` tokens are reached (0: all of them); the prompt that passes it is cut. Text
// and messages are encoded by tokenizer.json and the chat template of `directory`. Empty lines are skipped. Throws
// Error(kIo), Error(kFormat) naming the line, Error(kUsage) for a file without prompts.
std::vector<std::vector<int32_t>> read_prompts(const std::string& file, const std::string& directory,
                                               const model::Config& config, int64_t budget);

}  // namespace verbatim::cli
