// Stands in for sha256_x86.cc where the processor is another.
#include "base/sha256_blocks.h"

namespace verbatim {

bool sha_instructions_are_available() { return false; }
void sha256_blocks_by_instructions(uint32_t* /*state*/, const uint8_t* /*data*/, size_t /*blocks*/) {}

}  // namespace verbatim
