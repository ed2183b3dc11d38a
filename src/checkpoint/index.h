// model.safetensors.index.json: which shard holds which tensor.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace verbatim::checkpoint {

inline constexpr const char* kIndexName = "model.safetensors.index.json";

struct Index {
  struct Entry {
    std::string tensor;
    uint32_t file = 0;  // into files
  };
  std::vector<std::string> files;      // relative to the index, each once, sorted; none leaves the directory
  std::vector<Entry> entries;          // sorted by tensor, each once
  std::optional<uint64_t> total_size;  // as declared; often wrong in the wild, so nothing relies on it
};

// Throws Error(kFormat). `where` names the file in messages. Members other than weight_map and metadata are skipped.
Index parse_index(std::string_view text, const std::string& where);

// Writes DIRECTORY/model.safetensors.index.json. `weight_map`: tensor name -> file name. Throws Error(kIo).
void write_index(const std::filesystem::path& directory, const std::map<std::string, std::string>& weight_map,
                 uint64_t total_size_bytes);

}  // namespace verbatim::checkpoint
