// Which launches of sm90_stream_product.cu multiply several packed matrices with few rows, and where each finds its
// rows. Without CUDA's headers, so that a test without a device holds it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/ops.h"

namespace verbatim::ops::cuda {

inline constexpr int64_t kMostFragmentColumns = 64;

// Tiles of eight columns that rows times terms take: 1, 2, 4, 6 or 8.
constexpr int fragment_tiles(int64_t rows, int terms) {
  const int64_t columns = rows * terms;
  return columns <= 8 ? 1 : columns <= 16 ? 2 : columns <= 32 ? 4 : columns <= 48 ? 6 : 8;
}

// Whether `inputs` different inputs of so many rows stand in a block's shared memory whole.
constexpr bool streams_inputs(int64_t shared_bytes, int64_t rows, int terms, int64_t columns, int inputs) {
  return rows * terms <= 8 && inputs * columns * rows * terms * 2 <= shared_bytes / 4;
}

struct StreamedProduct {
  const void* x = nullptr;
  int64_t x_stride = 0, outputs = 0, columns = 0;
  WeightForm form = WeightForm::kBf16;
  int terms = 1;
  float input_scale = 0.0f;
};

struct StreamPlan {
  // Fragments of rows of a product's input, which all products of that input may read.
  struct Set {
    int product = 0;
    int64_t first_row = 0, rows = 0;
    int terms = 1, tiles = 1;
  };
  struct Piece {
    int product = 0;
    int64_t first_row = 0, rows = 0;
    int block_rows = 0;      // that a block takes at a time, or 0 for all
    bool ring_rows = false;  // they come in the ring beside the weights
    int set = -1;            // -1: it reads its rows itself
  };
  // Pieces of one form, as many columns and column tiles; at most kMostGroup, of at most two inputs.
  struct Launch {
    std::vector<Piece> pieces;
    int64_t bytes = 0;        // of weights
    bool fits_beside = true;  // it takes the shape that fits beside those in front, else the one it has alone
  };
  std::vector<Set> sets;
  // The most bytes first; the others may run beside it, as no product reads what another writes. Of many inputs they
  // need the warps that they have alone, unless the first takes long.
  std::vector<Launch> launches;
};

// Few rows that do not fit whole come in the ring where inputs are many. At most kMostFragmentColumns columns (rows
// times terms) of a matrix at a time. Three terms take rows in blocks (they are for small matrices, which the caches
// keep), two rows at a time, that a block makes of x itself, where that is no more than a few times the weights.
StreamPlan plan_stream(std::span<const StreamedProduct> products, int64_t rows, int64_t shared_bytes);

}  // namespace verbatim::ops::cuda
