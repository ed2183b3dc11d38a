#include "cli/loaded.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <thread>

#include "base/error.h"
#include "model/upload.h"
#include "ops/cuda_backend.h"
#include "ops/devices.h"

namespace verbatim::cli {

namespace {

int thread_count(int asked) {
  return asked > 0 ? asked : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

ops::CpuIsa parse_isa(const std::string& name) {
  if (name == "plain") return ops::CpuIsa::kPlain;
  if (name == "avx2") return ops::CpuIsa::kAvx2;
  if (name == "avx512") return ops::CpuIsa::kAvx512;
  return ops::CpuIsa::kBest;
}

std::unique_ptr<ops::Ops> make_ops(const RunOptions& options, ThreadPool& pool) {
  if (options.backend == "cpu") return ops::make_cpu_ops(pool, parse_isa(options.isa));
  return ops::make_cuda_ops(
      {.device = 0,
       .activations = options.activations == "split3" ? ops::Activations::kSplit3 : ops::Activations::kBf16,
       .records_steps = !options.launches_anew});
}

// The cheap refusals come before anything is read.
const RunOptions& checked(const RunOptions& options) {
  if (options.backend == "cuda" && !ops::cuda_is_built())
    fail(ErrorKind::kUnsupported, "--backend", "this build has no CUDA; build with VERBATIM_CUDA=ON or use cpu");
  if (options.backend == "cpu" && options.activations != "bf16")
    fail(ErrorKind::kUsage, "--activations", "{} is for --backend cuda; the CPU's activations are float32",
         options.activations);
  if (options.backend == "cpu" && options.launches_anew)
    fail(ErrorKind::kUsage, "--eager", "is for --backend cuda; the CPU has no launches to record");
  if (options.backend == "cuda" && options.isa != "best")
    fail(ErrorKind::kUsage, "--isa", "{} is for --backend cpu", options.isa);
  return options;
}

}  // namespace

void add_run_options(CLI::App& command, RunOptions& options) {
  command.add_option("directory", options.path, "Checkpoint directory")->required();
  command.add_option("--backend", options.backend, "Where to run")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  command.add_option("--precision", options.precision, "full: W4A16; checkpoint: the checkpoint's own math")
      ->check(CLI::IsMember({"full", "checkpoint"}))
      ->capture_default_str();
  command.add_option("--isa", options.isa, "Instruction set of the CPU backend; all give the same bits")
      ->check(CLI::IsMember({"best", "plain", "avx2", "avx512"}))
      ->capture_default_str();
  command
      .add_option("--activations", options.activations,
                  "Of products on CUDA: rounded to bf16, or in three bf16 terms (split3, to test by)")
      ->check(CLI::IsMember({"bf16", "split3"}))
      ->capture_default_str();
  command.add_flag("--eager", options.launches_anew,
                   "On CUDA, launch every step anew instead of recording one of each shape and replaying it");
  command.add_option("--sum-parts", options.sum_parts, "Parts of the sums that ranks would cut")->capture_default_str();
  command.add_option("--threads", options.threads, "Threads (default: all cores)")->check(CLI::Range(1, 4096));
}

void add_next_n_option(CLI::App& command, RunOptions& options) {
  command.add_option("--next-n-experts", options.next_n_experts, "Draft experts as stored, or packed to NVFP4")
      ->check(CLI::IsMember({"stored", "packed"}))
      ->capture_default_str();
}

Loaded::Loaded(const RunOptions& options)
    : source(open_source(checked(options).path, "")),
      pool(thread_count(options.threads)),
      ops(make_ops(options, pool)),
      model(
          model::load_model(source.checkpoint, source.config,
                            options.precision == "checkpoint" ? model::Precision::kCheckpoint : model::Precision::kFull,
                            options.sum_parts)) {
  if (options.next_n_experts == "packed") model::pack_next_n_experts(model, source.checkpoint, pool);
  weight_bytes_per_token = model::weight_bytes_per_token(model);
  uploaded_bytes = model::upload_weights(*ops, model, source.checkpoint);
}

}  // namespace verbatim::cli
