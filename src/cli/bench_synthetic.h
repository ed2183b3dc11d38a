// `bench --synthetic`: decode steps and prompts of a model made in the backend's memory, held against the memory's
// bandwidth.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace verbatim::cli {

struct SyntheticBenchOptions {
  std::string size = "released", form = "nvfp4", backend = "cpu";
  int64_t layers = 0, experts = 0;
  int64_t context = 2048;          // tokens before the first step
  std::vector<int64_t> sequences;  // 0: as many as fit, at most 64
  int64_t tokens = 16, repeats = 5;
  std::vector<int64_t> prompt_rows;  // of prompts to time as one step each
  int64_t prompt_position = 0;       // tokens before them
  int threads = 0;
  bool decodes = true, operators = true;
  bool json = false;
};

void bench_synthetic(const SyntheticBenchOptions& options);

}  // namespace verbatim::cli
