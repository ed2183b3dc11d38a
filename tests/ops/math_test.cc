// exp, sigmoid, silu and softplus against float64 over sweeps of all exponents and both signs, and their bits across
// instruction sets.
#include "ops/cpu/math.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdio>
#include <limits>

#include "ops/cpu/kernels.h"
#include "ops/cpu/lanes_plain.h"
#include "ops/cpu/vector_kernels.h"
#include "tests/ops/product_harness.h"

namespace verbatim::ops::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr uint32_t kStep = 1009;  // of 2^31 patterns a sign: two million values

// All finite floats, `kStep` patterns apart, sixteen at a time.
template <class Body>
void sweep(const Body& body) {
  for (const uint32_t sign : {0u, 0x80000000u})
    for (uint64_t first = 0; first < 0x7f800000u; first += 16 * kStep) {
      float x[16];
      for (uint64_t i = 0; i < 16; ++i)
        x[i] = std::bit_cast<float>(static_cast<uint32_t>(std::min<uint64_t>(first + i * kStep, 0x7f7fffffu)) | sign);
      body(x);
    }
}

// The largest error in ulps of the exact result over results of 2^-126 and more.
template <class Function, class Exact>
double worst_ulps(const char* name, float lowest, const Function& function, const Exact& exact) {
  double worst = 0;
  float at = 0;
  sweep([&](const float* x) {
    float y[16];
    function(PlainLanes::load(x)).store(y);
    for (int i = 0; i < 16; ++i) {
      const double want = exact(double{x[i]});
      if (x[i] < lowest || std::fabs(want) < 0x1p-126 || std::fabs(want) >= 0x1p128) continue;
      const double off = std::fabs(y[i] - want) / std::ldexp(1.0, std::ilogb(want) - 23);
      if (!(off <= worst)) worst = off, at = x[i];
    }
  });
  std::printf("%s: %.3f ulp at %a\n", name, worst, at);
  return worst;
}

TEST(Math, BoundsHold) {
  EXPECT_LE(worst_ulps("exp", -200, exp<PlainLanes>, [](double x) { return std::exp(x); }), 1.1);
  EXPECT_LE(worst_ulps("sigmoid", -200, sigmoid<PlainLanes>, [](double x) { return 1 / (1 + std::exp(-x)); }), 2.5);
  EXPECT_LE(worst_ulps("silu", -87.33f, silu<PlainLanes>, [](double x) { return x / (1 + std::exp(-x)); }), 3.5);
  EXPECT_LE(worst_ulps("softplus", -87.33f, softplus<PlainLanes>,
                       [](double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x))); }),
            2.0);
}

TEST(Math, EndsOfTheRange) {
  const float x[16] = {-kInfinity, kInfinity, 88.72283f, 88.72284f, -87.33654f, -87.33655f, 0.0f,   -0.0f,
                       1e30f,      -1e30f,    0x1p-140f, 1.0f,      -200.0f,    128.0f,     -88.7f, std::nanf("")};
  float y[16];
  exp<PlainLanes>(PlainLanes::load(x)).store(y);
  EXPECT_EQ(y[0], 0.0f);
  EXPECT_EQ(y[1], kInfinity);
  EXPECT_LT(y[2], kInfinity);
  EXPECT_EQ(y[3], kInfinity);
  EXPECT_GE(y[4], 0x1p-126f);
  EXPECT_EQ(y[5], 0.0f);
  EXPECT_EQ(y[6], 1.0f);
  EXPECT_EQ(y[7], 1.0f);
  EXPECT_EQ(y[8], kInfinity);
  EXPECT_EQ(y[9], 0.0f);
  EXPECT_EQ(y[10], 1.0f);
  EXPECT_EQ(y[12], 0.0f);
  EXPECT_EQ(y[13], kInfinity);
  EXPECT_TRUE(std::isnan(y[15]));
  sigmoid<PlainLanes>(PlainLanes::load(x)).store(y);
  EXPECT_EQ(y[0], 0.0f);
  EXPECT_EQ(y[1], 1.0f);
  EXPECT_EQ(y[6], 0.5f);
  EXPECT_TRUE(std::isnan(y[15]));
  softplus<PlainLanes>(PlainLanes::load(x)).store(y);
  EXPECT_EQ(y[0], 0.0f);
  EXPECT_EQ(y[1], kInfinity);
  EXPECT_EQ(y[8], 1e30f);
  EXPECT_TRUE(std::isnan(y[15]));
}

// exp and sigmoid as they are, silu through SwiGLU.
TEST(Math, SameBitsOnEveryInstructionSet) {
  const auto compare = [](const char* name, const VectorKernels& other) {
    const VectorKernels& plain = *plain_kernels().vector;
    const Floats ones(16, 1.0f);
    int64_t differences = 0;
    sweep([&](const float* x) {
      float a[16], b[16];
      const auto count = [&] {
        for (int i = 0; i < 16; ++i)
          differences += std::bit_cast<uint32_t>(a[i]) != std::bit_cast<uint32_t>(b[i]) ? 1 : 0;
      };
      plain.exp(x, 16, a), other.exp(x, 16, b), count();
      plain.sigmoid(x, 16, a), other.sigmoid(x, 16, b), count();
      plain.swiglu(x, ones.data(), 1e38f, 16, a), other.swiglu(x, ones.data(), 1e38f, 16, b), count();
    });
    EXPECT_EQ(differences, 0) << name;
  };
  if (cpu_isa_available(CpuIsa::kAvx2))
    compare("avx2", *avx2_kernels().vector);
  else
    std::printf("this machine has no avx2: left out\n");
  if (cpu_isa_available(CpuIsa::kAvx512))
    compare("avx512", *avx512_kernels().vector);
  else
    std::printf("this machine has no avx512: left out\n");
}

}  // namespace
}  // namespace verbatim::ops::cpu
