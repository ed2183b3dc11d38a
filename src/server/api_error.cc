#include "server/api_error.h"

#include "base/error.h"
#include "server/json_text.h"

namespace verbatim::server {

std::string error_type(int status, ErrorShape shape) {
  const bool anthropic = shape == ErrorShape::kAnthropic;
  switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 413: return anthropic ? "request_too_large" : "invalid_request_error";
    case 429: return "rate_limit_error";
    case 503:
    case 529: return anthropic ? "overloaded_error" : "server_error";
    default:
      if (status >= 500) return anthropic ? "api_error" : "server_error";
      return "invalid_request_error";
  }
}

std::string error_json(const ApiError& error, ErrorShape shape) {
  std::string out;
  const auto string_or_null = [&out](const std::string& text) {
    if (text.empty()) {
      out += "null";
    } else {
      append_json_string(out, text);
    }
  };
  out += shape == ErrorShape::kAnthropic ? R"({"type":"error","error":{"type":)" : R"({"error":{"type":)";
  append_json_string(out, error_type(error.status, shape));
  out += R"(,"message":)";
  append_json_string(out, error.message);
  if (shape == ErrorShape::kOpenAi) {
    out += R"(,"param":)";
    string_or_null(error.param);
    out += R"(,"code":)";
    string_or_null(error.code);
  }
  out += "}}";
  return out;
}

HttpResponse error_response(const ApiError& error, ErrorShape shape) {
  HttpResponse response{.status = error.status, .body = error_json(error, shape)};
  if (error.retry_after_s > 0) response.headers.push_back({"Retry-After", std::to_string(error.retry_after_s)});
  if (error.status == 401) response.headers.push_back({"WWW-Authenticate", "Bearer"});
  return response;
}

ApiError api_error_of(const std::exception& problem) {
  if (const auto* failure = dynamic_cast<const ApiFailure*>(&problem)) return failure->error();
  if (const auto* error = dynamic_cast<const Error*>(&problem)) {
    switch (error->kind()) {
      case ErrorKind::kUsage:
      case ErrorKind::kFormat: return {.status = 400, .message = problem.what(), .code = "invalid_request"};
      case ErrorKind::kUnsupported: return {.status = 400, .message = problem.what(), .code = "unsupported"};
      case ErrorKind::kCapacity:
        return {.status = 503, .message = problem.what(), .code = "overloaded", .retry_after_s = 1};
      case ErrorKind::kIo: break;
    }
  }
  if (dynamic_cast<const std::bad_alloc*>(&problem) != nullptr)
    return {.status = 503, .message = "out of memory", .code = "overloaded", .retry_after_s = 1};
  return {.status = 500, .message = problem.what(), .code = "internal_error"};
}

}  // namespace verbatim::server
