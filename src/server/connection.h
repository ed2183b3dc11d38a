// One client's connection and the thread it lives on. The HTTP layer's own header: include it in its .cc files alone.
#pragma once

#include <array>
#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/http/buffer_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

#include "server/http_server.h"

namespace verbatim::server {

// What all threads of a server share.
struct HttpShared {
  HttpLimits limits;
  HttpHooks hooks;
  std::atomic<int64_t> connections{0}, exchanges{0}, refused_connections{0}, body_bytes{0};
  std::atomic<uint64_t> next_request{1};
  std::atomic<bool> closing{false};  // responses close their connections
  std::string id_prefix;             // of request ids: differs from one start of the program to the next
};

class Connection;
class ConnectionExchange;

// A thread with its event loop, and the connections that it serves.
class Shard {
 public:
  explicit Shard(std::shared_ptr<HttpShared> shared);
  void start();
  // Closes its connections and joins its thread; later calls of post and wake do nothing.
  void stop();

  // From any thread: `task` runs on the shard's.
  void post(std::function<void()> task);
  void wake(std::shared_ptr<ConnectionExchange> exchange);
  bool is_current() const { return std::this_thread::get_id() == thread_.get_id(); }

  boost::asio::io_context& io() { return io_; }
  HttpShared& shared() { return *shared_; }
  std::array<char, 64 << 10>& scratch() { return scratch_; }  // for one call at a time
  void add(const std::shared_ptr<Connection>& connection);
  void remove(const std::shared_ptr<Connection>& connection) { connections_.erase(connection); }

 private:
  void run_inbox();
  void tick();
  void schedule();  // mutex held

  boost::asio::io_context io_{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  boost::asio::steady_timer timer_;
  std::shared_ptr<HttpShared> shared_;
  std::unordered_set<std::shared_ptr<Connection>> connections_;
  std::array<char, 64 << 10> scratch_;

  std::mutex mutex_;  // the inbox
  std::vector<std::function<void()>> tasks_;
  std::vector<std::shared_ptr<ConnectionExchange>> woken_;
  bool is_scheduled_ = false, is_stopped_ = false;
  std::thread thread_;
};

class ConnectionExchange final : public Exchange, public std::enable_shared_from_this<ConnectionExchange> {
 public:
  ConnectionExchange(HttpRequest request, std::shared_ptr<Shard> shard, std::weak_ptr<Connection> connection);
  ~ConnectionExchange() override;

  void drop_body() override;
  void respond(HttpResponse response) override;
  void stream(HttpResponse head, Pull pull) override;
  void collect(Poll poll) override;
  void wake() override;
  void on_gone(std::function<void()> gone) override;
  bool is_gone() const override { return is_gone_.load(); }

 private:
  friend class Connection;
  friend class Shard;
  void on_shard(std::function<void(Connection&)> task);
  void tell_gone();    // on the connection's thread
  void forget_gone();  // the answer is complete: it and what it holds need each other no longer

  std::shared_ptr<Shard> shard_;
  std::weak_ptr<Connection> connection_;
  std::atomic<bool> is_woken_{false}, is_gone_{false}, is_answered_{false};
  int64_t body_bytes_ = 0;
  uint64_t number_ = 0;  // among those of its connection

  std::mutex mutex_;  // gone_
  std::function<void()> gone_;

  // On the connection's thread.
  Pull pull_;
  Poll poll_;
};

// Lives on its shard's thread: every member is called there.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(std::shared_ptr<Shard> shard, boost::asio::ip::tcp::socket socket, std::string remote);
  ~Connection();
  void start();
  void close();
  void tick(Clock::time_point now);

  // Of the exchange in progress.
  void respond(ConnectionExchange& exchange, const HttpResponse& response);
  void stream(ConnectionExchange& exchange, const HttpResponse& head);
  void collect(ConnectionExchange& exchange);
  void serve(ConnectionExchange& exchange);  // it was woken
  void abandoned(uint64_t number);

 private:
  enum class State : uint8_t {
    kHeader,     // reading a header, or between requests
    kBody,       // reading a body
    kHandling,   // no answer yet
    kStreaming,  // the answer has begun, more will be pulled
    kFinishing,  // the whole answer is in out_
    kLingering,  // answered and shut down; what still comes is thrown away
    kClosed,
  };
  using Parser = boost::beast::http::request_parser<boost::beast::http::buffer_body>;

  void arm_read();
  void on_readable();
  void take(std::string_view bytes);
  void parse();
  void parse_header();
  void header_complete();
  void parse_body();
  void request_complete();
  void refuse(int status, const std::string& message, const std::string& code);
  void answer(const HttpResponse& response);
  void append_head(const HttpResponse& response, bool is_stream);
  void append_chunk(std::string_view bytes);
  void pull();
  void flush();
  void sent_all();
  void finish_request(int status);

  std::shared_ptr<Shard> shard_;
  HttpShared& shared_;
  boost::asio::ip::tcp::socket socket_;
  const std::string remote_;
  State state_ = State::kHeader;
  std::string in_;  // read and not yet parsed
  std::optional<Parser> parser_;
  HttpRequest head_;  // until the exchange takes it
  bool is_reading_ = false, is_writing_ = false, keeps_alive_ = false, is_chunked_ = true, is_head_ = false;
  bool has_request_ = false;  // between a complete header and finish_request
  bool is_due_ = false;       // woken while a write was in progress
  int served_ = 0;
  uint64_t exchange_number_ = 0;
  std::weak_ptr<ConnectionExchange> pending_;     // before it is answered
  std::shared_ptr<ConnectionExchange> exchange_;  // since it streams or collects
  std::string out_, pulled_;
  size_t out_sent_ = 0;
  int64_t bytes_sent_ = 0;
  int status_ = 0;
  RequestFigures figures_;
  HttpRequest logged_;       // what the log line needs, without body
  Clock::time_point since_;  // of the state, or of the last byte written
};

}  // namespace verbatim::server
