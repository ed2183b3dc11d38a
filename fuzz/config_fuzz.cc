// config.json and generation_config.json: any bytes either parse or are refused by Error, and what parses is sane.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "model/config.h"
#include "model/glm.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace verbatim;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    model::Config config = model::parse_config(text, "config.json");
    // Sizes that were accepted may not overflow what is computed from them.
    if (config.layers < 1 || static_cast<int64_t>(config.mixers.size()) != config.layers ||
        static_cast<int64_t>(config.ffns.size()) != config.layers || model::state_sizes(config, 4).page_bytes < 0 ||
        model::Workspace::bytes(config, 1) < 0)
      std::abort();
    model::apply_generation_config(config, text, "generation_config.json");
  } catch (const Error&) {
  }
  return 0;
}
