#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "base/sha256.h"
#include "checkpoint/quote_name.h"
#include "checkpoint/safetensors.h"

namespace verbatim::checkpoint {

namespace {

// `text` as a JSON string. Throws Error(kUsage) if it is not UTF-8.
std::string json_string(const std::string& text, const std::string& where) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    fail(ErrorKind::kUsage, where, "the name {} is not UTF-8", quote_name(text));
  }
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(std::filesystem::path path, std::vector<TensorSpec> tensors,
                                     const std::map<std::string, std::string>& metadata, WriterOptions options)
    : path_(std::move(path)),
      partial_(path_.string() + ".partial"),
      tensors_(std::move(tensors)),
      digest_(options.digest) {
  const std::string where = path_.string();
  std::string header = "{";
  if (!metadata.empty()) {
    header += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) header += json_string(key, where) + ":" + json_string(value, where) + ",";
    header.back() = '}';
    header += ',';
  }
  std::unordered_set<std::string_view> names;
  for (const TensorSpec& tensor : tensors_) {
    if (tensor.name == "__metadata__" || !names.insert(tensor.name).second)
      fail(ErrorKind::kUsage, where, "tensor {}: {}; expected each name once", quote_name(tensor.name),
           tensor.name == "__metadata__" ? "a reserved name" : "declared twice");
    const std::optional<uint64_t> bytes = checked_bytes(tensor.dtype, tensor.shape);
    if (!bytes || payload_bytes_ + *bytes > (uint64_t{1} << 62))
      fail(ErrorKind::kUsage, where,
           "tensor {}: shape {} of {} is impossible; expected dimensions >= 0 and a file below 2^62 bytes",
           quote_name(tensor.name), tensor.shape.text(), dtype_name(tensor.dtype));
    header +=
        fmt::format("{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}},", json_string(tensor.name, where),
                    dtype_name(tensor.dtype), fmt::join(tensor.shape.begin(), tensor.shape.end(), ","), payload_bytes_,
                    payload_bytes_ + *bytes);
    payload_bytes_ += *bytes;
  }
  if (header.back() == ',')
    header.back() = '}';
  else
    header += '}';
  while (header.size() % 8 != options.data_begin_modulo_8 % 8) header += ' ';
  if (header.size() > kMaxHeaderBytes)
    fail(ErrorKind::kUsage, where,
         "{} tensors need a header of {} bytes; expected at most {}; write more than one file", tensors_.size(),
         header.size(), kMaxHeaderBytes);

  fd_ = ::open(partial_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd_ < 0) give_up("cannot create");
  std::byte length[8];
  for (size_t i = 0; i < 8; ++i) length[i] = static_cast<std::byte>(header.size() >> (8 * i));
  write(length);
  write(std::as_bytes(std::span(header)));
}

SafetensorsWriter::~SafetensorsWriter() { discard(); }

void SafetensorsWriter::append(std::span<const std::byte> bytes) {
  if (fd_ < 0) fail(ErrorKind::kUsage, path_.string(), "append after the end; the file is finished or was given up");
  if (bytes.size() > payload_bytes_ - appended_bytes_) {
    const uint64_t appended = appended_bytes_;
    discard();
    fail(ErrorKind::kUsage, path_.string(), "{} bytes after the first {}; expected {} for {} tensors", bytes.size(),
         appended, payload_bytes_, tensors_.size());
  }
  write(bytes);
  appended_bytes_ += bytes.size();
}

void SafetensorsWriter::finish() {
  if (fd_ < 0) fail(ErrorKind::kUsage, path_.string(), "finished twice, or after it was given up");
  if (appended_bytes_ != payload_bytes_) {
    uint64_t end = 0;
    const auto cut = std::find_if(tensors_.begin(), tensors_.end(), [&](const TensorSpec& tensor) {
      end += *checked_bytes(tensor.dtype, tensor.shape);
      return end > appended_bytes_;
    });
    const std::string name = quote_name(cut->name);
    discard();
    fail(ErrorKind::kUsage, path_.string(), "tensor {}: incomplete, {} bytes were written; expected {} in all", name,
         appended_bytes_, payload_bytes_);
  }
  if (::fsync(fd_) != 0) give_up("cannot sync");
  if (::close(std::exchange(fd_, -1)) != 0) give_up("cannot close");
  if (::rename(partial_.c_str(), path_.c_str()) != 0) give_up("cannot rename into place");
  // The rename itself is durable once the directory is; a file system that cannot sync one is not an error.
  const std::filesystem::path directory = path_.has_parent_path() ? path_.parent_path() : ".";
  const int directory_fd = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory_fd >= 0) {
    ::fsync(directory_fd);
    ::close(directory_fd);
  }
}

void SafetensorsWriter::write(std::span<const std::byte> bytes) {
  if (digest_ != nullptr) digest_->update(bytes);
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd_, bytes.data(), bytes.size());
    if (written < 0 && errno != EINTR) give_up("cannot write");
    if (written > 0) bytes = bytes.subspan(static_cast<size_t>(written));
  }
}

void SafetensorsWriter::give_up(const char* what) {
  const int saved = errno;
  discard();
  ::unlink(partial_.c_str());
  fail(ErrorKind::kIo, path_.string(), "{}: {}; the partial file was removed", what, std::strerror(saved));
}

void SafetensorsWriter::discard() {
  if (fd_ < 0) return;
  ::close(std::exchange(fd_, -1));
  ::unlink(partial_.c_str());
}

}  // namespace verbatim::checkpoint
