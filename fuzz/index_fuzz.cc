// model.safetensors.index.json and inventories: any bytes either parse or are refused by Error; no file name that was
// accepted leaves the directory.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string_view>

#include "base/error.h"
#include "checkpoint/index.h"
#include "checkpoint/inventory.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace verbatim;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const checkpoint::Index index = checkpoint::parse_index(text, "fuzz");
    for (const checkpoint::Index::Entry& entry : index.entries)
      if (entry.file >= index.files.size()) std::abort();
    for (size_t i = 1; i < index.entries.size(); ++i)
      if (index.entries[i - 1].tensor >= index.entries[i].tensor) std::abort();
    for (const std::string& file : index.files) {
      const std::filesystem::path inside = (std::filesystem::path("/checkpoint") / file).lexically_normal();
      if (file.empty() || inside.string().rfind("/checkpoint", 0) != 0) std::abort();
    }
  } catch (const Error&) {
  }
  try {
    for (const checkpoint::InventoryTensor& tensor : checkpoint::parse_inventory(text, "fuzz"))
      if (checkpoint::checked_bytes(tensor.dtype, tensor.shape) != tensor.bytes) std::abort();
  } catch (const Error&) {
  }
  return 0;
}
