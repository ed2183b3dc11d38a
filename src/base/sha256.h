// SHA-256 (FIPS 180-4).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace verbatim {

class Sha256 {
 public:
  void update(std::span<const std::byte> bytes);
  // The digest; the object may not be used afterwards.
  std::array<uint8_t, 32> finish();

 private:
  void blocks(const uint8_t* data, size_t count);
  std::array<uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<uint8_t, 64> pending_{};
  uint64_t total_bytes_ = 0;
};

std::string to_hex(std::span<const uint8_t> bytes);

// The token hash of a reply: SHA-256 over the ids as little-endian uint32, first 16 hex digits.
std::string token_hash(std::span<const int32_t> ids);

}  // namespace verbatim
