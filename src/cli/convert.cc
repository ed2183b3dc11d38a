#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "base/error.h"
#include "base/thread_pool.h"
#include "cli/commands.h"
#include "cli/prompt_file.h"
#include "cli/source.h"
#include "ops/ops.h"
#include "quantize/calibrate.h"
#include "quantize/converter.h"
#include "quantize/manifest.h"

namespace verbatim::cli {

namespace {

namespace fs = std::filesystem;

struct Options {
  std::string source, out, config, recipe = "nvfp4-experts-w4a4", prompts, calibration;
  int64_t token_budget = 65536;
  bool resume = false, dry_run = false, weight_only = false, all_experts = false, json = false;
  int threads = 0;
};

void print_plan(const Options& options, const quantize::Recipe& recipe, const quantize::ConversionPlan& plan,
                bool shards_known) {
  if (options.json) {
    nlohmann::ordered_json out;
    out["recipe"] = recipe.name;
    out["tensors"] = plan.tensors;
    out["payload_bytes"] = plan.payload_bytes;
    out["source_bytes"] = plan.source_bytes;
    out["matrices"] = plan.matrices;
    if (shards_known) {
      out["shards"] = plan.shards.size();
      out["scale_shards"] = plan.scale_items.empty() ? 0 : 1;
    }
    out["groups"] = nlohmann::ordered_json::object();
    for (size_t group = 0; group < model::kGroups; ++group)
      if (plan.groups[group].tensors > 0)
        out["groups"][model::group_name(static_cast<model::Group>(group))] = {{"tensors", plan.groups[group].tensors},
                                                                              {"bytes", plan.groups[group].bytes}};
    fmt::print("{}\n", out.dump(2));
    return;
  }
  fmt::print("{}: {}\n", recipe.name, recipe.description);
  fmt::print("  {} bytes ({} GiB) become {} tensors, {} bytes ({} GiB); {} matrices are quantised{}\n",
             plan.source_bytes, gib(static_cast<double>(plan.source_bytes)), plan.tensors, plan.payload_bytes,
             gib(static_cast<double>(plan.payload_bytes)), plan.matrices,
             plan.with_activations ? "" : ", without activation scales (W4A16)");
  if (shards_known)
    fmt::print("  in {} shard{}{}\n", plan.shards.size(), plan.shards.size() == 1 ? "" : "s",
               plan.scale_items.empty() ? "" : " and one of activation scales");
  fmt::print("\n  {:<18} {:>9} {:>18} {:>10}\n", "group", "tensors", "bytes", "GiB");
  for (size_t group = 0; group < model::kGroups; ++group) {
    const model::GroupCount& count = plan.groups[group];
    if (count.tensors > 0)
      fmt::print("  {:<18} {:>9} {:>18} {:>10}\n", model::group_name(static_cast<model::Group>(group)), count.tensors,
                 count.bytes, gib(static_cast<double>(count.bytes)));
  }
}

// Options that have no effect are errors.
void check_options(const Options& options, const quantize::Recipe& recipe) {
  const bool wants_scales = recipe.activations != quantize::ActivationRule::kNone;
  const int given =
      (options.prompts.empty() ? 0 : 1) + (options.calibration.empty() ? 0 : 1) + (options.weight_only ? 1 : 0);
  if (given > 1)
    fail(ErrorKind::kUsage, "convert", "more than one of --calibrate, --calibration and --weight-only; expected one");
  if (!wants_scales && given > 0)
    fail(ErrorKind::kUsage, "convert",
         "{} stores no activation scales; expected no --calibrate, --calibration or --weight-only", recipe.name);
  if (options.all_experts && options.prompts.empty())
    fail(ErrorKind::kUsage, "--all-experts", "has no effect without --calibrate");
  if (options.dry_run) {
    if (options.resume || !options.prompts.empty() || !options.calibration.empty())
      fail(ErrorKind::kUsage, "--dry-run", "writes nothing; expected no --resume, --calibrate or --calibration");
    return;
  }
  if (options.out.empty()) fail(ErrorKind::kUsage, "convert", "no OUT; expected a directory to write, or --dry-run");
  if (wants_scales && given == 0)
    fail(ErrorKind::kUsage, "convert",
         "{} stores activation scales; expected --calibrate DATA.jsonl, --calibration FILE, or --weight-only to go "
         "without",
         recipe.name);
}

std::optional<quantize::Calibration> calibration_for(const Options& options, const Source& source, ThreadPool& pool) {
  if (!options.calibration.empty()) {
    quantize::Calibration calibration = quantize::load_calibration(options.calibration);
    if (calibration.model_sha256 != quantize::model_identity(source.checkpoint))
      fail(ErrorKind::kUsage, options.calibration, "is of the model {}; expected {} (config and tensor shapes)",
           calibration.model_sha256, quantize::model_identity(source.checkpoint));
    return calibration;
  }
  if (options.prompts.empty()) return std::nullopt;
  const auto prompts = read_prompts(options.prompts, options.source, source.config, options.token_budget);
  const auto ops = ops::make_cpu_ops(pool);
  return quantize::calibrate(source.checkpoint, source.config, prompts, {.every_expert = options.all_experts}, *ops);
}

void run(const Options& options) {
  const quantize::Recipe recipe = quantize::find_recipe(options.recipe);
  check_options(options, recipe);
  const Source source = open_source(options.source, options.config);
  if (options.dry_run) {
    const bool scales = recipe.activations != quantize::ActivationRule::kNone && !options.weight_only;
    print_plan(options, recipe, quantize::plan_conversion(source.checkpoint, source.config, recipe, scales),
               source.checkpoint.has_data() || recipe.shard_bytes > 0);
    return;
  }
  if (!source.checkpoint.has_data())
    fail(ErrorKind::kUsage, options.source, "headers hold no weights; expected a directory, or --dry-run");
  if (!quantize::prepare_output(source.checkpoint, options.out, options.resume)) {
    fmt::print("{} is finished already; `verbatim verify` checks it\n", options.out);
    return;
  }
  ThreadPool pool(options.threads > 0 ? options.threads
                                      : std::max(1, static_cast<int>(std::thread::hardware_concurrency())));
  const std::optional<quantize::Calibration> calibration = calibration_for(options, source, pool);
  quantize::convert(source.checkpoint, source.config, recipe, calibration ? &*calibration : nullptr,
                    {.out = options.out, .resume = options.resume, .tool_version = VERBATIM_VERSION}, pool);
  const auto manifest = (fs::path(options.out) / quantize::kManifestName).string();
  if (options.json)
    fmt::print("{}\n", nlohmann::ordered_json({{"out", options.out}, {"manifest", manifest}}).dump());
  else
    fmt::print("wrote {}; what it holds and how well is in {}\n", options.out, manifest);
}

}  // namespace

void add_convert(CLI::App& app) {
  const auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("convert", "Make an NVFP4 checkpoint of a BF16 one");
  command
      ->add_option("source", options->source,
                   "BF16 checkpoint directory; for --dry-run also headers as .json or .json.gz")
      ->required();
  command->add_option("out", options->out, "Directory to create");
  command
      ->add_option("--recipe", options->recipe,
                   fmt::format("A file ending in .json, or one of {}", fmt::join(quantize::shipped_recipes(), ", ")))
      ->capture_default_str();
  command->add_option("--calibrate", options->prompts,
                      R"(Prompts to calibrate activations on: JSON lines of {"messages"}, {"text"} or {"ids"})");
  command->add_option("--calibration", options->calibration, "A calibration file instead (verbatim calibration)");
  command->add_flag("--weight-only", options->weight_only, "Store no activation scales (W4A16)");
  command->add_flag("--all-experts", options->all_experts, "Calibrate every expert on every token");
  command->add_option("--token-budget", options->token_budget, "Most tokens to calibrate on; 0: all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_flag("--resume", options->resume, "Go on where an interrupted conversion into OUT stopped");
  command->add_flag("--dry-run", options->dry_run, "Say what would be written; write nothing");
  command->add_option("--config", options->config, "config.json of a headers file (default: beside it)");
  command->add_option("--threads", options->threads, "Threads (default: all cores)")->check(CLI::Range(1, 4096));
  command->add_flag("--json", options->json, "Print JSON");
  command->callback([options] { run(*options); });
}

}  // namespace verbatim::cli
