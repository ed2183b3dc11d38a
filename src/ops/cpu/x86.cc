#include "ops/cpu/instruction_sets.h"

namespace verbatim::ops::cpu {

bool avx2_is_available() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

bool avx512_is_available() {
  return avx2_is_available() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

}  // namespace verbatim::ops::cpu
