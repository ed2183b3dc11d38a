// The inner loops of the CPU backend as tables of functions, one table an instruction set.
#pragma once

namespace verbatim::ops::cpu {

struct MatmulKernels;     // matmul_kernels.h: products with stored weights
struct VectorKernels;     // vector_kernels.h: norms, activations, hyper-connections, router
struct AttentionKernels;  // attention_kernels.h: indexer and sparse attention
struct KdaKernels;        // kda_kernels.h: linear attention

struct Kernels {
  const char* name;
  const MatmulKernels* matmul;
  const VectorKernels* vector;
  const AttentionKernels* attention;
  const KdaKernels* kda;
};

const Kernels& plain_kernels();
const Kernels& avx2_kernels();    // only on machines with AVX2, FMA and F16C
const Kernels& avx512_kernels();  // only on machines with AVX-512 F, BW, VL and DQ

}  // namespace verbatim::ops::cpu
