// What this build can run on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace verbatim::ops {

struct Device {
  std::string name;
  int compute_major = 0, compute_minor = 0;
  int64_t memory_bytes = 0;
};

// True if the CUDA backend is compiled in.
bool cuda_is_built();

// The CUDA devices that can be used; empty without the backend, a driver or a card.
std::vector<Device> cuda_devices();

}  // namespace verbatim::ops
