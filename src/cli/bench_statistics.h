// What benchmarks say of their repeats.
#pragma once

#include <algorithm>
#include <vector>

namespace verbatim::cli {

// Of at least one value; of an even number, the larger of the two in the middle.
inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace verbatim::cli
