#include "base/sha256.h"

#include <gtest/gtest.h>

#include <string>

namespace verbatim {
namespace {

std::string digest(const std::string& text, size_t step) {
  Sha256 hash;
  for (size_t i = 0; i < text.size(); i += step)
    hash.update(std::as_bytes(std::span(text.data() + i, std::min(step, text.size() - i))));
  return to_hex(hash.finish());
}

// FIPS 180-4 examples and the million a's; every way of cutting the input gives the same digest.
TEST(Sha256, KnownAnswers) {
  EXPECT_EQ(digest("", 1), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(digest("abc", 3), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  const std::string two_blocks = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
  EXPECT_EQ(digest(two_blocks, 56), "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  const std::string million(1000000, 'a');
  for (const size_t step : {1ul, 63ul, 64ul, 65ul, 1000000ul})
    EXPECT_EQ(digest(million, step), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(TokenHash, HashesLittleEndianWords) {
  const int32_t ids[] = {1, 2, 3};  // python3: hashlib.sha256(struct.pack("<3I", 1, 2, 3)).hexdigest()[:16]
  EXPECT_EQ(token_hash(ids), "4636993d3e1da4e9");
}

}  // namespace
}  // namespace verbatim
