#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>

#include "base/error.h"
#include "base/log.h"
#include "cli/commands.h"
#include "cli/loaded.h"
#include "engine/budget.h"
#include "engine/engine.h"
#include "ops/cuda_backend.h"
#include "server/heap.h"
#include "server/server.h"

namespace verbatim::cli {
namespace {

struct Options {
  RunOptions run;
  server::ServerOptions server;
  std::vector<std::string> names;
  std::string memory, prefix_cache, body, all_bodies;  // amounts: "16MiB"
  engine::BudgetOptions budget;
  engine::SchedulerOptions scheduler;
  int64_t drain_s = 60;
  double header_timeout_s = 10, body_timeout_s = 60, idle_timeout_s = 75, write_timeout_s = 60;
  bool logs_json = false, logs_debug = false, logs_no_requests = false;
};

void allow_many_files() {
  struct rlimit files {};
  if (::getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < files.rlim_max) {
    files.rlim_cur = files.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &files);
  }
}

// Three quarters of what the system says could be had now.
int64_t memory_to_use() {
  std::ifstream file("/proc/meminfo");
  for (std::string name; file >> name;) {
    int64_t kib = 0;
    if (name == "MemAvailable:" && file >> kib) return kib * 1024 / 4 * 3;
    file.ignore(256, '\n');
  }
  fail(ErrorKind::kIo, "/proc/meminfo", "it does not say how much memory is available; give --memory");
}

server::ServedModel served_model(const Options& options, const model::Config& config) {
  const std::filesystem::path directory = options.run.path;
  auto tokenizer = text::Tokenizer::load(directory / "tokenizer.json");
  if (tokenizer.size() > config.vocabulary)
    fail(ErrorKind::kFormat, options.run.path,
         "tokenizer.json has ids up to {}, the model's vocabulary ends at {}; use the tokenizer.json that belongs to "
         "the checkpoint",
         tokenizer.size() - 1, config.vocabulary - 1);
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  server::ServedModel model{.tokenizer = std::move(tokenizer),
                            .chat_template = text::ChatTemplate::load(directory),
                            .eos = config.end_tokens,
                            .names = options.names,
                            .created_s = std::chrono::duration_cast<std::chrono::seconds>(now).count()};
  if (model.names.empty()) model.names.push_back(std::filesystem::canonical(directory).filename().string());
  return model;
}

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1e3));
}

server::ServerOptions server_options(const Options& options) {
  server::ServerOptions server = options.server;
  server::HttpLimits& limits = server.http.limits;
  if (!options.body.empty()) limits.body_bytes = parse_bytes(options.body, "--max-body");
  if (!options.all_bodies.empty()) limits.all_body_bytes = parse_bytes(options.all_bodies, "--max-all-bodies");
  limits.header_timeout = milliseconds(options.header_timeout_s);
  limits.body_timeout = milliseconds(options.body_timeout_s);
  limits.idle_timeout = milliseconds(options.idle_timeout_s);
  limits.write_timeout = milliseconds(options.write_timeout_s);
  server.logs_requests = !options.logs_no_requests;
  return server;
}

engine::BudgetOptions budget_options(const Options& options) {
  engine::BudgetOptions budget = options.budget;
  if (!options.memory.empty()) budget.memory_bytes = parse_bytes(options.memory, "--memory");
  if (!options.prefix_cache.empty()) budget.snapshot_bytes = parse_bytes(options.prefix_cache, "--prefix-cache");
  budget.backend = options.run.backend == "cuda" ? model::BackendKind::kCuda : model::BackendKind::kCpu;
  budget.next_n_experts =
      options.run.next_n_experts == "packed" ? model::NextNExperts::kPacked : model::NextNExperts::kStored;
  budget.activation_scales = options.run.precision == "checkpoint";
  return budget;
}

void say_where(const server::Server& server, const Options& options, const std::string& name) {
  const std::string& host = options.server.http.host;
  const bool is_everywhere = host == "0.0.0.0" || host == "::";
  if (!server.keys().are_required() && host != "127.0.0.1" && host != "localhost" && host != "::1")
    log_warning("open to the network without keys; give --api-key-file, or --host 127.0.0.1");
  const std::string url = fmt::format("http://{}:{}", is_everywhere ? "localhost" : host, server.port());
  log_info("ready; OpenAI clients: base_url {}/v1, Anthropic clients: base_url {}, model {}, {}", url, url, name,
           server.keys().are_required() ? fmt::format("one of {} API keys", server.keys().size()) : "any API key");
  log_info("a chat page: {}/ ; figures: {}/metrics", url, url);
}

void run(const Options& options) {
  set_log_json(options.logs_json);
  if (options.logs_debug) set_log_level(LogLevel::kDebug);
  server::keep_heap_small();
  allow_many_files();
  // Taken by sigwait below, so blocked in every thread that is started from here on.
  sigset_t signals;
  sigemptyset(&signals);
  for (const int one : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&signals, one);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);

  // What can be refused without the weights is refused before they are read.
  engine::BudgetOptions budget_asked = budget_options(options);
  std::optional<engine::Budget> budget;
  const bool asks_device = budget_asked.backend == model::BackendKind::kCuda && budget_asked.memory_bytes == 0;
  if (budget_asked.backend == model::BackendKind::kCpu && budget_asked.memory_bytes == 0)
    budget_asked.memory_bytes = memory_to_use();
  std::optional<server::ServedModel> served;
  {
    const Source source = open_source(options.run.path, "");
    served = served_model(options, source.config);
    if (!asks_device) budget = engine::make_budget(source.checkpoint, source.config, budget_asked);
  }
  log_info("loading {}", options.run.path);
  Loaded loaded(options.run);
  if (asks_device) {
    const model::Plan plan = model::make_plan(loaded.source.checkpoint, loaded.source.config,
                                              {.backend = budget_asked.backend,
                                               .next_n_experts = budget_asked.next_n_experts,
                                               .activation_scales = budget_asked.activation_scales});
    budget_asked.memory_bytes = ops::cuda_free_bytes(*loaded.ops) + plan.ranks.front().weights_bytes;
    budget = engine::make_budget(loaded.source.checkpoint, loaded.source.config, budget_asked);
  }
  // What operators need is taken now, not in the middle of a reply.
  if (budget_asked.backend == model::BackendKind::kCuda)
    ops::cuda_reserve_working(*loaded.ops, budget->working_bytes - ops::kCudaFixedBytes);
  engine::BackendModelOptions sizes = budget->model;
  sizes.vocabulary_limit = served->tokenizer.size();
  engine::BackendModel backend(*loaded.ops, loaded.model, sizes);
  engine::SchedulerOptions scheduler = options.scheduler;
  scheduler.snapshot_bytes = budget->snapshot_bytes;
  engine::Engine engine(backend, scheduler);
  served->context_tokens = sizes.max_positions;
  const std::string name = served->names.front();
  log_info("{} as {} on {}, {} threads; {} sequences at once, drafts {}", options.run.path, name, loaded.ops->name(),
           loaded.pool.threads(), sizes.slots, scheduler.drafts);
  log_line(LogLevel::kInfo, budget->text());
  server::Server server(std::move(*served), engine, server_options(options));
  say_where(server, options, name);

  for (int signal = 0;;) {
    sigwait(&signals, &signal);
    if (signal != SIGHUP) break;
    server.reload_keys();
  }
  log_info("draining: running replies may finish within {} s; a second signal ends them", options.drain_s);
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
  if (!server.drain(std::chrono::seconds(options.drain_s))) log_warning("some replies had not finished");
}

void add_network_flags(CLI::App& command, Options& options) {
  server::ServerOptions& server = options.server;
  server.http.port = 8080;
  command.add_option("--host", server.http.host, "Address to listen on")->capture_default_str();
  command.add_option("--port", server.http.port, "Port; 0: any free one")->capture_default_str();
  command.add_option("--served-name", options.names, "Model name; further ones are aliases (default: the directory's)");
  command.add_option("--api-key-file", server.api_key_file, "Keys, one a line (KEY or NAME KEY); read again on SIGHUP");
  command.add_option("--served-host", server.access.served_hosts, "Further Host names that it is asked by");
  command.add_option("--cors", server.access.cors_origins, "Origins whose pages may use it; * for all");
  command.add_option("--io-threads", server.http.threads, "Threads for connections")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  command.add_option("--workers", server.workers, "Threads for requests' JSON, templates, tokens and grammars")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  command.add_flag("--log-json", options.logs_json, "Log lines as JSON");
  command.add_flag("--log-debug", options.logs_debug, "Log more: ignored fields");
  command.add_flag("--no-request-log", options.logs_no_requests, "No line for each request");
  command.add_option("--drain", options.drain_s, "Seconds that running replies have after SIGTERM")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 30))
      ->capture_default_str();
}

void add_engine_flags(CLI::App& command, Options& options) {
  command.add_option("--memory", options.memory, "For everything, \"119GiB\" (default: 3/4 of what is available)");
  command.add_option("--sequences", options.budget.sequences, "Sequences at once")
      ->check(CLI::Range(int64_t{1}, int64_t{4096}))
      ->capture_default_str();
  command
      .add_option("--context", options.budget.context_tokens, "Tokens of a prompt and its reply (default: what fits)")
      ->check(CLI::Range(int64_t{64}, int64_t{1} << 40));
  command.add_option("--prefix-cache", options.prefix_cache, "Memory for snapshots, \"8GiB\"; 0: no prefix cache");
  command.add_option("--chunk", options.budget.chunk_rows, "Rows of a step")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  command
      .add_option("--prompt-rows", options.scheduler.prompt_rows,
                  "Of which prompts may take so many while replies are running")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  command.add_option("--snapshot-every", options.scheduler.snapshot_every, "Tokens between snapshots of a long prompt")
      ->check(CLI::Range(int64_t{64}, int64_t{1} << 40))
      ->capture_default_str();
  command.add_option("--drafts", options.scheduler.drafts, "Most drafts a step")
      ->check(CLI::Range(0, 7))
      ->capture_default_str();
  command.add_option("--queue", options.scheduler.queue_limit, "Sequences waiting; more get 503")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30))
      ->capture_default_str();
  command
      .add_option("--effort", options.server.service.effort.default_effort,
                  "How long to reason where a request does not say (default: the template's own)")
      ->check(CLI::IsMember({"low", "high", "max"}));
  command.add_flag("--effort-as-template", options.server.service.effort.as_template,
                   "Pass reasoning_effort to the template as it comes");
}

void add_limit_flags(CLI::App& command, Options& options) {
  server::HttpLimits& http = options.server.http.limits;
  server::RequestLimits& request = options.server.service.limits;
  const auto count = [&command](const char* name, auto& value, const char* help) {
    command.add_option(name, value, help)->check(CLI::Range(int64_t{0}, int64_t{1} << 40))->capture_default_str();
  };
  const auto seconds = [&command](const char* name, double& value, const char* help) {
    command.add_option(name, value, help)->check(CLI::Range(0.05, 1e6))->capture_default_str();
  };
  count("--max-connections", http.connections, "Connections open at once; more get 503");
  count("--max-header", http.header_bytes, "Bytes of a request's header");
  command.add_option("--max-body", options.body, "Size of a body (default: 16MiB)");
  command.add_option("--max-all-bodies", options.all_bodies, "Size of all bodies held at once (default: 256MiB)");
  count("--max-n", request.choices, "Choices of a request");
  count("--max-top-logprobs", request.top_logprobs, "Log probabilities a token");
  count("--max-stops", request.stops, "Stop strings");
  count("--max-stop-bytes", request.stop_bytes, "Bytes of each");
  count("--max-logit-bias", request.logit_biases, "Entries of logit_bias");
  count("--max-tools", request.tools, "Tools");
  count("--max-json-depth", request.json_depth, "Levels of a body's JSON");
  count("--max-schema-bytes", request.schema_bytes, "Bytes of a schema, regex or list of choices");
  count("--max-prompts", request.prompts, "Prompts of a completion request");
  server::ResponseStoreLimits& kept = options.server.responses;
  count("--kept-responses", kept.responses, "Most of /v1/responses to keep; 0: none");
  count("--kept-response-bytes", kept.bytes, "Their memory");
  count("--kept-response-age", kept.age_s, "Seconds until one is forgotten");
  seconds("--header-timeout", options.header_timeout_s, "Seconds for a request's header");
  seconds("--body-timeout", options.body_timeout_s, "Seconds for its body");
  seconds("--idle-timeout", options.idle_timeout_s, "Seconds between requests of a connection");
  seconds("--write-timeout", options.write_timeout_s, "Seconds in which a client must take something");
}

}  // namespace

void add_serve(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("serve", "Serve a checkpoint to OpenAI and Anthropic clients");
  add_run_options(*command, options->run);
  add_next_n_option(*command, options->run);
  add_network_flags(*command, *options);
  add_engine_flags(*command, *options);
  add_limit_flags(*command, *options);
  command->callback([options] { run(*options); });
}

}  // namespace verbatim::cli
