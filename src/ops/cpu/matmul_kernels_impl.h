// Templates behind MatmulKernels, instantiated once per instruction set (isa_*.cc).
#pragma once

#include <cstdint>

#include "ops/cpu/matmul_kernels.h"
#include "ops/cpu/weight_tables.h"

namespace verbatim::ops::cpu {

// ---- one row of weights, group by group of 16 ---------------------------------------------------------------------
// group(i): columns 16 i .. 16 i + 15 counted from `column`, in the order that kPermutedOrder says.

template <class L>
struct Bf16Weights {
  static constexpr bool kPermutedOrder = false;
  static constexpr bool kPaired = false;
  static constexpr int64_t kSliceBytes = 2 * kSliceColumns;
  const uint8_t* data = nullptr;
  void start(const WeightView& w, int64_t output, int64_t column) { data = w.data + output * w.row_bytes + 2 * column; }
  L group(int64_t i) const { return L::load_bf16(data + 32 * i); }
  L natural(int64_t i) const { return group(i); }
};

template <class L>
struct F32Weights {
  static constexpr bool kPermutedOrder = false;
  static constexpr bool kPaired = false;
  static constexpr int64_t kSliceBytes = 4 * kSliceColumns;
  const uint8_t* data = nullptr;
  void start(const WeightView& w, int64_t output, int64_t column) { data = w.data + output * w.row_bytes + 4 * column; }
  L group(int64_t i) const { return WeightLanes<L>::f32(data + 64 * i); }
  L natural(int64_t i) const { return group(i); }
};

template <class L>
struct Nvfp4Weights {
  using W = WeightLanes<L>;
  static constexpr bool kPermutedOrder = W::kPermutes;
  static constexpr bool kPaired = W::kPairs;
  static constexpr int64_t kSliceBytes = kSliceColumns / 2;
  const uint8_t* data = nullptr;
  const uint8_t* scale = nullptr;
  void start(const WeightView& w, int64_t output, int64_t column) {
    data = w.data + output * w.row_bytes + column / 2;
    scale = w.block_scale + output * w.block_scale_stride + column / 16;
  }
  L group(int64_t i) const { return W::nvfp4(data + 8 * i, scale[i]); }
  L natural(int64_t i) const { return W::nvfp4_natural(data + 8 * i, scale[i]); }
};

template <class L>
struct Fp8Weights {
  static constexpr bool kPermutedOrder = false;
  static constexpr bool kPaired = false;
  static constexpr int64_t kSliceBytes = kSliceColumns;
  const uint8_t* data = nullptr;
  const float* grid = nullptr;
  int64_t first = 0;  // of the grid's columns
  void start(const WeightView& w, int64_t output, int64_t column) {
    data = w.data + output * w.row_bytes + column;
    grid = w.grid_scale + ((w.grid_row + output) >> 7) * w.grid_stride;
    first = w.grid_column + column;
  }
  L group(int64_t i) const { return WeightLanes<L>::e4m3(data + 16 * i) * L::set1(grid[(first + 16 * i) >> 7]); }
  L natural(int64_t i) const { return group(i); }
};

// ---- products -----------------------------------------------------------------------------------------------------
template <class L, bool kPermuted>
auto sum_of_four(const L* v) {
  if constexpr (kPermuted)
    return WeightLanes<L>::sum4_permuted(v[0], v[1], v[2], v[3]);
  else
    return WeightLanes<L>::sum4(v[0], v[1], v[2], v[3]);
}

// kO rows of weights against kR rows of activations: lanes[r * kO + o] accumulate output o of row r, and sum adds the
// lanes of four neighbours.
template <class L, class Weights, int kO, int kR, bool kPaired = Weights::kPaired>
struct WeightTile {
  Weights weights[kO];

  // Outputs past the last are computed again from the last one.
  void start(const WeightView& view, int64_t output, int outputs, int64_t column) {
    for (int o = 0; o < kO; ++o) weights[o].start(view, output + (o < outputs ? o : outputs - 1), column);
  }
  [[gnu::always_inline]] void step(int64_t i, const float* const (&x)[kR], L (&lanes)[kO * kR]) const {
    L group[kO];
    for (int o = 0; o < kO; ++o) group[o] = weights[o].group(i);
    for (int r = 0; r < kR; ++r) {
      const L activations = L::load(x[r] + kGroupColumns * i);
      for (int o = 0; o < kO; ++o) lanes[r * kO + o] = L::fma(group[o], activations, lanes[r * kO + o]);
    }
  }
  static auto sum(const L* four) { return sum_of_four<L, Weights::kPermutedOrder>(four); }
};

// Outputs 2 j and 2 j + 1 share two groups of lanes, as nvfp4_pair and load_pair of the instruction set lay them out.
template <class L, class Weights, int kO, int kR>
struct WeightTile<L, Weights, kO, kR, true> {
  using W = WeightLanes<L>;
  Weights weights[kO];

  void start(const WeightView& view, int64_t output, int outputs, int64_t column) {
    for (int o = 0; o < kO; ++o) weights[o].start(view, output + (o < outputs ? o : outputs - 1), column);
  }
  [[gnu::always_inline]] void step(int64_t i, const float* const (&x)[kR], L (&lanes)[kO * kR]) const {
    for (int o = 0; o < kO; o += 2) {
      L group[2];
      W::nvfp4_pair(weights[o].data + 8 * i, weights[o].scale[i], weights[o + 1].data + 8 * i, weights[o + 1].scale[i],
                    group);
      for (int r = 0; r < kR; ++r)
        for (int half = 0; half < 2; ++half) {
          L& sum = lanes[r * kO + o + half];
          sum = L::fma(group[half], W::load_pair(x[r] + kGroupColumns * i + 8 * half), sum);
        }
    }
  }
  static auto sum(const L* four) { return W::sum_pairs(four); }
};

// kO outputs from task.first_output + skip on, kR rows: kO * kR is a multiple of 4.
template <class L, class Weights, int kO, int kR>
void product_tile(const ProductTask& task, int skip) {
  constexpr int kFours = kO * kR / 4;
  using Tile = WeightTile<L, Weights, kO, kR>;
  using Sums = decltype(Tile::sum(nullptr));
  const int outputs = task.outputs - skip < kO ? task.outputs - skip : kO;
  for (int part = 0; part < task.parts; ++part) {
    const int64_t begin = part * task.part_columns;
    Tile tile;
    tile.start(task.weights, task.first_output + skip, outputs, begin);
    const float* x[kR];
    for (int r = 0; r < kR; ++r) x[r] = task.x[r] + begin;
    Sums sums[kFours] = {};
    for (int64_t column = 0; column < task.part_columns; column += kSliceColumns) {
      const int64_t left = task.part_columns - column;
      const int64_t first = column / kGroupColumns;
      // The outputs of the next tile follow in memory.
      for (int o = 0; o < kO; ++o)
        for (int64_t byte = 0; byte < Weights::kSliceBytes; byte += 64)
          __builtin_prefetch(tile.weights[o].data + kO * task.weights.row_bytes +
                             column / kSliceColumns * Weights::kSliceBytes + byte);
      L lanes[kO * kR];
      for (L& lane : lanes) lane = L::zero();
      if (left >= kSliceColumns) {
#pragma GCC unroll 16
        for (int64_t i = 0; i < kSliceColumns / kGroupColumns; ++i) tile.step(first + i, x, lanes);
      } else {
        for (int64_t i = first; i < first + left / kGroupColumns; ++i) tile.step(i, x, lanes);
      }
      for (int f = 0; f < kFours; ++f) {
        const Sums slice = Tile::sum(lanes + 4 * f);
        sums[f] = column == 0 ? slice : sums[f] + slice;
      }
    }
    float values[kO * kR];
    for (int f = 0; f < kFours; ++f) sums[f].get(values + 4 * f);
    for (int r = 0; r < kR; ++r)
      for (int o = 0; o < outputs; ++o)
        task.y[part * task.part_stride + r * task.row_stride + skip + o] = values[r * kO + o] * task.scale;
  }
}

template <class L, class Weights>
void product(const ProductTask& task) {
  constexpr int kO = WeightLanes<L>::kOutputs;
  if (task.rows == 1) return product_tile<L, Weights, kTileOutputs, 1>(task, 0);
  for (int skip = 0; skip < task.outputs; skip += kO) {
    if (task.rows == 2) product_tile<L, Weights, kO, 2>(task, skip);
    if constexpr (WeightLanes<L>::kDirectRows > 2) {
      if (task.rows == 3) product_tile<L, Weights, kO, 3>(task, skip);
      if (task.rows == 4) product_tile<L, Weights, kO, 4>(task, skip);
    }
  }
}

template <class L, class Weights>
void decode(const WeightView& view, int64_t output, int64_t column, int64_t columns, float* to) {
  Weights weights;
  weights.start(view, output, column);
  for (int64_t i = 0; i < columns / kGroupColumns; ++i) weights.natural(i).store(to + kGroupColumns * i);
}

template <class L>
void permute(const float* x, int64_t columns, float* to) {
  for (int64_t i = 0; i < columns; i += kGroupColumns) WeightLanes<L>::permute(L::load(x + i)).store(to + i);
}

// kO outputs and kR rows of one slice.
template <class L, int kO, int kR>
void slice_tile(const float* weights, int outputs, const float* const* x, int64_t columns, bool first, float* sums,
                int64_t stride) {
  const float* w[kO];
  for (int o = 0; o < kO; ++o) w[o] = weights + (o < outputs ? o : outputs - 1) * kSliceColumns;
  L lanes[kO * kR];
  for (L& lane : lanes) lane = L::zero();
  for (int64_t k = 0; k < columns; k += kGroupColumns) {
    L group[kO];
    for (int o = 0; o < kO; ++o) group[o] = L::load(w[o] + k);
    for (int r = 0; r < kR; ++r) {
      const L activations = L::load(x[r] + k);
      for (int o = 0; o < kO; ++o) lanes[r * kO + o] = L::fma(group[o], activations, lanes[r * kO + o]);
    }
  }
  float values[kO * kR];
  for (int f = 0; f < kO * kR / 4; ++f) sum_of_four<L, false>(lanes + 4 * f).get(values + 4 * f);
  for (int r = 0; r < kR; ++r)
    for (int o = 0; o < outputs && o < kO; ++o) {
      float& sum = sums[r * stride + o];
      sum = first ? values[r * kO + o] : sum + values[r * kO + o];
    }
}

template <class L>
void product_slice(const float* weights, int outputs, const float* const* x, int rows, int64_t columns, bool first,
                   float* sums, int64_t stride) {
  constexpr int kO = WeightLanes<L>::kOutputs;
  constexpr int kR = WeightLanes<L>::kDirectRows;
  for (int r = 0; r < rows;) {
    const int left = rows - r;
    for (int o = 0; o < outputs; o += kO) {
      const float* w = weights + o * kSliceColumns;
      float* to = sums + r * stride + o;
      if (left >= kR) {
        slice_tile<L, kO, kR>(w, outputs - o, x + r, columns, first, to, stride);
      } else if (left == 3) {
        if constexpr (kR > 3) slice_tile<L, kO, 3>(w, outputs - o, x + r, columns, first, to, stride);
      } else if (left == 2) {
        slice_tile<L, kO, 2>(w, outputs - o, x + r, columns, first, to, stride);
      } else {
        slice_tile<L, 4, 1>(w, outputs - o, x + r, columns, first, to, stride);
        if (kO < 4) break;
      }
    }
    r += left >= kR ? kR : left;
  }
}

// Lanes stand in the sixteen rows of a panel here, so that the sixteen sums over k = lane, lane + 16, ... are sixteen
// registers in turn, and the lane tree adds whole registers: no shuffles.
template <class L, int kO, int kPanels>
void panel_tile(const float* weights, const float* panel, int64_t panel_stride, int64_t columns, bool first,
                float* sums, int64_t stride) {
  float partial[16][kO * kPanels * 16];
  for (int64_t lane = 0; lane < kGroupColumns; ++lane) {
    L acc[kO * kPanels];
    for (L& a : acc) a = L::zero();
    for (int64_t k = lane; k < columns; k += kGroupColumns) {
      L x[kPanels];
      for (int p = 0; p < kPanels; ++p) x[p] = L::load(panel + p * panel_stride + k * kPanelRows);
      for (int o = 0; o < kO; ++o) {
        const L w = L::set1(weights[o * kSliceColumns + k]);
        for (int p = 0; p < kPanels; ++p) acc[o * kPanels + p] = L::fma(w, x[p], acc[o * kPanels + p]);
      }
    }
    for (int i = 0; i < kO * kPanels; ++i) acc[i].store(partial[lane] + 16 * i);
  }
  for (int o = 0; o < kO; ++o)
    for (int p = 0; p < kPanels; ++p) {
      L tree[8];
      const int at = 16 * (o * kPanels + p);
      for (int l = 0; l < 8; ++l) tree[l] = L::load(partial[l] + at) + L::load(partial[l + 8] + at);
      for (int l = 0; l < 4; ++l) tree[l] = tree[l] + tree[l + 4];
      L sum = (tree[0] + tree[2]) + (tree[1] + tree[3]);
      float* to = sums + o * stride + p * kPanelRows;
      if (!first) sum = L::load(to) + sum;
      sum.store(to);
    }
}

template <class L, int kPanels>
void panel_outputs(const float* weights, int64_t outputs, const float* panel, int64_t panel_stride, int64_t columns,
                   bool first, float* sums, int64_t stride) {
  constexpr int kO = WeightLanes<L>::kPanelOutputs;
  int64_t o = 0;
  for (; o + kO <= outputs; o += kO)
    panel_tile<L, kO, kPanels>(weights + o * kSliceColumns, panel, panel_stride, columns, first, sums + o * stride,
                               stride);
  for (; o < outputs; ++o)
    panel_tile<L, 1, kPanels>(weights + o * kSliceColumns, panel, panel_stride, columns, first, sums + o * stride,
                              stride);
}

template <class L>
void panel_slice(const float* weights, int64_t outputs, const float* panel, int64_t panel_stride, int panels,
                 int64_t columns, bool first, float* sums, int64_t stride) {
  if (panels == 2 && WeightLanes<L>::kPanels == 2) {
    panel_outputs<L, WeightLanes<L>::kPanels>(weights, outputs, panel, panel_stride, columns, first, sums, stride);
  } else {
    for (int p = 0; p < panels; ++p)
      panel_outputs<L, 1>(weights, outputs, panel + p * panel_stride, panel_stride, columns, first,
                          sums + p * kPanelRows, stride);
  }
}

template <class L>
constexpr MatmulKernels make_matmul_kernels() {
  return {
      WeightLanes<L>::kDirectRows,
      WeightLanes<L>::kDirectLimit,
      WeightLanes<L>::kPermutes,
      permute<L>,
      {product<L, Bf16Weights<L>>, product<L, F32Weights<L>>, product<L, Nvfp4Weights<L>>, product<L, Fp8Weights<L>>},
      {decode<L, Bf16Weights<L>>, decode<L, F32Weights<L>>, decode<L, Nvfp4Weights<L>>, decode<L, Fp8Weights<L>>},
      product_slice<L>,
      panel_slice<L>};
}

}  // namespace verbatim::ops::cpu
