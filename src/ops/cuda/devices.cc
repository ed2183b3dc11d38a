#include "ops/devices.h"

#include <cuda_runtime_api.h>

namespace verbatim::ops {

bool cuda_is_built() { return true; }

std::vector<Device> cuda_devices() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) return {};
  std::vector<Device> devices;
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties{};
    if (cudaGetDeviceProperties(&properties, i) != cudaSuccess) continue;
    devices.push_back(
        {properties.name, properties.major, properties.minor, static_cast<int64_t>(properties.totalGlobalMem)});
  }
  return devices;
}

}  // namespace verbatim::ops
