#include <utility>
#include <vector>

#include "ops/ops.h"

namespace verbatim::ops {

Matrix Matrix::row_range(int64_t begin, int64_t count) const {
  Matrix view = *this;
  view.rows = count;
  view.data += begin * row_bytes;
  if (block_scale != nullptr) view.block_scale += begin * block_scale_stride;
  view.grid_row += begin;
  return view;
}

Matrix Matrix::column_range(int64_t begin, int64_t count) const {
  Matrix view = *this;
  view.columns = count;
  switch (form) {
    case WeightForm::kBf16: view.data += 2 * begin; break;
    case WeightForm::kF32: view.data += 4 * begin; break;
    case WeightForm::kFp8Block: view.data += begin; break;
    case WeightForm::kNvfp4: {
      view.data += begin / 2;
      const int64_t in_block = first_column_in_block + begin;
      view.block_scale += in_block / 16;
      view.first_column_in_block = in_block % 16;
      break;
    }
  }
  view.grid_column += begin;
  return view;
}

void Ops::gather(const float* from, const int32_t* rows, int64_t count, int64_t width, float* to) {
  const auto row_floats = static_cast<size_t>(width);
  std::vector<float> between(row_floats * static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i)
    copy_out(between.data() + i * width, from + rows[i] * width, row_floats * sizeof(float));
  copy_in(to, between.data(), between.size() * sizeof(float));
}

void Ops::copy(void* to, const void* from, size_t bytes) {
  std::vector<std::byte> between(bytes);
  copy_out(between.data(), from, bytes);
  copy_in(to, between.data(), bytes);
}

Buffer::Buffer(Ops& ops, size_t bytes) : ops_(&ops), data_(ops.allocate(bytes)), bytes_(bytes) {}

Buffer::~Buffer() {
  if (data_ != nullptr) ops_->release(data_);
}

Buffer::Buffer(Buffer&& other) noexcept
    : ops_(other.ops_), data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(ops_, other.ops_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

}  // namespace verbatim::ops
