#include "ops/cpu/attention_kernels_impl.h"
#include "ops/cpu/kda_kernels_impl.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/lanes_plain.h"
#include "ops/cpu/matmul_kernels_impl.h"
#include "ops/cpu/vector_kernels_impl.h"
#include "ops/cpu/weight_lanes_plain.h"

namespace verbatim::ops::cpu {

const Kernels& plain_kernels() {
  static constexpr MatmulKernels kMatmul = make_matmul_kernels<PlainLanes>();
  static constexpr VectorKernels kVector = make_vector_kernels<PlainLanes>();
  static constexpr AttentionKernels kAttention = make_attention_kernels<PlainLanes>();
  static constexpr KdaKernels kKda = make_kda_kernels<PlainLanes>();
  static constexpr Kernels kKernels = {PlainLanes::kName, &kMatmul, &kVector, &kAttention, &kKda};
  return kKernels;
}

}  // namespace verbatim::ops::cpu
