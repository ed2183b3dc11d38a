// An inventory: {name: [dtype, shape]} as .json or .json.gz, without data.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/dtype.h"

namespace verbatim::checkpoint {

struct InventoryTensor {
  std::string name;
  DType dtype = DType::kU8;
  Shape shape;
  uint64_t bytes = 0;
};

// In the order of the text. Throws Error(kFormat) naming the tensor.
std::vector<InventoryTensor> parse_inventory(std::string_view text, const std::string& where);

// Reads and, if it begins with gzip's magic bytes, inflates first. Throws Error(kIo) and what the above throws.
std::vector<InventoryTensor> read_inventory(const std::filesystem::path& path);

}  // namespace verbatim::checkpoint
