#include "cli/commands.h"

namespace verbatim::cli {

void add_text_commands(CLI::App& app) {
  add_chat(app);
  add_compare(app);
  add_serve(app);
  add_render(app);
  add_soak(app);
  add_tokenize(app);
}

}  // namespace verbatim::cli
