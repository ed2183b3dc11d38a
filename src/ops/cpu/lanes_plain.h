// Sixteen float32 lanes in plain C++: the definition that the other instruction sets must reproduce bit for bit.
//
// Kernel headers are templates over such a struct and are compiled once per instruction set (isa_*.cc). They and this
// file include no standard header with code in it: an inline function compiled there could be linked elsewhere and run
// on a machine without the instructions.
#pragma once

#include <cstdint>

namespace verbatim::ops::cpu {

struct PlainLanes {
  float v[16];

  static constexpr const char* kName = "plain";

  static PlainLanes set1(float x) {
    PlainLanes r;
    for (float& lane : r.v) lane = x;
    return r;
  }
  static PlainLanes zero() { return set1(0.0f); }
  static PlainLanes load(const float* p) {
    PlainLanes r;
    for (int i = 0; i < 16; ++i) r.v[i] = p[i];
    return r;
  }
  // The first n lanes from memory, 0 <= n <= 16; the rest 0.
  static PlainLanes load_first(const float* p, int64_t n) {
    PlainLanes r = zero();
    for (int64_t i = 0; i < n; ++i) r.v[i] = p[i];
    return r;
  }
  void store(float* p) const {
    for (int i = 0; i < 16; ++i) p[i] = v[i];
  }
  void store_first(float* p, int64_t n) const {
    for (int64_t i = 0; i < n; ++i) p[i] = v[i];
  }
  // Sixteen bfloat16 values at any alignment.
  static PlainLanes load_bf16(const void* p) {
    PlainLanes r;
    for (int i = 0; i < 16; ++i) {
      uint16_t half;
      __builtin_memcpy(&half, static_cast<const char*>(p) + 2 * i, 2);
      r.v[i] = __builtin_bit_cast(float, static_cast<uint32_t>(half) << 16);
    }
    return r;
  }

  friend PlainLanes operator+(PlainLanes a, PlainLanes b) {
    for (int i = 0; i < 16; ++i) a.v[i] = a.v[i] + b.v[i];
    return a;
  }
  friend PlainLanes operator-(PlainLanes a, PlainLanes b) {
    for (int i = 0; i < 16; ++i) a.v[i] = a.v[i] - b.v[i];
    return a;
  }
  friend PlainLanes operator*(PlainLanes a, PlainLanes b) {
    for (int i = 0; i < 16; ++i) a.v[i] = a.v[i] * b.v[i];
    return a;
  }
  friend PlainLanes operator/(PlainLanes a, PlainLanes b) {
    for (int i = 0; i < 16; ++i) a.v[i] = a.v[i] / b.v[i];
    return a;
  }
  // a * b + c, rounded once.
  static PlainLanes fma(PlainLanes a, PlainLanes b, PlainLanes c) {
    for (int i = 0; i < 16; ++i) c.v[i] = __builtin_fmaf(a.v[i], b.v[i], c.v[i]);
    return c;
  }
  // c - a * b, rounded once.
  static PlainLanes fnma(PlainLanes a, PlainLanes b, PlainLanes c) {
    for (int i = 0; i < 16; ++i) c.v[i] = __builtin_fmaf(-a.v[i], b.v[i], c.v[i]);
    return c;
  }
  // The second operand where either is NaN or both are zeros (the rule of the x86 instructions).
  static PlainLanes min(PlainLanes a, PlainLanes b) {
    for (int i = 0; i < 16; ++i) a.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i];
    return a;
  }
  static PlainLanes max(PlainLanes a, PlainLanes b) {
    for (int i = 0; i < 16; ++i) a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i];
    return a;
  }
  static PlainLanes sqrt(PlainLanes a) {
    for (float& lane : a.v) lane = __builtin_sqrtf(lane);
    return a;
  }
  static PlainLanes abs(PlainLanes a) {
    for (float& lane : a.v) lane = __builtin_fabsf(lane);
    return a;
  }
  // To the nearest integer, ties to even.
  static PlainLanes round(PlainLanes a) {
    for (float& lane : a.v) lane = __builtin_rintf(lane);
    return a;
  }
  // 2^n for integral lanes n in [-126, 127].
  static PlainLanes power_of_two(PlainLanes n) {
    for (float& lane : n.v)
      lane = __builtin_bit_cast(float, static_cast<uint32_t>(static_cast<int32_t>(lane) + 127) << 23);
    return n;
  }
  // a < b ? x : y per lane (false for NaN).
  static PlainLanes select_less(PlainLanes a, PlainLanes b, PlainLanes x, PlainLanes y) {
    for (int i = 0; i < 16; ++i) x.v[i] = a.v[i] < b.v[i] ? x.v[i] : y.v[i];
    return x;
  }
  // The lane tree: l and l + 8, l and l + 4, l and l + 2, l and l + 1.
  static float sum(PlainLanes a) {
    for (int half = 8; half > 0; half /= 2)
      for (int i = 0; i < half; ++i) a.v[i] = a.v[i] + a.v[i + half];
    return a.v[0];
  }
};

}  // namespace verbatim::ops::cpu
