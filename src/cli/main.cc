#include <cstdio>
#include <exception>

#include "base/error.h"
#include "cli/commands.h"

// Exit code: 0 success, 2 wrong usage, 1 anything else.
int main(int argc, char** argv) {
  using namespace verbatim;
  CLI::App app("Reads GLM-5.3-Flash checkpoints as stored, and runs them with one result.", "verbatim");
  app.require_subcommand(1);
  app.failure_message(CLI::FailureMessage::simple);
  cli::add_bench(app);
  cli::add_calibration(app);
  cli::add_convert(app);
  cli::add_generate(app);
  cli::add_inspect(app);
  cli::add_plan(app);
  cli::add_synth(app);
  cli::add_verify(app);
  cli::add_version(app);
  cli::add_text_commands(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const Error& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return error.kind() == ErrorKind::kUsage ? 2 : 1;
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 1;
  }
  return 0;
}
