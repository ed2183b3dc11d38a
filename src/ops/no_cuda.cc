#include "base/error.h"
#include "ops/cuda_backend.h"
#include "ops/devices.h"

namespace verbatim::ops {

bool cuda_is_built() { return false; }

std::vector<Device> cuda_devices() { return {}; }

std::unique_ptr<Ops> make_cuda_ops(const CudaOptions&) {
  fail(ErrorKind::kUnsupported, "cuda",
       "this program was built without CUDA; expected a build with VERBATIM_CUDA=ON; use --backend cpu");
}

double cuda_read_bandwidth(Ops&) { return 0; }
int64_t cuda_free_bytes(Ops&) { return 0; }
void cuda_reserve_working(Ops&, int64_t) {}
int64_t cuda_working_held(Ops&) { return 0; }

}  // namespace verbatim::ops
