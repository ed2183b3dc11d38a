// A file read from front to back by read calls: a failing disk is an error, not a fault.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

namespace verbatim {

class FileReader {
 public:
  // Of a read call, for callers that choose their own buffers.
  static constexpr size_t kPieceBytes = 8 << 20;

  // Throws Error(kIo).
  explicit FileReader(const std::filesystem::path& path);
  ~FileReader();
  FileReader(const FileReader&) = delete;
  FileReader& operator=(const FileReader&) = delete;

  // The next bytes of the file, as many as one call gives (0 only at its end). Throws Error(kIo).
  size_t read(std::span<std::byte> out);
  // Lets the system drop what has been read from memory, so that a long pass does not push others out. Cheap: it asks
  // in large steps.
  void drop_behind();

  const std::filesystem::path& path() const { return path_; }
  uint64_t position() const { return position_; }
  uint64_t size() const { return size_; }  // when it was opened

 private:
  std::filesystem::path path_;
  int fd_;
  uint64_t position_ = 0, size_ = 0, dropped_ = 0;
};

// Asks the system to drop a file from memory, written back first. Pages that a process has mapped stay, and a file
// system in memory keeps all. Throws Error(kIo) if the file cannot be opened.
void drop_cached_pages(const std::filesystem::path& path);

// How much of a file the system holds in memory, in whole pages. It may say all for a file that is not the caller's.
// Throws Error(kIo).
uint64_t cached_bytes(const std::filesystem::path& path);

}  // namespace verbatim
