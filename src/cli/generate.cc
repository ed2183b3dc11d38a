#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/error.h"
#include "base/sha256.h"
#include "base/thread_pool.h"
#include "checkpoint/safetensors.h"
#include "cli/commands.h"
#include "cli/source.h"
#include "cli/text_bridge.h"
#include "model/glm.h"
#include "ops/cuda_backend.h"
#include "ops/devices.h"
#include "state/solo.h"

namespace verbatim::cli {

namespace {

struct Options {
  std::string path, prompt, backend = "cpu", precision = "full", isa = "best", activations = "bf16", logits;
  std::vector<int32_t> ids;
  int64_t tokens = 32, chunk = 512;
  int threads = 0, sum_parts = 1;
  double temperature = 0;
  bool json = false, ignore_end = false;
};

struct Result {
  std::vector<int32_t> prompt, ids;
  const char* finish = "length";
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

ops::CpuIsa parse_isa(const std::string& name) {
  if (name == "plain") return ops::CpuIsa::kPlain;
  if (name == "avx2") return ops::CpuIsa::kAvx2;
  if (name == "avx512") return ops::CpuIsa::kAvx512;
  return ops::CpuIsa::kBest;
}

std::unique_ptr<ops::Ops> make_ops(const Options& options, ThreadPool& pool) {
  if (options.backend == "cpu") return ops::make_cpu_ops(pool, parse_isa(options.isa));
  return ops::make_cuda_ops(
      {.device = 0,
       .activations = options.activations == "split3" ? ops::Activations::kSplit3 : ops::Activations::kBf16});
}

Result run(const Options& options) {
  const auto start = std::chrono::steady_clock::now();
  if (options.temperature != 0)
    fail(ErrorKind::kUsage, "--temperature", "{}; generate is greedy, so only 0 is accepted", options.temperature);
  if (options.ids.empty() == options.prompt.empty())
    fail(ErrorKind::kUsage, "generate", "give a prompt either as --ids 1,2,3 or as --prompt TEXT");
  if (options.backend == "cuda" && !ops::cuda_is_built())
    fail(ErrorKind::kUnsupported, "--backend", "this build has no CUDA; build with VERBATIM_CUDA=ON or use cpu");
  if (options.backend == "cpu" && options.activations != "bf16")
    fail(ErrorKind::kUsage, "--activations", "{} is for --backend cuda; the CPU's activations are float32",
         options.activations);
  if (options.backend == "cuda" && options.isa != "best")
    fail(ErrorKind::kUsage, "--isa", "{} is for --backend cpu", options.isa);
  const Source source = open_source(options.path, "");
  Result result;
  result.prompt = options.prompt.empty() ? options.ids : encode_prompt(options.path, options.prompt);
  for (const int32_t id : result.prompt)
    if (id < 0 || id >= source.config.vocabulary)
      fail(ErrorKind::kUsage, "--ids", "token id {}; expected 0 to {}", id, source.config.vocabulary - 1);
  const int64_t most = static_cast<int64_t>(result.prompt.size()) + options.tokens;
  if (most > source.config.max_positions)
    fail(ErrorKind::kCapacity, "generate", "{} prompt tokens and {} to generate pass the model's {} positions",
         result.prompt.size(), options.tokens, source.config.max_positions);

  ThreadPool pool(options.threads > 0 ? options.threads
                                      : std::max(1, static_cast<int>(std::thread::hardware_concurrency())));
  const auto ops = make_ops(options, pool);
  result.ops_name = ops->name();
  model::Model model = model::load_model(
      source.checkpoint, source.config,
      options.precision == "checkpoint" ? model::Precision::kCheckpoint : model::Precision::kFull, options.sum_parts);
  result.bytes_per_token = model::weight_bytes_per_token(model);
  model::upload_weights(*ops, model);
  state::Solo solo(*ops, model, most, std::min(options.chunk, most));
  result.load_s = seconds_since(start);

  std::vector<float> logits;
  std::vector<float>* every = options.logits.empty() ? nullptr : &logits;
  const auto prompt_start = std::chrono::steady_clock::now();
  solo.feed(result.prompt, every);
  result.prompt_s = seconds_since(prompt_start);

  // Ids that the tokenizer does not know are never generated.
  const int64_t limit = std::min(source.config.vocabulary, token_limit(options.path, source.config.vocabulary));
  const auto decode_start = std::chrono::steady_clock::now();
  while (static_cast<int64_t>(result.ids.size()) < options.tokens) {
    const int32_t id = solo.greedy(limit);
    result.ids.push_back(id);
    const auto& ends = source.config.end_tokens;
    if (!options.ignore_end && std::find(ends.begin(), ends.end(), id) != ends.end()) {
      result.finish = "stop";
      break;
    }
    // The last token is fed too when logits are wanted: one row for every position.
    if (static_cast<int64_t>(result.ids.size()) == options.tokens && every == nullptr) break;
    solo.feed({&id, 1}, every);
    ++result.decode_steps;
  }
  result.decode_s = seconds_since(decode_start);
  if (every != nullptr) {
    std::vector<int32_t> fed = result.prompt;
    fed.insert(fed.end(), result.ids.begin(), result.ids.end());
    fed.resize(static_cast<size_t>(solo.length()));
    write_logits(options.logits, fed, logits, source.config.vocabulary);
  }
  return result;
}

void print_result(const Options& options, const Result& result) {
  const double tokens_per_s = result.decode_s > 0 ? static_cast<double>(result.decode_steps) / result.decode_s : 0;
  const double gb_per_s = tokens_per_s * static_cast<double>(result.bytes_per_token) / 1e9;
  if (options.json) {
    nlohmann::ordered_json out;
    out["prompt_ids"] = result.prompt;
    out["ids"] = result.ids;
    out["hash"] = token_hash(result.ids);
    out["finish_reason"] = result.finish;
    out["backend"] = result.ops_name;
    out["load_s"] = result.load_s;
    out["prompt_s"] = result.prompt_s;
    out["decode_s"] = result.decode_s;
    out["decode_steps"] = result.decode_steps;
    out["decode_tokens_per_s"] = tokens_per_s;
    out["weight_bytes_per_token"] = result.bytes_per_token;
    out["weight_bytes_per_s"] = gb_per_s * 1e9;
    fmt::print("{}\n", out.dump());
    return;
  }
  if (!options.prompt.empty()) fmt::print("{}\n", decode_text(options.path, result.ids));
  fmt::print("ids: {}\n", fmt::join(result.ids, ","));
  fmt::print("hash: {}  finish: {}  backend: {}\n", token_hash(result.ids), result.finish, result.ops_name);
  fmt::print("prompt: {} tokens in {:.3f} s; decode: {:.1f} tokens/s, {:.2f} GB/s of weights ({} bytes a token)\n",
             result.prompt.size(), result.prompt_s, tokens_per_s, gb_per_s, result.bytes_per_token);
}

}  // namespace

void add_generate(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("generate", "Continue a prompt greedily; ids in, ids out");
  command->add_option("directory", options->path, "Checkpoint directory")->required();
  command->add_option("--ids", options->ids, "Prompt as token ids, separated by commas")->delimiter(',');
  command->add_option("--prompt", options->prompt, "Prompt as text; control tokens in it count as such");
  command->add_option("--tokens", options->tokens, "Tokens to generate; 0 feeds the prompt alone")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40))
      ->capture_default_str();
  command->add_option("--temperature", options->temperature, "0: greedy")->capture_default_str();
  command->add_option("--logits", options->logits, "Write ids and logits of every position fed, as safetensors");
  command->add_option("--backend", options->backend, "Where to run")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  command->add_option("--isa", options->isa, "Instruction set of the CPU backend; all give the same bits")
      ->check(CLI::IsMember({"best", "plain", "avx2", "avx512"}))
      ->capture_default_str();
  command
      ->add_option("--activations", options->activations,
                   "Of products on CUDA: rounded to bf16, or in three bf16 terms (split3, to test by)")
      ->check(CLI::IsMember({"bf16", "split3"}))
      ->capture_default_str();
  command->add_option("--precision", options->precision, "full: W4A16; checkpoint: the checkpoint's own math")
      ->check(CLI::IsMember({"full", "checkpoint"}))
      ->capture_default_str();
  command->add_option("--sum-parts", options->sum_parts, "Parts of the sums that ranks would cut")
      ->capture_default_str();
  command->add_option("--chunk", options->chunk, "Prompt tokens a step")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--threads", options->threads, "Threads (default: all cores)")->check(CLI::Range(1, 4096));
  command->add_flag("--ignore-eos", options->ignore_end, "Do not stop at end tokens");
  command->add_flag("--json", options->json, "Print JSON");
  command->callback([options] { print_result(*options, run(*options)); });
}

}  // namespace verbatim::cli
