#include "server/access.h"

#include <arpa/inet.h>

#include <algorithm>

namespace verbatim::server {
namespace {

// "name:port" or "[address]:port" without the port and the brackets.
std::string_view without_port(std::string_view host) {
  if (host.starts_with('[')) {
    const size_t end = host.find(']');
    return end == std::string_view::npos ? host : host.substr(1, end - 1);
  }
  const size_t colon = host.rfind(':');
  return colon == std::string_view::npos || host.find(':') != colon ? host : host.substr(0, colon);
}

bool is_address(std::string_view host) {
  const std::string text(host);
  unsigned char buffer[sizeof(struct in6_addr)];
  return ::inet_pton(AF_INET, text.c_str(), buffer) == 1 || ::inet_pton(AF_INET6, text.c_str(), buffer) == 1;
}

// The password in "Basic base64(user:password)"; nothing if it is no such text.
std::optional<std::string> basic_password(std::string_view authorization) {
  constexpr std::string_view kScheme = "basic ";
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  if (authorization.size() <= kScheme.size() || !equal_ignoring_case(authorization.substr(0, kScheme.size()), kScheme))
    return std::nullopt;
  std::string text;
  uint32_t bits = 0;
  int count = 0;
  for (const char c : authorization.substr(kScheme.size())) {
    if (c == '=') break;
    const size_t digit = kDigits.find(c);
    if (digit == std::string_view::npos) return std::nullopt;
    bits = bits << 6 | static_cast<uint32_t>(digit);
    count += 6;
    if (count >= 8) text += static_cast<char>(bits >> (count -= 8) & 0xff);
  }
  const size_t colon = text.find(':');
  return colon == std::string::npos ? std::nullopt : std::optional(text.substr(colon + 1));
}

}  // namespace

AccessRules::AccessRules(const Router& router, const ApiKeys& keys, AccessOptions options)
    : router_(router), keys_(keys), options_(std::move(options)) {
  binds_every_address_ = options_.bound_host == "0.0.0.0" || options_.bound_host == "::";
}

// A page elsewhere can make a browser ask this server under the page's own name (DNS rebinding), never under an
// address: so addresses are fine where the server listens on all of them.
bool AccessRules::is_own_host(std::string_view host) const {
  const std::string_view name = without_port(host);
  if (equal_ignoring_case(name, "localhost") || equal_ignoring_case(name, options_.bound_host)) return true;
  if (binds_every_address_ && is_address(name)) return true;
  return std::any_of(options_.served_hosts.begin(), options_.served_hosts.end(), [&](const std::string& own) {
    return equal_ignoring_case(own, name) || equal_ignoring_case(own, host);
  });
}

bool AccessRules::may_read(std::string_view origin) const {
  return std::any_of(options_.cors_origins.begin(), options_.cors_origins.end(),
                     [&](const std::string& one) { return one == "*" || one == origin; });
}

std::optional<HttpResponse> AccessRules::check(HttpRequest& head, bool is_draining) const {
  const ErrorShape shape = router_.errors(head.path);
  const auto refuse = [&](const ApiError& error) { return error_response(error, shape); };
  const std::string_view origin = head.header("origin");
  const bool reads = !origin.empty() && may_read(origin);
  if (reads) {
    head.response_headers.push_back({"Access-Control-Allow-Origin", std::string(origin)});
    head.response_headers.push_back({"Vary", "Origin"});
    head.response_headers.push_back({"Access-Control-Expose-Headers", "X-Request-Id"});
    if (head.method == "OPTIONS")
      return HttpResponse{.status = 204,
                          .headers = {{"Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS"},
                                      {"Access-Control-Allow-Headers",
                                       "authorization, content-type, x-api-key, anthropic-version, anthropic-beta, "
                                       "anthropic-dangerous-direct-browser-access, x-stainless-arch, x-stainless-lang, "
                                       "x-stainless-os, x-stainless-package-version, x-stainless-retry-count, "
                                       "x-stainless-runtime, x-stainless-runtime-version, x-stainless-timeout, "
                                       "x-stainless-helper-method, x-stainless-async"},
                                      {"Access-Control-Max-Age", "600"}}};
  }

  const Route* route = router_.find(head.method, head.path, head.path_arguments);
  const bool is_open = route != nullptr && route->access == Access::kOpen;
  if (keys_.are_required()) {
    if (!is_open) {
      std::string_view presented = head.header("x-api-key");
      if (const std::string_view bearer = head.header("authorization");
          bearer.size() > 7 && equal_ignoring_case(bearer.substr(0, 7), "bearer "))
        presented = bearer.substr(7);
      const bool is_for_browsers = route != nullptr && route->access == Access::kBrowser;
      std::optional<std::string> password;
      if (is_for_browsers) password = basic_password(head.header("authorization"));
      if (password) presented = *password;
      std::optional<std::string> name = keys_.find(presented);
      if (!name) {
        HttpResponse response =
            refuse({.status = 401,
                    .message = presented.empty() ? "no API key; send Authorization: Bearer KEY or x-api-key: KEY"
                                                 : "the API key is not one of this server's",
                    .code = "invalid_api_key"});
        if (is_for_browsers)
          for (Header& header : response.headers)
            if (header.name == "WWW-Authenticate") header.value = "Basic realm=\"an API key as the password\"";
        return response;
      }
      head.key = std::move(*name);
    }
  } else if (!is_open) {
    const std::string_view host = head.header("host");
    if (!is_own_host(host))
      return refuse({.status = 403,
                     .message = "the Host is none of this server's; start it with --served-host, or with keys",
                     .code = "foreign_host"});
    if (!origin.empty() && !reads) {
      const size_t slashes = origin.find("://");
      if (slashes == std::string_view::npos || !equal_ignoring_case(origin.substr(slashes + 3), host))
        return refuse({.status = 403,
                       .message = "a page from another origin; start the server with --cors ORIGIN to allow it",
                       .code = "foreign_origin"});
    }
  }

  if (route == nullptr) {
    const std::string methods = router_.methods(head.path);
    if (methods.empty()) return refuse({.status = 404, .message = "no such route", .code = "not_found"});
    HttpResponse response =
        refuse({.status = 405, .message = "the route takes " + methods, .code = "method_not_allowed"});
    response.headers.push_back({"Allow", methods});
    return response;
  }
  if (is_draining && !is_open)
    return refuse({.status = 503,
                   .message = "the server is about to end and takes no new requests",
                   .code = "draining",
                   .retry_after_s = 10});
  if (route->method == "POST") {
    std::string_view type = head.header("content-type");
    type = type.substr(0, type.find(';'));
    while (type.ends_with(' ') || type.ends_with('\t')) type.remove_suffix(1);
    if (!equal_ignoring_case(type, "application/json"))
      return refuse({.status = 415,
                     .message = "the body must be sent with Content-Type: application/json",
                     .code = "unsupported_media_type"});
  }
  return std::nullopt;
}

}  // namespace verbatim::server
