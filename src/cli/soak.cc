#include "evaluate/soak.h"

#include <cstdio>
#include <filesystem>
#include <memory>

#include "base/error.h"
#include "cli/commands.h"

namespace verbatim::cli {

void add_soak(CLI::App& app) {
  struct Options {
    evaluate::SoakOptions soak;
    bool json = false;
  };
  auto options = std::make_shared<Options>();
  evaluate::SoakOptions& soak = options->soak;
  CLI::App* command = app.add_subcommand(
      "soak", "Load a running server with mixed requests and check each reply against its own alone");
  command->add_option("url", soak.url, "The server, as http://HOST:PORT")->required();
  command->add_option("--key", soak.key, "API key");
  command->add_option("--seconds", soak.seconds, "Of load; requests begun before its end run to theirs")
      ->check(CLI::Range(0.1, 1e7))
      ->capture_default_str();
  command->add_option("--requests", soak.requests, "End the load after so many; 0: by time alone")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40))
      ->capture_default_str();
  command->add_option("--concurrency", soak.concurrency, "Clients, each with one request at a time")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command->add_option("--seed", soak.seed, "Of the requests")->capture_default_str();
  command->add_option("--cases", soak.cases, "Requests run alone before the load and drawn from during it")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  command->add_option("--fresh", soak.fresh, "Most requests made once, run alone after the load")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 20))
      ->capture_default_str();
  command->add_option("--prompt-words", soak.prompt_words, "Of the longest prompts")
      ->check(CLI::Range(int64_t{8}, int64_t{1} << 22))
      ->capture_default_str();
  command->add_option("--reply-tokens", soak.reply_tokens, "Of the longest replies")
      ->check(CLI::Range(int64_t{4}, int64_t{1} << 22))
      ->capture_default_str();
  command->add_option("--warm-up", soak.warm_up_s, "Seconds until memory counts (default: a tenth of --seconds)")
      ->check(CLI::Range(0.0, 1e7));
  command->add_option("--silence", soak.silence_s, "Seconds without a byte after which a request counts as lost")
      ->check(CLI::Range(0.1, 1e6))
      ->capture_default_str();
  command->add_flag("--json", options->json, "Print JSON");
  command->callback([options] {
    const evaluate::SoakReport report =
        evaluate::soak(options->soak, [](const std::string& line) { fmt::print(stderr, "{}\n", line); });
    if (options->json) {
      fmt::print("{}\n", evaluate::soak_json(options->soak, report));
    } else {
      fmt::print("{}", evaluate::soak_table(report));
    }
    if (!report.is_clean())
      fail(ErrorKind::kFormat, "soak",
           "{} wrong, {} lost, {} not checked, {} completed; expected all completed and right", report.wrong,
           report.lost, report.unchecked, report.completed);
  });
}

}  // namespace verbatim::cli
