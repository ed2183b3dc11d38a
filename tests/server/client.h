// An HTTP client that tests can make misbehave: raw bytes, half requests, reading or not, and when each piece came.
#pragma once

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace verbatim::server {

using Headers = std::vector<std::pair<std::string, std::string>>;

struct Answer {
  int status = 0;                              // 0: the connection ended without one
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;
  nlohmann::json json() const { return nlohmann::json::parse(body, nullptr, false); }
  std::string error(const char* member) const {
    const nlohmann::json parsed = json();
    if (!parsed.is_object() || !parsed.contains("error")) return "";
    const nlohmann::json& value = parsed["error"][member];
    return value.is_string() ? value.get<std::string>() : "";
  }
};

// The data of "data: ..." lines.
inline std::vector<std::string> sse_data(const std::string& body) {
  std::vector<std::string> events;
  for (size_t at = 0; (at = body.find("data: ", at)) != std::string::npos;) {
    const size_t end = body.find("\n\n", at);
    if (end == std::string::npos) break;
    events.push_back(body.substr(at + 6, end - at - 6));
    at = end;
  }
  return events;
}

class Client {
 public:
  explicit Client(uint16_t port) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
      throw std::runtime_error("cannot connect");
    const int on = 1;
    ::setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }
  ~Client() { close(); }
  Client(Client&& other) noexcept : socket_(std::exchange(other.socket_, -1)), buffer_(std::move(other.buffer_)) {}
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  void close() {
    if (socket_ >= 0) ::close(std::exchange(socket_, -1));
  }
  void shut_down_sending() const { ::shutdown(socket_, SHUT_WR); }
  // False if the other side does not take it any longer.
  bool send(std::string_view bytes) const {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }
  // What comes next, at most so long waited for; nothing: the end, an error, or nothing came (see is_open).
  std::string receive(int wait_ms = 20'000) {
    if (!buffer_.empty()) return std::exchange(buffer_, {});
    pollfd one{socket_, POLLIN, 0};
    if (::poll(&one, 1, wait_ms) <= 0) return {};
    char bytes[65536];
    const ssize_t got = ::recv(socket_, bytes, sizeof bytes, 0);
    if (got <= 0) {
      has_ended_ = true;
      return {};
    }
    return {bytes, static_cast<size_t>(got)};
  }
  bool has_ended() const { return has_ended_; }
  // Bytes, or the end, are there to be read.
  bool has_something() const {
    pollfd one{socket_, POLLIN, 0};
    return ::poll(&one, 1, 0) > 0;
  }
  int socket() const { return socket_; }
  // Waits for the other side to close.
  bool ends_within(int wait_ms) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(wait_ms);
    while (!has_ended_ && std::chrono::steady_clock::now() < end) receive(20);
    return has_ended_;
  }

  static std::string text_of(const std::string& method, const std::string& path, const std::string& body,
                             const Headers& headers) {
    std::string text = method + " " + path + " HTTP/1.1\r\n";
    bool has_host = false;
    bool has_type = false;
    for (const auto& [name, value] : headers) {
      text += name + ": " + value + "\r\n";
      has_host = has_host || name == "Host";
      has_type = has_type || name == "Content-Type";
    }
    if (!has_host) text += "Host: localhost\r\n";
    if (method == "POST" && !has_type) text += "Content-Type: application/json\r\n";
    if (method == "POST" || !body.empty()) text += "Content-Length: " + std::to_string(body.size()) + "\r\n";
    return text + "\r\n" + body;
  }
  Answer request(const std::string& method, const std::string& path, const std::string& body = "",
                 const Headers& headers = {}) {
    send(text_of(method, path, body, headers));
    return answer(method == "HEAD");
  }

  // The next whole answer. `pieces` gets, for each piece of a chunked body, when it came and what it was.
  struct Piece {
    std::chrono::steady_clock::time_point when;
    std::string text;
  };
  Answer answer(bool is_head = false, std::vector<Piece>* pieces = nullptr) {
    Answer answer;
    std::string text;
    size_t head_end;
    while ((head_end = text.find("\r\n\r\n")) == std::string::npos)
      if (!more(text)) return answer;
    for (size_t at = text.find("\r\n") + 2; at < head_end + 2;) {
      const size_t end = text.find("\r\n", at);
      const size_t colon = text.find(": ", at);
      std::string name = text.substr(at, colon - at);
      for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      if (colon < end) answer.headers[name] = text.substr(colon + 2, end - colon - 2);
      at = end + 2;
    }
    const int status = std::atoi(text.c_str() + 9);
    text.erase(0, head_end + 4);
    if (status == 100) {
      buffer_ = text + buffer_;
      return this->answer(is_head, pieces);
    }
    if (is_head || status == 204) {
      answer.status = status;
      buffer_ = text;
      return answer;
    }
    if (answer.headers.contains("transfer-encoding")) {
      for (;;) {
        size_t line_end;
        while ((line_end = text.find("\r\n")) == std::string::npos)
          if (!more(text)) return answer;  // cut short: no status
        const size_t bytes = std::stoul(text.substr(0, line_end), nullptr, 16);
        while (text.size() < line_end + 2 + bytes + 2)
          if (!more(text)) return answer;
        const std::string piece = text.substr(line_end + 2, bytes);
        text.erase(0, line_end + 2 + bytes + 2);
        if (bytes == 0) break;
        answer.body += piece;
        if (pieces != nullptr) pieces->push_back({std::chrono::steady_clock::now(), piece});
      }
    } else if (answer.headers.contains("content-length")) {
      const size_t bytes = std::stoul(answer.headers["content-length"]);
      while (text.size() < bytes)
        if (!more(text)) return answer;
      answer.body = text.substr(0, bytes);
      text.erase(0, bytes);
    } else {
      while (more(text)) {
      }
      answer.body = std::exchange(text, {});
    }
    buffer_ = text;
    answer.status = status;
    return answer;
  }

 private:
  bool more(std::string& text) {
    const std::string got = receive();
    text += got;
    return !got.empty();
  }

  int socket_;
  std::string buffer_;
  bool has_ended_ = false;
};

}  // namespace verbatim::server
