// The subcommands. Each registers itself with its options; its callback does the work and throws Error on failure.
#pragma once

#include <CLI/CLI.hpp>

namespace verbatim::cli {

void add_bench(CLI::App& app);
void add_calibration(CLI::App& app);
void add_convert(CLI::App& app);
void add_generate(CLI::App& app);
void add_inspect(CLI::App& app);
void add_plan(CLI::App& app);
void add_synth(CLI::App& app);
void add_verify(CLI::App& app);
void add_version(CLI::App& app);
void add_chat(CLI::App& app);
void add_compare(CLI::App& app);
void add_render(CLI::App& app);
void add_serve(CLI::App& app);
void add_soak(CLI::App& app);
void add_tokenize(CLI::App& app);
void add_text_commands(CLI::App& app);  // those that need verbatim_text; none with VERBATIM_CORE_ONLY

}  // namespace verbatim::cli
