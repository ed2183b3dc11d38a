#include "server/connection.h"

#include <fmt/core.h>
#include <sys/socket.h>

#include <algorithm>

#include "base/log.h"

namespace verbatim::server {

namespace asio = boost::asio;
namespace http = boost::beast::http;

namespace {

constexpr size_t kMostPipelined = 16 << 10;  // bytes of further requests kept while one is answered
constexpr std::chrono::milliseconds kLinger{2000};

}  // namespace

Connection::Connection(std::shared_ptr<Shard> shard, asio::ip::tcp::socket socket, std::string remote)
    : shard_(std::move(shard)),
      shared_(shard_->shared()),
      socket_(std::move(socket)),
      remote_(std::move(remote)),
      since_(Clock::now()) {}

Connection::~Connection() { --shared_.connections; }

void Connection::start() { arm_read(); }

void Connection::arm_read() {
  if (is_reading_ || state_ == State::kClosed) return;
  is_reading_ = true;
  socket_.async_wait(asio::socket_base::wait_read,
                     [self = shared_from_this()](const boost::system::error_code& problem) {
                       self->is_reading_ = false;
                       if (problem) {
                         self->close();
                       } else {
                         self->on_readable();
                       }
                     });
}

void Connection::on_readable() {
  auto& scratch = shard_->scratch();
  for (int round = 0; round < 4 && state_ != State::kClosed; ++round) {
    const ssize_t got = ::recv(socket_.native_handle(), scratch.data(), scratch.size(), MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) break;
    if (got <= 0) return close();  // its end or an error: either way nobody waits for the answer
    take({scratch.data(), static_cast<size_t>(got)});
    if (static_cast<size_t>(got) < scratch.size()) break;
  }
  arm_read();
}

void Connection::take(std::string_view bytes) {
  if (state_ == State::kLingering || state_ == State::kClosed) return;
  if (state_ == State::kHeader && in_.empty()) since_ = Clock::now();
  in_.append(bytes);
  if (state_ == State::kHeader || state_ == State::kBody) {
    parse();
  } else if (in_.size() > kMostPipelined) {
    close();
  }
}

// ---- requests in ------------------------------------------------------------------------------------------------
void Connection::parse() {
  if (state_ == State::kHeader) parse_header();
  if (state_ == State::kBody) parse_body();
}

void Connection::parse_header() {
  if (in_.empty()) return;
  if (!parser_) {
    parser_.emplace();
    parser_->header_limit(static_cast<uint32_t>(shared_.limits.header_bytes));
    parser_->body_limit(boost::none);  // counted here, so that the refusal can say the number
  }
  boost::system::error_code problem;
  const size_t used = parser_->put(asio::buffer(in_), problem);
  in_.erase(0, used);
  if (problem == http::error::need_more) problem = {};
  if (problem == http::error::header_limit ||
      (!problem && !parser_->is_header_done() && std::ssize(in_) > shared_.limits.header_bytes))
    return refuse(
        431,
        fmt::format("the request's header is larger than the {} bytes that are taken", shared_.limits.header_bytes),
        "header_too_large");
  if (problem) return refuse(400, fmt::format("not an HTTP/1.1 request: {}", problem.message()), "bad_http");
  if (parser_->is_header_done()) header_complete();
}

void Connection::header_complete() {
  const auto& message = parser_->get();
  head_ = {};
  head_.received = Clock::now();
  head_.id = fmt::format("{}{:x}", shared_.id_prefix, shared_.next_request++);
  head_.remote = remote_;
  head_.method = std::string(message.method_string());
  for (const auto& field : message)
    head_.headers.push_back({std::string(field.name_string()), std::string(field.value())});
  has_request_ = true;
  ++shared_.exchanges;
  keeps_alive_ = parser_->keep_alive();
  is_chunked_ = message.version() >= 11;
  is_head_ = head_.method == "HEAD";
  status_ = 0;
  bytes_sent_ = 0;
  figures_ = {};
  state_ = State::kBody;
  since_ = head_.received;

  const std::string_view target(message.target().data(), message.target().size());
  const size_t question = std::min(target.find('?'), target.size());
  std::optional<std::string> path = percent_decoded(target.substr(0, question));
  if (target.empty() || target.front() != '/' || !path)
    return refuse(400, "the request's target is no path; expected one that begins with /", "bad_http");
  head_.path = std::move(*path);
  if (question < target.size()) head_.query = target.substr(question + 1);
  const auto hosts = std::count_if(head_.headers.begin(), head_.headers.end(),
                                   [](const Header& one) { return equal_ignoring_case(one.name, "host"); });
  if (hosts > 1 || (hosts == 0 && message.version() >= 11))
    return refuse(400, fmt::format("{} Host headers; expected one", hosts), "bad_http");
  const bool has_length = parser_->content_length().has_value();
  if (const std::string_view encoding = head_.header("transfer-encoding");
      !encoding.empty() && (has_length || !equal_ignoring_case(encoding, "chunked") || message.version() < 11))
    return refuse(400, "a Transfer-Encoding that is not chunked alone", "bad_http");

  if (std::optional<HttpResponse> refusal = shared_.hooks.admit(head_)) return answer(*refusal);
  if (!has_length && !parser_->chunked() && (head_.method == "POST" || head_.method == "PUT"))
    return refuse(411, "a body without length; send Content-Length or Transfer-Encoding: chunked", "length_required");
  if (has_length && *parser_->content_length() > static_cast<uint64_t>(shared_.limits.body_bytes))
    return refuse(
        413,
        fmt::format("a body of {} bytes; this server takes {}", *parser_->content_length(), shared_.limits.body_bytes),
        "body_too_large");
  if (const std::string_view expected = head_.header("expect"); !expected.empty()) {
    if (!equal_ignoring_case(expected, "100-continue")) return refuse(417, "an unknown Expect", "bad_http");
    out_.append("HTTP/1.1 100 Continue\r\n\r\n");
    flush();
  }
}

void Connection::parse_body() {
  auto& body = head_.body;
  std::array<char, 16 << 10> piece;
  while (state_ == State::kBody && !parser_->is_done()) {
    auto& wanted = parser_->get().body();
    wanted.data = piece.data();
    wanted.size = piece.size();
    wanted.more = true;
    boost::system::error_code problem;
    const size_t used = in_.empty() ? 0 : parser_->put(asio::buffer(in_), problem);
    in_.erase(0, used);
    const size_t got = piece.size() - wanted.size;
    if (std::ssize(body) + static_cast<int64_t>(got) > shared_.limits.body_bytes)
      return refuse(
          413, fmt::format("the body is larger than the {} bytes that this server takes", shared_.limits.body_bytes),
          "body_too_large");
    body.append(piece.data(), got);
    shared_.body_bytes += static_cast<int64_t>(got);
    if (shared_.body_bytes.load() > shared_.limits.all_body_bytes)
      return refuse(503, "the bodies of all requests being read take more memory than is set aside; try again",
                    "overloaded");
    if (problem == http::error::need_buffer) continue;
    if (problem && problem != http::error::need_more)
      return refuse(400, fmt::format("the body's encoding is damaged: {}", problem.message()), "bad_http");
    if (used == 0 && std::ssize(in_) > shared_.limits.header_bytes)
      return refuse(400, "a chunk's header is too long", "bad_http");
    if (used == 0 || in_.empty()) break;
  }
  if (state_ == State::kBody && parser_->is_done()) request_complete();
}

void Connection::request_complete() {
  state_ = State::kHandling;
  if (in_.empty()) in_.shrink_to_fit();
  logged_ = {};
  logged_.method = head_.method;
  logged_.path = head_.path;
  logged_.id = head_.id;
  logged_.remote = head_.remote;
  logged_.key = head_.key;
  logged_.received = head_.received;
  logged_.response_headers = head_.response_headers;
  const auto exchange = std::make_shared<ConnectionExchange>(std::move(head_), shard_, weak_from_this());
  head_ = {};
  exchange->number_ = ++exchange_number_;
  pending_ = exchange;
  parser_.reset();
  shared_.hooks.handle(exchange);
}

void Connection::refuse(int status, const std::string& message, const std::string& code) {
  if (!has_request_) {
    has_request_ = true;
    ++shared_.exchanges;
    head_ = {};
    head_.received = Clock::now();
    head_.id = fmt::format("{}{:x}", shared_.id_prefix, shared_.next_request++);
    head_.remote = remote_;
  }
  parser_.reset();  // whatever comes behind such a request is not trusted to be another
  answer(shared_.hooks.error({.status = status, .message = message, .code = code}, head_.path));
}

// Before the request was whole.
void Connection::answer(const HttpResponse& response) {
  if (!parser_ || !parser_->is_done()) keeps_alive_ = false;  // the rest of it would be taken for another request
  shared_.body_bytes -= std::ssize(head_.body);
  head_.body = std::string();
  logged_ = std::move(head_);
  head_ = {};
  parser_.reset();
  append_head(response, false);
  state_ = State::kFinishing;
  flush();
}

// ---- responses out ------------------------------------------------------------------------------------------------
void Connection::append_head(const HttpResponse& response, bool is_stream) {
  status_ = response.status;
  if (shared_.closing.load()) keeps_alive_ = false;
  if (is_stream && !is_chunked_) keeps_alive_ = false;
  auto out = std::back_inserter(out_);
  fmt::format_to(out, "HTTP/1.1 {} {}\r\n", response.status, status_text(response.status));
  if (response.status != 204) fmt::format_to(out, "Content-Type: {}\r\n", response.content_type);
  if (is_stream) {
    out_.append("Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n");
    if (is_chunked_) out_.append("Transfer-Encoding: chunked\r\n");
  } else if (response.status != 204) {
    fmt::format_to(out, "Content-Length: {}\r\n", response.body.size());
  }
  fmt::format_to(out, "X-Request-Id: {}\r\n", logged_.id);
  for (const Header& one : response.headers) fmt::format_to(out, "{}: {}\r\n", one.name, one.value);
  for (const Header& one : logged_.response_headers) fmt::format_to(out, "{}: {}\r\n", one.name, one.value);
  out_.append(keeps_alive_ ? "Connection: keep-alive\r\n\r\n" : "Connection: close\r\n\r\n");
  if (is_stream) {
    append_chunk(response.body);
  } else if (!is_head_) {
    out_.append(response.body);
  }
}

void Connection::append_chunk(std::string_view bytes) {
  if (bytes.empty()) return;
  if (is_chunked_) fmt::format_to(std::back_inserter(out_), "{:x}\r\n", bytes.size());
  out_.append(bytes);
  if (is_chunked_) out_.append("\r\n");
}

void Connection::respond(ConnectionExchange& exchange, const HttpResponse& response) {
  if (exchange.number_ != exchange_number_ || (state_ != State::kHandling && state_ != State::kStreaming)) return;
  figures_ = exchange.figures();
  pending_.reset();
  append_head(response, false);
  state_ = State::kFinishing;
  flush();
}

void Connection::stream(ConnectionExchange& exchange, const HttpResponse& head) {
  if (exchange.number_ != exchange_number_ || state_ != State::kHandling) return;
  pending_.reset();
  exchange_ = exchange.shared_from_this();
  append_head(head, true);
  state_ = State::kStreaming;
  is_due_ = true;
  flush();
}

void Connection::serve(ConnectionExchange& exchange) {
  if (exchange.number_ != exchange_number_ || exchange_.get() != &exchange) {
    return;  // not answered yet, or over
  }
  if (is_writing_ || out_sent_ < out_.size()) {
    is_due_ = true;
    return;
  }
  pull();
}

void Connection::collect(ConnectionExchange& exchange) {
  if (exchange.number_ != exchange_number_ || state_ != State::kHandling) return;
  pending_.reset();
  exchange_ = exchange.shared_from_this();
  pull();
}

void Connection::pull() {
  const std::shared_ptr<ConnectionExchange> exchange = exchange_;
  is_due_ = false;
  if (exchange->poll_) {
    const std::optional<HttpResponse> response = exchange->poll_();
    if (response) respond(*exchange, *response);
    return;
  }
  pulled_.clear();
  const bool goes_on = exchange->pull_(pulled_);
  append_chunk(pulled_);
  if (!goes_on) {
    if (is_chunked_) out_.append("0\r\n\r\n");
    figures_ = exchange->figures();
    state_ = State::kFinishing;
  }
  flush();
}

void Connection::flush() {
  while (out_sent_ < out_.size()) {
    const ssize_t sent =
        ::send(socket_.native_handle(), out_.data() + out_sent_, out_.size() - out_sent_, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent > 0) {
      out_sent_ += static_cast<size_t>(sent);
      bytes_sent_ += sent;
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) return close();
    if (is_writing_) return;
    is_writing_ = true;
    since_ = Clock::now();
    socket_.async_wait(asio::socket_base::wait_write,
                       [self = shared_from_this()](const boost::system::error_code& problem) {
                         self->is_writing_ = false;
                         if (self->state_ == State::kClosed) return;
                         if (problem) return self->close();
                         self->since_ = Clock::now();
                         self->flush();
                       });
    return;
  }
  out_.clear();
  out_sent_ = 0;
  if (out_.capacity() > (64 << 10)) out_.shrink_to_fit();
  sent_all();
}

void Connection::sent_all() {
  if (state_ == State::kStreaming) {
    since_ = Clock::now();
    if (is_due_) pull();
  } else if (state_ == State::kFinishing) {
    finish_request(status_);
  }
}

void Connection::finish_request(int status) {
  if (!has_request_) return;
  has_request_ = false;
  --shared_.exchanges;
  const std::shared_ptr<ConnectionExchange> exchange = std::exchange(exchange_, nullptr);
  if (exchange) {
    exchange->pull_ = nullptr;
    exchange->poll_ = nullptr;
    exchange->forget_gone();
  }
  ++exchange_number_;
  ++served_;
  if (out_.capacity() > 4096) out_ = std::string();
  pulled_ = std::string();
  shared_.hooks.done(logged_, figures_, status, bytes_sent_);
  logged_ = {};
  if (state_ == State::kClosed) return;
  since_ = Clock::now();
  if (!keeps_alive_) {
    state_ = State::kLingering;
    in_ = std::string();
    boost::system::error_code ignored;
    socket_.shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
    arm_read();
    return;
  }
  state_ = State::kHeader;
  if (in_.empty()) {
    in_ = std::string();
  } else {  // the next request is here already; not from here, so that many of them do not nest
    shard_->post([self = shared_from_this()] {
      if (self->state_ == State::kHeader) self->parse();
    });
  }
}

void Connection::abandoned(uint64_t number) {
  if (number != exchange_number_ || state_ != State::kHandling) return;
  append_head(shared_.hooks.error({.status = 500, .message = "the request was not answered", .code = "internal_error"},
                                  logged_.path),
              false);
  state_ = State::kFinishing;
  flush();
}

void Connection::close() {
  if (state_ == State::kClosed) return;
  state_ = State::kClosed;
  const auto self = shared_from_this();
  boost::system::error_code ignored;
  socket_.close(ignored);
  shard_->remove(self);
  shared_.body_bytes -= std::ssize(head_.body);
  const std::shared_ptr<ConnectionExchange> exchange = exchange_ ? exchange_ : pending_.lock();
  pending_.reset();
  if (has_request_ && logged_.id.empty()) {
    logged_ = std::move(head_);
    logged_.body = std::string();
  }
  head_ = {};
  if (exchange) {
    exchange->tell_gone();
    figures_ = exchange->figures();
  }
  finish_request(499);
}

void Connection::tick(Clock::time_point now) {
  const HttpLimits& limits = shared_.limits;
  const auto waited = now - since_;
  if (is_writing_ && waited > limits.write_timeout) return close();
  switch (state_) {
    case State::kHeader:
      if (in_.empty()) {
        if (waited > (served_ > 0 ? limits.idle_timeout : limits.header_timeout)) close();
      } else if (waited > limits.header_timeout) {
        refuse(408, "the request's header did not arrive in time", "timeout");
      }
      break;
    case State::kBody:
      if (waited > limits.body_timeout) refuse(408, "the request's body did not arrive in time", "timeout");
      break;
    case State::kStreaming:
      if (!is_writing_ && waited > limits.keep_alive) {
        append_chunk(": keep-alive\n\n");
        flush();
      }
      break;
    case State::kLingering:
      if (waited > kLinger) close();
      break;
    default: break;
  }
}

// ---- the exchange ----------------------------------------------------------------------------------------------
ConnectionExchange::ConnectionExchange(HttpRequest request, std::shared_ptr<Shard> shard,
                                       std::weak_ptr<Connection> connection)
    : Exchange(std::move(request)),
      shard_(std::move(shard)),
      connection_(std::move(connection)),
      body_bytes_(std::ssize(request_.body)) {}

ConnectionExchange::~ConnectionExchange() {
  drop_body();
  if (!is_answered_.load() && !is_gone_.load())
    shard_->post([connection = connection_, number = number_] {
      if (const auto alive = connection.lock()) alive->abandoned(number);
    });
}

void ConnectionExchange::drop_body() {
  request_.body = std::string();
  shard_->shared().body_bytes -= std::exchange(body_bytes_, 0);
}

void ConnectionExchange::on_shard(std::function<void(Connection&)> task) {
  auto run = [self = shared_from_this(), task = std::move(task)] {
    if (const auto connection = self->connection_.lock()) task(*connection);
  };
  if (shard_->is_current()) {
    run();
  } else {
    shard_->post(std::move(run));
  }
}

void ConnectionExchange::respond(HttpResponse response) {
  if (is_answered_.exchange(true)) return;
  on_shard([this, response = std::move(response)](Connection& connection) {
    connection.respond(*this, response);
    forget_gone();
  });
}

void ConnectionExchange::stream(HttpResponse head, Pull pull) {
  if (is_answered_.exchange(true)) return;
  on_shard([this, head = std::move(head), pull = std::move(pull)](Connection& connection) mutable {
    if (is_gone()) return;
    pull_ = std::move(pull);
    connection.stream(*this, head);
  });
}

void ConnectionExchange::collect(Poll poll) {
  if (is_answered_.exchange(true)) return;
  on_shard([this, poll = std::move(poll)](Connection& connection) mutable {
    if (is_gone()) return;
    poll_ = std::move(poll);
    connection.collect(*this);
  });
}

void ConnectionExchange::wake() {
  if (!is_woken_.exchange(true)) shard_->wake(shared_from_this());
}

void ConnectionExchange::on_gone(std::function<void()> gone) {
  {
    const std::lock_guard lock(mutex_);
    if (!is_gone_.load()) {
      gone_ = std::move(gone);
      return;
    }
  }
  gone();
}

void ConnectionExchange::forget_gone() {
  std::function<void()> gone;  // outlives the lock: it may hold the last reference to much
  {
    const std::lock_guard lock(mutex_);
    gone.swap(gone_);
  }
}

void ConnectionExchange::tell_gone() {
  std::function<void()> gone;
  {
    const std::lock_guard lock(mutex_);
    is_gone_.store(true);
    gone = std::exchange(gone_, nullptr);
  }
  if (gone) gone();
}

}  // namespace verbatim::server
