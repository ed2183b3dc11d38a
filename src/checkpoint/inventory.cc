#include "checkpoint/inventory.h"

#include <limits>
#include <utility>

#include "base/error.h"
#include "base/gzip.h"
#include "base/mapped_file.h"
#include "checkpoint/json_events.h"
#include "checkpoint/quote_name.h"

namespace verbatim::checkpoint {

namespace {

constexpr size_t kMaxInventoryBytes = 256 << 20;

class InventoryReader final : public JsonEvents {
 public:
  InventoryReader(std::string where, std::vector<InventoryTensor>& tensors)
      : JsonEvents(std::move(where)), tensors_(tensors) {}

  void start_object() override {
    if (place_ != Place::kStart) refuse("an object");
    place_ = Place::kTop;
  }
  void end_object() override {}

  void key(std::string& name) override {
    tensors_.emplace_back();
    tensors_.back().name = std::move(name);
    place_ = Place::kPair;
  }

  void start_array() override {
    if (place_ == Place::kPair)
      place_ = Place::kDtype;
    else if (place_ == Place::kShape)
      place_ = Place::kDimensions;
    else
      refuse("an array");
  }

  void string(std::string& value) override {
    const std::optional<DType> dtype = place_ == Place::kDtype ? dtype_from_name(value) : std::nullopt;
    if (!dtype) refuse(fmt::format("the string {}", quote_name(value)));
    tensors_.back().dtype = *dtype;
    place_ = Place::kShape;
  }

  void unsigned_number(uint64_t value) override {
    if (place_ != Place::kDimensions || value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
      refuse(fmt::format("the number {}", value));
    if (!tensors_.back().shape.push_back(static_cast<int64_t>(value)))
      refuse(fmt::format("more than {} dimensions", Shape::kMaxDimensions));
  }

  void end_array() override {
    if (place_ == Place::kDimensions) {
      InventoryTensor& tensor = tensors_.back();
      const std::optional<uint64_t> bytes = checked_bytes(tensor.dtype, tensor.shape);
      if (!bytes) refuse(fmt::format("the shape {}, of which the size overflows", tensor.shape.text()));
      tensor.bytes = *bytes;
      place_ = Place::kPairEnd;
    } else if (place_ == Place::kPairEnd) {
      place_ = Place::kTop;
    } else {
      refuse("the end of an array");
    }
  }

 private:
  enum class Place { kStart, kTop, kPair, kDtype, kShape, kDimensions, kPairEnd };

  std::string context() const override {
    if (place_ == Place::kStart || place_ == Place::kTop || tensors_.empty())
      return "inventory: expected one object {name: [dtype, shape]}";
    return fmt::format("tensor {}: expected [dtype, shape] with a dtype out of {} and at most {} dimensions >= 0",
                       quote_name(tensors_.back().name), known_dtype_names(), Shape::kMaxDimensions);
  }

  std::vector<InventoryTensor>& tensors_;
  Place place_ = Place::kStart;
};

}  // namespace

std::vector<InventoryTensor> parse_inventory(std::string_view text, const std::string& where) {
  std::vector<InventoryTensor> tensors;
  InventoryReader reader(where, tensors);
  read_json(text, reader);
  return tensors;
}

std::vector<InventoryTensor> read_inventory(const std::filesystem::path& path) {
  const MappedFile file(path);
  const std::span<const std::byte> bytes = file.bytes();
  if (bytes.size() >= 2 && bytes[0] == std::byte{0x1f} && bytes[1] == std::byte{0x8b})
    return parse_inventory(gunzip(bytes, kMaxInventoryBytes, path.string()), path.string());
  return parse_inventory({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path.string());
}

}  // namespace verbatim::checkpoint
