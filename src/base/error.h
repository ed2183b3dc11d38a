// The one exception type. It is thrown at boundaries (files, arguments, sizes) and caught in cli/ and server/.
#pragma once

#include <fmt/core.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace verbatim {

enum class ErrorKind {
  kUsage,        // the caller's arguments are wrong: exit code 2
  kFormat,       // a file is damaged or not of the expected form
  kUnsupported,  // well formed, but asks for something this engine does not implement
  kCapacity,     // does not fit: memory, context, pages
  kIo,           // the system said no: missing file, full disk
};

// Message: "[where] what was found; what was expected; what to do".
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

// Throws Error{kind, "[where] " + formatted text}.
template <typename... Args>
[[noreturn]] void fail(ErrorKind kind, std::string_view where, fmt::format_string<Args...> text, Args&&... args) {
  throw Error(kind, fmt::format("[{}] {}", where, fmt::format(text, std::forward<Args>(args)...)));
}

}  // namespace verbatim
