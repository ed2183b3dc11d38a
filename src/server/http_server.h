// The HTTP/1.1 server: sockets, parsing, limits, timeouts. Knows no routes.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "server/http.h"

namespace verbatim::server {

struct HttpLimits {
  int64_t connections = 1024;                        // open at once; more get 503 and are closed
  int64_t header_bytes = 16 << 10;                   // request line and headers
  int64_t body_bytes = 16 << 20;                     // of one request
  int64_t all_body_bytes = 256 << 20;                // of all requests being read or waiting to be worked on
  std::chrono::milliseconds header_timeout{10'000};  // for the whole header, from the connection's or its first byte
  std::chrono::milliseconds body_timeout{60'000};    // for the whole body
  std::chrono::milliseconds idle_timeout{75'000};    // between requests
  std::chrono::milliseconds write_timeout{60'000};   // without the client taking a byte
  std::chrono::milliseconds keep_alive{15'000};      // of silence in a stream before a comment line is sent
};

struct HttpServerOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 0;  // 0: any free one
  int threads = 2;
  HttpLimits limits = {};
};

struct HttpHooks {
  // With the header of a request, before its body is read, on a connection's thread. May add to the request; what it
  // returns is the answer.
  std::function<std::optional<HttpResponse>(HttpRequest& head)> admit;
  // With the whole request, on a connection's thread: must not block.
  std::function<void(std::shared_ptr<Exchange>)> handle;
  // The JSON body of errors that the HTTP layer finds. `path` is empty if it is not known yet.
  std::function<HttpResponse(const ApiError& error, std::string_view path)> error;
  // After each request, answered or not (status 499: the client went away).
  std::function<void(const HttpRequest& request, const RequestFigures& figures, int status, int64_t bytes_sent)> done;
};

struct HttpCounts {
  int64_t connections = 0;  // open now
  int64_t exchanges = 0;    // requests read and not yet answered in full
  int64_t refused_connections = 0;
  int64_t body_bytes = 0;  // held now
};

class HttpServer {
 public:
  // Listens when it returns. Throws Error(kIo) if the address cannot be bound.
  HttpServer(HttpServerOptions options, HttpHooks hooks);
  // Closes everything; who went away is told (on_gone).
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  uint16_t port() const;
  HttpCounts counts() const;
  // From now on every response closes its connection.
  void close_after_responses();
  // Waits until no request is unanswered, at most so long. False: some still are.
  bool wait_idle(std::chrono::milliseconds most) const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace verbatim::server
