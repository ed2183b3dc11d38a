#include "ops/cpu/products.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "base/formats.h"
#include "base/thread_pool.h"
#include "ops/cpu/scratch.h"

namespace verbatim::ops::cpu {

namespace {

constexpr int64_t kMostTileOutputs = 32;            // of a pass that decodes first
constexpr int64_t kTileBytes = 96 << 10;            // of weights, of a pass that decodes as it goes
constexpr int64_t kPanelRowsFrom = 12;              // rows from which panels pay
constexpr int64_t kInlineProducts = 64 << 10;       // multiplications that are not worth waking a thread for
constexpr int64_t kBlockFloats = int64_t{1} << 18;  // the least that an arena asks for

int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

// Weights begin .. begin + count - 1 of a row, whatever their alignment.
void unpack_any(const Matrix& w, int64_t row, int64_t begin, int64_t count, float* to) {
  const auto* data = reinterpret_cast<const uint8_t*>(w.data) + row * w.row_bytes;
  switch (w.form) {
    case WeightForm::kBf16:
      for (int64_t k = 0; k < count; ++k) {
        uint16_t bits = 0;
        std::memcpy(&bits, data + 2 * (begin + k), sizeof(bits));
        to[k] = bf16_to_float(bits);
      }
      break;
    case WeightForm::kF32: std::memcpy(to, data + 4 * begin, static_cast<size_t>(4 * count)); break;
    case WeightForm::kNvfp4:
      for (int64_t k = begin; k < begin + count; ++k) {
        const uint8_t byte = data[k / 2];
        const uint8_t scale = w.block_scale[row * w.block_scale_stride + (w.first_column_in_block + k) / 16];
        to[k - begin] = e2m1_to_float(k % 2 == 0 ? byte & 15 : byte >> 4) * e4m3_to_float(scale);
      }
      break;
    case WeightForm::kFp8Block: {
      const float* grid = w.grid_scale + (w.grid_row + row) / 128 * w.grid_stride;
      for (int64_t k = begin; k < begin + count; ++k)
        to[k - begin] = e4m3_to_float(data[k]) * grid[(w.grid_column + k) / 128];
      break;
    }
  }
}

// `columns` weights from `column` of a part on, padded with zeros to whole groups.
void unpack_slice(const MatmulKernels& kernels, const Walk& walk, int64_t output, int64_t column, int64_t columns,
                  float* to) {
  if (walk.whole_groups)
    return kernels.decode[static_cast<size_t>(walk.matrix->form)](walk.view, output, column, columns, to);
  unpack_any(*walk.matrix, output, column, columns, to);
  std::fill(to + columns, to + round_up(columns, kGroupColumns), 0.0f);
}

struct PartScratch;
struct SumScratch;
struct SliceScratch;

// A piece of a job: outputs begin .. end - 1 for rows first_row .. first_row + rows - 1.
struct Piece {
  const Job* job;
  int64_t begin, end, first_row, rows;
};

bool is_direct(const MatmulKernels& kernels, const Job& job) {
  return job.x.rows != nullptr && job.walk.whole_groups && job.x.count <= kernels.direct_limit;
}

// Where a piece's sums of parts go until they are added.
struct Destination {
  float* y;
  int64_t part_stride, row_stride;
};

void run_direct(const MatmulKernels& kernels, const Piece& piece, const Destination& to) {
  const Job& job = *piece.job;
  ProductTask task;
  task.weights = job.walk.view;
  task.part_columns = job.walk.part_columns;
  task.parts = job.walk.parts;
  task.scale = job.walk.scale;
  task.part_stride = to.part_stride;
  task.row_stride = to.row_stride;
  for (int64_t o = piece.begin; o < piece.end; o += kTileOutputs) {
    task.first_output = o;
    task.outputs = static_cast<int>(std::min<int64_t>(kTileOutputs, piece.end - o));
    for (int64_t r = 0; r < job.x.count; r += kernels.direct_rows) {
      task.x = job.x.rows + r;
      task.rows = static_cast<int>(std::min<int64_t>(kernels.direct_rows, job.x.count - r));
      task.y = to.y + r * to.row_stride + (o - piece.begin);
      kernels.product[static_cast<size_t>(job.walk.matrix->form)](task);
    }
  }
}

void run_decoded(const MatmulKernels& kernels, const Piece& piece, const Destination& to) {
  const Job& job = *piece.job;
  const Walk& walk = job.walk;
  const int64_t outputs = piece.end - piece.begin;
  const bool panels = job.x.panels != nullptr;
  // Sums of one part: [outputs, rows] for panels, else [rows, outputs].
  const int64_t stride = panels ? round_up(piece.rows, 2 * kPanelRows) : outputs;
  float* sums = thread_scratch<SumScratch>((panels ? outputs : piece.rows) * stride, "products");
  float* weights = thread_scratch<SliceScratch>(outputs * kSliceColumns, "products");
  for (int part = 0; part < walk.parts; ++part) {
    for (int64_t column = 0; column < walk.part_columns; column += kSliceColumns) {
      const int64_t columns = std::min(kSliceColumns, walk.part_columns - column);
      const int64_t padded = round_up(columns, kGroupColumns);
      for (int64_t o = 0; o < outputs; ++o)
        unpack_slice(kernels, walk, piece.begin + o, part * walk.part_columns + column, columns,
                     weights + o * kSliceColumns);
      const int64_t at = part * walk.padded_columns + column;
      const bool first = column == 0;
      if (panels) {
        for (int64_t r = 0; r < piece.rows; r += 2 * kPanelRows)
          kernels.panel_slice(weights, outputs,
                              job.x.panels + (piece.first_row + r) / kPanelRows * job.x.panel_stride + at * kPanelRows,
                              job.x.panel_stride, piece.rows - r > kPanelRows ? 2 : 1, padded, first, sums + r, stride);
        continue;
      }
      const float* x[kTileRows];
      for (int64_t r = 0; r < piece.rows; r += kTileRows) {
        const int64_t rows = std::min<int64_t>(kTileRows, piece.rows - r);
        for (int64_t i = 0; i < rows; ++i) x[i] = job.x.rows[piece.first_row + r + i] + at;
        for (int64_t o = 0; o < outputs; o += kTileOutputs)
          kernels.product_slice(weights + o * kSliceColumns,
                                static_cast<int>(std::min<int64_t>(kTileOutputs, outputs - o)), x,
                                static_cast<int>(rows), padded, first, sums + r * stride + o, stride);
      }
    }
    for (int64_t r = 0; r < piece.rows; ++r) {
      float* y = to.y + part * to.part_stride + r * to.row_stride;
      for (int64_t o = 0; o < outputs; ++o) y[o] = (panels ? sums[o * stride + r] : sums[r * stride + o]) * walk.scale;
    }
  }
}

void run_piece(const MatmulKernels& kernels, const Piece& piece) {
  const Job& job = *piece.job;
  float* y = job.y + piece.first_row * job.row_stride + piece.begin;
  Destination to{y, job.part_stride, job.row_stride};
  const int64_t outputs = piece.end - piece.begin;
  const bool tree = job.add_parts && job.walk.parts > 1;
  if (tree)
    to = {thread_scratch<PartScratch>(job.walk.parts * piece.rows * outputs, "products"), piece.rows * outputs,
          outputs};
  if (is_direct(kernels, job))
    run_direct(kernels, piece, to);
  else
    run_decoded(kernels, piece, to);
  if (!tree) return;
  add_tree(to.y, job.walk.parts, to.part_stride);
  for (int64_t r = 0; r < piece.rows; ++r) std::copy_n(to.y + r * outputs, outputs, y + r * job.row_stride);
}

}  // namespace

// ---- memory ---------------------------------------------------------------------------------------------------------
void Arena::Block::Free::operator()(float* p) const { std::free(p); }

float* Arena::take(int64_t floats) {
  floats = round_up(std::max<int64_t>(floats, 1), kGroupColumns);
  while (block_ < blocks_.size() && used_ + floats > blocks_[block_].size) {
    ++block_;
    used_ = 0;
  }
  if (block_ == blocks_.size()) {
    Block block;
    block.size = std::max(floats, kBlockFloats);
    block.floats.reset(static_cast<float*>(std::aligned_alloc(64, static_cast<size_t>(block.size) * sizeof(float))));
    if (block.floats == nullptr)
      fail(ErrorKind::kCapacity, "products",
           "no memory for {} bytes of working space; free some, or feed shorter chunks", block.size * 4);
    blocks_.push_back(std::move(block));
    used_ = 0;
  }
  float* taken = blocks_[block_].floats.get() + used_;
  used_ += floats;
  return taken;
}

void Arena::reset() {
  block_ = 0;
  used_ = 0;
}

// ---- what a matrix wants ------------------------------------------------------------------------------------------
Walk::Walk(const Matrix& w, int parts_)
    : matrix(&w),
      parts(parts_),
      part_columns(w.columns / parts_),
      padded_columns(round_up(part_columns, kGroupColumns)) {
  view.data = reinterpret_cast<const uint8_t*>(w.data);
  view.row_bytes = w.row_bytes;
  view.block_scale = w.block_scale;
  view.block_scale_stride = w.block_scale_stride;
  view.grid_scale = w.grid_scale;
  view.grid_stride = w.grid_stride;
  view.grid_row = w.grid_row;
  view.grid_column = w.grid_column;
  whole_groups = part_columns % kGroupColumns == 0;
  if (w.form == WeightForm::kNvfp4) {
    whole_groups = whole_groups && w.first_column_in_block == 0;
    scale = w.matrix_scale;
  }
  if (w.form == WeightForm::kFp8Block) whole_groups = whole_groups && w.grid_column % kGroupColumns == 0;
  if (w.input_scale > 0.0f) scale = w.input_scale * scale;
}

void round_to_nvfp4(const float* x, int64_t columns, int64_t first_column_in_block, float input_scale, float* to) {
  for (int64_t begin = 0; begin < columns;) {
    const int64_t end = std::min(columns, round_up(first_column_in_block + begin + 1, 16) - first_column_in_block);
    float most = 0.0f;
    for (int64_t k = begin; k < end; ++k) most = std::max(most, std::fabs(x[k]));
    const float scale = e4m3_to_float(nvfp4_block_scale(most, input_scale, false));
    const float unit = scale * input_scale;
    for (int64_t k = begin; k < end; ++k) {
      const float value = x[k] / unit;
      to[k] = std::isnan(value) ? value : e2m1_to_float(float_to_e2m1(value)) * scale;
    }
    begin = end;
  }
}

Activations Preparation::add(const Walk& walk, std::span<const float* const> rows) {
  const Matrix& w = *walk.matrix;
  const auto count = static_cast<int64_t>(rows.size());
  const bool direct = walk.whole_groups && count <= kernels_.direct_limit;
  const bool permuted = direct && kernels_.permutes_nvfp4 && w.form == WeightForm::kNvfp4;
  const int form = permuted ? 1 : !direct && count >= kPanelRowsFrom ? 2 : 0;
  for (auto it = requests_.rbegin(); it != requests_.rend(); ++it) {
    const Request& request = **it;
    if (request.columns == w.columns && request.parts == walk.parts && request.form == form &&
        request.input_scale == w.input_scale && request.first_column_in_block == w.first_column_in_block &&
        std::equal(request.rows.begin(), request.rows.end(), rows.begin(), rows.end()))
      return request.result;
  }
  auto request = std::make_unique<Request>();
  request->rows.assign(rows.begin(), rows.end());
  request->columns = w.columns;
  request->parts = walk.parts;
  request->form = form;
  request->first_column_in_block = w.first_column_in_block;
  request->input_scale = w.input_scale;
  Activations& result = request->result;
  result.count = count;
  const int64_t columns = walk.parts * walk.padded_columns;
  if (form == 2) {
    const int64_t panels = round_up(count, kPanelRows) / kPanelRows;
    result.panel_stride = columns * kPanelRows;
    float* to = arena_.take(panels * result.panel_stride);
    floats_ += panels * result.panel_stride;
    result.panels = to;
    for (int64_t p = 0; p < panels; ++p) {
      const auto* first = rows.data() + p * kPanelRows;
      panels_.push_back(
          {walk, {first, first + std::min<int64_t>(kPanelRows, count - p * kPanelRows)}, to + p * result.panel_stride});
    }
  } else {
    const bool as_is = !permuted && w.input_scale <= 0.0f && walk.padded_columns == walk.part_columns;
    if (!as_is) {
      float* to = arena_.take(count * columns);
      floats_ += count * columns;
      for (int64_t r = 0; r < count; ++r)
        rows_.push_back({walk, rows[static_cast<size_t>(r)], to + r * columns, permuted});
      for (int64_t r = 0; r < count; ++r) request->prepared.push_back(to + r * columns);
      result.rows = request->prepared.data();
    } else {
      result.rows = request->rows.data();
    }
  }
  requests_.push_back(std::move(request));
  return requests_.back()->result;
}

void Preparation::run(ThreadPool& pool) {
  // Rounded (if asked for) and padded part by part.
  const auto spread = [](const Walk& walk, const float* from, float* to) {
    const Matrix& w = *walk.matrix;
    std::vector<float> rounded;
    if (w.input_scale > 0.0f) {
      rounded.resize(static_cast<size_t>(w.columns));
      round_to_nvfp4(from, w.columns, w.first_column_in_block, w.input_scale, rounded.data());
      from = rounded.data();
    }
    for (int part = 0; part < walk.parts; ++part) {
      float* end = std::copy_n(from + part * walk.part_columns, walk.part_columns, to + part * walk.padded_columns);
      std::fill(end, to + (part + 1) * walk.padded_columns, 0.0f);
    }
  };
  const auto count = static_cast<int64_t>(rows_.size());
  const int64_t columns = rows_.empty() ? 1 : rows_.front().walk.matrix->columns;
  pool.for_each(count, std::max<int64_t>(1, kInlineProducts / columns), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Row& row = rows_[static_cast<size_t>(i)];
      spread(row.walk, row.from, row.to);
      if (row.permuted) kernels_.permute(row.to, row.walk.parts * row.walk.padded_columns, row.to);
    }
  });
  pool.for_each(static_cast<int64_t>(panels_.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Panel& panel = panels_[static_cast<size_t>(i)];
      const int64_t wide = panel.walk.parts * panel.walk.padded_columns;
      std::vector<float> rows(static_cast<size_t>(kPanelRows * wide));
      for (size_t r = 0; r < panel.from.size(); ++r)
        spread(panel.walk, panel.from[r], rows.data() + static_cast<int64_t>(r) * wide);
      for (int64_t k = 0; k < wide; ++k)
        for (int64_t r = 0; r < kPanelRows; ++r) panel.to[k * kPanelRows + r] = rows[static_cast<size_t>(r * wide + k)];
    }
  });
  rows_.clear();
  panels_.clear();
  floats_ = 0;
}

void add_tree(float* values, int parts, int64_t n) {
  for (; parts > 1; parts = (parts + 1) / 2) {
    for (int p = 0; p < parts / 2; ++p) {
      float* to = values + p * n;
      const float* left = values + 2 * p * n;
      const float* right = left + n;
      for (int64_t i = 0; i < n; ++i) to[i] = left[i] + right[i];
    }
    if (parts % 2 == 1 && parts > 1) std::copy_n(values + (parts - 1) * n, n, values + parts / 2 * n);
  }
}

// ---- jobs -----------------------------------------------------------------------------------------------------------
void run_jobs(const MatmulKernels& kernels, ThreadPool& pool, std::span<const Job> jobs) {
  std::vector<Piece> pieces;
  int64_t products = 0;
  for (const Job& job : jobs) {
    const int64_t outputs = job.walk.matrix->rows;
    const int64_t rows = job.x.count;
    if (outputs == 0 || rows == 0) continue;
    products += outputs * rows * job.walk.matrix->columns;
    int64_t tile = kMostTileOutputs, row_block = rows;
    if (is_direct(kernels, job)) {
      tile = std::clamp<int64_t>(kTileBytes / job.walk.view.row_bytes, kTileOutputs, 256) / kTileOutputs * kTileOutputs;
    }
    // Enough pieces for all threads: smaller tiles, then blocks of rows.
    const int64_t wanted = 2 * pool.threads();
    tile = std::clamp<int64_t>(round_up((outputs + wanted - 1) / wanted, kTileOutputs), kTileOutputs, tile);
    const int64_t tiles = (outputs + tile - 1) / tile;
    if (pool.threads() > 1 && !is_direct(kernels, job) && tiles < wanted)
      row_block = std::min(rows, round_up((rows * tiles + wanted - 1) / wanted, 2 * kPanelRows));
    for (int64_t o = 0; o < outputs; o += tile)
      for (int64_t r = 0; r < rows; r += row_block)
        pieces.push_back({&job, o, std::min(outputs, o + tile), r, std::min(row_block, rows - r)});
  }
  const auto count = static_cast<int64_t>(pieces.size());
  pool.for_each(count, products <= kInlineProducts ? count : 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) run_piece(kernels, pieces[static_cast<size_t>(i)]);
  });
}

void unpack_row(const MatmulKernels& kernels, const Matrix& w, int64_t row, float* to) {
  const Walk walk(w, 1);
  if (walk.whole_groups)
    kernels.decode[static_cast<size_t>(w.form)](walk.view, row, 0, w.columns, to);
  else
    unpack_any(w, row, 0, w.columns, to);
  if (w.form == WeightForm::kNvfp4)
    for (int64_t k = 0; k < w.columns; ++k) to[k] *= w.matrix_scale;
}

}  // namespace verbatim::ops::cpu
