// A client of one HTTP/1.1 server: what evaluates a running server asks it with.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace verbatim::evaluate {

struct ServerAddress {
  std::string host, port, prefix;  // prefix: of every path, without a slash at its end

  // "http://host:port/prefix" or "host:port". Throws Error(kUsage) for anything else, https too.
  static ServerAddress parse(std::string_view url);
};

using ClientHeaders = std::vector<std::pair<std::string, std::string>>;

struct ClientResponse {
  int status = 0;
  ClientHeaders headers;
  std::string body;            // empty if it was given to on_body
  bool was_abandoned = false;  // hung up before its end, as Listening asked

  // Of the first header of that name (case ignored); empty if there is none.
  std::string header(std::string_view name) const;
};

struct Listening {
  // Gets pieces of a 200 response's body as they arrive; false: hang up.
  std::function<bool(std::string_view piece)> on_body = {};
  // Hang up so long after the request was sent, whatever has come; 0: never.
  std::chrono::milliseconds leave_after{0};
};

// One connection, opened when it is needed and kept. For one thread at a time.
class HttpClient {
 public:
  // `key` is sent as Authorization: Bearer unless it is empty. `silence` is how long the server may send nothing.
  HttpClient(ServerAddress address, std::string key, std::chrono::milliseconds silence);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // Throws Error(kIo): no connection, a broken one, silence, no HTTP. A kept connection that turns out to have been
  // closed is opened again once.
  ClientResponse get(const std::string& path);
  ClientResponse post(const std::string& path, const std::string& body, const Listening& listening = {});
  // `headers` are added to, or stand instead of, those that are always sent.
  ClientResponse send(const std::string& method, const std::string& path, const std::string& body,
                      const ClientHeaders& headers, const Listening& listening);
  void close();

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

// Server-sent events out of the pieces of a body.
class EventReader {
 public:
  // Calls on_event(name, data) for each event that is whole; false from it ends the reading, and is returned.
  bool feed(std::string_view piece, const std::function<bool(std::string_view name, std::string_view data)>& on_event);

 private:
  std::string rest_, name_, data_;
  bool has_data_ = false;
};

}  // namespace verbatim::evaluate
