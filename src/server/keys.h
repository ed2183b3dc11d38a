// API keys from a file.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace verbatim::server {

// One key a line, "KEY" or "NAME KEY"; blank lines and lines that begin with # count for nothing. The name stands in
// logs and owns what is stored (default: key1, key2, ... by line). May be used from any thread.
class ApiKeys {
 public:
  // No keys: everybody may do everything.
  ApiKeys() = default;
  // Throws Error: kIo, kFormat (no key in it, a key shorter than 8 bytes, a name twice).
  explicit ApiKeys(std::filesystem::path file);

  bool are_required() const { return !file_.empty(); }
  // The name of the key; none if it is not one. Takes the same time whatever is wrong with it.
  std::optional<std::string> find(std::string_view presented) const;
  // Reads the file again. Throws as the constructor does, and then keeps the keys it had.
  void reload();
  size_t size() const;

 private:
  struct Key {
    std::string name;
    std::array<uint8_t, 32> digest;  // SHA-256: all of one length
  };
  static std::vector<Key> read(const std::filesystem::path& file);

  const std::filesystem::path file_;
  mutable std::mutex mutex_;
  std::vector<Key> keys_;
};

}  // namespace verbatim::server
