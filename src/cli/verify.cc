#include "quantize/verify.h"

#include <fmt/core.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/error.h"
#include "base/thread_pool.h"
#include "cli/commands.h"

namespace verbatim::cli {

namespace {

struct Options {
  std::string path;
  int threads = 0;
  bool json = false;
};

void print(const Options& options, const quantize::Verification& result) {
  if (options.json) {
    nlohmann::ordered_json out;
    out["files"] = result.files;
    out["bytes"] = result.bytes;
    out["matrices"] = result.matrices;
    out["scales"] = result.scales;
    out["problems"] = result.problems;
    fmt::print("{}\n", out.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
    return;
  }
  fmt::print("{} files, {} bytes hashed; {} scales of {} matrices read\n", result.files, result.bytes, result.scales,
             result.matrices);
  for (const std::string& problem : result.problems) fmt::print("  problem: {}\n", problem);
  if (result.problems.empty()) fmt::print("every hash is the manifest's; every scale is finite and above 0\n");
}

}  // namespace

void add_verify(CLI::App& app) {
  const auto options = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("verify", "Check a converted checkpoint against its manifest; exit 1 if it has problems");
  command->add_option("directory", options->path, "What convert wrote")->required();
  command->add_option("--threads", options->threads, "Threads (default: all cores)")->check(CLI::Range(1, 4096));
  command->add_flag("--json", options->json, "Print JSON");
  command->callback([options] {
    ThreadPool pool(options->threads > 0 ? options->threads
                                         : std::max(1, static_cast<int>(std::thread::hardware_concurrency())));
    const quantize::Verification result = quantize::verify_conversion(options->path, pool);
    print(*options, result);
    std::fflush(stdout);
    if (!result.problems.empty())
      fail(ErrorKind::kFormat, options->path, "{} problems; see the list", result.problems.size());
  });
}

}  // namespace verbatim::cli
