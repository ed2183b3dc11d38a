// Stands in for nvfp4_bf16_avx2.cc and nvfp4_bf16_avx512.cc where the processor is another.
#include "quantize/nvfp4_bf16.h"

namespace verbatim::quantize {

const Bf16Kernels& avx2_bf16_kernels() { return plain_bf16_kernels(); }
const Bf16Kernels& avx512_bf16_kernels() { return plain_bf16_kernels(); }

}  // namespace verbatim::quantize
