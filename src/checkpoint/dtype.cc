#include "checkpoint/dtype.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/error.h"

namespace verbatim::checkpoint {

namespace {

struct DTypeRow {
  const char* name;
  size_t bytes;
};

// In the order of the enumeration.
constexpr std::array<DTypeRow, 15> kDTypes{{{"BOOL", 1},
                                            {"U8", 1},
                                            {"I8", 1},
                                            {"I16", 2},
                                            {"U16", 2},
                                            {"I32", 4},
                                            {"U32", 4},
                                            {"I64", 8},
                                            {"U64", 8},
                                            {"F8_E4M3", 1},
                                            {"F8_E5M2", 1},
                                            {"F16", 2},
                                            {"BF16", 2},
                                            {"F32", 4},
                                            {"F64", 8}}};

}  // namespace

size_t dtype_bytes(DType dtype) { return kDTypes[static_cast<size_t>(dtype)].bytes; }

const char* dtype_name(DType dtype) { return kDTypes[static_cast<size_t>(dtype)].name; }

std::optional<DType> dtype_from_name(std::string_view name) {
  for (size_t i = 0; i < kDTypes.size(); ++i)
    if (name == kDTypes[i].name) return static_cast<DType>(i);
  return std::nullopt;
}

const std::string& known_dtype_names() {
  static const std::string names = [] {
    std::string joined;
    for (const DTypeRow& row : kDTypes) joined += (joined.empty() ? "" : ", ") + std::string(row.name);
    return joined;
  }();
  return names;
}

Shape::Shape(std::initializer_list<int64_t> dimensions) {
  if (dimensions.size() > kMaxDimensions)
    fail(ErrorKind::kUsage, "shape", "{} dimensions; expected at most {}", dimensions.size(), kMaxDimensions);
  std::copy(dimensions.begin(), dimensions.end(), dimensions_.begin());
  size_ = static_cast<uint32_t>(dimensions.size());
}

bool Shape::push_back(int64_t dimension) {
  if (size_ == kMaxDimensions) return false;
  dimensions_[size_++] = dimension;
  return true;
}

std::optional<int64_t> Shape::checked_elements() const {
  int64_t product = 1;
  for (const int64_t dimension : *this)
    if (dimension < 0 || __builtin_mul_overflow(product, dimension, &product)) return std::nullopt;
  return product;
}

int64_t Shape::elements() const {
  const std::optional<int64_t> product = checked_elements();
  if (!product) fail(ErrorKind::kFormat, "shape", "{}; expected dimensions >= 0 with a product below 2^63", text());
  return *product;
}

std::string Shape::text() const { return fmt::format("[{}]", fmt::join(begin(), end(), ", ")); }

bool Shape::operator==(const Shape& other) const { return std::equal(begin(), end(), other.begin(), other.end()); }

std::optional<uint64_t> checked_bytes(DType dtype, const Shape& shape) {
  const std::optional<int64_t> elements = shape.checked_elements();
  int64_t bytes = 0;
  if (!elements || __builtin_mul_overflow(*elements, static_cast<int64_t>(dtype_bytes(dtype)), &bytes))
    return std::nullopt;
  return static_cast<uint64_t>(bytes);
}

}  // namespace verbatim::checkpoint
