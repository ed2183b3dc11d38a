#include "quantize/journal.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/mapped_file.h"

namespace verbatim::quantize {

namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxJournalBytes = 64 << 20;
constexpr const char* kJournalFormat = "verbatim-conversion-journal-1";

}  // namespace

Journal::Journal(const std::filesystem::path& directory, const std::string& identity, bool resume)
    : directory_(directory), path_(directory / kJournalName) {
  fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd_ < 0) fail(ErrorKind::kIo, path_.string(), "cannot create: {}", std::strerror(errno));
  auto give_up = [&](const Error& error) {
    ::close(std::exchange(fd_, -1));
    throw error;
  };
  if (::flock(fd_, LOCK_EX | LOCK_NB) != 0)
    give_up(
        Error(ErrorKind::kIo,
              fmt::format("[{}] another conversion holds it; expected to be alone in this directory", path_.string())));
  try {
    const std::string text = read_text_file(path_, kMaxJournalBytes);
    if (resume) read_lines(text, identity);
    // What is kept is written anew, so that nothing cut short stays in it.
    if (::ftruncate(fd_, 0) != 0) fail(ErrorKind::kIo, path_.string(), "cannot truncate: {}", std::strerror(errno));
    std::string kept = Json({{"format", kJournalFormat}, {"identity", identity}}).dump() + "\n";
    for (const ShardRecord& record : done_) kept += to_json(record).dump() + "\n";
    write_line(kept);
  } catch (const Error& error) {
    give_up(error);
  }
}

Journal::~Journal() {
  if (fd_ >= 0) ::close(fd_);
}

void Journal::read_lines(const std::string& text, const std::string& identity) {
  bool first = true;
  for (size_t at = 0, end; (end = text.find('\n', at)) != std::string::npos; at = end + 1) {
    const Json line = Json::parse(text.begin() + static_cast<std::ptrdiff_t>(at),
                                  text.begin() + static_cast<std::ptrdiff_t>(end), nullptr, false);
    if (std::exchange(first, false)) {
      if (line.is_discarded() || !line.is_object() || line.value("format", "") != kJournalFormat) return;
      if (line.value("identity", "") != identity)
        fail(ErrorKind::kUsage, path_.string(),
             "begun with another source, recipe, calibration or version; expected the same; convert to another "
             "directory");
      continue;
    }
    try {
      ShardRecord record = shard_record_from(line);
      std::error_code error;
      if (std::filesystem::file_size(directory_ / record.file, error) != record.written.bytes || error) return;
      done_.push_back(std::move(record));
    } catch (const Json::exception&) {
      return;  // damaged from here on: those shards are made again
    }
  }
}

void Journal::append(const ShardRecord& record) {
  write_line(to_json(record).dump() + "\n");
  done_.push_back(record);
}

void Journal::write_line(const std::string& line) {
  for (size_t done = 0; done < line.size();) {
    const ssize_t n = ::write(fd_, line.data() + done, line.size() - done);
    if (n < 0 && errno != EINTR) fail(ErrorKind::kIo, path_.string(), "cannot write: {}", std::strerror(errno));
    if (n > 0) done += static_cast<size_t>(n);
  }
  if (::fsync(fd_) != 0) fail(ErrorKind::kIo, path_.string(), "cannot sync: {}", std::strerror(errno));
}

void Journal::remove() {
  if (::unlink(path_.c_str()) != 0) fail(ErrorKind::kIo, path_.string(), "cannot remove: {}", std::strerror(errno));
}

}  // namespace verbatim::quantize
