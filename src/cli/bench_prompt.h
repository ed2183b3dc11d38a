// Prompts of a synthetic model, each in one step, and every operator's part, held against a library's matrix product
// and the memory's bandwidth.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "model/glm.h"
#include "state/storage.h"

namespace verbatim::cli {

struct PromptBenchOptions {
  int64_t position = 0;  // tokens before the prompt's, a multiple of kPageTokens
  int64_t repeats = 5;
  bool json = false;
};

// Prompts of so many rows each, head aside: prints tables unless json, and returns what they hold.
nlohmann::ordered_json bench_prompts(ops::Ops& ops, const model::Model& model, const std::vector<int64_t>& rows,
                                     const PromptBenchOptions& options, double bandwidth);

// Fills states, latents and pool keys as a prompt would leave them: small numbers everywhere.
void fill_with_noise(ops::Ops& ops, const model::Config& config, const state::Storage& storage);

}  // namespace verbatim::cli
