// Makes the tests that this is linked with run on CUDA (activations in three terms, so that bounds for float32 hold),
// and skips them all where there is no device.
#include <gtest/gtest.h>

#include "ops/devices.h"
#include "tests/cuda/host_ops.h"
#include "tests/model/ops_proxy.h"
#include "tests/tested_backend.h"

namespace verbatim::ops {
namespace {

// One for the whole binary: what it uploads stays.
Ops& device() {
  static const std::unique_ptr<Ops> ops = make_cuda_ops({.device = 0, .activations = Activations::kSplit3});
  return *ops;
}

// Shares one staging area and its uploaded matrices.
HostOps& shared() {
  static HostOps ops(device());
  return ops;
}

class Borrowed final : public model::OpsProxy {
 public:
  Borrowed() : OpsProxy(shared()) {}
};

class NeedsDevice : public testing::Environment {
 public:
  void SetUp() override {
    if (cuda_devices().empty()) GTEST_SKIP() << "this machine has no CUDA device";
  }
};

const bool kRegistered = [] {
  testing::AddGlobalTestEnvironment(new NeedsDevice);
  tested_backend.make = [](ThreadPool& pool, CpuIsa isa) -> std::unique_ptr<Ops> {
    if (isa == CpuIsa::kPlain) return make_cpu_ops(pool, isa);
    return std::make_unique<Borrowed>();
  };
  tested_backend.make_for_models = [](ThreadPool&, CpuIsa) -> std::unique_ptr<Ops> {
    return std::make_unique<Borrowed>();
  };
  tested_backend.is_cuda = true;
  return true;
}();

}  // namespace
}  // namespace verbatim::ops
