#include <fmt/core.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "checkpoint/stored_matrix.h"
#include "cli/commands.h"
#include "cli/source.h"
#include "model/tensors.h"

namespace verbatim::cli {

namespace {

struct Options {
  std::string path, config;
  bool json = false;
};

void print_table(const Source& source, const model::Census& census) {
  const checkpoint::Checkpoint& stored = source.checkpoint;
  fmt::print("{}\n", stored.path().string());
  fmt::print("  {} tensors, {} bytes ({} GiB) in {} file{}; stored as {}; metadata says {}\n", stored.raw_count(),
             stored.payload_bytes(), gib(static_cast<double>(stored.payload_bytes())), stored.shard_count(),
             stored.shard_count() == 1 ? "" : "s", census.form,
             checkpoint::quantisation_name(stored.quantisation().kind));
  const model::Config& c = source.config;
  fmt::print("  {} layers ({} linear, {} sparse attention), {} next-n, {} experts, vocabulary {}\n", c.layers,
             c.count(model::MixerKind::kLinear), c.count(model::MixerKind::kSparse), c.next_n_layers, c.experts,
             c.vocabulary);
  fmt::print("  matrices:");
  for (size_t form = 0; form < census.matrices.size(); ++form)
    if (census.matrices[form] > 0)
      fmt::print(" {} {},", census.matrices[form], checkpoint::form_name(static_cast<checkpoint::Form>(form)));
  fmt::print(" {} with input_scale\n\n", census.input_scales);
  fmt::print("  {:<18} {:>9} {:>18} {:>10}\n", "group", "tensors", "bytes", "GiB");
  for (size_t group = 0; group < model::kGroups; ++group) {
    const model::GroupCount& count = census.groups[group];
    if (count.tensors == 0) continue;
    fmt::print("  {:<18} {:>9} {:>18} {:>10}\n", model::group_name(static_cast<model::Group>(group)), count.tensors,
               count.bytes, gib(static_cast<double>(count.bytes)));
  }
  fmt::print("\n");
  for (const std::string& note : c.notes) fmt::print("  note: {}\n", note);
  for (const std::string& note : stored.quantisation().notes) fmt::print("  note: {}\n", note);
  for (const std::string& problem : census.problems) fmt::print("  problem: {}\n", problem);
  if (census.problems.empty()) fmt::print("  no problems: every tensor has its place and every place its tensor\n");
}

void print_json(const Source& source, const model::Census& census) {
  nlohmann::ordered_json out;
  out["tensors"] = source.checkpoint.raw_count();
  out["payload_bytes"] = source.checkpoint.payload_bytes();
  out["form"] = census.form;
  out["metadata"] = checkpoint::quantisation_name(source.checkpoint.quantisation().kind);
  out["files"] = source.checkpoint.shard_count();
  out["input_scales"] = census.input_scales;
  out["groups"] = nlohmann::ordered_json::object();
  for (size_t group = 0; group < model::kGroups; ++group)
    if (census.groups[group].tensors > 0)
      out["groups"][model::group_name(static_cast<model::Group>(group))] = {{"tensors", census.groups[group].tensors},
                                                                            {"bytes", census.groups[group].bytes}};
  out["notes"] = source.config.notes;
  for (const std::string& note : source.checkpoint.quantisation().notes) out["notes"].push_back(note);
  out["problems"] = census.problems;
  fmt::print("{}\n", out.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
}

}  // namespace

void add_inspect(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("inspect", "Say what is in a checkpoint; exit 1 if it has problems");
  command->add_option("source", options->path, "Checkpoint directory, or headers as .json or .json.gz")->required();
  command->add_option("--config", options->config, "config.json of a headers file (default: beside it)");
  command->add_flag("--json", options->json, "Print JSON");
  command->callback([options] {
    const Source source = open_source(options->path, options->config);
    const model::Census census = model::take_census(source.checkpoint, source.config);
    options->json ? print_json(source, census) : print_table(source, census);
    std::fflush(stdout);
    if (!census.problems.empty())
      fail(ErrorKind::kFormat, options->path, "{} problems; see the list", census.problems.size());
  });
}

}  // namespace verbatim::cli
