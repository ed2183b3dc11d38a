// Stands in for x86.cc and the AVX tables where the processor is another.
#include "ops/cpu/instruction_sets.h"
#include "ops/cpu/kernels.h"

namespace verbatim::ops::cpu {

bool avx2_is_available() { return false; }
bool avx512_is_available() { return false; }

const Kernels& avx2_kernels() { return plain_kernels(); }
const Kernels& avx512_kernels() { return plain_kernels(); }

}  // namespace verbatim::ops::cpu
