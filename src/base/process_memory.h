// What this process holds in memory, as Linux counts it.
#pragma once

#include <cstdint>

namespace verbatim {

// The most that was resident at once, mapped files included, since the process began or the last reset. 0 where the
// system does not tell.
uint64_t peak_resident_bytes();

// The peak begins anew at what is resident now. False where the system does not allow it: the peak goes on.
bool reset_peak_resident();

}  // namespace verbatim
