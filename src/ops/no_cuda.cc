#include "ops/devices.h"

namespace verbatim::ops {

bool cuda_is_built() { return false; }

std::vector<Device> cuda_devices() { return {}; }

}  // namespace verbatim::ops
