#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace verbatim {

namespace {

// Closes a file descriptor at the end of a scope.
struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path.string()) {
  Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.fd < 0) fail(ErrorKind::kIo, path.string(), "cannot open: {}", std::strerror(errno));
  struct stat info {};
  if (::fstat(file.fd, &info) != 0) fail(ErrorKind::kIo, path.string(), "cannot stat: {}", std::strerror(errno));
  if (!S_ISREG(info.st_mode)) fail(ErrorKind::kIo, path.string(), "not a regular file");
  size_ = static_cast<size_t>(info.st_size);
  if (size_ == 0) return;
  void* address = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (address == MAP_FAILED)
    fail(ErrorKind::kIo, path.string(), "cannot map {} bytes: {}", size_, std::strerror(errno));
  data_ = static_cast<const std::byte*>(address);
  fd_ = std::exchange(file.fd, -1);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
  if (fd_ >= 0) ::close(fd_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      fd_(std::exchange(other.fd_, -1)),
      path_(std::move(other.path_)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(fd_, other.fd_);
  std::swap(path_, other.path_);
  return *this;
}

void MappedFile::read(size_t offset, std::span<std::byte> out) const {
  for (size_t done = 0; done < out.size();) {
    const ssize_t n = ::pread(fd_, out.data() + done, out.size() - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail(ErrorKind::kIo, path_, "cannot read at byte {}: {}", offset + done, std::strerror(errno));
    if (n == 0) fail(ErrorKind::kIo, path_, "ends at byte {}; it was longer when it was opened", offset + done);
    done += static_cast<size_t>(n);
  }
}

void MappedFile::release(size_t offset, size_t bytes) const {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t begin = (offset + page - 1) / page * page;
  const size_t end = std::min(offset + bytes, size_) / page * page;
  if (begin >= end) return;
  // Advice: what the system makes of it changes no byte. Pages that are mapped stay in its cache, so these come first.
  ::madvise(const_cast<std::byte*>(data_) + begin, end - begin, MADV_DONTNEED);
  ::posix_fadvise(fd_, static_cast<off_t>(begin), static_cast<off_t>(end - begin), POSIX_FADV_DONTNEED);
}

std::string read_text_file(const std::filesystem::path& path, size_t limit_bytes) {
  const MappedFile file(path);
  if (file.size() > limit_bytes)
    fail(ErrorKind::kFormat, path.string(), "{} bytes; expected at most {}", file.size(), limit_bytes);
  return {reinterpret_cast<const char*>(file.bytes().data()), file.size()};
}

void write_file_atomically(const std::filesystem::path& path, std::string_view contents) {
  const std::filesystem::path temporary = path.string() + ".partial";
  auto give_up = [&](const char* what) {
    const int saved = errno;
    ::unlink(temporary.c_str());
    fail(ErrorKind::kIo, path.string(), "{}: {}", what, std::strerror(saved));
  };
  {
    const Descriptor file{::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)};
    if (file.fd < 0) give_up("cannot create");
    for (size_t done = 0; done < contents.size();) {
      const ssize_t n = ::write(file.fd, contents.data() + done, contents.size() - done);
      if (n < 0 && errno != EINTR) give_up("cannot write");
      if (n > 0) done += static_cast<size_t>(n);
    }
    if (::fsync(file.fd) != 0) give_up("cannot sync");
  }
  if (::rename(temporary.c_str(), path.c_str()) != 0) give_up("cannot rename into place");
}

}  // namespace verbatim
