// Which instruction sets this build and this machine have. x86.cc or no_x86.cc, chosen by CMake.
#pragma once

namespace verbatim::ops::cpu {

bool avx2_is_available();    // AVX2, FMA and F16C
bool avx512_is_available();  // AVX-512 F, BW, VL and DQ, and those of AVX2

}  // namespace verbatim::ops::cpu
