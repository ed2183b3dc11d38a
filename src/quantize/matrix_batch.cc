#include "quantize/matrix_batch.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "base/error.h"
#include "base/formats.h"
#include "base/thread_pool.h"
#include "quantize/nvfp4.h"

namespace verbatim::quantize {

namespace {

constexpr int64_t kUnitWeights = 1 << 17;  // a unit of work: its source fits in a core's own cache

constexpr uint64_t kCachedBytes = 256 << 10;  // read and looked at in one go

// Rows of one matrix.
struct Unit {
  size_t piece = 0;
  int64_t begin = 0, rows = 0;
  ErrorSums errors;
};

// Where the parts of a quantised piece stand.
struct Parts {
  uint8_t *codes, *scales;
  std::byte *matrix_scale, *input_scale;
};
Parts parts_of(const MatrixBatch& batch, const BatchPiece& piece) {
  std::byte* base = batch.result.data() + piece.result_at;
  const int64_t weights = piece.item->rows * piece.item->columns;
  return {reinterpret_cast<uint8_t*>(base), reinterpret_cast<uint8_t*>(base + weights / 2),
          base + weights / 2 + weights / 16, base + weights / 2 + weights / 16 + sizeof(float)};
}

void store(std::byte* at, float value) { std::memcpy(at, &value, sizeof value); }

// Any positive scale stands for zeros; readers ask for a positive one.
constexpr float kScaleOfZeros = 1.0f;

[[noreturn]] void refuse_weights(const BatchPiece& piece) {
  fail(ErrorKind::kFormat, std::string(piece.item->source->name),
       "a weight is NaN or infinite; expected finite weights");
}

void quantise_bf16(MatrixBatch& batch, const std::vector<size_t>& pieces, ThreadPool& pool) {
  std::vector<Unit> units;
  for (const size_t index : pieces) {
    const ConversionItem& item = *batch.pieces[index].item;
    const int64_t rows = std::max<int64_t>(1, kUnitWeights / item.columns);
    for (int64_t row = 0; row < item.rows; row += rows)
      units.push_back({index, row, std::min(rows, item.rows - row), {}});
  }
  const auto count = static_cast<int64_t>(units.size());
  auto weights_of = [&](const Unit& unit) {
    const BatchPiece& piece = batch.pieces[unit.piece];
    return reinterpret_cast<const uint16_t*>(batch.source.data() + piece.source_at) + unit.begin * piece.item->columns;
  };
  std::vector<std::optional<Bf16Encoder>> encoders(batch.pieces.size());
  for (const size_t index : pieces)
    if (batch.pieces[index].largest >= 0x7f80) refuse_weights(batch.pieces[index]);
  pool.for_each(static_cast<int64_t>(pieces.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const size_t index = pieces[static_cast<size_t>(i)];
      if (batch.pieces[index].largest != 0) encoders[index].emplace(batch.pieces[index].largest);
      store(parts_of(batch, batch.pieces[index]).matrix_scale,
            encoders[index] ? encoders[index]->matrix_scale() : kScaleOfZeros);
    }
  });
  pool.for_each(count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      Unit& unit = units[static_cast<size_t>(i)];
      const int64_t columns = batch.pieces[unit.piece].item->columns;
      const int64_t first = unit.begin * columns / 16, blocks = unit.rows * columns / 16;
      const Parts parts = parts_of(batch, batch.pieces[unit.piece]);
      uint8_t* codes = parts.codes + 8 * first;
      uint8_t* scales = parts.scales + first;
      if (!encoders[unit.piece]) {
        std::fill_n(codes, 8 * blocks, uint8_t{0});
        std::fill_n(scales, blocks, float_to_e4m3(1.0f));
        continue;
      }
      encoders[unit.piece]->encode(weights_of(unit), blocks, codes, scales);
      unit.errors = encoders[unit.piece]->errors(weights_of(unit), blocks, codes, scales);
    }
  });
  for (const Unit& unit : units) {
    batch.pieces[unit.piece].errors.error += unit.errors.error;
    batch.pieces[unit.piece].errors.weight += unit.errors.weight;
  }
}

void quantise_float32(MatrixBatch& batch, BatchPiece& piece, ThreadPool& pool) {
  std::vector<float> weights(piece.bytes / sizeof(float));
  std::memcpy(weights.data(), batch.source.data() + piece.source_at, piece.bytes);
  if (!std::all_of(weights.begin(), weights.end(), [](float w) { return std::isfinite(w); })) refuse_weights(piece);
  const Nvfp4Matrix made = quantise_nvfp4(weights, piece.item->rows, piece.item->columns, pool);
  const Parts parts = parts_of(batch, piece);
  std::copy(made.codes.begin(), made.codes.end(), parts.codes);
  std::copy(made.block_scales.begin(), made.block_scales.end(), parts.scales);
  const float scale = made.matrix_scale > 0 ? made.matrix_scale : kScaleOfZeros;
  store(parts.matrix_scale, scale);
  for (size_t i = 0; i < weights.size(); ++i) {
    const uint8_t pair = made.codes[i / 2];
    const double w = static_cast<double>(weights[i]);
    const double d = w - static_cast<double>(e2m1_to_float(i % 2 == 0 ? pair & 15 : pair >> 4) *
                                             (e4m3_to_float(made.block_scales[i / 16]) * scale));
    piece.errors.error += d * d;
    piece.errors.weight += w * w;
  }
}

}  // namespace

void Bytes::reserve(size_t bytes) {
  if (bytes <= capacity_) return;
  data_ = nullptr;  // so that old and new are not held together
  data_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
  capacity_ = bytes;
}

std::span<const std::byte> MatrixBatch::output(const BatchPiece& piece) const {
  if (piece.item->quantised) return {result.data() + piece.result_at, piece.result_bytes};
  return {source.data() + piece.source_at, static_cast<size_t>(piece.bytes)};
}

void read_piece(const MatrixBatch& batch, BatchPiece& piece, SourceReader& reader) {
  const bool halves = piece.item->quantised && piece.item->source->dtype == checkpoint::DType::kBF16;
  std::byte* to = batch.source.data() + piece.source_at;
  piece.largest = 0;
  for (uint64_t at = 0; at < piece.bytes;) {
    const uint64_t bytes = halves ? std::min<uint64_t>(kCachedBytes, piece.bytes - at) : piece.bytes;
    reader.read(*piece.item->source, piece.offset + at, {to + at, static_cast<size_t>(bytes)});
    if (halves)
      piece.largest = std::max(piece.largest, bf16_kernels().largest(reinterpret_cast<const uint16_t*>(to + at),
                                                                     static_cast<int64_t>(bytes / 2)));
    at += bytes;
  }
}

void note_largest(const MatrixBatch& batch, BatchPiece& piece) {
  piece.largest = bf16_kernels().largest(reinterpret_cast<const uint16_t*>(batch.source.data() + piece.source_at),
                                         static_cast<int64_t>(piece.bytes / 2));
}

void quantise_batch(MatrixBatch& batch, ThreadPool& pool) {
  std::vector<size_t> halves;
  for (size_t i = 0; i < batch.pieces.size(); ++i) {
    BatchPiece& piece = batch.pieces[i];
    if (!piece.item->quantised) continue;
    if (piece.item->source->dtype == checkpoint::DType::kBF16)
      halves.push_back(i);
    else
      quantise_float32(batch, piece, pool);
    if (piece.input_scale > 0) store(parts_of(batch, piece).input_scale, piece.input_scale);
  }
  quantise_bf16(batch, halves, pool);
}

}  // namespace verbatim::quantize
