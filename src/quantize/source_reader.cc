#include "quantize/source_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "base/error.h"

namespace verbatim::quantize {

namespace {

constexpr size_t kPieceBytes = 8 << 20;
// Pages already read are given back in steps of this size, so that a long pass does not push others out of memory.
constexpr uint64_t kForgetBytes = 256 << 20;

int open_for_reading(const std::filesystem::path& file, uint64_t& size) {
  const int fd = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat info {};
  if (fd < 0 || ::fstat(fd, &info) != 0) {
    const int saved = errno;
    if (fd >= 0) ::close(fd);
    fail(ErrorKind::kIo, file.string(), "cannot open: {}", std::strerror(saved));
  }
  size = static_cast<uint64_t>(info.st_size);
  ::posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
  return fd;
}

}  // namespace

SourceReader::~SourceReader() {
  if (fd_ >= 0) ::close(fd_);
}

void SourceReader::open(const std::filesystem::path& file) {
  if (fd_ >= 0) {
    ::close(std::exchange(fd_, -1));
  }
  file_ = file;
  fd_ = open_for_reading(file, size_);
  position_ = 0;
  digest_.emplace();
}

void SourceReader::read(const checkpoint::TensorView& tensor, uint64_t offset, std::span<std::byte> out) {
  const std::filesystem::path& file = source_.file_of(tensor.raw);
  if (fd_ < 0 || file != file_) {
    if (fd_ >= 0) finish_file();
    open(file);
  }
  const uint64_t begin = source_.file_offset(tensor) + offset;
  if (begin < position_)
    fail(ErrorKind::kUsage, file_.string(), "byte {} is behind byte {}; expected reads in order", begin, position_);
  skip_to(begin);
  read_on(out);
}

void SourceReader::read_on(std::span<std::byte> out) {
  for (size_t done = 0; done < out.size();) {
    const ssize_t n =
        ::pread(fd_, out.data() + done, std::min(out.size() - done, kPieceBytes), static_cast<off_t>(position_));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail(ErrorKind::kIo, file_.string(), "cannot read at byte {}: {}", position_, std::strerror(errno));
    if (n == 0)
      fail(ErrorKind::kIo, file_.string(), "ends at byte {}; expected {} bytes: it changed while it was read",
           position_, size_);
    digest_->update(out.subspan(done, static_cast<size_t>(n)));
    const uint64_t before = position_;
    position_ += static_cast<uint64_t>(n);
    done += static_cast<size_t>(n);
    if (before / kForgetBytes != position_ / kForgetBytes)
      ::posix_fadvise(fd_, 0, static_cast<off_t>(position_ / kForgetBytes * kForgetBytes), POSIX_FADV_DONTNEED);
  }
  note_end();
}

void SourceReader::skip_to(uint64_t position) {
  std::vector<std::byte> piece;
  while (position_ < position) {
    piece.resize(static_cast<size_t>(std::min<uint64_t>(position - position_, kPieceBytes)));
    read_on(piece);
  }
}

void SourceReader::finish_file() {
  if (fd_ >= 0) skip_to(size_);
}

void SourceReader::note_end() {
  if (position_ != size_ || !digest_) return;
  finished_[file_.filename().string()] = {size_, to_hex(digest_->finish())};
  digest_.reset();
}

FileRecord hash_file(const std::filesystem::path& file) {
  uint64_t size = 0;
  const int fd = open_for_reading(file, size);
  std::vector<std::byte> piece(kPieceBytes);
  Sha256 digest;
  uint64_t position = 0;
  for (;;) {
    const ssize_t n = ::pread(fd, piece.data(), piece.size(), static_cast<off_t>(position));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      const int saved = errno;
      ::close(fd);
      fail(ErrorKind::kIo, file.string(), "cannot read at byte {}: {}", position, std::strerror(saved));
    }
    if (n == 0) break;
    digest.update(std::span(piece).first(static_cast<size_t>(n)));
    position += static_cast<uint64_t>(n);
  }
  ::close(fd);
  return {position, to_hex(digest.finish())};
}

}  // namespace verbatim::quantize
