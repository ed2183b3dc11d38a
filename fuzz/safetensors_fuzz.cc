// Safetensors files: any bytes either parse or are refused by Error, and what parses covers its file exactly. The first
// byte picks how the rest is read: odd as a whole file, even as a header's text, of which the length and as many bytes
// of data as the second byte says are added.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "base/error.h"
#include "checkpoint/names.h"
#include "checkpoint/safetensors.h"

namespace {

using namespace verbatim;

// In a block of exactly its size, so that the address sanitizer sees a step outside.
std::vector<std::byte> file_from(std::span<const std::byte> input) {
  if (std::to_integer<int>(input[0]) % 2 == 1) return {input.begin() + 1, input.end()};
  const std::span<const std::byte> header = input.subspan(2);
  std::vector<std::byte> file(8);
  for (size_t i = 0; i < 8; ++i) file[i] = static_cast<std::byte>(header.size() >> (8 * i));
  file.insert(file.end(), header.begin(), header.end());
  file.resize(file.size() + std::to_integer<size_t>(input[1]));
  file.shrink_to_fit();
  return file;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const std::vector<std::byte> file = file_from(std::as_bytes(std::span(data, size)));
  try {
    const checkpoint::Header header = checkpoint::parse_header(file, "fuzz");
    uint64_t covered = header.data_begin;
    for (const checkpoint::HeaderTensor& tensor : header.tensors) {
      const std::optional<uint64_t> bytes = checkpoint::checked_bytes(tensor.dtype, tensor.shape);
      if (tensor.begin != covered || tensor.end < tensor.begin || bytes != tensor.end - tensor.begin) std::abort();
      covered = tensor.end;
    }
    if (covered != file.size()) std::abort();
    for (const checkpoint::HeaderTensor& tensor : header.tensors) {
      // Parts of a fused tensor lie inside it, and a canonical name stays as it is.
      const std::string name = checkpoint::canonical_name(tensor.name).value_or(tensor.name);
      const auto elements = static_cast<uint64_t>(tensor.shape.elements());
      for (const checkpoint::FusedPart& part : checkpoint::fused_parts(name, tensor.shape, "fuzz"))
        if (part.offset_elements + static_cast<uint64_t>(part.shape.elements()) > elements ||
            checkpoint::canonical_name(part.name))
          std::abort();
    }
  } catch (const Error&) {
  }
  return 0;
}
