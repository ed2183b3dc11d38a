#include "checkpoint/safetensors.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "checkpoint/json_events.h"
#include "checkpoint/quote_name.h"

namespace verbatim::checkpoint {

namespace {

// {"__metadata__": {text: text}, name: {"dtype": text, "shape": [n, ...], "data_offsets": [begin, end]}, ...}
class HeaderReader final : public JsonEvents {
 public:
  HeaderReader(std::string where, Header& header) : JsonEvents(std::move(where)), header_(header) {}

  void start_object() override {
    switch (place_) {
      case Place::kStart: place_ = Place::kTop; return;
      case Place::kTensorValue:
        place_ = Place::kTensor;
        seen_ = 0;
        return;
      case Place::kMetadataValue: place_ = Place::kMetadata; return;
      default: refuse("an object");
    }
  }

  void key(std::string& name) override {
    if (place_ == Place::kTop) {
      if (name == "__metadata__") {
        if (metadata_seen_) refuse("a second __metadata__");
        metadata_seen_ = true;
        place_ = Place::kMetadataValue;
      } else {
        header_.tensors.emplace_back();
        header_.tensors.back().name = std::move(name);
        place_ = Place::kTensorValue;
      }
    } else if (place_ == Place::kTensor) {
      const int field = name == "dtype" ? kDtype : name == "shape" ? kShape : name == "data_offsets" ? kOffsets : 0;
      if (field == 0 || (seen_ & field) != 0) refuse((field == 0 ? "the key " : "a second ") + quote_name(name));
      seen_ |= field;
      place_ = field == kDtype ? Place::kDtypeValue : field == kShape ? Place::kShapeValue : Place::kOffsetsValue;
    } else {
      metadata_key_ = name;  // the grammar leaves only kMetadata
      place_ = Place::kMetadataText;
    }
  }

  void string(std::string& value) override {
    if (place_ == Place::kDtypeValue) {
      const std::optional<DType> dtype = dtype_from_name(value);
      if (!dtype) refuse(fmt::format("the string {}", quote_name(value)));
      tensor().dtype = *dtype;
      place_ = Place::kTensor;
    } else if (place_ == Place::kMetadataText) {
      if (!header_.metadata.emplace(metadata_key_, value).second)
        refuse(fmt::format("a second value for {} in __metadata__", quote_name(metadata_key_)));
      place_ = Place::kMetadata;
    } else {
      refuse(fmt::format("the string {}", quote_name(value)));
    }
  }

  void start_array() override {
    if (place_ == Place::kShapeValue)
      place_ = Place::kShape;
    else if (place_ == Place::kOffsetsValue)
      place_ = Place::kOffsets;
    else
      refuse("an array");
    offsets_read_ = 0;
  }

  void unsigned_number(uint64_t value) override {
    if (place_ == Place::kShape && value <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      if (!tensor().shape.push_back(static_cast<int64_t>(value)))
        refuse(fmt::format("more than {} dimensions", Shape::kMaxDimensions));
    } else if (place_ == Place::kOffsets && offsets_read_ < 2) {
      (offsets_read_ == 0 ? tensor().begin : tensor().end) = value;
      ++offsets_read_;
    } else {
      refuse(fmt::format("the number {}", value));
    }
  }

  void end_array() override {
    if (place_ == Place::kOffsets && offsets_read_ != 2) refuse(fmt::format("{} offsets", offsets_read_));
    place_ = Place::kTensor;
  }

  void end_object() override {
    if (place_ == Place::kTensor) {
      if (seen_ != (kDtype | kShape | kOffsets))
        refuse(std::string("no ") + ((seen_ & kDtype) == 0   ? "dtype"
                                     : (seen_ & kShape) == 0 ? "shape"
                                                             : "data_offsets"));
      place_ = Place::kTop;
    } else if (place_ == Place::kMetadata) {
      place_ = Place::kTop;
    } else {
      place_ = Place::kEnd;
    }
  }

 private:
  enum class Place {
    kStart,
    kTop,
    kMetadataValue,
    kMetadata,
    kMetadataText,
    kTensorValue,
    kTensor,
    kDtypeValue,
    kShapeValue,
    kShape,
    kOffsetsValue,
    kOffsets,
    kEnd
  };
  enum Field { kDtype = 1, kShape = 2, kOffsets = 4 };

  HeaderTensor& tensor() { return header_.tensors.back(); }

  std::string context() const override {
    switch (place_) {
      case Place::kStart:
      case Place::kTop:
      case Place::kEnd: return "header: expected one object of tensors";
      case Place::kMetadataValue:
      case Place::kMetadata:
      case Place::kMetadataText: return "__metadata__: expected an object of strings";
      default: break;
    }
    const std::string name = fmt::format("tensor {}", quote_name(header_.tensors.back().name));
    switch (place_) {
      case Place::kDtypeValue: return name + ": dtype: expected one of " + known_dtype_names();
      case Place::kShapeValue:
      case Place::kShape:
        return name + fmt::format(": shape: expected at most {} integers from 0 to 2^63 - 1", Shape::kMaxDimensions);
      case Place::kOffsetsValue:
      case Place::kOffsets: return name + ": data_offsets: expected two integers >= 0";
      default: return name + ": expected an object with dtype, shape and data_offsets, each once";
    }
  }

  Header& header_;
  Place place_ = Place::kStart;
  int seen_ = 0, offsets_read_ = 0;
  bool metadata_seen_ = false;
  std::string metadata_key_;
};

std::vector<uint32_t> indices_by_name(const std::vector<HeaderTensor>& tensors) {
  std::vector<uint32_t> order(tensors.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return tensors[a].name < tensors[b].name; });
  return order;
}

// Offsets relative to the data on entry, absolute on return.
void check_layout(Header& header, uint64_t file_bytes, const std::string& where) {
  const uint64_t data_bytes = file_bytes - header.data_begin;
  for (HeaderTensor& tensor : header.tensors) {
    if (tensor.begin > tensor.end)
      fail(ErrorKind::kFormat, where, "tensor {}: data_offsets [{}, {}] are out of order; expected begin <= end",
           quote_name(tensor.name), tensor.begin, tensor.end);
    if (tensor.end > data_bytes)
      fail(ErrorKind::kFormat, where,
           "tensor {}: data_offsets [{}, {}] end past the {} bytes of data in the file (expected a file of at least {} "
           "bytes, found {}); perhaps an incomplete download or copy",
           quote_name(tensor.name), tensor.begin, tensor.end, data_bytes,
           tensor.end > std::numeric_limits<uint64_t>::max() - header.data_begin ? std::numeric_limits<uint64_t>::max()
                                                                                 : header.data_begin + tensor.end,
           file_bytes);
    const std::optional<uint64_t> expected = checked_bytes(tensor.dtype, tensor.shape);
    if (!expected)
      fail(ErrorKind::kFormat, where, "tensor {}: shape {} of {} overflows; expected a size below 2^63 bytes",
           quote_name(tensor.name), tensor.shape.text(), dtype_name(tensor.dtype));
    if (*expected != tensor.end - tensor.begin)
      fail(ErrorKind::kFormat, where, "tensor {}: data_offsets [{}, {}] hold {} bytes; expected {} for {} {}",
           quote_name(tensor.name), tensor.begin, tensor.end, tensor.end - tensor.begin, *expected,
           dtype_name(tensor.dtype), tensor.shape.text());
  }
  std::sort(header.tensors.begin(), header.tensors.end(), [](const HeaderTensor& a, const HeaderTensor& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  uint64_t covered = 0;
  const HeaderTensor* before = nullptr;
  for (const HeaderTensor& tensor : header.tensors) {
    if (tensor.begin != covered) {
      const std::string after = before == nullptr ? "the header" : quote_name(before->name);
      if (tensor.begin < covered)
        fail(ErrorKind::kFormat, where, "tensor {}: data_offsets [{}, {}] overlap {}; expected begin {}",
             quote_name(tensor.name), tensor.begin, tensor.end, after, covered);
      fail(ErrorKind::kFormat, where,
           "tensor {}: data_offsets [{}, {}] leave a hole of {} bytes after {}; expected begin {}",
           quote_name(tensor.name), tensor.begin, tensor.end, tensor.begin - covered, after, covered);
    }
    covered = tensor.end;
    before = &tensor;
  }
  if (covered != data_bytes)
    fail(ErrorKind::kFormat, where, "{} bytes after the last tensor {}; expected the file to end at byte {}, found {}",
         data_bytes - covered, before == nullptr ? "(none is declared)" : quote_name(before->name),
         header.data_begin + covered, file_bytes);
  for (HeaderTensor& tensor : header.tensors) {
    tensor.begin += header.data_begin;
    tensor.end += header.data_begin;
  }
}

}  // namespace

Header parse_header(std::span<const std::byte> file, const std::string& where) {
  if (file.size() < 8)
    fail(ErrorKind::kFormat, where, "{} bytes; expected a safetensors file, which has at least 8", file.size());
  uint64_t header_bytes = 0;
  for (int i = 7; i >= 0; --i)
    header_bytes = header_bytes << 8 | std::to_integer<uint64_t>(file[static_cast<size_t>(i)]);
  if (header_bytes > kMaxHeaderBytes)
    fail(ErrorKind::kFormat, where,
         "a header of {} bytes is declared; expected at most {}; is this a safetensors file?", header_bytes,
         kMaxHeaderBytes);
  if (header_bytes > file.size() - 8)
    fail(ErrorKind::kFormat, where,
         "a header of {} bytes is declared, longer than the file; expected at most {}; perhaps an incomplete download",
         header_bytes, file.size() - 8);
  const auto* text = reinterpret_cast<const char*>(file.data() + 8);
  if (header_bytes == 0 || text[0] != '{')
    fail(ErrorKind::kFormat, where, "the header does not begin with '{{'; expected a JSON object");

  Header header;
  header.data_begin = 8 + header_bytes;
  HeaderReader reader(where, header);
  read_json({text, header_bytes}, reader);
  check_layout(header, file.size(), where);
  const std::vector<uint32_t> order = indices_by_name(header.tensors);
  for (size_t i = 1; i < order.size(); ++i) {
    const HeaderTensor &a = header.tensors[order[i - 1]], &b = header.tensors[order[i]];
    if (a.name == b.name)
      fail(ErrorKind::kFormat, where, "tensor {}: declared twice, {} {} and {} {}; expected each name once",
           quote_name(a.name), dtype_name(a.dtype), a.shape.text(), dtype_name(b.dtype), b.shape.text());
  }
  return header;
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : where_(path.string()), file_(path), header_(parse_header(file_.bytes(), where_)) {
  by_name_ = indices_by_name(header_.tensors);
}

const HeaderTensor* SafetensorsFile::find(std::string_view name) const {
  const auto it = std::lower_bound(by_name_.begin(), by_name_.end(), name,
                                   [&](uint32_t i, std::string_view key) { return header_.tensors[i].name < key; });
  return it != by_name_.end() && header_.tensors[*it].name == name ? &header_.tensors[*it] : nullptr;
}

const HeaderTensor& SafetensorsFile::at(std::string_view name) const {
  const HeaderTensor* tensor = find(name);
  if (tensor == nullptr)
    fail(ErrorKind::kFormat, where_, "tensor {}: not found among {} tensors", quote_name(name), header_.tensors.size());
  return *tensor;
}

}  // namespace verbatim::checkpoint
