// A product of a vendor's library, to hold the prompts' products against.
#pragma once

#include <optional>

#include "ops/ops.h"

namespace verbatim::cli {

inline constexpr const char* kLibraryProduct = "cuBLAS's bf16 8192^3";

// Multiplications and additions a second of that product on random data, the median of ten; nothing where `ops` is not
// on a device, or the library was not there when this was built or is not there now.
std::optional<double> library_product_flops_per_s(ops::Ops& ops);

}  // namespace verbatim::cli
