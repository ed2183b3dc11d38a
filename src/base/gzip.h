#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace verbatim {

// Inflates one gzip stream. Throws Error(kFormat) on a damaged stream or one that inflates past `limit_bytes`, and
// Error(kUnsupported) in a build without zlib.
std::string gunzip(std::span<const std::byte> compressed, size_t limit_bytes, const std::string& where);

}  // namespace verbatim
