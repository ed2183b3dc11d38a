// The file that the writer's committed vector is about (tests/fixtures/writer_sample.json).
#pragma once

#include <cstddef>
#include <filesystem>
#include <vector>

#include "checkpoint/safetensors.h"

namespace verbatim::checkpoint {

inline std::vector<TensorSpec> writer_sample_tensors() {
  return {{"model.language_model.layers.0.hc_attn_fn", DType::kBF16, {24, 16}},
          {"scalar", DType::kF32, {}},
          {"empty", DType::kF32, {3, 0}},
          {"one byte", DType::kU8, {1}},
          {"unaligned.weight", DType::kF32, {2, 3, 5}},
          {"e4m3", DType::kF8E4M3, {7}},
          {"e5m2", DType::kF8E5M2, {2, 2}},
          {"half", DType::kF16, {3}},
          {"double", DType::kF64, {2}},
          {"ids", DType::kI32, {4}},
          {"long", DType::kI64, {2}},
          {"flag", DType::kBool, {2}},
          {"quoted \"\\\n\u00e9\u65e5", DType::kI8, {3}},
          {"eight.dimensions", DType::kU16, {1, 2, 1, 2, 1, 2, 1, 2}}};
}

// Byte i of the payload.
inline std::byte writer_sample_byte(uint64_t i) { return static_cast<std::byte>((i * 131 + (i >> 8) * 17 + 7) & 0xff); }

// Booleans are 0 or 1 in this file too: readers may check.
inline void write_writer_sample(const std::filesystem::path& path) {
  SafetensorsWriter writer(path, writer_sample_tensors(), {{"format", "pt"}, {"made by", "verbatim \"tests\""}});
  uint64_t at = 0;
  for (const TensorSpec& tensor : writer_sample_tensors()) {
    std::vector<std::byte> bytes(*checked_bytes(tensor.dtype, tensor.shape));
    for (std::byte& byte : bytes) {
      byte = writer_sample_byte(at++);
      if (tensor.dtype == DType::kBool) byte &= std::byte{1};
    }
    writer.append(bytes);
  }
  writer.finish();
}

}  // namespace verbatim::checkpoint
