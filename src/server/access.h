// Who may ask: hosts, origins, keys. Everything that can be refused from a request's header.
#pragma once

#include <atomic>
#include <optional>
#include <string>
#include <vector>

#include "server/http.h"
#include "server/keys.h"
#include "server/router.h"

namespace verbatim::server {

struct AccessOptions {
  std::string bound_host = "127.0.0.1";        // --host
  std::vector<std::string> served_hosts = {};  // --served-host: further names this server is asked by
  std::vector<std::string> cors_origins = {};  // --cors: pages from there may use it; "*": from everywhere
};

class AccessRules {
 public:
  // Both must outlive it.
  AccessRules(const Router& router, const ApiKeys& keys, AccessOptions options);

  // Sets the request's key, path arguments and response headers; returns the refusal, or the answer to a preflight.
  std::optional<HttpResponse> check(HttpRequest& head, bool is_draining) const;

 private:
  bool is_own_host(std::string_view host) const;
  bool may_read(std::string_view origin) const;

  const Router& router_;
  const ApiKeys& keys_;
  const AccessOptions options_;
  bool binds_every_address_ = false;
};

}  // namespace verbatim::server
