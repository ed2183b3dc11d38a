// Serves a ScriptedModel for the client tests: prints the port, and ends when its standard input does.
//   scripted_server [--keys FILE] [--context TOKENS] [--step-ms MS]
#include <CLI/CLI.hpp>
#include <cstdio>

#include "tests/server/protocols/scripted_server.h"

int main(int argc, char** argv) {
  using namespace verbatim::server;
  ScriptedOptions options;
  options.model.certainty = 60;  // says its text at any temperature
  double step_ms = 0;
  CLI::App app("Serves a model that says what it is asked to say");
  app.add_option("--keys", options.server.api_key_file, "API keys");
  app.add_option("--context", options.context_tokens, "Most tokens of a prompt and its reply");
  app.add_option("--step-ms", step_ms, "Time of a step");
  CLI11_PARSE(app, argc, argv);
  options.model.step_s = step_ms / 1e3;
  ScriptedServer server(options);
  std::printf("%s\n", server.url().c_str());
  std::fflush(stdout);
  while (std::getchar() != EOF) continue;
  return 0;
}
