#include "evaluate/compare.h"

#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "base/error.h"
#include "base/thread_pool.h"
#include "cli/commands.h"
#include "cli/prompt_file.h"
#include "cli/source.h"
#include "cli/text_bridge.h"

namespace verbatim::cli {

namespace {

using evaluate::GroupDifference;
using evaluate::TensorDifference;
using Json = nlohmann::ordered_json;

struct Options {
  std::string a, b, prompts, precision = "full";
  int64_t token_budget = 4096;
  size_t worst = 10;
  int threads = 0;
  bool tensors = false, predictions_only = false, json = false;
};

// Of the tensors that differ, those with the largest relative error; ties in table order.
std::vector<const TensorDifference*> worst_of(const std::vector<TensorDifference>& tensors, size_t count) {
  std::vector<const TensorDifference*> out;
  for (const TensorDifference& tensor : tensors)
    if (tensor.squared_error > 0) out.push_back(&tensor);
  std::stable_sort(out.begin(), out.end(), [](const TensorDifference* x, const TensorDifference* y) {
    return x->relative_error() > y->relative_error();
  });
  out.resize(std::min(out.size(), count));
  return out;
}

Json tensor_json(const TensorDifference& tensor) {
  Json out = {{"name", tensor.name},
              {"forms", {checkpoint::form_name(tensor.form_a), checkpoint::form_name(tensor.form_b)}},
              {"same_bytes", tensor.same_bytes},
              {"relative_error", tensor.relative_error()},
              {"largest_error", tensor.largest_error}};
  if (tensor.input_scale_a > 0 || tensor.input_scale_b > 0)
    out["input_scales"] = {tensor.input_scale_a, tensor.input_scale_b};
  return out;
}

Json weights_json(const Options& options, const evaluate::WeightComparison& weights) {
  Json out;
  out["groups"] = Json::object();
  for (size_t i = 0; i < model::kGroups; ++i) {
    const GroupDifference& group = weights.groups[i];
    if (group.tensors == 0) continue;
    out["groups"][model::group_name(static_cast<model::Group>(i))] = {
        {"tensors", group.tensors},
        {"same_bytes", group.same_bytes},
        {"relative_error", group.relative_error()},
        {"largest_error", group.largest_error},
        {"input_scales", group.input_scales},
        {"different_input_scales", group.different_input_scales},
        {"input_scales_of_one", group.input_scales_of_one},
        {"largest_scale_ratio", group.largest_scale_ratio}};
  }
  out["worst"] = Json::array();
  for (const TensorDifference* tensor : worst_of(weights.tensors, options.worst))
    out["worst"].push_back(tensor_json(*tensor));
  if (options.tensors) {
    out["tensors"] = Json::array();
    for (const TensorDifference& tensor : weights.tensors) out["tensors"].push_back(tensor_json(tensor));
  }
  return out;
}

void print_tensor(const TensorDifference& tensor) {
  fmt::print("  {:<72} {:>10} {:>10}  {:.3e} {:.3e}\n", tensor.name, checkpoint::form_name(tensor.form_a),
             checkpoint::form_name(tensor.form_b), tensor.relative_error(), static_cast<double>(tensor.largest_error));
}

void print_weights(const Options& options, const evaluate::WeightComparison& weights) {
  fmt::print("{:<18} {:>8} {:>10} {:>14} {:>13}  {}\n", "group", "tensors", "same bytes", "relative error",
             "largest error", "input_scale");
  for (size_t i = 0; i < model::kGroups; ++i) {
    const GroupDifference& group = weights.groups[i];
    if (group.tensors == 0) continue;
    std::string scales;
    if (group.input_scales > 0)
      scales = fmt::format("{} of {} differ, by up to x {:.4g}", group.different_input_scales, group.input_scales,
                           group.largest_scale_ratio);
    else if (group.input_scales_of_one > 0)
      scales = fmt::format("{} on one side alone", group.input_scales_of_one);
    fmt::print("{:<18} {:>8} {:>10} {:>14.3e} {:>13.3e}  {}\n", model::group_name(static_cast<model::Group>(i)),
               group.tensors, group.same_bytes, group.relative_error(), static_cast<double>(group.largest_error),
               scales);
  }
  const auto worst = worst_of(weights.tensors, options.worst);
  if (!worst.empty()) fmt::print("\nworst:\n");
  for (const TensorDifference* tensor : worst) print_tensor(*tensor);
  if (options.tensors) {
    fmt::print("\nall:\n");
    for (const TensorDifference& tensor : weights.tensors) print_tensor(tensor);
  }
}

// The checkpoint's own math where it is asked for and stored; else activations are left alone.
model::Model load(const Source& source, const std::string& precision) {
  const bool own = precision == "checkpoint" && model::take_census(source.checkpoint, source.config).input_scales > 0;
  return model::load_model(source.checkpoint, source.config,
                           own ? model::Precision::kCheckpoint : model::Precision::kFull, 1);
}

void run(const Options& options) {
  if (options.prompts.empty() && (options.predictions_only || options.precision != "full"))
    fail(ErrorKind::kUsage, "compare", "--predictions-only and --precision have no effect without --prompts");
  if (options.predictions_only && options.tensors)
    fail(ErrorKind::kUsage, "--tensors", "has no effect with --predictions-only");
  const Source a = open_source(options.a, ""), b = open_source(options.b, "");
  ThreadPool pool(options.threads > 0 ? options.threads
                                      : std::max(1, static_cast<int>(std::thread::hardware_concurrency())));
  Json out = {{"a", options.a}, {"b", options.b}};
  if (!options.predictions_only) {
    const evaluate::WeightComparison weights = evaluate::compare_weights(a.checkpoint, b.checkpoint, a.config, pool);
    if (options.json)
      out["weights"] = weights_json(options, weights);
    else
      print_weights(options, weights);
  }
  if (!options.prompts.empty()) {
    const auto prompts = read_prompts(options.prompts, options.a, a.config, options.token_budget);
    const auto ops = ops::make_cpu_ops(pool);
    const model::Model model_a = load(a, options.precision), model_b = load(b, options.precision);
    // Ids that no text has are no part of a distribution.
    const int64_t limit = std::min(a.config.vocabulary, token_limit(options.a, a.config.vocabulary));
    const evaluate::PredictionComparison made = evaluate::compare_predictions(*ops, model_a, model_b, prompts, limit);
    auto ran_as = [](const model::Model& model) {
      return model.precision == model::Precision::kCheckpoint ? "checkpoint" : "full";
    };
    if (options.json)
      out["predictions"] = {{"prompts", prompts.size()},
                            {"positions", made.positions},
                            {"precision", {ran_as(model_a), ran_as(model_b)}},
                            {"mean_kl", made.mean_divergence},
                            {"largest_kl", made.largest_divergence},
                            {"top1_agreement", made.same_first},
                            {"perplexity", {made.perplexity_a, made.perplexity_b}}};
    else
      fmt::print(
          "\npredictions at {} positions of {} prompts (A in {} precision, B in {}):\n"
          "  KL(A || B) {:.6g} a position, {:.6g} at worst; the same first token at {:.2f} %\n"
          "  perplexity {:.6g} and {:.6g}\n",
          made.positions, prompts.size(), ran_as(model_a), ran_as(model_b), made.mean_divergence,
          made.largest_divergence, 100 * made.same_first, made.perplexity_a, made.perplexity_b);
  }
  if (options.json) fmt::print("{}\n", out.dump(2));
}

}  // namespace

void add_compare(CLI::App& app) {
  const auto options = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("compare", "How two checkpoints differ: tensors and, with prompts, predictions");
  command->add_option("a", options->a, "Checkpoint directory")->required();
  command->add_option("b", options->b, "Checkpoint directory")->required();
  command->add_option("--prompts", options->prompts,
                      R"(JSON lines of {"messages"}, {"text"} or {"ids"}: compare predictions too)");
  command->add_option("--token-budget", options->token_budget, "Most tokens of the prompts; 0: all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_option("--precision", options->precision, "checkpoint: each in its own math where it stores input_scale")
      ->check(CLI::IsMember({"full", "checkpoint"}))
      ->capture_default_str();
  command->add_flag("--predictions-only", options->predictions_only, "Leave the tensors out");
  command->add_flag("--tensors", options->tensors, "List every tensor");
  command->add_option("--worst", options->worst, "How many of the worst tensors to list")->capture_default_str();
  command->add_option("--threads", options->threads, "Threads (default: all cores)")->check(CLI::Range(1, 4096));
  command->add_flag("--json", options->json, "Print JSON");
  command->callback([options] { run(*options); });
}

}  // namespace verbatim::cli
