// Which backend the tests of operators and models run on: the CPU, unless the binary links tests/cuda/tested_cuda.cc.
#pragma once

#include <memory>

#include "ops/ops.h"

namespace verbatim::ops {

struct TestedBackend {
  // For tests of operators, which compare instruction sets: CUDA stands for all but the plain one.
  std::unique_ptr<Ops> (*make)(ThreadPool& pool, CpuIsa isa) = make_cpu_ops;
  // For tests of models: never another backend than the tested one.
  std::unique_ptr<Ops> (*make_for_models)(ThreadPool& pool, CpuIsa isa) = make_cpu_ops;
  bool is_cuda = false;
};

inline TestedBackend tested_backend;

}  // namespace verbatim::ops
