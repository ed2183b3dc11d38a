#include "base/sha256.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/sha256_blocks.h"

namespace verbatim {

namespace {

uint32_t load_big_endian(const uint8_t* p) {
  return uint32_t{p[0]} << 24 | uint32_t{p[1]} << 16 | uint32_t{p[2]} << 8 | uint32_t{p[3]};
}

void plain_block(uint32_t* state, const uint8_t* data) {
  uint32_t w[64];
  for (int i = 0; i < 16; ++i) w[i] = load_big_endian(data + 4 * i);
  for (int i = 16; i < 64; ++i) {
    const uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
    const uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  uint32_t a = state[0], b = state[1], c = state[2], d = state[3], e = state[4], f = state[5], g = state[6],
           h = state[7];
  for (int i = 0; i < 64; ++i) {
    const uint32_t t1 =
        h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) + ((e & f) ^ (~e & g)) + kSha256Rounds[i] + w[i];
    const uint32_t t2 = (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
  }
  const uint32_t sums[8] = {a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < 8; ++i) state[i] += sums[i];
}

}  // namespace

void Sha256::blocks(const uint8_t* data, size_t count) {
  static const bool by_instructions = sha_instructions_are_available();
  if (by_instructions) {
    sha256_blocks_by_instructions(state_.data(), data, count);
    return;
  }
  for (size_t i = 0; i < count; ++i) plain_block(state_.data(), data + 64 * i);
}

void Sha256::update(std::span<const std::byte> bytes) {
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
  size_t left = bytes.size();
  size_t filled = total_bytes_ % 64;
  total_bytes_ += left;
  while (left > 0) {
    if (filled == 0 && left >= 64) {
      blocks(data, left / 64);
      data += left / 64 * 64, left %= 64;
      continue;
    }
    const size_t take = std::min(left, 64 - filled);
    std::memcpy(pending_.data() + filled, data, take);
    data += take, left -= take, filled += take;
    if (filled == 64) {
      blocks(pending_.data(), 1);
      filled = 0;
    }
  }
}

std::array<uint8_t, 32> Sha256::finish() {
  const uint64_t bits = total_bytes_ * 8;
  uint8_t tail[72] = {0x80};
  const size_t padding = (total_bytes_ % 64 < 56 ? 56 : 120) - total_bytes_ % 64;
  for (size_t i = 0; i < 8; ++i) tail[padding + i] = static_cast<uint8_t>(bits >> (56 - 8 * i));
  update(std::as_bytes(std::span(tail, padding + 8)));
  std::array<uint8_t, 32> digest{};
  for (size_t i = 0; i < 32; ++i) digest[i] = static_cast<uint8_t>(state_[i / 4] >> (24 - 8 * (i % 4)));
  return digest;
}

std::string to_hex(std::span<const uint8_t> bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(2 * bytes.size());
  for (const uint8_t byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

std::string token_hash(std::span<const int32_t> ids) {
  static_assert(std::endian::native == std::endian::little, "ids are hashed as little-endian words");
  Sha256 hash;
  hash.update(std::as_bytes(ids));
  return to_hex(hash.finish()).substr(0, 16);
}

}  // namespace verbatim
