// A checkpoint loaded to run, as the options say that generate, chat and serve have in common.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/thread_pool.h"
#include "cli/source.h"
#include "model/glm.h"
#include "ops/ops.h"

namespace CLI {
class App;
}

namespace verbatim::cli {

struct RunOptions {
  std::string path;
  std::string backend = "cpu", precision = "full", isa = "best", activations = "bf16", next_n_experts = "stored";
  int threads = 0, sum_parts = 1;
  bool launches_anew = false;  // the opposite of CudaOptions::records_steps
};

// Adds `directory`, --backend, --precision, --isa, --activations, --eager, --sum-parts and --threads, which write to
// `options` (it must outlive the parse).
void add_run_options(CLI::App& command, RunOptions& options);
// Adds --next-n-experts, for commands that draft.
void add_next_n_option(CLI::App& command, RunOptions& options);

// Owns all of it; does not move.
class Loaded {
 public:
  // Throws Error(kUsage) for options that contradict each other, Error(kUnsupported) for what this build cannot do, and
  // what open_source, load_model and upload_weights throw.
  explicit Loaded(const RunOptions& options);
  Loaded(const Loaded&) = delete;
  Loaded& operator=(const Loaded&) = delete;

  Source source;
  ThreadPool pool;
  std::unique_ptr<ops::Ops> ops;
  model::Model model;
  int64_t weight_bytes_per_token = 0;  // model::weight_bytes_per_token, as stored
  uint64_t uploaded_bytes = 0;         // what upload_weights copied; 0 where weights stay mapped
};

}  // namespace verbatim::cli
