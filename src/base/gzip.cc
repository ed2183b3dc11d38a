#include "base/gzip.h"

#include <zlib.h>

#include "base/error.h"

namespace verbatim {

std::string gunzip(std::span<const std::byte> compressed, size_t limit_bytes, const std::string& where) {
  z_stream stream{};
  if (inflateInit2(&stream, 16 + MAX_WBITS) != Z_OK) fail(ErrorKind::kIo, where, "zlib does not start");
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(compressed.data()));
  stream.avail_in = static_cast<uInt>(compressed.size());
  std::string out;
  char buffer[1 << 16];
  int status = Z_OK;
  while (status == Z_OK && out.size() <= limit_bytes) {
    stream.next_out = reinterpret_cast<Bytef*>(buffer);
    stream.avail_out = sizeof buffer;
    status = inflate(&stream, Z_NO_FLUSH);
    out.append(buffer, sizeof buffer - stream.avail_out);
  }
  inflateEnd(&stream);
  if (out.size() > limit_bytes) fail(ErrorKind::kFormat, where, "inflates past {} bytes", limit_bytes);
  if (status != Z_STREAM_END) fail(ErrorKind::kFormat, where, "damaged or truncated gzip stream");
  return out;
}

}  // namespace verbatim
