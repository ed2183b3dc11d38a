// exp, sigmoid, silu and softplus of sixteen lanes, from the lanes' own operations only: the same bits on every
// instruction set. Bounds are in units of the last place of the exact result, verified by tests/ops/math_test.cc over
// dense sweeps against float64; docs/numerics.md repeats them.
//
// A NaN gives a NaN (sign and payload are not promised). Results of exp below 2^-126 are 0.
#pragma once

#include <cstdint>

namespace verbatim::ops::cpu {

// e^x, within 1.1 ulp. 0 below log(2^-126) = -87.3365...; infinity from 88.7228... on.
template <class L>
inline L exp(L x) {
  // 2^-126 is between the exponentials of this and of the next float below.
  const L lowest = L::set1(-0x1.5d589ep+6f);
  // The order of the operands lets a NaN through.
  const L clamped = L::min(L::set1(89.0f), L::max(lowest, x));
  const L n = L::round(clamped * L::set1(0x1.715476p+0f));
  // log 2 in two pieces; the first has 21 bits, so that the first step is exact. |r| < 0.3467.
  const L r = L::fnma(n, L::set1(-0x1.05c610p-29f), L::fnma(n, L::set1(0x1.62e430p-1f), clamped));
  // Minimax polynomial of (e^r - 1 - r) / r^2; the relative error of e^r is below 3.7e-9 (0.06 ulp).
  L q = L::set1(0x1.6a2402p-10f);
  q = L::fma(q, r, L::set1(0x1.123a1ep-7f));
  q = L::fma(q, r, L::set1(0x1.5558f2p-5f));
  q = L::fma(q, r, L::set1(0x1.555492p-3f));
  q = L::fma(q, r, L::set1(0x1.fffffcp-2f));
  const L p = L::set1(1.0f) + L::fma(r * r, q, r);
  // n may be 128, one more than an exponent holds; the rest, 0 or 1, is a doubling.
  const L m = L::min(n, L::set1(127.0f));
  const L scaled = p * L::power_of_two(m);
  const L result = L::fma(scaled, n - m, scaled);
  return L::select_less(x, lowest, L::zero(), result);
}

// 1 / (1 + e^-x), within 2.5 ulp where the result is at least 2^-126; exactly 0 below -88.7228.
template <class L>
inline L sigmoid(L x) {
  return L::set1(1.0f) / (L::set1(1.0f) + exp<L>(L::zero() - x));
}

// x * sigmoid(x), within 3.5 ulp for x >= -87.33; -0 below -88.7228, NaN at -infinity.
template <class L>
inline L silu(L x) {
  return x * sigmoid<L>(x);
}

// log(1 + e^x) = max(x, 0) + log(1 + e^-|x|), within 2 ulp; 0 below log(2^-126).
template <class L>
inline L softplus(L x) {
  const L t = exp<L>(L::zero() - L::abs(x));
  // log(1 + t) = 2 atanh(s) with s = t / (2 + t) in [0, 1/3]; 2 s = t - s t. The polynomial is minimax for
  // (2 atanh(s) / s - 2) / s^2 in z = s^2, relative error of the logarithm below 1e-9.
  const L s = t / (L::set1(2.0f) + t);
  const L z = s * s;
  L q = L::set1(0x1.f1af08p-3f);
  q = L::fma(q, z, L::set1(0x1.b6d698p-3f));
  q = L::fma(q, z, L::set1(0x1.250972p-2f));
  q = L::fma(q, z, L::set1(0x1.9996a8p-2f));
  q = L::fma(q, z, L::set1(0x1.555558p-1f));
  const L logarithm = L::fnma(s, L::fnma(q, z, t), t);
  return L::max(L::zero(), x) + logarithm;
}

}  // namespace verbatim::ops::cpu
