#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>
#include <tuple>
#include <vector>

#include "base/error.h"
#include "base/thread_pool.h"
#include "cli/bench_bandwidth.h"
#include "cli/bench_load.h"
#include "cli/bench_statistics.h"
#include "cli/bench_synthetic.h"
#include "cli/commands.h"
#include "cli/source.h"
#include "engine/backend_model.h"
#include "engine/scheduler.h"
#include "model/glm.h"
#include "state/storage.h"

namespace verbatim::cli {

namespace {

struct Options {
  std::string synthetic, form = "nvfp4", backend = "cpu";
  int64_t layers = 0, experts = 0, context = 2048, prompt_position = 0;
  std::vector<int64_t> prompt_rows;
  std::string path, precision = "full", next_n_experts = "stored";
  std::vector<int64_t> sequences = {1, 4, 16};
  int64_t prompt = 128, tokens = 64, repeats = 3;
  int threads = 0, drafts = 0;
  bool json = false, prompts_alone = false, load = false;
};

struct Row {
  int64_t sequences = 0;
  double prompt_tokens_per_s = 0, decode_tokens_per_s = 0;  // medians over the repeats
  double slowest_prompt = 0, slowest_decode = 0;            // of the repeats
  double model_us = 0, scheduler_us = 0, sampler_us = 0;    // of a decode step, medians
  double accepted = 0;                                      // share of drafts; 0 without any
  double tokens_per_step = 0;                               // per sequence
  double bytes_per_s = 0;                                   // of weights, one reading a step
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Random prompts, so that nothing is shared; every reply has its full length.
Row measure(ops::Ops& ops, const model::Model& model, const Options& options, int64_t sequences) {
  engine::BackendModelOptions sizes;
  sizes.max_rows = std::max<int64_t>(512, sequences * ops::kWindowRows);
  sizes.slots = sequences;
  sizes.pages = sequences * state::pages_for(options.prompt + options.tokens + 1 + ops::kWindowRows);
  engine::BackendModel backend(ops, model, sizes);
  Row row;
  row.sequences = sequences;
  std::vector<double> prompt, decode, model_us, scheduler_us, sampler_us;
  for (int64_t repeat = 0; repeat < options.repeats; ++repeat) {
    engine::Scheduler scheduler(backend, {.prompt_rows = sizes.max_rows, .drafts = options.drafts});
    uint64_t seed = static_cast<uint64_t>(repeat) * 1000003 + 17;
    int64_t waiting = sequences;
    for (int64_t i = 0; i < sequences; ++i) {
      engine::Request request;
      for (int64_t token = 0; token < options.prompt; ++token) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        request.prompt.push_back(static_cast<int32_t>((seed >> 33) % static_cast<uint64_t>(model.config.vocabulary)));
      }
      request.max_tokens = options.tokens;
      request.sampling.temperature = 0;
      bool first = true;
      scheduler.submit(request, [&waiting, first](const engine::Event&) mutable {
        waiting -= first ? 1 : 0;
        first = false;
      });
    }
    const auto start = std::chrono::steady_clock::now();
    while (waiting > 0) scheduler.step();
    const double prompt_s = seconds_since(start);
    const engine::SchedulerStats before = scheduler.stats();
    const auto decode_start = std::chrono::steady_clock::now();
    while (!scheduler.idle()) scheduler.step();
    const double decode_s = seconds_since(decode_start);
    const engine::SchedulerStats after = scheduler.stats();
    const auto steps = static_cast<double>(std::max<int64_t>(after.steps - before.steps, 1));
    const auto tokens = static_cast<double>(after.generated_tokens - before.generated_tokens);
    prompt.push_back(static_cast<double>(sequences * options.prompt) / prompt_s);
    decode.push_back(tokens / decode_s);
    model_us.push_back((after.model_s - before.model_s) * 1e6 / steps);
    scheduler_us.push_back((after.scheduler_s - before.scheduler_s) * 1e6 / steps);
    sampler_us.push_back((after.sampler_s - before.sampler_s) * 1e6 / steps);
    if (after.drafted_tokens > 0)
      row.accepted = static_cast<double>(after.accepted_tokens) / static_cast<double>(after.drafted_tokens);
    row.tokens_per_step = tokens / steps / static_cast<double>(sequences);
  }
  row.prompt_tokens_per_s = median(prompt);
  row.decode_tokens_per_s = median(decode);
  row.slowest_prompt = *std::min_element(prompt.begin(), prompt.end());
  row.slowest_decode = *std::min_element(decode.begin(), decode.end());
  row.model_us = median(model_us);
  row.scheduler_us = median(scheduler_us);
  row.sampler_us = median(sampler_us);
  row.bytes_per_s = static_cast<double>(model::weight_bytes_per_token(model)) * row.decode_tokens_per_s /
                    (row.tokens_per_step * static_cast<double>(sequences));
  return row;
}

void run(const Options& options) {
  const Source source = open_source(options.path, "");
  ThreadPool pool(options.threads > 0 ? options.threads
                                      : std::max(1, static_cast<int>(std::thread::hardware_concurrency())));
  const auto ops = ops::make_cpu_ops(pool);
  model::Model model =
      model::load_model(source.checkpoint, source.config,
                        options.precision == "checkpoint" ? model::Precision::kCheckpoint : model::Precision::kFull, 1);
  if (options.next_n_experts == "packed") model::pack_next_n_experts(model, source.checkpoint, pool);
  const double bandwidth = cpu_read_bandwidth(pool);
  std::vector<Row> rows;
  for (const int64_t sequences : options.sequences) rows.push_back(measure(*ops, model, options, sequences));

  if (options.json) {
    nlohmann::ordered_json out;
    out["backend"] = ops->name();
    out["threads"] = pool.threads();
    out["bandwidth_bytes_per_s"] = bandwidth;
    out["weight_bytes_per_token"] = model::weight_bytes_per_token(model);
    out["rows"] = nlohmann::ordered_json::array();
    for (const Row& row : rows)
      out["rows"].push_back({{"sequences", row.sequences},
                             {"prompt_tokens_per_s", row.prompt_tokens_per_s},
                             {"slowest_prompt_tokens_per_s", row.slowest_prompt},
                             {"decode_tokens_per_s", row.decode_tokens_per_s},
                             {"slowest_decode_tokens_per_s", row.slowest_decode},
                             {"tokens_per_step", row.tokens_per_step},
                             {"draft_acceptance", row.accepted},
                             {"weight_bytes_per_s", row.bytes_per_s},
                             {"model_us_per_step", row.model_us},
                             {"scheduler_us_per_step", row.scheduler_us},
                             {"sampler_us_per_step", row.sampler_us}});
    fmt::print("{}\n", out.dump(2));
    return;
  }
  fmt::print("{}, {} threads; memory is read at {:.1f} GB/s; a token alone reads {} bytes of weights\n", ops->name(),
             pool.threads(), bandwidth / 1e9, model::weight_bytes_per_token(model));
  fmt::print("prompts of {} tokens, replies of {}, median (slowest) of {}\n\n", options.prompt, options.tokens,
             options.repeats);
  fmt::print("{:>9} {:>20} {:>20} {:>9} {:>16} {:>24}\n", "sequences", "prompt tokens/s", "decode tokens/s", "per step",
             "weights GB/s", "model+sched+sampler us");
  for (const Row& row : rows)
    fmt::print("{:>9} {:>20} {:>20} {:>9.2f} {:>16} {:>24}\n", row.sequences,
               fmt::format("{:.1f} ({:.1f})", row.prompt_tokens_per_s, row.slowest_prompt),
               fmt::format("{:.1f} ({:.1f})", row.decode_tokens_per_s, row.slowest_decode), row.tokens_per_step,
               fmt::format("{:.2f} ({:.0f} %)", row.bytes_per_s / 1e9, 100 * row.bytes_per_s / bandwidth),
               fmt::format("{:.0f}+{:.0f}+{:.0f}", row.model_us, row.scheduler_us, row.sampler_us));
}

void run_synthetic(const Options& options) {
  SyntheticBenchOptions bench;
  bench.size = options.synthetic;
  bench.form = options.form;
  bench.backend = options.backend;
  bench.layers = options.layers;
  bench.experts = options.experts;
  bench.context = options.context;
  bench.prompt_rows = options.prompt_rows;
  bench.prompt_position = options.prompt_position;
  bench.decodes = !options.prompts_alone;
  bench.sequences = options.sequences;
  bench.tokens = options.tokens;
  bench.repeats = options.repeats;
  bench.threads = options.threads;
  bench.json = options.json;
  bench_synthetic(bench);
}

void run_load(const Options& options) {
  RunOptions run;
  run.path = options.path;
  run.backend = options.backend;
  run.precision = options.precision;
  run.next_n_experts = options.next_n_experts;
  run.threads = options.threads;
  bench_load(run, options.repeats, options.json);
}

}  // namespace

void add_bench(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("bench", "Measure prompt and decode speed against this machine's bandwidth");
  auto* directory = command->add_option("directory", options->path, "Checkpoint directory");
  auto* synthetic = command
                        ->add_option("--synthetic", options->synthetic,
                                     "Instead: decode steps of a model made in memory, and each operator's part")
                        ->check(CLI::IsMember({"tiny", "released"}));
  directory->excludes(synthetic);
  for (auto& [name, value, text] :
       {std::tuple{"--layers", &options->layers, "Layers of the synthetic model"},
        std::tuple{"--experts", &options->experts, "Its experts"},
        std::tuple{"--context", &options->context, "Tokens before its first step"},
        std::tuple{"--prompt-position", &options->prompt_position, "Tokens before its prompts"}})
    command->add_option(name, *value, text)->check(CLI::Range(1, 1 << 20))->needs(synthetic);
  CLI::Option* prompts = command
                             ->add_option("--prompt-rows", options->prompt_rows,
                                          "Time prompts of so many tokens, each in one step, and their operators too")
                             ->delimiter(',')
                             ->check(CLI::Range(1, 1 << 20))
                             ->needs(synthetic);
  command->add_flag("--prompts-alone", options->prompts_alone, "No decode steps")->needs(prompts);
  command->add_option("--form", options->form, "How it stores its experts")
      ->check(CLI::IsMember({"nvfp4", "bf16"}))
      ->needs(synthetic);
  CLI::Option* backend =
      command->add_option("--backend", options->backend, "Where --synthetic computes or --load loads to")
          ->check(CLI::IsMember({"cpu", "cuda"}));
  CLI::Option* load =
      command
          ->add_flag("--load", options->load, "Instead: loading to the backend, beside a plain read of the same files")
          ->needs(directory);
  CLI::Option* sequences =
      command
          ->add_option("--sequences", options->sequences, "Sequences at once, a row each; 0 (synthetic): all that fit")
          ->delimiter(',')
          ->check(CLI::Range(0, 4096))
          ->capture_default_str();
  CLI::Option* prompt = command->add_option("--prompt", options->prompt, "Tokens of each prompt")
                            ->check(CLI::Range(1, 1 << 20))
                            ->capture_default_str();
  CLI::Option* tokens = command->add_option("--tokens", options->tokens, "Tokens of each reply")
                            ->check(CLI::Range(2, 1 << 20))
                            ->capture_default_str();
  command->add_option("--repeats", options->repeats, "Runs of each row or load")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  CLI::Option* drafts = command->add_option("--drafts", options->drafts, "Most drafts a step")
                            ->check(CLI::Range(0, 7))
                            ->capture_default_str();
  for (CLI::Option* each : {sequences, prompt, tokens, drafts}) load->excludes(each);
  command->add_option("--next-n-experts", options->next_n_experts, "Draft experts as stored, or packed to NVFP4")
      ->check(CLI::IsMember({"stored", "packed"}))
      ->capture_default_str();
  command->add_option("--precision", options->precision, "full: W4A16; checkpoint: the checkpoint's own math")
      ->check(CLI::IsMember({"full", "checkpoint"}))
      ->capture_default_str();
  command->add_option("--threads", options->threads, "Threads (default: all cores)")->check(CLI::Range(1, 4096));
  command->add_flag("--json", options->json, "Print JSON");
  command->callback([options, backend] {
    if (!options->synthetic.empty()) {
      run_synthetic(*options);
      return;
    }
    if (options->path.empty()) throw CLI::RequiredError("directory or --synthetic");
    if (options->load) {
      run_load(*options);
      return;
    }
    if (backend->count() > 0)
      fail(ErrorKind::kUsage, "--backend", "is for --synthetic and --load; expected one of them beside it");
    if (std::find(options->sequences.begin(), options->sequences.end(), 0) != options->sequences.end())
      fail(ErrorKind::kUsage, "--sequences", "0 is for --synthetic; expected 1 or more");
    run(*options);
  });
}

}  // namespace verbatim::cli
