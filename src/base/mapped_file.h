// A file mapped read-only. The mapping outlives every pointer handed out; moving keeps addresses.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace verbatim {

class MappedFile {
 public:
  MappedFile() = default;
  // Throws Error(kIo) if the file cannot be opened, is not a regular file or cannot be mapped. Empty files map to
  // nothing.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  size_t size() const { return size_; }

  // Bytes from `offset` on by read calls: a failing disk is an error, not a fault. Throws Error(kIo), also where the
  // file ends before `out` is full.
  void read(size_t offset, std::span<std::byte> out) const;

  // Lets the system drop the whole pages of [offset, offset + bytes) from memory, its cache of the file included. They
  // stay readable: a later touch reads the file again.
  void release(size_t offset, size_t bytes) const;

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  int fd_ = -1;
  std::string path_;
};

// A whole small text file. Throws Error(kIo) if it cannot be read, Error(kFormat) if larger than `limit_bytes`.
std::string read_text_file(const std::filesystem::path& path, size_t limit_bytes);

// Writes to a temporary name beside `path`, syncs and renames: a reader never sees half a file. Throws Error(kIo).
void write_file_atomically(const std::filesystem::path& path, std::string_view contents);

}  // namespace verbatim
