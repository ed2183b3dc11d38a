#include <fmt/core.h>

#include <cstdio>

#include "cli/commands.h"
#include "ops/devices.h"

namespace verbatim::cli {

void add_version(CLI::App& app) {
  app.add_subcommand("version", "Print the version and what this build can run on")->callback([] {
    fmt::print("verbatim {}\n", VERBATIM_VERSION);
    fmt::print("cpu   built\n");
    fmt::print("cuda  {}\n", ops::cuda_is_built() ? "built" : "not built");
    for (const ops::Device& device : ops::cuda_devices())
      fmt::print("      {} (sm_{}{}), {:.1f} GiB\n", device.name, device.compute_major, device.compute_minor,
                 static_cast<double>(device.memory_bytes) / 0x1p30);
  });
}

}  // namespace verbatim::cli
