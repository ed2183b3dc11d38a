#include "cli/library_product.h"

namespace verbatim::cli {

std::optional<double> library_product_flops_per_s(ops::Ops&) { return {}; }

}  // namespace verbatim::cli
