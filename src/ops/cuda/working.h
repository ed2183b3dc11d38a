// Working memory that products and experts of many rows take, as functions of shapes, without CUDA's headers, so that a
// plan can count it. Rows are cut in blocks that stay within a bound; the cut changes no bit. Operators share one block
// of memory, so that a step takes the most of any of them.
#pragma once

#include <cstdint>

namespace verbatim::ops::cuda {

// Unless 64 rows alone take more.
inline constexpr int64_t kProductWorkingBytes = int64_t{1} << 30, kExpertsWorkingBytes = int64_t{2} << 30;

constexpr int64_t working_rounded(int64_t bytes) { return (bytes + 255) / 256 * 256; }

// Rounded rows of a product, and its raw sums where terms or parts are added afterwards.
constexpr int64_t product_working_bytes(int64_t rows, int64_t outputs, int64_t columns, int terms, int parts) {
  const int64_t sums = terms == 1 && parts == 1 ? 0 : 4 * parts * terms * rows * outputs;
  return working_rounded(2 * terms * rows * columns) + working_rounded(sums);
}

// Rows of a block of a group of products whose rows take `row_bytes` each.
constexpr int64_t product_block_rows(int64_t row_bytes) {
  const int64_t rows = kProductWorkingBytes / row_bytes / 64 * 64;
  return rows < 64 ? 64 : rows;
}

// Experts on warpgroups (warpgroup_products.h): where places are, rounded rows, hidden rows, sums of down.
struct ExpertsShape {
  int64_t experts = 0, top = 0, columns = 0, inner = 0, width = 0;
  bool has_shared = false;
  int parts = 1;
};
constexpr int64_t warpgroup_experts_bytes(const ExpertsShape& e, int64_t rows) {
  const int64_t places = rows * (e.top + (e.has_shared ? 1 : 0));
  const int64_t used = e.experts + 1 < places ? e.experts + 1 : places, tiles = places / 128 + used;
  return 2 * working_rounded(4 * (e.experts + 1)) + working_rounded(4 * rows * e.top) +
         2 * working_rounded(4 * places) + 2 * working_rounded(4 * tiles) + working_rounded(4) +
         working_rounded(2 * rows * e.columns) + working_rounded(2 * places * e.inner) +
         working_rounded(4 * e.parts * places * e.width);
}

// Rows of a block: halves of `rows` until they fit.
template <class Bytes>
constexpr int64_t experts_block_rows(int64_t rows, const Bytes& bytes) {
  while (rows > 64 && bytes(rows) > kExpertsWorkingBytes) rows = (rows / 2 + 63) / 64 * 64;
  return rows;
}
constexpr int64_t experts_working_bytes(const ExpertsShape& e, int64_t rows) {
  const auto bytes = [&](int64_t count) { return warpgroup_experts_bytes(e, count); };
  return bytes(experts_block_rows(rows, bytes));
}

}  // namespace verbatim::ops::cuda
