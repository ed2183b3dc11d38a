#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/sha256.h"
#include "checkpoint/safetensors.h"
#include "cli/commands.h"
#include "cli/loaded.h"
#include "cli/text_bridge.h"
#include "engine/backend_model.h"
#include "engine/scheduler.h"
#include "state/solo.h"

namespace verbatim::cli {

namespace {

struct Options {
  RunOptions run;
  std::string prompt, logits;
  std::vector<int32_t> ids;
  int64_t tokens = 32, chunk = 512;
  int drafts = 0;
  engine::SamplingOptions sampling;
  bool json = false, ignore_end = false;

  Options() { sampling.temperature = 0; }
};

struct Result {
  std::vector<int32_t> prompt, ids;
  engine::ReplySummary summary;
  double load_s = 0, prompt_s = 0, decode_s = 0;
  int64_t decode_steps = 0, bytes_per_token = 0;
  std::string ops_name;
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void write_logits(const std::string& path, const std::vector<int32_t>& ids, const std::vector<float>& logits,
                  int64_t vocabulary) {
  using checkpoint::DType;
  const auto rows = static_cast<int64_t>(ids.size());
  checkpoint::SafetensorsWriter writer(path,
                                       {{"ids", DType::kI32, {rows}}, {"logits", DType::kF32, {rows, vocabulary}}});
  writer.append(std::as_bytes(std::span(ids)));
  writer.append(std::as_bytes(std::span(logits)));
  writer.finish();
}

// Runs the request alone through the engine's scheduler.
void reply(const Options& options, Loaded& loaded, Result& result) {
  const int64_t vocabulary = loaded.source.config.vocabulary, most = std::ssize(result.prompt) + options.tokens;
  engine::BackendModelOptions sizes;
  sizes.max_rows = std::min(options.chunk, most + ops::kWindowRows);
  sizes.slots = 1;
  sizes.pages = state::pages_for(most + 1);
  // Ids that the tokenizer does not know are never generated.
  sizes.vocabulary_limit = static_cast<int32_t>(std::min(vocabulary, token_limit(options.run.path, vocabulary)));
  engine::BackendModel model(*loaded.ops, loaded.model, sizes);
  engine::Scheduler scheduler(model, {.drafts = options.drafts});
  engine::Request request;
  request.prompt = result.prompt;
  request.max_tokens = options.tokens;
  request.sampling = options.sampling;
  if (!options.ignore_end) request.stop_tokens = loaded.source.config.end_tokens;
  int64_t first_steps = 0;
  scheduler.submit(std::move(request), [&](const engine::Event& event) {
    if (result.ids.empty()) first_steps = scheduler.stats().steps;
    for (const engine::GeneratedToken& token : event.tokens) result.ids.push_back(token.id);
    if (event.summary) result.summary = *event.summary;
  });
  const auto start = std::chrono::steady_clock::now();
  while (!scheduler.idle()) scheduler.step();
  result.prompt_s = result.summary.first_token_s;
  result.decode_s = seconds_since(start) - result.prompt_s;
  result.decode_steps = scheduler.stats().steps - first_steps;
}

// Feeds prompt and reply once more, one row of logits for every position: the bits that the reply was chosen from.
void write_every_logits(const Options& options, Loaded& loaded, const Result& result) {
  std::vector<int32_t> fed = result.prompt;
  fed.insert(fed.end(), result.ids.begin(), result.ids.end());
  std::vector<float> logits;
  state::Solo solo(*loaded.ops, loaded.model, std::ssize(fed), std::min(options.chunk, std::ssize(fed)));
  solo.feed(fed, &logits);
  write_logits(options.logits, fed, logits, loaded.source.config.vocabulary);
}

Result run(const Options& options) {
  const auto start = std::chrono::steady_clock::now();
  if (options.ids.empty() == options.prompt.empty())
    fail(ErrorKind::kUsage, "generate", "give a prompt either as --ids 1,2,3 or as --prompt TEXT");
  Loaded loaded(options.run);
  const model::Config& config = loaded.source.config;
  Result result;
  result.prompt = options.prompt.empty() ? options.ids : encode_prompt(options.run.path, options.prompt);
  for (const int32_t id : result.prompt)
    if (id < 0 || id >= config.vocabulary)
      fail(ErrorKind::kUsage, "--ids", "token id {}; expected 0 to {}", id, config.vocabulary - 1);
  if (std::ssize(result.prompt) + options.tokens > config.max_positions)
    fail(ErrorKind::kCapacity, "generate", "{} prompt tokens and {} to generate pass the model's {} positions",
         result.prompt.size(), options.tokens, config.max_positions);
  result.ops_name = loaded.ops->name();
  result.bytes_per_token = loaded.weight_bytes_per_token;
  result.load_s = seconds_since(start);
  if (options.tokens > 0) {
    reply(options, loaded, result);
  } else if (options.logits.empty()) {
    state::Solo(*loaded.ops, loaded.model, std::ssize(result.prompt),
                std::min(options.chunk, std::ssize(result.prompt)))
        .feed(result.prompt);
    result.prompt_s = seconds_since(start) - result.load_s;
  }
  if (!options.logits.empty()) write_every_logits(options, loaded, result);
  return result;
}

void print_result(const Options& options, const Result& result) {
  const auto rate = [&](int64_t count) {
    return result.decode_s > 0 ? static_cast<double>(count) / result.decode_s : 0;
  };
  const double tokens_per_s = rate(std::max<int64_t>(std::ssize(result.ids) - 1, 0));
  const double bytes_per_s = rate(result.decode_steps) * static_cast<double>(result.bytes_per_token);
  const engine::ReplySummary& summary = result.summary;
  if (options.json) {
    nlohmann::ordered_json out;
    out["prompt_ids"] = result.prompt;
    out["ids"] = result.ids;
    out["hash"] = token_hash(result.ids);
    out["finish_reason"] = engine::finish_name(summary.reason);
    out["seed"] = summary.seed;
    out["backend"] = result.ops_name;
    out["load_s"] = result.load_s;
    out["prompt_s"] = result.prompt_s;
    out["decode_s"] = result.decode_s;
    out["decode_steps"] = result.decode_steps;
    out["decode_tokens_per_s"] = tokens_per_s;
    out["drafted_tokens"] = summary.drafted_tokens;
    out["accepted_tokens"] = summary.accepted_tokens;
    out["weight_bytes_per_token"] = result.bytes_per_token;
    out["weight_bytes_per_s"] = bytes_per_s;
    fmt::print("{}\n", out.dump());
    return;
  }
  if (!options.prompt.empty()) fmt::print("{}\n", decode_text(options.run.path, result.ids));
  fmt::print("ids: {}\n", fmt::join(result.ids, ","));
  fmt::print("hash: {}  finish: {}  backend: {}\n", token_hash(result.ids), engine::finish_name(summary.reason),
             result.ops_name);
  if (options.sampling.temperature > 0) fmt::print("seed: {}\n", summary.seed);
  if (summary.drafted_tokens > 0)
    fmt::print("drafts: {} of {} accepted\n", summary.accepted_tokens, summary.drafted_tokens);
  fmt::print("prompt: {} tokens in {:.3f} s; decode: {:.1f} tokens/s, {:.2f} GB/s of weights ({} bytes a step)\n",
             result.prompt.size(), result.prompt_s, tokens_per_s, bytes_per_s / 1e9, result.bytes_per_token);
}

}  // namespace

void add_generate(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("generate", "Continue a prompt, given as ids or as text");
  add_run_options(*command, options->run);
  add_next_n_option(*command, options->run);
  command->add_option("--ids", options->ids, "Prompt as token ids, separated by commas")->delimiter(',');
  command->add_option("--prompt", options->prompt, "Prompt as text; control tokens in it count as such");
  command->add_option("--tokens", options->tokens, "Tokens to generate; 0 feeds the prompt alone")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40))
      ->capture_default_str();
  command->add_option("--temperature", options->sampling.temperature, "0: greedy")->capture_default_str();
  command->add_option("--top-p", options->sampling.top_p, "Sample from the most likely that sum to this")
      ->capture_default_str();
  command->add_option("--top-k", options->sampling.top_k, "Sample from so many of the most likely; 0: all")
      ->capture_default_str();
  command->add_option("--min-p", options->sampling.min_p, "Least probability, as a share of the largest")
      ->capture_default_str();
  command->add_option("--seed", options->sampling.seed, "Of the random numbers (default: drawn, and printed)");
  command->add_option("--drafts", options->drafts, "Most drafts a step; they change times, never tokens")
      ->check(CLI::Range(0, 7))
      ->capture_default_str();
  command->add_option("--logits", options->logits, "Write ids and logits of every position, as safetensors");
  command->add_option("--chunk", options->chunk, "Most rows a step")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_flag("--ignore-eos", options->ignore_end, "Do not stop at end tokens");
  command->add_flag("--json", options->json, "Print JSON");
  command->callback([options] { print_result(*options, run(*options)); });
}

}  // namespace verbatim::cli
