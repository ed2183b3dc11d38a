#include "ops/cpu/attention_kernels_impl.h"
#include "ops/cpu/kda_kernels_impl.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/lanes_avx2.h"
#include "ops/cpu/matmul_kernels_impl.h"
#include "ops/cpu/vector_kernels_impl.h"
#include "ops/cpu/weight_lanes_avx2.h"

namespace verbatim::ops::cpu {

const Kernels& avx2_kernels() {
  static constexpr MatmulKernels kMatmul = make_matmul_kernels<Avx2Lanes>();
  static constexpr VectorKernels kVector = make_vector_kernels<Avx2Lanes>();
  static constexpr AttentionKernels kAttention = make_attention_kernels<Avx2Lanes>();
  static constexpr KdaKernels kKda = make_kda_kernels<Avx2Lanes>();
  static constexpr Kernels kKernels = {Avx2Lanes::kName, &kMatmul, &kVector, &kAttention, &kKda};
  return kKernels;
}

}  // namespace verbatim::ops::cpu
