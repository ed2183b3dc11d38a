// The server: HTTP, access rules and routes around one engine.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "server/access.h"
#include "server/http_server.h"
#include "server/keys.h"
#include "server/response_store.h"
#include "server/router.h"
#include "server/service.h"
#include "server/workers.h"

namespace verbatim::server {

struct ServerOptions {
  HttpServerOptions http = {};
  AccessOptions access = {};  // bound_host is taken from http
  ServiceOptions service = {};
  ResponseStoreLimits responses = {};       // of /v1/responses
  std::filesystem::path api_key_file = {};  // empty: no keys
  int workers = 2;
  size_t worker_queue = 256;  // requests waiting for a worker; more get 503
  bool logs_requests = true;
};

class Server {
 public:
  // Listens when it returns. `engine` must outlive it. Throws Error.
  Server(ServedModel model, engine::Engine& engine, ServerOptions options);
  // Ends every connection; replies still running are cancelled.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  uint16_t port() const { return http_->port(); }
  HttpCounts http_counts() const { return http_->counts(); }
  Service& service() { return service_; }
  const ApiKeys& keys() const { return keys_; }

  // Reads the key file again; on failure says so in the log and keeps the keys it has.
  void reload_keys();
  // New requests get 503 from now on.
  void begin_drain();
  // Waits for the running replies, at most so long; false: some had not ended.
  bool drain(std::chrono::milliseconds most);

 private:
  void handle(const std::shared_ptr<Exchange>& exchange);
  void log_request(const HttpRequest& request, const RequestFigures& figures, int status, int64_t bytes_sent);

  const ServerOptions options_;
  Service service_;
  ApiKeys keys_;
  Router router_;
  AccessRules access_;
  std::atomic<bool> is_draining_{false};
  std::unique_ptr<HttpServer> http_;
  std::unique_ptr<Workers> workers_;
};

}  // namespace verbatim::server
