#include <cpuid.h>

#include "ops/cpu/instruction_sets.h"

namespace verbatim::ops::cpu {

namespace {
// Not every compiler's __builtin_cpu_supports knows it. That the system saves AVX registers follows from AVX2.
bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
}  // namespace

bool avx2_is_available() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c(); }

bool avx512_is_available() {
  return avx2_is_available() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

}  // namespace verbatim::ops::cpu
