#include "server/keys.h"

#include <sys/stat.h>

#include <set>
#include <span>

#include "base/error.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "base/sha256.h"

namespace verbatim::server {
namespace {

constexpr size_t kLeastBytes = 8;

std::array<uint8_t, 32> digest_of(std::string_view text) {
  Sha256 hash;
  hash.update(std::as_bytes(std::span(text)));
  return hash.finish();
}

// Looks at every byte, whatever the first ones say.
bool equal_in_constant_time(const std::array<uint8_t, 32>& a, const std::array<uint8_t, 32>& b) {
  volatile uint8_t difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference = difference | (a[i] ^ b[i]);
  return difference == 0;
}

}  // namespace

ApiKeys::ApiKeys(std::filesystem::path file) : file_(std::move(file)), keys_(read(file_)) {}

std::vector<ApiKeys::Key> ApiKeys::read(const std::filesystem::path& file) {
  const std::string text = read_text_file(file, 1 << 20);
  struct stat status {};
  if (::stat(file.c_str(), &status) == 0 && (status.st_mode & S_IROTH) != 0)
    log_warning("[{}] every user of this machine can read the API keys; chmod 600 it", file.string());
  std::vector<Key> keys;
  std::set<std::string> names;
  size_t number = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = std::string_view(text).substr(at, end - at);
    at = end + 1;
    ++number;
    const size_t first = line.find_first_not_of(" \t\r");
    if (first == std::string_view::npos || line[first] == '#') continue;
    line = line.substr(first, line.find_last_not_of(" \t\r") - first + 1);
    const size_t space = line.find_first_of(" \t");
    std::string name =
        space == std::string_view::npos ? fmt::format("key{}", keys.size() + 1) : std::string(line.substr(0, space));
    const std::string_view key =
        space == std::string_view::npos ? line : line.substr(line.find_first_not_of(" \t", space));
    if (key.find_first_of(" \t") != std::string_view::npos)
      fail(ErrorKind::kFormat, file.string(), "line {}: more than two words; expected KEY or NAME KEY", number);
    if (key.size() < kLeastBytes)
      fail(ErrorKind::kFormat, file.string(), "line {}: a key of {} bytes; expected at least {}", number, key.size(),
           kLeastBytes);
    if (!names.insert(name).second)
      fail(ErrorKind::kFormat, file.string(), "line {}: the name {} is there twice", number, name);
    keys.push_back({std::move(name), digest_of(key)});
  }
  if (keys.empty()) fail(ErrorKind::kFormat, file.string(), "no key in it; expected one a line");
  return keys;
}

std::optional<std::string> ApiKeys::find(std::string_view presented) const {
  const std::array<uint8_t, 32> digest = digest_of(presented);
  const std::lock_guard lock(mutex_);
  const Key* found = nullptr;
  for (const Key& key : keys_)
    if (equal_in_constant_time(key.digest, digest)) found = &key;
  if (found == nullptr) return std::nullopt;
  return found->name;
}

void ApiKeys::reload() {
  std::vector<Key> fresh = read(file_);
  const std::lock_guard lock(mutex_);
  keys_ = std::move(fresh);
}

size_t ApiKeys::size() const {
  const std::lock_guard lock(mutex_);
  return keys_.size();
}

}  // namespace verbatim::server
