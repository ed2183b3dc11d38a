// Element types and shapes of stored tensors.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

namespace verbatim::checkpoint {

enum class DType { kBool, kU8, kI8, kI16, kU16, kI32, kU32, kI64, kU64, kF8E4M3, kF8E5M2, kF16, kBF16, kF32, kF64 };

// Bytes of one element.
size_t dtype_bytes(DType dtype);
// The name that safetensors headers use: "BF16", "F8_E4M3".
const char* dtype_name(DType dtype);
// nullopt for a name that safetensors headers may hold but this reader does not know.
std::optional<DType> dtype_from_name(std::string_view name);
// "BOOL, U8, ...": for messages.
const std::string& known_dtype_names();

// Dimensions, outermost first; none for a scalar. Held inline: a checkpoint has 150,000 of them.
class Shape {
 public:
  static constexpr size_t kMaxDimensions = 8;

  Shape() = default;
  // Throws Error(kUsage) past kMaxDimensions.
  Shape(std::initializer_list<int64_t> dimensions);

  // False, and nothing added, when kMaxDimensions are held already.
  [[nodiscard]] bool push_back(int64_t dimension);

  size_t size() const { return size_; }
  int64_t operator[](size_t i) const { return dimensions_[i]; }
  const int64_t* begin() const { return dimensions_.data(); }
  const int64_t* end() const { return dimensions_.data() + size_; }

  // Product of the dimensions, 1 for a scalar; nullopt when one is negative or the product passes int64.
  std::optional<int64_t> checked_elements() const;
  // The same; throws Error(kFormat) instead of returning nothing.
  int64_t elements() const;

  // "[24, 16384]"; "[]" for a scalar.
  std::string text() const;

  bool operator==(const Shape& other) const;

 private:
  std::array<int64_t, kMaxDimensions> dimensions_{};
  uint32_t size_ = 0;
};

// Elements x bytes of one; nullopt when that passes int64 or a dimension is negative.
std::optional<uint64_t> checked_bytes(DType dtype, const Shape& shape);

}  // namespace verbatim::checkpoint
