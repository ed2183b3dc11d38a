#include "model/synth.h"

#include <fmt/core.h>

#include <memory>
#include <thread>

#include "base/thread_pool.h"
#include "cli/commands.h"
#include "cli/source.h"

namespace verbatim::cli {

namespace {

struct Options {
  std::string path, size = "tiny", form = "nvfp4", shard = "4GiB";
  model::SynthOptions synth;
  int threads = 0;
};

}  // namespace

void add_synth(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("synth", "Write a checkpoint of random weights in the released layout");
  command->add_option("out", options->path, "Directory to create")->required();
  command->add_option("--size", options->size, "Widths: tiny, or those of the released model")
      ->check(CLI::IsMember({"tiny", "released"}))
      ->capture_default_str();
  command->add_option("--layers", options->synth.layers, "Layers (default 8 for tiny, 4 for released)")
      ->check(CLI::Range(1, 4096));
  command->add_option("--experts", options->synth.experts, "Routed experts a layer (default 16)")
      ->check(CLI::Range(1, 65536));
  command->add_option("--form", options->form, "What is stored")
      ->check(CLI::IsMember({"bf16", "nvfp4", "w4a4-experts"}))
      ->capture_default_str();
  command->add_option("--seed", options->synth.seed, "The weights follow from it")->capture_default_str();
  command->add_option("--shard-size", options->shard, "Most bytes of a shard")->capture_default_str();
  command->add_option("--threads", options->threads, "Threads (default: all cores)")->check(CLI::Range(1, 4096));
  command->callback([options] {
    using model::SynthForm, model::SynthSize;
    options->synth.size = options->size == "tiny" ? SynthSize::kTiny : SynthSize::kReleased;
    options->synth.form = options->form == "bf16"    ? SynthForm::kBf16
                          : options->form == "nvfp4" ? SynthForm::kNvfp4
                                                     : SynthForm::kW4a4Experts;
    options->synth.shard_bytes = static_cast<uint64_t>(parse_bytes(options->shard, "--shard-size"));
    ThreadPool pool(options->threads > 0 ? options->threads
                                         : std::max(1, static_cast<int>(std::thread::hardware_concurrency())));
    model::synthesise(options->path, options->synth, pool);
    fmt::print("wrote {}\n", options->path);
  });
}

}  // namespace verbatim::cli
