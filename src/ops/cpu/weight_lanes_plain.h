// How weights become sixteen lanes in plain C++: the definition that the other instruction sets must reproduce.
#pragma once

#include <cstdint>

#include "ops/cpu/lanes_plain.h"
#include "ops/cpu/weight_tables.h"

namespace verbatim::ops::cpu {

template <>
struct WeightLanes<PlainLanes> {
  using L = PlainLanes;
  static constexpr int kDirectRows = 4;
  static constexpr int kDirectLimit = 4;
  static constexpr int kOutputs = 4;       // outputs a tile of several rows
  static constexpr int kPanelOutputs = 4;  // outputs a tile of panels
  static constexpr int kPanels = 1;
  static constexpr bool kPermutes = false;
  static constexpr bool kPairs = false;

  // Four sums over lanes, in the order of the lane tree.
  struct Sums {
    float v[4];
    friend Sums operator+(Sums a, Sums b) {
      for (int i = 0; i < 4; ++i) a.v[i] = a.v[i] + b.v[i];
      return a;
    }
    void get(float* p) const {
      for (int i = 0; i < 4; ++i) p[i] = v[i];
    }
  };
  static Sums sum4(L a, L b, L c, L d) { return {{L::sum(a), L::sum(b), L::sum(c), L::sum(d)}}; }
  static Sums sum4_permuted(L a, L b, L c, L d) { return sum4(a, b, c, d); }

  static L f32(const uint8_t* bytes) {
    L r;
    __builtin_memcpy(r.v, bytes, 64);
    return r;
  }

  // Eight bytes of codes times their block scale: exact.
  static L nvfp4(const uint8_t* codes, uint8_t scale) {
    L r;
    for (int i = 0; i < 8; ++i) {
      r.v[2 * i] = WeightTables<L>::kNvfp4.v[scale][codes[i] & 15];
      r.v[2 * i + 1] = WeightTables<L>::kNvfp4.v[scale][codes[i] >> 4];
    }
    return r;
  }
  static L nvfp4_natural(const uint8_t* codes, uint8_t scale) { return nvfp4(codes, scale); }
  static L permute(L x) { return x; }

  static L e4m3(const uint8_t* bytes) {
    L r;
    for (int i = 0; i < 16; ++i) r.v[i] = WeightTables<L>::kE4m3.v[bytes[i]];
    return r;
  }
};

}  // namespace verbatim::ops::cpu
