// Tables that decode stored weights, computed at compile time, and the template that instruction sets specialise.
#pragma once

#include <cstdint>

namespace verbatim::ops::cpu {

// How weights become lanes of L: specialised in weight_lanes_*.h.
template <class L>
struct WeightLanes;

template <class L>
struct WeightTables {
  // Bits of the float32 that an e4m3 byte stands for (0x7f and 0xff: NaN).
  static constexpr float e4m3_value(int byte) {
    const int exponent = (byte >> 3) & 15, mantissa = byte & 7;
    if ((byte & 0x7f) == 0x7f) return __builtin_nanf("");
    float value = exponent == 0
                      ? static_cast<float>(mantissa) * 0x1p-9f
                      : __builtin_bit_cast(float, static_cast<uint32_t>(((exponent + 120) << 23) | (mantissa << 20)));
    return (byte & 0x80) != 0 ? -value : value;
  }
  static constexpr float e2m1_value(int code) {
    constexpr float kMagnitudes[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
    return (code & 8) != 0 ? -kMagnitudes[code & 7] : kMagnitudes[code & 7];
  }

  // code * scale; a NaN scale makes all of them NaN.
  static constexpr float nvfp4_value(int code, int scale) {
    return (scale & 0x7f) == 0x7f ? __builtin_nanf("") : e2m1_value(code) * e4m3_value(scale);
  }

  struct E4m3 {
    float v[256];
  };
  static constexpr E4m3 make_e4m3() {
    E4m3 table{};
    for (int i = 0; i < 256; ++i) table.v[i] = e4m3_value(i);
    return table;
  }
  static constexpr E4m3 kE4m3 = make_e4m3();

  // By block scale byte: the sixteen values code * scale. 16 KiB, of which a matrix touches few lines.
  struct alignas(64) Nvfp4 {
    float v[256][16];
  };
  static constexpr Nvfp4 make_nvfp4() {
    Nvfp4 table{};
    for (int scale = 0; scale < 256; ++scale)
      for (int code = 0; code < 16; ++code) table.v[scale][code] = nvfp4_value(code, scale);
    return table;
  }
  static constexpr Nvfp4 kNvfp4 = make_nvfp4();

  // By block scale byte: the bits of the eight values magnitude * scale, xor code << 28. A code of four bits c that is
  // shifted left by 28 and xor-ed with entry c & 7 leaves the value with its sign.
  struct alignas(32) Nvfp4Signed {
    uint32_t v[256][8];
  };
  static constexpr Nvfp4Signed make_nvfp4_signed() {
    Nvfp4Signed table{};
    for (int scale = 0; scale < 256; ++scale)
      for (int code = 0; code < 8; ++code)
        table.v[scale][code] =
            __builtin_bit_cast(uint32_t, nvfp4_value(code, scale)) ^ (static_cast<uint32_t>(code) << 28);
    return table;
  }
  static constexpr Nvfp4Signed kNvfp4Signed = make_nvfp4_signed();

  // By block scale byte: the lower and the upper bytes of the sixteen values as bfloat16, which holds them exactly.
  struct alignas(16) Nvfp4Bytes {
    uint8_t v[256][2][16];
  };
  static constexpr Nvfp4Bytes make_nvfp4_bytes() {
    Nvfp4Bytes table{};
    for (int scale = 0; scale < 256; ++scale)
      for (int code = 0; code < 16; ++code) {
        const auto bits = __builtin_bit_cast(uint32_t, nvfp4_value(code, scale));
        table.v[scale][0][code] = static_cast<uint8_t>(bits >> 16);
        table.v[scale][1][code] = static_cast<uint8_t>(bits >> 24);
      }
    return table;
  }
  static constexpr Nvfp4Bytes kNvfp4Bytes = make_nvfp4_bytes();
};

}  // namespace verbatim::ops::cpu
