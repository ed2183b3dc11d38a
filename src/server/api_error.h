// Refusals as exceptions, and their JSON in each protocol's shape.
#pragma once

#include <fmt/core.h>

#include <stdexcept>
#include <string>
#include <utility>

#include "server/http.h"

namespace verbatim::server {

class ApiFailure : public std::runtime_error {
 public:
  explicit ApiFailure(ApiError error) : std::runtime_error(error.message), error_(std::move(error)) {}
  const ApiError& error() const { return error_; }

 private:
  ApiError error_;
};

// Throws ApiFailure: 400 about a field.
template <typename... Args>
[[noreturn]] void refuse_field(const std::string& param, fmt::format_string<Args...> text, Args&&... args) {
  throw ApiFailure({.status = 400,
                    .message = fmt::format("{}: {}", param, fmt::format(text, std::forward<Args>(args)...)),
                    .code = "invalid_value",
                    .param = param});
}

enum class ErrorShape { kOpenAi, kAnthropic };

// The "type" that the protocol's clients know for a status.
std::string error_type(int status, ErrorShape shape);
// {"error": {"message", "type", "param", "code"}} or {"type": "error", "error": {"type", "message"}}.
std::string error_json(const ApiError& error, ErrorShape shape);
HttpResponse error_response(const ApiError& error, ErrorShape shape);

// What a thrown exception means to the client: Error(kUsage, kFormat, kUnsupported) is 400, Error(kCapacity) 503, the
// rest 500.
ApiError api_error_of(const std::exception& problem);

}  // namespace verbatim::server
