// Whether a converted checkpoint still is what its manifest says.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace verbatim {
class ThreadPool;
}

namespace verbatim::quantize {

struct Verification {
  uint64_t files = 0, bytes = 0;      // hashed
  uint64_t matrices = 0, scales = 0;  // of which every scale was read
  std::vector<std::string> problems;  // the first ones, each naming its file or tensor
};

// Hashes every file that the directory's conversion_manifest.json lists, looks for shards that it does not list, then
// reads every scale: weight_scale, weight_scale_2 and input_scale must be finite and above 0. Throws Error(kIo) when
// there is no manifest, Error(kFormat) when it is damaged, and what opening the checkpoint throws.
Verification verify_conversion(const std::filesystem::path& directory, ThreadPool& pool);

}  // namespace verbatim::quantize
