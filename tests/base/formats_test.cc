#include "base/formats.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <vector>

namespace verbatim {
namespace {

TEST(Bf16, EveryPatternSurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = bf16_to_float(static_cast<uint16_t>(bits));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(value))));
    } else {
      EXPECT_EQ(float_to_bf16(value), bits);
    }
  }
}

TEST(Bf16, RoundsToNearestTiesToEven) {
  EXPECT_EQ(float_to_bf16(1.0f + 0x1p-8f), 0x3f80);                     // tie, even below
  EXPECT_EQ(float_to_bf16(1.0f + 0x1p-7f + 0x1p-8f), 0x3f82);           // tie, even above
  EXPECT_EQ(float_to_bf16(1.0f + 0x1p-8f + 0x1p-20f), 0x3f81);          // above the tie
  EXPECT_EQ(float_to_bf16(std::numeric_limits<float>::max()), 0x7f80);  // rounds to infinity
}

TEST(E4m3, EveryPatternSurvivesTheRoundTripAndIsMonotone) {
  for (int bits = 0; bits < 256; ++bits) {
    const auto code = static_cast<uint8_t>(bits);
    const float value = e4m3_to_float(code);
    if (e4m3_is_nan(code)) {
      EXPECT_TRUE(std::isnan(value));
      continue;
    }
    EXPECT_EQ(float_to_e4m3(value), code) << value;
    if ((bits & 0x7f) > 0 && bits < 128) {
      EXPECT_GT(value, e4m3_to_float(static_cast<uint8_t>(bits - 1)));
    }
  }
  EXPECT_EQ(e4m3_to_float(0x7e), 448.0f);
  EXPECT_EQ(e4m3_to_float(0x01), 0x1p-9f);
  EXPECT_EQ(e4m3_to_float(0x08), 0x1p-6f);
}

// Against the definition: the nearest of all finite values, the even code on a tie.
TEST(E4m3, RoundsLikeASearchOverAllValues) {
  auto nearest = [](double x) {
    int best = 0;
    for (int code = 1; code < 127; ++code) {
      const double d = std::fabs(static_cast<double>(e4m3_to_float(static_cast<uint8_t>(code))) - x);
      const double b = std::fabs(static_cast<double>(e4m3_to_float(static_cast<uint8_t>(best))) - x);
      if (d < b || (d == b && code % 2 == 0)) best = code;
    }
    return best;
  };
  for (int code = 0; code < 126; ++code) {
    const float low = e4m3_to_float(static_cast<uint8_t>(code)), high = e4m3_to_float(static_cast<uint8_t>(code + 1));
    const float middle = (low + high) / 2;
    for (const float x :
         {middle, std::nextafter(middle, 0.0f), std::nextafter(middle, 1000.0f), low + (high - low) / 4}) {
      EXPECT_EQ(float_to_e4m3(x), nearest(x)) << x;
      EXPECT_EQ(float_to_e4m3(-x), nearest(x) | 0x80) << -x;
    }
  }
  EXPECT_EQ(float_to_e4m3(464.0f), 0x7e);
  EXPECT_EQ(float_to_e4m3(std::nextafter(464.0f, 1e9f)), 0x7f);
  EXPECT_EQ(float_to_e4m3(std::numeric_limits<float>::infinity()), 0x7f);
}

TEST(E2m1, EveryCodeSurvivesTheRoundTrip) {
  for (uint8_t code = 0; code < 16; ++code) {
    // Code 8 is minus zero, which ModelOpt's sign rule (value < 0) never writes.
    EXPECT_EQ(float_to_e2m1(e2m1_to_float(code)), code == 8 ? 0 : code);
  }
}

// The test vector of MODEL.md section 9: scale_2, block scales and codes of one row of 64.
TEST(Nvfp4, ReproducesTheModelOptVector) {
  std::vector<float> row = {6, -6, .25f,  .75f, 1.25f,    1.75f,      2.5f,     3.5f,
                            5, -5, -.25f, -0.f, .265625f, -.7421875f, 4.90625f, 5.09375f};
  row.resize(32, 0.0f);
  for (int i = 0; i < 16; ++i) row.push_back(static_cast<float>(i - 8) / 512);
  row.resize(64, 1e-7f);
  const float scale_2 = 6.0f / 2688;
  std::array<uint8_t, 4> bytes{};
  std::memcpy(bytes.data(), &scale_2, 4);
  EXPECT_EQ(bytes, (std::array<uint8_t, 4>{0x25, 0x49, 0x12, 0x3b}));

  const std::array<uint8_t, 4> scales = {0x7e, 0x38, 0x39, 0x01};
  const std::array<std::array<uint8_t, 8>, 4> codes = {
      {{0xf7, 0x20, 0x42, 0x64, 0xe6, 0x08, 0x91, 0x76}, {}, {0xff, 0xee, 0xcd, 0xab, 0x20, 0x43, 0x65, 0x76}, {}}};
  for (size_t block = 0; block < 4; ++block) {
    float amax = 0;
    for (size_t i = 0; i < 16; ++i) amax = std::max(amax, std::fabs(row[16 * block + i]));
    const uint8_t scale = nvfp4_block_scale(amax, scale_2, true);
    EXPECT_EQ(scale, scales[block]);
    const float unit = e4m3_to_float(scale) * scale_2;
    for (size_t i = 0; i < 8; ++i) {
      const uint8_t low = float_to_e2m1(row[16 * block + 2 * i] / unit);
      const uint8_t high = float_to_e2m1(row[16 * block + 2 * i + 1] / unit);
      EXPECT_EQ(low | high << 4, codes[block][i]) << "block " << block << " byte " << i;
    }
  }
}

}  // namespace
}  // namespace verbatim
