#include "model/plan.h"

#include <fmt/core.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/source.h"
#include "ops/ops.h"

namespace verbatim::cli {

namespace {

struct Options {
  std::string path, config, memory, snapshots = "0";
  std::string backend = "cuda", next_n_experts = "stored", precision = "full";
  model::PlanOptions plan;
  bool json = false;
};

void print_json(const model::Plan& plan) {
  nlohmann::ordered_json out;
  out["ranks"] = nlohmann::ordered_json::array();
  for (const model::RankPlan& rank : plan.ranks) {
    nlohmann::ordered_json groups;
    for (size_t group = 0; group < model::kGroups; ++group)
      groups[model::group_name(static_cast<model::Group>(group))] = rank.group_bytes[group];
    out["ranks"].push_back({{"weights_bytes", rank.weights_bytes},
                            {"groups", groups},
                            {"sequence_bytes", plan.rank_sequence_bytes},
                            {"snapshot_bytes", plan.rank_snapshot_bytes},
                            {"workspace_bytes", plan.workspace_bytes},
                            {"working_bytes", plan.working_bytes},
                            {"needed_bytes", plan.needed_bytes}});
  }
  out["sequence_bytes"] = plan.sequence_bytes;
  out["token_bytes"] = plan.token_bytes;
  out["page_bytes"] = plan.page_bytes;
  out["snapshot_bytes"] = plan.snapshot_bytes;
  out["context_tokens"] = plan.context_tokens;
  out["pages_per_sequence"] = plan.pages_per_sequence;
  out["memory_bytes"] = plan.memory_bytes;
  out["fits"] = plan.fits;
  out["largest_context"] = plan.largest_context;
  out["largest_sequences"] = plan.largest_sequences;
  out["not_resident"] = plan.not_resident;
  fmt::print("{}\n", out.dump(2));
}

void print_table(const model::Plan& plan, const model::PlanOptions& options) {
  const model::RankPlan& rank = plan.ranks.front();
  fmt::print("weights of each of {} rank{}, GiB\n", plan.ranks.size(), plan.ranks.size() == 1 ? "" : "s");
  for (size_t group = 0; group < model::kGroups; ++group)
    if (rank.group_bytes[group] > 0)
      fmt::print("  {:<18} {:>10}\n", model::group_name(static_cast<model::Group>(group)),
                 gib(static_cast<double>(rank.group_bytes[group])));
  fmt::print("  {:<18} {:>10}   not resident:", "sum", gib(static_cast<double>(rank.weights_bytes)));
  for (const std::string& name : plan.not_resident) fmt::print(" {}", name);
  auto mib = [](int64_t bytes) { return static_cast<double>(bytes) / 0x1p20; };
  fmt::print("\n\nstate ({} caches)\n", options.backend == model::BackendKind::kCpu ? "float32" : "bfloat16");
  fmt::print("  a sequence         {:>10.2f} MiB ({:.2f} on each rank)\n", mib(plan.sequence_bytes),
             mib(plan.rank_sequence_bytes));
  fmt::print("  a token            {:>10} bytes on each rank (a page of {}: {})\n", plan.token_bytes, ops::kPageTokens,
             plan.page_bytes);
  fmt::print("  a snapshot         {:>10.2f} MiB ({:.2f} on each rank)\n", mib(plan.snapshot_bytes),
             mib(plan.rank_snapshot_bytes));
  fmt::print("  workspace          {:>10.2f} MiB for steps of {} rows\n", mib(plan.workspace_bytes),
             options.chunk_rows);
  if (options.backend == model::BackendKind::kCuda)
    fmt::print("  operators          {:>10.2f} MiB of working memory in such steps\n", mib(plan.working_bytes));
  fmt::print("\n");
  fmt::print("{} sequence{} of {} tokens need {} GiB on each rank", options.sequences,
             options.sequences == 1 ? "" : "s", plan.context_tokens, gib(static_cast<double>(plan.needed_bytes)));
  if (options.memory_bytes == 0) {
    fmt::print("; give --memory to see what fits\n");
    return;
  }
  fmt::print(" of {}: {}\n", gib(static_cast<double>(options.memory_bytes)), plan.fits ? "fits" : "DOES NOT FIT");
  fmt::print("  largest context for {} sequence{}: {} tokens\n", options.sequences, options.sequences == 1 ? "" : "s",
             plan.largest_context);
  fmt::print("  most sequences of {} tokens: {}\n", plan.context_tokens, plan.largest_sequences);
}

}  // namespace

void add_plan(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("plan", "Say what fits in memory, from headers and config alone");
  command->add_option("source", options->path, "Checkpoint directory, or headers as .json or .json.gz")->required();
  command->add_option("--config", options->config, "config.json of a headers file (default: beside it)");
  command->add_option("--ranks", options->plan.ranks, "Tensor-parallel ranks")->capture_default_str();
  command->add_option("--context", options->plan.context_tokens, "Tokens of a sequence (default: the config's most)");
  command->add_option("--sequences", options->plan.sequences, "Sequences at once")->capture_default_str();
  command->add_option("--memory", options->memory, "Memory of each rank, such as 119GiB");
  command->add_option("--snapshots", options->snapshots, "Memory of each rank for prefix snapshots")
      ->capture_default_str();
  command->add_option("--chunk", options->plan.chunk_rows, "Rows of the longest step")->capture_default_str();
  command->add_option("--backend", options->backend, "Whose caches to count")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  command->add_option("--next-n-experts", options->next_n_experts, "Draft experts as stored, or packed to NVFP4")
      ->check(CLI::IsMember({"stored", "packed"}))
      ->capture_default_str();
  command->add_option("--precision", options->precision, "checkpoint keeps input_scale resident")
      ->check(CLI::IsMember({"full", "checkpoint"}))
      ->capture_default_str();
  command->add_flag("--json", options->json, "Print JSON");
  command->callback([options] {
    const Source source = open_source(options->path, options->config);
    model::require_sound(source.checkpoint, model::take_census(source.checkpoint, source.config));
    model::PlanOptions& plan = options->plan;
    if (!options->memory.empty()) plan.memory_bytes = parse_bytes(options->memory, "--memory");
    plan.snapshot_bytes = parse_bytes(options->snapshots, "--snapshots");
    plan.backend = options->backend == "cpu" ? model::BackendKind::kCpu : model::BackendKind::kCuda;
    plan.next_n_experts =
        options->next_n_experts == "packed" ? model::NextNExperts::kPacked : model::NextNExperts::kStored;
    plan.activation_scales = options->precision == "checkpoint";
    const model::Plan made = model::make_plan(source.checkpoint, source.config, plan);
    options->json ? print_json(made) : print_table(made, plan);
  });
}

}  // namespace verbatim::cli
