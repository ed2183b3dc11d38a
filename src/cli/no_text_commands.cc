#include "cli/commands.h"

namespace verbatim::cli {

void add_text_commands(CLI::App&) {}

}  // namespace verbatim::cli
