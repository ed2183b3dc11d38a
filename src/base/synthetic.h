// Synthetic weights: element i of a tensor is a function of (seed, name, i) alone, the same on every backend.
#pragma once

#include <cstdint>
#include <string_view>

namespace verbatim {

constexpr uint64_t mix_bits(uint64_t x) {  // splitmix64's finaliser
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9;
  x ^= x >> 27;
  x *= 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

constexpr uint64_t synthetic_key(uint64_t seed, std::string_view name) {
  uint64_t key = mix_bits(seed + 0x9e3779b97f4a7c15);
  for (const char c : name) key = mix_bits(key ^ static_cast<uint8_t>(c));
  return key;
}

// Mean 0, variance 1, within 3.5: a sum of four uniform 16-bit numbers.
constexpr float synthetic_number(uint64_t key, int64_t i) {
  const uint64_t bits = mix_bits(key + static_cast<uint64_t>(i) * 0x9e3779b97f4a7c15);
  const auto sum = static_cast<int32_t>((bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48));
  return static_cast<float>(sum - 131070) * (1.0f / 37837.0f);  // sqrt(4 * (65536^2 - 1) / 12)
}

}  // namespace verbatim
