#include "quantize/calibration.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/error.h"
#include "base/thread_pool.h"
#include "cli/commands.h"
#include "cli/prompt_file.h"
#include "cli/source.h"
#include "quantize/calibrate.h"
#include "quantize/scale_policy.h"

namespace verbatim::cli {

namespace {

using quantize::Calibration;
using quantize::SiteRecord;

struct Options {
  std::string directory, out, prompts;
  std::vector<std::string> files;
  int64_t token_budget = 65536;
  int threads = 0;
  bool all_experts = false, json = false;
};

void refuse_existing(const std::string& out) {
  if (std::filesystem::exists(out)) fail(ErrorKind::kUsage, out, "is there already; expected a new file");
}

void run_prompts(const Options& options) {
  refuse_existing(options.out);
  const Source source = open_source(options.directory, "");
  const auto prompts = read_prompts(options.prompts, options.directory, source.config, options.token_budget);
  ThreadPool pool(options.threads > 0 ? options.threads
                                      : std::max(1, static_cast<int>(std::thread::hardware_concurrency())));
  const auto ops = ops::make_cpu_ops(pool);
  const Calibration calibration =
      quantize::calibrate(source.checkpoint, source.config, prompts, {.every_expert = options.all_experts}, *ops);
  quantize::save_calibration(calibration, options.out);
  fmt::print("wrote {}: {} tokens of {} prompts\n", options.out, calibration.tokens, calibration.sequences);
}

void merge(const Options& options) {
  refuse_existing(options.out);
  Calibration sum = quantize::load_calibration(options.files.at(0));
  for (size_t i = 1; i < options.files.size(); ++i)
    quantize::merge_calibration(sum, quantize::load_calibration(options.files[i]));
  quantize::save_calibration(sum, options.out);
  fmt::print("wrote {}: {} tokens of {} prompts\n", options.out, sum.tokens, sum.sequences);
}

// The lower edge of the bin that holds the `share`-th of an expert's (or all experts') activations.
float quantile_of(const SiteRecord& record, double share) {
  std::vector<int64_t> bins(quantize::kHistogramBins);
  for (size_t i = 0; i < record.histogram.size(); ++i) bins[i % bins.size()] += record.histogram[i];
  int64_t total = 0;
  for (const int64_t count : bins) total += count;
  int64_t below = 0;
  for (int64_t bin = 0; bin < quantize::kHistogramBins; ++bin) {
    below += bins[static_cast<size_t>(bin)];
    if (total > 0 && static_cast<double>(below) >= share * static_cast<double>(total))
      return quantize::histogram_bin_begin(bin);
  }
  return 0;
}

struct Summary {
  std::vector<int64_t> without_data;
  double least = 0, median = 0, percentile_99 = 0, largest = 0;  // of the experts' largest magnitudes
  int64_t rows = 0;
};

Summary summarise(const SiteRecord& record) {
  Summary out;
  std::vector<double> values;
  for (int64_t expert = 0; expert < record.experts(); ++expert) {
    out.rows += record.seen[static_cast<size_t>(expert)];
    if (record.has_data(expert))
      values.push_back(static_cast<double>(record.largest[static_cast<size_t>(expert)]));
    else
      out.without_data.push_back(expert);
  }
  if (values.empty()) return out;
  out.least = quantize::percentile_of(values, 0);
  out.median = quantize::percentile_of(values, 50);
  out.percentile_99 = quantize::percentile_of(values, 99);
  out.largest = quantize::percentile_of(values, 100);
  return out;
}

void inspect(const Options& options) {
  const Calibration calibration = quantize::load_calibration(options.files.at(0));
  if (options.json) {
    nlohmann::ordered_json out;
    out["tokens"] = calibration.tokens;
    out["sequences"] = calibration.sequences;
    out["every_expert"] = calibration.every_expert;
    out["model_sha256"] = calibration.model_sha256;
    out["runs"] = calibration.runs;
    out["sites"] = nlohmann::ordered_json::array();
    for (const auto& [key, record] : calibration.sites) {
      nlohmann::ordered_json site;
      site["container"] = quantize::container_name(key.group, key.layer);
      site["site"] = quantize::site_name(key.site);
      site["largest"] = record.largest;
      site["seen"] = record.seen;
      site["without_data"] = summarise(record).without_data;
      if (key.group == model::Group::kRoutedExperts) site["routed"] = calibration.routed.at(key.layer);
      out["sites"].push_back(std::move(site));
    }
    fmt::print("{}\n", out.dump());
    return;
  }
  fmt::print("{} tokens of {} prompts in {} run{}; {}\n", calibration.tokens, calibration.sequences,
             calibration.runs.size(), calibration.runs.size() == 1 ? "" : "s",
             calibration.every_expert ? "every expert saw every token" : "experts saw what was routed to them");
  fmt::print("largest activation by expert (least, median, 99 %, largest), and what 99.99 % of all stay below\n\n");
  fmt::print("{:<58} {:>9} {:>9} {:>9} {:>9} {:>9} {:>10}  {}\n", "site", "least", "median", "p99", "largest",
             "99.99 %", "rows", "experts without data");
  for (const auto& [key, record] : calibration.sites) {
    const Summary summary = summarise(record);
    fmt::print("{:<58} {:>9.4g} {:>9.4g} {:>9.4g} {:>9.4g} {:>9.4g} {:>10}  {}\n", quantize::site_text(key),
               summary.least, summary.median, summary.percentile_99, summary.largest, quantile_of(record, 0.9999),
               summary.rows, fmt::join(summary.without_data, ","));
  }
}

}  // namespace

void add_calibration(CLI::App& app) {
  const auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("calibration", "Make, merge and show records of activations");
  command->require_subcommand(1);

  CLI::App* run = command->add_subcommand("run", "Run a checkpoint over prompts and record what its experts see");
  run->add_option("directory", options->directory, "Checkpoint directory")->required();
  run->add_option("out", options->out, "File to write")->required();
  run->add_option("--prompts", options->prompts, R"(JSON lines of {"messages"}, {"text"} or {"ids"})")->required();
  run->add_option("--token-budget", options->token_budget, "Most tokens; 0: all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  run->add_flag("--all-experts", options->all_experts, "Every expert sees every token");
  run->add_option("--threads", options->threads, "Threads (default: all cores)")->check(CLI::Range(1, 4096));
  run->callback([options] { run_prompts(*options); });

  CLI::App* join = command->add_subcommand("merge", "Add up runs of one model");
  join->add_option("out", options->out, "File to write")->required();
  join->add_option("files", options->files, "Calibration files")->required();
  join->callback([options] { merge(*options); });

  CLI::App* show = command->add_subcommand("inspect", "Show what a calibration file holds");
  show->add_option("file", options->files, "A calibration file")->required()->expected(1);
  show->add_flag("--json", options->json, "Print JSON");
  show->callback([options] { inspect(*options); });
}

}  // namespace verbatim::cli
