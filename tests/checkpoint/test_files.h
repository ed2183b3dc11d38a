// Small checkpoints made by hand, right or wrong in every byte.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace verbatim::checkpoint {

// A directory that goes with the object.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string name = (std::filesystem::temp_directory_path() / "verbatim.XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp " + name);
    path_ = name;
  }
  ~TemporaryDirectory() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

inline void write_bytes(const std::filesystem::path& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

inline std::string read_bytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// 8 bytes of length, the header, the data.
inline std::string file_of(const std::string& header, const std::string& data = "") {
  std::string out(8, '\0');
  for (size_t i = 0; i < 8; ++i) out[i] = static_cast<char>(header.size() >> (8 * i));
  return out + header + data;
}

struct StoredTensor {
  std::string name, dtype;
  std::vector<int64_t> shape;
  std::string bytes;
};

// A well-formed file (as far as the tensors are), its data beginning at `data_begin_modulo_8` modulo 8.
inline std::string safetensors(const std::vector<StoredTensor>& tensors, size_t data_begin_modulo_8 = 0) {
  std::string header = "{", data;
  for (const StoredTensor& tensor : tensors) {
    const size_t begin = data.size();
    data += tensor.bytes;
    header += fmt::format("{}\"{}\":{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
                          header.size() > 1 ? "," : "", tensor.name, tensor.dtype, fmt::join(tensor.shape, ","), begin,
                          data.size());
  }
  header += "}";
  while (header.size() % 8 != data_begin_modulo_8) header += ' ';
  return file_of(header, data);
}

template <typename T>
std::string bytes_of(const std::vector<T>& values) {
  std::string out(values.size() * sizeof(T), '\0');
  std::memcpy(out.data(), values.data(), out.size());
  return out;
}
inline std::string f32(float value) { return bytes_of<float>({value}); }

// What `action` throws; empty text and no kind if nothing.
struct Refusal {
  bool thrown = false;
  ErrorKind kind = ErrorKind::kUsage;
  std::string message;
};
template <typename Action>
Refusal refusal_of(const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    return {true, error.kind(), error.what()};
  }
  return {};
}

}  // namespace verbatim::checkpoint
