#include "evaluate/http_client.h"

#include <array>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <charconv>
#include <optional>

#include "base/error.h"

namespace verbatim::evaluate {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;

ServerAddress ServerAddress::parse(std::string_view url) {
  const std::string shown(url);
  if (url.starts_with("http://")) {
    url.remove_prefix(7);
  } else if (url.find("://") != std::string_view::npos) {
    fail(ErrorKind::kUsage, shown, "only http:// is spoken; put the server's own address there");
  }
  ServerAddress address;
  const size_t slash = std::min(url.find('/'), url.size());
  address.prefix = url.substr(slash);
  while (address.prefix.ends_with('/')) address.prefix.pop_back();
  std::string_view host = url.substr(0, slash);
  address.port = "80";
  const size_t colon = host.rfind(':');
  if (colon != std::string_view::npos && (host.front() != '[' || host.find(']') < colon)) {
    address.port = host.substr(colon + 1);
    host = host.substr(0, colon);
  }
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  address.host = host;
  uint16_t port = 0;
  const char* end = address.port.data() + address.port.size();
  const auto [read, problem] = std::from_chars(address.port.data(), end, port);
  if (address.host.empty() || problem != std::errc() || read != end || port == 0)
    fail(ErrorKind::kUsage, shown, "no server's address; expected http://HOST:PORT");
  return address;
}

std::string ClientResponse::header(std::string_view name) const {
  for (const auto& [own, value] : headers)
    if (beast::iequals(own, beast::string_view(name.data(), name.size()))) return value;
  return {};
}

struct HttpClient::Parts {
  Parts(ServerAddress to, std::string with_key, std::chrono::milliseconds most_silence)
      : address(std::move(to)), key(std::move(with_key)), silence(most_silence) {
    where = fmt::format("http://{}:{}{}", address.host, address.port, address.prefix);
  }

  // Runs one asynchronous operation to its end: the only way to have a time limit.
  template <typename Start>
  error_code await(Start start) {
    error_code result;
    const auto silent = Clock::now() + silence;
    stream->expires_at(leave_at ? std::min(*leave_at, silent) : silent);
    start([&result](error_code ended, auto&&...) { result = ended; });
    io.restart();
    io.run();
    return result;
  }

  void connect() {
    error_code problem;
    asio::ip::tcp::resolver resolver(io);
    const auto found = resolver.resolve(address.host, address.port, problem);
    if (problem) fail(ErrorKind::kIo, where, "the host's name is not known: {}", problem.message());
    stream.emplace(io);
    problem = await([&](auto done) { stream->async_connect(found, done); });
    if (!problem) stream->socket().set_option(asio::ip::tcp::no_delay(true), problem);
    if (problem) {
      stream.reset();
      fail(ErrorKind::kIo, where, "no connection: {}; is the server running there?", problem.message());
    }
    buffer.clear();
  }

  bool is_left(const error_code& problem) const {
    return problem == beast::error::timeout && leave_at && Clock::now() >= *leave_at;
  }

  [[noreturn]] void broken(const char* doing, const error_code& problem) {
    stream.reset();
    if (problem == beast::error::timeout)
      fail(ErrorKind::kIo, where, "silence for {} s while {}", static_cast<double>(silence.count()) / 1e3, doing);
    fail(ErrorKind::kIo, where, "the connection broke while {}: {}", doing, problem.message());
  }

  const ServerAddress address;
  const std::string key;
  const std::chrono::milliseconds silence;
  std::string where;
  std::optional<Clock::time_point> leave_at;
  asio::io_context io;
  std::optional<beast::tcp_stream> stream;
  beast::flat_buffer buffer;
};

HttpClient::HttpClient(ServerAddress address, std::string key, std::chrono::milliseconds silence)
    : parts_(std::make_unique<Parts>(std::move(address), std::move(key), silence)) {}
HttpClient::~HttpClient() = default;

ClientResponse HttpClient::get(const std::string& path) { return send("GET", path, "", {}, {}); }
ClientResponse HttpClient::post(const std::string& path, const std::string& body, const Listening& listening) {
  return send("POST", path, body, {}, listening);
}
void HttpClient::close() { parts_->stream.reset(); }

ClientResponse HttpClient::send(const std::string& method, const std::string& path, const std::string& body,
                                const ClientHeaders& headers, const Listening& listening) {
  Parts& parts = *parts_;
  parts.leave_at.reset();
  if (listening.leave_after.count() > 0) parts.leave_at = Clock::now() + listening.leave_after;
  const auto leave = [&parts](ClientResponse& response) {
    parts.stream.reset();
    response.was_abandoned = true;
    return response;
  };
  ClientResponse response;
  http::request<http::string_body> request(http::string_to_verb(method), parts.address.prefix + path, 11);
  request.set(http::field::host, parts.address.host + ":" + parts.address.port);
  request.set(http::field::user_agent, "verbatim");
  if (!parts.key.empty()) request.set(http::field::authorization, "Bearer " + parts.key);
  if (method == "POST") {
    request.set(http::field::content_type, "application/json");
    request.body() = body;
  }
  for (const auto& [name, value] : headers) request.set(name, value);
  request.prepare_payload();

  std::optional<http::response_parser<http::buffer_body>> parser;
  for (bool was_kept = parts.stream.has_value();; was_kept = false) {
    if (!was_kept) parts.connect();
    error_code problem = parts.await([&](auto done) { http::async_write(*parts.stream, request, done); });
    if (!problem) {
      parser.emplace();
      parser->body_limit(boost::none);
      problem = parts.await([&](auto done) { http::async_read_header(*parts.stream, parts.buffer, *parser, done); });
    }
    if (!problem) break;
    if (parts.is_left(problem)) return leave(response);
    if (!was_kept || problem == beast::error::timeout) parts.broken("waiting for the answer", problem);
    parts.stream.reset();
  }

  response.status = static_cast<int>(parser->get().result_int());
  for (const auto& field : parser->get())
    response.headers.emplace_back(std::string(field.name_string()), std::string(field.value()));
  std::array<char, 16 << 10> piece;
  while (!parser->is_done()) {
    parser->get().body().data = piece.data();
    parser->get().body().size = piece.size();
    const error_code problem =
        parts.await([&](auto done) { http::async_read_some(*parts.stream, parts.buffer, *parser, done); });
    if (parts.is_left(problem)) return leave(response);
    if (problem && problem != http::error::need_buffer) parts.broken("reading the answer", problem);
    const std::string_view read(piece.data(), piece.size() - parser->get().body().size);
    if (read.empty()) continue;
    if (!listening.on_body || response.status != 200) {
      response.body += read;
    } else if (!listening.on_body(read)) {
      return leave(response);
    }
  }
  if (!parser->get().keep_alive()) parts.stream.reset();
  return response;
}

bool EventReader::feed(std::string_view piece,
                       const std::function<bool(std::string_view, std::string_view)>& on_event) {
  rest_ += piece;
  size_t at = 0;
  for (size_t end; (end = rest_.find('\n', at)) != std::string::npos; at = end + 1) {
    std::string_view line = std::string_view(rest_).substr(at, end - at);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) {
      const bool is_event = std::exchange(has_data_, false);
      const std::string name = std::exchange(name_, {}), data = std::exchange(data_, {});
      if (is_event && !on_event(name, data)) return false;
      continue;
    }
    const size_t colon = std::min(line.find(':'), line.size());
    const std::string_view field = line.substr(0, colon);
    std::string_view value = line.substr(std::min(colon + 1, line.size()));
    if (value.starts_with(' ')) value.remove_prefix(1);
    if (field == "event") {
      name_ = value;
    } else if (field == "data") {
      if (has_data_) data_ += '\n';
      data_ += value;
      has_data_ = true;
    }
  }
  rest_.erase(0, at);
  return true;
}

}  // namespace verbatim::evaluate
