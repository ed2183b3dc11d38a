#include "base/file_reader.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "base/mapped_file.h"

namespace verbatim {

namespace {

constexpr uint64_t kDropBytes = 256 << 20;

}  // namespace

FileReader::FileReader(const std::filesystem::path& path)
    : path_(path), fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
  struct stat info {};
  if (fd_ < 0 || ::fstat(fd_, &info) != 0) {
    const int saved = errno;
    if (fd_ >= 0) ::close(fd_);
    fail(ErrorKind::kIo, path.string(), "cannot open: {}", std::strerror(saved));
  }
  size_ = static_cast<uint64_t>(info.st_size);
  ::posix_fadvise(fd_, 0, 0, POSIX_FADV_SEQUENTIAL);
}

FileReader::~FileReader() { ::close(fd_); }

size_t FileReader::read(std::span<std::byte> out) {
  for (;;) {
    const ssize_t n = ::pread(fd_, out.data(), std::min(out.size(), kPieceBytes), static_cast<off_t>(position_));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail(ErrorKind::kIo, path_.string(), "cannot read at byte {}: {}", position_, std::strerror(errno));
    position_ += static_cast<uint64_t>(n);
    return static_cast<size_t>(n);
  }
}

void FileReader::drop_behind() {
  if (position_ / kDropBytes == dropped_) return;
  dropped_ = position_ / kDropBytes;
  ::posix_fadvise(fd_, 0, static_cast<off_t>(dropped_ * kDropBytes), POSIX_FADV_DONTNEED);
}

void drop_cached_pages(const std::filesystem::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) fail(ErrorKind::kIo, path.string(), "cannot open: {}", std::strerror(errno));
  // Advice: cached_bytes() tells what the system made of it.
  ::fdatasync(fd);
  ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  ::close(fd);
}

uint64_t cached_bytes(const std::filesystem::path& path) {
  const MappedFile file(path);
  if (file.size() == 0) return 0;
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> pages((file.size() + page - 1) / page);
  if (::mincore(const_cast<std::byte*>(file.bytes().data()), file.size(), pages.data()) != 0)
    fail(ErrorKind::kIo, path.string(), "mincore: {}", std::strerror(errno));
  const auto held = std::count_if(pages.begin(), pages.end(), [](unsigned char each) { return (each & 1) != 0; });
  return std::min<uint64_t>(static_cast<uint64_t>(held) * page, file.size());
}

}  // namespace verbatim
