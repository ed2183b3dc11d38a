// Inner loops of products with stored weights. ops.h states the order of every sum; these loops walk whole groups of 16
// columns, and whoever calls them (cpu_matmul.cc) arranges that groups are whole.
#pragma once

#include <cstdint>

namespace verbatim::ops::cpu {

inline constexpr int64_t kSliceColumns = 256;
inline constexpr int64_t kGroupColumns = 16;
inline constexpr int kTileOutputs = 4;  // outputs that a pass over activations shares
inline constexpr int kTileRows = 4;     // rows of activations that a pass over weights shares
inline constexpr int kPanelRows = 16;   // rows of activations that stand side by side in a panel

// The stored bytes of a matrix (ops.h Matrix, without what the loops do not need).
struct WeightView {
  const uint8_t* data = nullptr;
  int64_t row_bytes = 0;
  const uint8_t* block_scale = nullptr;
  int64_t block_scale_stride = 0;
  const float* grid_scale = nullptr;
  int64_t grid_stride = 0, grid_row = 0, grid_column = 0;
};

// `outputs` rows of weights from first_output on, times `rows` rows of activations, part by part:
// y[part * part_stride + row * row_stride + output - first_output] = scale * sum of the part.
struct ProductTask {
  WeightView weights;
  int64_t first_output = 0;
  int outputs = 0;                  // 1 .. kTileOutputs
  const float* const* x = nullptr;  // `rows` pointers to parts * part_columns floats
  int rows = 0;                     // 1 .. direct_rows
  int64_t part_columns = 0;         // a multiple of 16
  int parts = 1;
  float scale = 1.0f;
  float* y = nullptr;
  int64_t part_stride = 0, row_stride = 0;
};

struct MatmulKernels {
  // Rows that `product` takes at a time, and rows up to which calling it again beats `decode` and the slice kernels.
  int direct_rows;
  int direct_limit;
  // True if product[NVFP4] wants activations reordered inside each group of 16 by `permute`.
  bool permutes_nvfp4;
  void (*permute)(const float* x, int64_t columns, float* to);

  // By form: BF16, F32, NVFP4, FP8 (the order of WeightForm). Parts of NVFP4 begin at a block, groups of FP8 lie in one
  // cell of the grid.
  void (*product[4])(const ProductTask& task);
  // `columns` weights (a multiple of 16) of one output from `column` on (a multiple of 16) as floats; same conditions.
  void (*decode[4])(const WeightView& weights, int64_t output, int64_t column, int64_t columns, float* to);

  // One slice of up to kTileOutputs outputs (weights [outputs, kSliceColumns], `columns` of them used, a multiple of
  // 16) for `rows` <= kTileRows rows: sums[row * stride + output] = slice if first, else += slice.
  void (*product_slice)(const float* weights, int outputs, const float* const* x, int rows, int64_t columns, bool first,
                        float* sums, int64_t stride);
  // The same for one or two panels of 16 rows, x of row r at panel + k * 16 + r: sums[output * stride + row].
  void (*panel_slice)(const float* weights, int64_t outputs, const float* panel, int64_t panel_stride, int panels,
                      int64_t columns, bool first, float* sums, int64_t stride);
};

}  // namespace verbatim::ops::cpu
