#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <memory>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "base/thread_pool.h"
#include "cli/commands.h"
#include "cli/source.h"
#include "engine/backend_model.h"
#include "engine/engine.h"
#include "model/glm.h"
#include "ops/devices.h"
#include "server/server.h"

namespace verbatim::cli {
namespace {

struct Options {
  std::string path, precision = "full";
  server::ServerOptions server;
  std::vector<std::string> names;
  int64_t slots = 16, pages = 1024, chunk = 512, snapshot_bytes = 0;
  int64_t drain_s = 60;
  int drafts = 3, threads = 0;
};

// Freed bodies and replies go back to the system: the allocator would otherwise come to keep as much as the largest.
void keep_heap_small() {
  ::mallopt(M_MMAP_THRESHOLD, 1 << 20);
  ::mallopt(M_TRIM_THRESHOLD, 1 << 20);
  ::mallopt(M_ARENA_MAX, 4);
}

void allow_many_files() {
  struct rlimit files {};
  if (::getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < files.rlim_max) {
    files.rlim_cur = files.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &files);
  }
}

server::ServedModel served_model(const Options& options, const model::Config& config, int64_t context) {
  const std::filesystem::path directory = options.path;
  auto tokenizer = text::Tokenizer::load(directory / "tokenizer.json");
  if (tokenizer.size() > config.vocabulary)
    fail(ErrorKind::kFormat, options.path,
         "tokenizer.json has ids up to {}, the model's vocabulary ends at {}; use the tokenizer.json that belongs to "
         "the checkpoint",
         tokenizer.size() - 1, config.vocabulary - 1);
  server::ServedModel model{
      .tokenizer = std::move(tokenizer),
      .chat_template = text::ChatTemplate::load(directory),
      .eos = config.end_tokens,
      .names = options.names,
      .context_tokens = context,
      .created_s = std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
                       .count()};
  if (model.names.empty()) model.names.push_back(std::filesystem::canonical(directory).filename().string());
  return model;
}

void run(const Options& options) {
  keep_heap_small();
  allow_many_files();
  // Taken by sigwait below, so blocked in every thread that is started from here on.
  sigset_t signals;
  sigemptyset(&signals);
  for (const int one : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&signals, one);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);

  const Source source = open_source(options.path, "");
  const int64_t context = std::min(source.config.max_positions, options.pages * ops::kPageTokens - 1);
  server::ServedModel served = served_model(options, source.config, context);  // the cheap refusals first
  ThreadPool pool(options.threads > 0 ? options.threads
                                      : std::max(1, static_cast<int>(std::thread::hardware_concurrency())));
  const auto ops = ops::make_cpu_ops(pool);
  const model::Model model =
      model::load_model(source.checkpoint, source.config,
                        options.precision == "checkpoint" ? model::Precision::kCheckpoint : model::Precision::kFull, 1);
  engine::BackendModel backend(*ops, model,
                               {.max_rows = options.chunk,
                                .slots = options.slots,
                                .pages = options.pages,
                                .vocabulary_limit = served.tokenizer.size()});
  engine::Engine engine(backend, {.drafts = options.drafts, .snapshot_bytes = options.snapshot_bytes});
  const std::string name = served.names.front();
  server::Server server(std::move(served), engine, options.server);

  const std::string& host = options.server.http.host;
  log_info("{}: {} on {}; {} sequences at once, context {} tokens", options.path, name, ops->name(), options.slots,
           context);
  if (!server.keys().are_required() && host != "127.0.0.1" && host != "localhost" && host != "::1")
    log_warning("open to the network without keys; give --api-key-file, or --host 127.0.0.1");
  log_info("OpenAI clients: base_url http://{}:{}/v1, model {}", host, server.port(), name);

  for (int signal = 0;;) {
    sigwait(&signals, &signal);
    if (signal == SIGHUP) {
      server.reload_keys();
      continue;
    }
    break;
  }
  log_info("draining: running replies may finish within {} s", options.drain_s);
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);  // a second signal ends the program at once
  if (!server.drain(std::chrono::seconds(options.drain_s))) log_warning("some replies had not finished");
}

}  // namespace

void add_serve(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("serve", "Serve a checkpoint to OpenAI and Anthropic clients");
  command->add_option("directory", options->path, "Checkpoint directory, with tokenizer.json and its chat template")
      ->required();
  command->add_option("--host", options->server.http.host, "Address to listen on")->capture_default_str();
  options->server.http.port = 8080;
  command->add_option("--port", options->server.http.port, "Port; 0: any free one")->capture_default_str();
  command->add_option("--served-name", options->names,
                      "Model name; further ones are aliases (default: the directory's)");
  command->add_option("--api-key-file", options->server.api_key_file, "One key a line; read again on SIGHUP");
  command->add_option("--served-host", options->server.access.served_hosts, "Further Host names it is asked by");
  command->add_option("--cors", options->server.access.cors_origins, "Origins whose pages may use it");
  command->add_option("--slots", options->slots, "Sequences at once")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command->add_option("--pages", options->pages, "Pages of 64 tokens")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30))
      ->capture_default_str();
  command->add_option("--drafts", options->drafts, "Most drafts a step")
      ->check(CLI::Range(0, 7))
      ->capture_default_str();
  command->add_option("--chunk", options->chunk, "Rows of a step")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--threads", options->threads, "Threads (default: all cores)")->check(CLI::Range(1, 4096));
  command->add_option("--precision", options->precision, "full: W4A16; checkpoint: the checkpoint's own math")
      ->check(CLI::IsMember({"full", "checkpoint"}))
      ->capture_default_str();
  command->callback([options] { run(*options); });
}

}  // namespace verbatim::cli
