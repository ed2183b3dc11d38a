#include "base/error.h"
#include "base/gzip.h"

namespace verbatim {

std::string gunzip(std::span<const std::byte> /*compressed*/, size_t /*limit_bytes*/, const std::string& where) {
  fail(ErrorKind::kUnsupported, where, "this build has no zlib; unpack the file first");
}

}  // namespace verbatim
