// The safetensors container: 8 bytes of little-endian header length, a JSON header, then the tensors' bytes.
// Nothing is promised about alignment: the data may begin anywhere, so elements are read through memcpy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.h"
#include "checkpoint/dtype.h"

namespace verbatim {
class Sha256;
}

namespace verbatim::checkpoint {

// The limit that the format sets; it also bounds the number of tensors (about 50 bytes each).
inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;

struct HeaderTensor {
  std::string name;
  DType dtype = DType::kU8;
  Shape shape;
  uint64_t begin = 0, end = 0;  // absolute offsets in the file; end - begin = elements x bytes of one
};

struct Header {
  std::vector<HeaderTensor> tensors;            // by offset: they cover [data_begin, file size) without hole or overlap
  std::map<std::string, std::string> metadata;  // "__metadata__"
  uint64_t data_begin = 0;
};

// Reads and checks the header of a file of which all bytes are given; only the header's are touched. `where` names the
// file in messages. Throws Error(kFormat) for whatever is not exactly as the format says.
Header parse_header(std::span<const std::byte> file, const std::string& where);

// One safetensors file, mapped.
class SafetensorsFile {
 public:
  // Throws Error(kIo) or Error(kFormat).
  explicit SafetensorsFile(const std::filesystem::path& path);

  const Header& header() const { return header_; }
  // nullptr if absent.
  const HeaderTensor* find(std::string_view name) const;
  // Throws Error(kFormat) if absent.
  const HeaderTensor& at(std::string_view name) const;
  // The stored bytes, at any alignment; valid as long as this object.
  std::span<const std::byte> data(const HeaderTensor& tensor) const {
    return file_.bytes().subspan(tensor.begin, tensor.end - tensor.begin);
  }

 private:
  std::string where_;
  MappedFile file_;
  Header header_;
  std::vector<uint32_t> by_name_;  // indices into header_.tensors
};

struct TensorSpec {
  std::string name;
  DType dtype = DType::kU8;
  Shape shape;
};

struct WriterOptions {
  // The data begins at a multiple of 8 plus this (0..7). Real files hold data at 4; tests ask for it.
  uint32_t data_begin_modulo_8 = 0;
  Sha256* digest = nullptr;  // fed every byte of the file, header included
};

// Writes one safetensors file in a single pass. The bytes go to PATH.partial, which finish() syncs and renames; until
// then, and after any failure, PATH is untouched, and the destructor removes what is partial.
class SafetensorsWriter {
 public:
  // Writes the header. Throws Error(kIo), and Error(kUsage) for a duplicate or ill-formed name or an impossible shape.
  SafetensorsWriter(std::filesystem::path path, std::vector<TensorSpec> tensors,
                    const std::map<std::string, std::string>& metadata = {}, WriterOptions options = {});
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  // The next bytes, in the order declared; cut anywhere. Throws Error(kIo) (a full disk), Error(kUsage) past the end.
  void append(std::span<const std::byte> bytes);
  // Throws Error(kUsage) if bytes are missing (naming the tensor), Error(kIo). The object is then spent.
  void finish();

  // Bytes of all tensors declared.
  uint64_t payload_bytes() const { return payload_bytes_; }

 private:
  void write(std::span<const std::byte> bytes);
  [[noreturn]] void give_up(const char* what);
  void discard();

  std::filesystem::path path_, partial_;
  std::vector<TensorSpec> tensors_;
  uint64_t payload_bytes_ = 0, appended_bytes_ = 0;
  Sha256* digest_ = nullptr;
  int fd_ = -1;
};

}  // namespace verbatim::checkpoint
