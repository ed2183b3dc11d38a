// Reads a checkpoint's files from front to back, once, by read calls (a failing disk is an error, not a fault), and
// hashes them on the way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "base/file_reader.h"
#include "base/sha256.h"
#include "checkpoint/checkpoint.h"

namespace verbatim::quantize {

struct FileRecord {
  uint64_t bytes = 0;
  std::string sha256;
  bool operator==(const FileRecord&) const = default;
};

class SourceReader {
 public:
  explicit SourceReader(const checkpoint::Checkpoint& source) : source_(source) {}
  SourceReader(const SourceReader&) = delete;
  SourceReader& operator=(const SourceReader&) = delete;

  // Bytes [offset, offset + out.size()) of a tensor. Calls go forward through each file, and a file is left for good.
  // What is skipped is read too, for its hash. Throws Error(kIo) when the system fails or the file ends early.
  void read(const checkpoint::TensorView& tensor, uint64_t offset, std::span<std::byte> out);

  // Reads what is left of the current file. Afterwards finished() has it.
  void finish_file();

  // Files read to their end so far, by name.
  const std::map<std::string, FileRecord>& finished() const { return finished_; }

 private:
  void open(const std::filesystem::path& file);
  void read_on(std::span<std::byte> out);
  void skip_to(uint64_t position);
  void note_end();

  const checkpoint::Checkpoint& source_;
  std::optional<FileReader> file_;
  std::optional<Sha256> digest_;
  std::map<std::string, FileRecord> finished_;
};

// Size and SHA-256 of a whole file, read in pieces. Throws Error(kIo).
FileRecord hash_file(const std::filesystem::path& path);

}  // namespace verbatim::quantize
