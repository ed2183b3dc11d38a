#include "checkpoint/stored_matrix.h"

#include <cmath>
#include <cstring>
#include <initializer_list>

#include "base/error.h"
#include "base/formats.h"
#include "checkpoint/quote_name.h"

namespace verbatim::checkpoint {

namespace {

// What is stored directly under a module, by the last part of its name.
struct Companions {
  const TensorView* weight = nullptr;
  const TensorView* weight_packed = nullptr;
  const TensorView* weight_scale = nullptr;
  const TensorView* weight_scale_2 = nullptr;
  const TensorView* weight_scale_inv = nullptr;
  const TensorView* weight_global_scale = nullptr;
  const TensorView* input_scale = nullptr;
  const TensorView* input_global_scale = nullptr;
};

Companions find_companions(const Checkpoint& checkpoint, const std::string& prefix) {
  Companions found;
  for (const TensorView& tensor : checkpoint.with_prefix(prefix)) {
    const std::string_view leaf = tensor.name.substr(prefix.size());
    if (leaf == "weight") found.weight = &tensor;
    if (leaf == "weight_packed") found.weight_packed = &tensor;
    if (leaf == "weight_scale") found.weight_scale = &tensor;
    if (leaf == "weight_scale_2") found.weight_scale_2 = &tensor;
    if (leaf == "weight_scale_inv") found.weight_scale_inv = &tensor;
    if (leaf == "weight_global_scale") found.weight_global_scale = &tensor;
    if (leaf == "input_scale") found.input_scale = &tensor;
    if (leaf == "input_global_scale") found.input_global_scale = &tensor;
  }
  return found;
}

// Checks of one matrix, with the names that messages need.
class Resolver {
 public:
  Resolver(const Checkpoint& checkpoint, std::string_view module, int64_t rows, int64_t columns)
      : checkpoint_(checkpoint), module_(module), rows_(rows), columns_(columns) {}

  StoredMatrix resolve() const {
    const Companions found = find_companions(checkpoint_, module_ + ".");
    if (found.weight == nullptr && found.weight_packed == nullptr)
      fail(ErrorKind::kFormat, checkpoint_.path().string(),
           "tensor {}: missing; expected a matrix [{}, {}] as BF16, F32, NVFP4 or FP8 blocks", name("weight"), rows_,
           columns_);
    if (found.weight != nullptr && found.weight_packed != nullptr)
      fail(ErrorKind::kFormat, checkpoint_.path().string(),
           "matrix {}: both weight and weight_packed are stored; expected one", quote_name(module_));
    if (found.weight_packed != nullptr) return packed(found);
    switch (found.weight->dtype) {
      case DType::kBF16:
      case DType::kF32: return plain(found);
      case DType::kU8: return nvfp4(found);
      case DType::kF8E4M3: return fp8(found);
      default:
        fail(ErrorKind::kFormat, file(*found.weight),
             "tensor {}: dtype {}; expected BF16, F32, U8 (NVFP4) or F8_E4M3 (FP8 blocks)",
             quote_name(found.weight->name), dtype_name(found.weight->dtype));
    }
  }

 private:
  StoredMatrix plain(const Companions& found) const {
    require(found.weight, found.weight->dtype, {rows_, columns_}, "weight");
    refuse({found.weight_scale, found.weight_scale_2, found.weight_scale_inv, found.weight_global_scale},
           found.weight->dtype == DType::kBF16 ? "a BF16 weight" : "an F32 weight");
    return {.form = found.weight->dtype == DType::kBF16 ? Form::kBf16 : Form::kF32,
            .rows = rows_,
            .columns = columns_,
            .weight = found.weight};
  }

  StoredMatrix nvfp4(const Companions& found) const {
    require_whole_blocks();
    require(found.weight, DType::kU8, {rows_, columns_ / 2}, "weight");
    require(found.weight_scale, DType::kF8E4M3, {rows_, columns_ / kNvfp4BlockColumns}, "weight_scale");
    require_scalar(found.weight_scale_2, "weight_scale_2");
    if (found.input_scale != nullptr) require_scalar(found.input_scale, "input_scale");
    refuse({found.weight_scale_inv, found.weight_global_scale, found.input_global_scale}, "a U8 (NVFP4) weight");
    return {.form = Form::kNvfp4,
            .rows = rows_,
            .columns = columns_,
            .weight = found.weight,
            .block_scale = found.weight_scale,
            .matrix_scale = found.weight_scale_2,
            .input_scale = found.input_scale};
  }

  StoredMatrix packed(const Companions& found) const {
    require_whole_blocks();
    require(found.weight_packed, DType::kU8, {rows_, columns_ / 2}, "weight_packed");
    require(found.weight_scale, DType::kF8E4M3, {rows_, columns_ / kNvfp4BlockColumns}, "weight_scale");
    require_scalar(found.weight_global_scale, "weight_global_scale");
    if (found.input_global_scale != nullptr) require_scalar(found.input_global_scale, "input_global_scale");
    refuse({found.weight_scale_2, found.weight_scale_inv, found.input_scale}, "a weight_packed (compressed-tensors)");
    return {.form = Form::kNvfp4,
            .rows = rows_,
            .columns = columns_,
            .weight = found.weight_packed,
            .block_scale = found.weight_scale,
            .matrix_scale = found.weight_global_scale,
            .input_scale = found.input_global_scale,
            .inverse_scales = true};
  }

  StoredMatrix fp8(const Companions& found) const {
    require(found.weight, DType::kF8E4M3, {rows_, columns_}, "weight");
    const Shape blocks{(rows_ + kFp8BlockSize - 1) / kFp8BlockSize, (columns_ + kFp8BlockSize - 1) / kFp8BlockSize};
    if (found.weight_scale_inv != nullptr) {
      require(found.weight_scale_inv, DType::kF32, blocks, "weight_scale_inv");
      refuse({found.weight_scale}, "an F8_E4M3 weight with weight_scale_inv");
    } else if (found.weight_scale == nullptr) {
      fail(ErrorKind::kFormat, file(*found.weight),
           "tensor {}: missing (nor is there a weight_scale); expected F32 {} beside the F8_E4M3 weight",
           name("weight_scale_inv"), blocks.text());
    } else {
      const bool bf16 = found.weight_scale->dtype == DType::kBF16;
      require(found.weight_scale, bf16 ? DType::kBF16 : DType::kF32, blocks, "weight_scale");
    }
    refuse({found.weight_scale_2, found.weight_global_scale}, "an F8_E4M3 weight");
    return {.form = Form::kFp8Block,
            .rows = rows_,
            .columns = columns_,
            .weight = found.weight,
            .block_scale = found.weight_scale_inv != nullptr ? found.weight_scale_inv : found.weight_scale};
  }

  std::string name(const char* leaf) const { return quote_name(module_ + "." + leaf); }
  std::string file(const TensorView& tensor) const { return checkpoint_.file_of(tensor.raw).string(); }

  void require(const TensorView* tensor, DType dtype, const Shape& shape, const char* leaf) const {
    if (tensor == nullptr)
      fail(ErrorKind::kFormat, checkpoint_.path().string(),
           "tensor {}: missing; expected {} {} for the matrix [{}, {}]", name(leaf), dtype_name(dtype), shape.text(),
           rows_, columns_);
    if (tensor->dtype != dtype || tensor->shape != shape)
      fail(ErrorKind::kFormat, file(*tensor), "tensor {}: {} {}; expected {} {} for the matrix [{}, {}]",
           quote_name(tensor->name), dtype_name(tensor->dtype), tensor->shape.text(), dtype_name(dtype), shape.text(),
           rows_, columns_);
  }

  // One float32, as [] or [1].
  void require_scalar(const TensorView* tensor, const char* leaf) const {
    if (tensor != nullptr && tensor->dtype == DType::kF32 && tensor->shape == Shape{1}) return;
    require(tensor, DType::kF32, {}, leaf);
  }

  void require_whole_blocks() const {
    if (columns_ % kNvfp4BlockColumns != 0)
      fail(ErrorKind::kFormat, checkpoint_.path().string(),
           "matrix {}: {} columns stored as NVFP4; expected a multiple of {}", quote_name(module_), columns_,
           kNvfp4BlockColumns);
  }

  // A scale that the form has no use for means that the form was understood wrongly.
  void refuse(std::initializer_list<const TensorView*> tensors, const char* beside) const {
    for (const TensorView* tensor : tensors)
      if (tensor != nullptr)
        fail(ErrorKind::kFormat, file(*tensor), "tensor {}: {} {} beside {}; expected no such tensor",
             quote_name(tensor->name), dtype_name(tensor->dtype), tensor->shape.text(), beside);
  }

  const Checkpoint& checkpoint_;
  std::string module_;
  int64_t rows_, columns_;
};

float load_float(const std::byte* bytes) {
  float value = 0;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

float read_scale(const Checkpoint& checkpoint, const TensorView* tensor, bool inverse, const char* what) {
  if (tensor == nullptr)
    fail(ErrorKind::kUsage, checkpoint.path().string(), "this matrix stores no {}; expected one", what);
  const float stored = load_float(checkpoint.data(*tensor).data());
  const float scale = inverse ? 1.0f / stored : stored;
  if (!std::isfinite(stored) || !std::isfinite(scale) || !(scale > 0))
    fail(ErrorKind::kFormat, checkpoint.file_of(tensor->raw).string(),
         "tensor {}: {}{}; expected a finite scale above 0", quote_name(tensor->name), stored,
         inverse ? fmt::format(" (its inverse is {})", scale) : "");
  return scale;
}

// FP8 block scale `index` of a row-major grid, F32 or BF16.
float fp8_block_scale(const TensorView& tensor, std::span<const std::byte> bytes, size_t index) {
  if (tensor.dtype == DType::kF32) return load_float(bytes.data() + 4 * index);
  uint16_t bits = 0;
  std::memcpy(&bits, bytes.data() + 2 * index, sizeof bits);
  return bf16_to_float(bits);
}

void dequantise_nvfp4(const Checkpoint& checkpoint, const StoredMatrix& matrix, int64_t first_row,
                      std::span<float> out) {
  const int64_t first_block = first_row * (matrix.columns / kNvfp4BlockColumns);
  const std::byte* codes = checkpoint.data(*matrix.weight).data() + first_block * kNvfp4BlockColumns / 2;
  const std::byte* scales = checkpoint.data(*matrix.block_scale).data() + first_block;
  const float scale_of_matrix = matrix_scale(checkpoint, matrix);
  for (size_t block = 0; block < out.size() / kNvfp4BlockColumns; ++block) {
    const float scale_of_block = e4m3_to_float(std::to_integer<uint8_t>(scales[block]));
    float* values = &out[block * kNvfp4BlockColumns];
    for (size_t i = 0; i < kNvfp4BlockColumns / 2; ++i) {
      const auto pair = std::to_integer<uint8_t>(codes[block * kNvfp4BlockColumns / 2 + i]);
      values[2 * i] = (e2m1_to_float(pair & 15) * scale_of_block) * scale_of_matrix;
      values[2 * i + 1] = (e2m1_to_float(pair >> 4) * scale_of_block) * scale_of_matrix;
    }
  }
}

void dequantise_fp8(const Checkpoint& checkpoint, const StoredMatrix& matrix, int64_t first_row, int64_t rows,
                    std::span<float> out) {
  const std::byte* weights = checkpoint.data(*matrix.weight).data() + first_row * matrix.columns;
  const std::span<const std::byte> scales = checkpoint.data(*matrix.block_scale);
  const int64_t blocks_in_row = matrix.block_scale->shape[1];
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t column = 0; column < matrix.columns; ++column) {
      const int64_t block = (first_row + row) / kFp8BlockSize * blocks_in_row + column / kFp8BlockSize;
      const auto at = static_cast<size_t>(row * matrix.columns + column);
      out[at] = e4m3_to_float(std::to_integer<uint8_t>(weights[at])) *
                fp8_block_scale(*matrix.block_scale, scales, static_cast<size_t>(block));
    }
}

}  // namespace

const char* form_name(Form form) {
  switch (form) {
    case Form::kBf16: return "BF16";
    case Form::kF32: return "F32";
    case Form::kNvfp4: return "NVFP4";
    case Form::kFp8Block: return "FP8 blocks";
  }
  return "unknown";
}

StoredMatrix resolve_matrix(const Checkpoint& checkpoint, std::string_view module, int64_t rows, int64_t columns) {
  return Resolver(checkpoint, module, rows, columns).resolve();
}

float matrix_scale(const Checkpoint& checkpoint, const StoredMatrix& matrix) {
  return read_scale(checkpoint, matrix.matrix_scale, matrix.inverse_scales, "matrix scale");
}

float input_scale(const Checkpoint& checkpoint, const StoredMatrix& matrix) {
  return read_scale(checkpoint, matrix.input_scale, matrix.inverse_scales, "input scale");
}

void check_block_scales(const Checkpoint& checkpoint, const StoredMatrix& matrix) {
  if (matrix.block_scale == nullptr) return;
  const TensorView& tensor = *matrix.block_scale;
  const std::span<const std::byte> bytes = checkpoint.data(tensor);
  const auto count = static_cast<size_t>(tensor.shape.elements());
  const auto in_row = static_cast<size_t>(tensor.shape[1]);
  auto refuse = [&](size_t i, const std::string& found, const char* expected) {
    fail(ErrorKind::kFormat, checkpoint.file_of(tensor.raw).string(), "tensor {}: row {}, block {}: {}; expected {}",
         quote_name(tensor.name), i / in_row, i % in_row, found, expected);
  };
  for (size_t i = 0; i < count; ++i) {
    if (matrix.form == Form::kNvfp4) {
      // One comparison for what is negative (0x80 and above) and NaN (0x7f, 0xff).
      const auto bits = std::to_integer<uint8_t>(bytes[i]);
      if (bits >= 0x7f)
        refuse(i, fmt::format("e4m3 0x{:02x}, {}", bits, e4m3_is_nan(bits) ? "NaN" : "negative"),
               "a number >= 0 without sign");
    } else {
      const float scale = fp8_block_scale(tensor, bytes, i);
      if (!std::isfinite(scale) || scale < 0) refuse(i, fmt::format("{}", scale), "a finite scale >= 0");
    }
  }
}

void dequantise(const Checkpoint& checkpoint, const StoredMatrix& matrix, std::span<float> out) {
  dequantise_rows(checkpoint, matrix, 0, matrix.rows, out);
}

void dequantise_rows(const Checkpoint& checkpoint, const StoredMatrix& matrix, int64_t first_row, int64_t rows,
                     std::span<float> out) {
  const auto count = static_cast<size_t>(rows * matrix.columns);
  if (first_row < 0 || rows < 0 || first_row + rows > matrix.rows || out.size() != count)
    fail(ErrorKind::kUsage, "dequantise", "rows {} to {} into room for {} values; expected {} of the matrix [{}, {}]",
         first_row, first_row + rows, out.size(), count, matrix.rows, matrix.columns);
  const std::span<const std::byte> bytes = checkpoint.data(*matrix.weight);
  const auto first = static_cast<size_t>(first_row * matrix.columns);
  switch (matrix.form) {
    case Form::kBf16:
      for (size_t i = 0; i < count; ++i) {
        uint16_t bits = 0;
        std::memcpy(&bits, bytes.data() + 2 * (first + i), sizeof bits);
        out[i] = bf16_to_float(bits);
      }
      return;
    case Form::kF32: std::memcpy(out.data(), bytes.data() + 4 * first, 4 * count); return;
    case Form::kNvfp4: dequantise_nvfp4(checkpoint, matrix, first_row, out); return;
    case Form::kFp8Block: dequantise_fp8(checkpoint, matrix, first_row, rows, out); return;
  }
}

}  // namespace verbatim::checkpoint
