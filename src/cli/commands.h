// The subcommands. Each registers itself with its options; its callback does the work and throws Error on failure.
#pragma once

#include <CLI/CLI.hpp>

namespace verbatim::cli {

void add_version(CLI::App& app);

}  // namespace verbatim::cli
