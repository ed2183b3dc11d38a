#include "server/http_server.h"

#include <fmt/core.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <boost/asio/ip/address.hpp>
#include <boost/asio/post.hpp>
#include <random>

#include "base/error.h"
#include "base/log.h"
#include "server/connection.h"

namespace verbatim::server {

namespace asio = boost::asio;
using asio::ip::tcp;

namespace {

constexpr std::chrono::milliseconds kTick{250};

void set_option(int socket, int level, int name, int value) {
  ::setsockopt(socket, level, name, &value, sizeof value);  // what fails here only costs speed or time
}

}  // namespace

// ---- a thread of connections -------------------------------------------------------------------------------------
Shard::Shard(std::shared_ptr<HttpShared> shared) : work_(io_.get_executor()), timer_(io_), shared_(std::move(shared)) {}

void Shard::start() {
  tick();
  thread_ = std::thread([this] { io_.run(); });
}

void Shard::stop() {
  post([this] {
    const auto connections = connections_;
    for (const auto& one : connections) one->close();
    timer_.cancel();
    work_.reset();
    io_.stop();
  });
  if (thread_.joinable()) thread_.join();
  std::vector<std::function<void()>> tasks;
  std::vector<std::shared_ptr<ConnectionExchange>> woken;
  {
    const std::lock_guard lock(mutex_);
    is_stopped_ = true;
    tasks.swap(tasks_);
    woken.swap(woken_);
  }
  io_.restart();
  io_.poll();  // aborted waits let go of their connections
}

void Shard::schedule() {
  if (is_scheduled_) return;
  is_scheduled_ = true;
  asio::post(io_, [this] { run_inbox(); });
}

void Shard::post(std::function<void()> task) {
  const std::lock_guard lock(mutex_);
  if (is_stopped_) return;
  tasks_.push_back(std::move(task));
  schedule();
}

void Shard::wake(std::shared_ptr<ConnectionExchange> exchange) {
  const std::lock_guard lock(mutex_);
  if (is_stopped_) return;
  woken_.push_back(std::move(exchange));
  schedule();
}

void Shard::run_inbox() {
  std::vector<std::function<void()>> tasks;
  std::vector<std::shared_ptr<ConnectionExchange>> woken;
  {
    const std::lock_guard lock(mutex_);
    is_scheduled_ = false;
    tasks.swap(tasks_);
    woken.swap(woken_);
  }
  for (const auto& task : tasks) task();
  for (const auto& exchange : woken) {
    exchange->is_woken_.store(false);
    if (const auto connection = exchange->connection_.lock()) connection->serve(*exchange);
  }
}

void Shard::add(const std::shared_ptr<Connection>& connection) {
  connections_.insert(connection);
  connection->start();
}

void Shard::tick() {
  const auto now = Clock::now();
  const std::vector<std::shared_ptr<Connection>> connections(connections_.begin(), connections_.end());
  for (const auto& one : connections) one->tick(now);
  timer_.expires_after(kTick);
  timer_.async_wait([this](const boost::system::error_code& problem) {
    if (!problem) tick();
  });
}

// ---- the server ----------------------------------------------------------------------------------------------------
struct HttpServer::Parts {
  std::shared_ptr<HttpShared> shared = std::make_shared<HttpShared>();
  std::vector<std::shared_ptr<Shard>> shards;
  std::optional<tcp::acceptor> acceptor;
  std::optional<asio::steady_timer> pause;
  size_t next_shard = 0;
  uint16_t port = 0;

  void accept();
  void accepted(tcp::socket socket);
};

void HttpServer::Parts::accept() {
  acceptor->async_accept([this](const boost::system::error_code& problem, tcp::socket socket) {
    if (problem == asio::error::operation_aborted) return;
    if (problem) {  // mostly: too many open files
      log_warning("[accept] {}; pausing for 100 ms", problem.message());
      pause->expires_after(std::chrono::milliseconds(100));
      pause->async_wait([this](const boost::system::error_code& aborted) {
        if (!aborted) accept();
      });
      return;
    }
    accepted(std::move(socket));
    accept();
  });
}

void HttpServer::Parts::accepted(tcp::socket socket) {
  boost::system::error_code ignored;
  if (++shared->connections > shared->limits.connections) {
    --shared->connections;
    ++shared->refused_connections;
    const HttpResponse full = shared->hooks.error(
        {.status = 503, .message = "too many connections are open", .code = "overloaded", .retry_after_s = 1}, "");
    const std::string text = fmt::format(
        "HTTP/1.1 503 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nRetry-After: 1\r\nConnection: close\r\n\r\n{}",
        status_text(503), full.content_type, full.body.size(), full.body);
    // Best effort: what has arrived is read first, since closing over unread bytes would take the answer away.
    char unread[4096];
    while (::recv(socket.native_handle(), unread, sizeof unread, MSG_DONTWAIT) == sizeof unread) {
    }
    ::send(socket.native_handle(), text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    socket.shutdown(tcp::socket::shutdown_both, ignored);
    return;
  }
  const int handle = socket.native_handle();
  set_option(handle, IPPROTO_TCP, TCP_NODELAY, 1);
  // A client whose machine has gone without a word is found out within about a minute.
  set_option(handle, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(handle, IPPROTO_TCP, TCP_KEEPIDLE, 30);
  set_option(handle, IPPROTO_TCP, TCP_KEEPINTVL, 10);
  set_option(handle, IPPROTO_TCP, TCP_KEEPCNT, 3);
  set_option(handle, IPPROTO_TCP, TCP_USER_TIMEOUT, 60'000);
  const auto endpoint = socket.remote_endpoint(ignored);
  const std::string remote = fmt::format("{}:{}", endpoint.address().to_string(), endpoint.port());
  const auto protocol = endpoint.protocol();
  const int raw = socket.release(ignored);
  const auto& shard = shards[next_shard++ % shards.size()];
  const auto begin = [shard, raw, protocol, remote] {
    auto connection = std::make_shared<Connection>(shard, tcp::socket(shard->io(), protocol, raw), remote);
    shard->add(connection);
  };
  if (shard->is_current()) {
    begin();
  } else {
    shard->post(begin);
  }
}

HttpServer::HttpServer(HttpServerOptions options, HttpHooks hooks) : parts_(std::make_unique<Parts>()) {
  parts_->shared->limits = options.limits;
  parts_->shared->hooks = std::move(hooks);
  std::random_device device;
  parts_->shared->id_prefix = fmt::format("{:08x}-", device());
  for (int i = 0; i < std::max(options.threads, 1); ++i)
    parts_->shards.push_back(std::make_shared<Shard>(parts_->shared));

  boost::system::error_code problem;
  auto& io = parts_->shards.front()->io();
  tcp::resolver resolver(io);
  const auto found = resolver.resolve(options.host, std::to_string(options.port),
                                      tcp::resolver::passive | tcp::resolver::numeric_service, problem);
  const std::string where = fmt::format("{}:{}", options.host, options.port);
  if (problem || found.empty())
    fail(ErrorKind::kIo, where, "no such address: {}; give --host an address of this machine", problem.message());
  const tcp::endpoint endpoint = found.begin()->endpoint();
  parts_->acceptor.emplace(io);
  auto& acceptor = *parts_->acceptor;
  acceptor.open(endpoint.protocol(), problem);
  if (!problem) acceptor.set_option(tcp::acceptor::reuse_address(true), problem);
  if (!problem) acceptor.bind(endpoint, problem);
  if (!problem) acceptor.listen(1024, problem);
  if (problem)
    fail(ErrorKind::kIo, where, "cannot listen: {}; choose another --port or --host, or end what listens there",
         problem.message());
  parts_->port = acceptor.local_endpoint().port();
  parts_->pause.emplace(io);
  parts_->accept();
  for (const auto& shard : parts_->shards) shard->start();
}

HttpServer::~HttpServer() {
  for (size_t i = parts_->shards.size(); i-- > 1;) parts_->shards[i]->stop();
  parts_->shards.front()->post([this] {
    boost::system::error_code ignored;
    parts_->acceptor->close(ignored);
    parts_->pause->cancel();
  });
  parts_->shards.front()->stop();
}

uint16_t HttpServer::port() const { return parts_->port; }

HttpCounts HttpServer::counts() const {
  const HttpShared& shared = *parts_->shared;
  return {shared.connections.load(), shared.exchanges.load(), shared.refused_connections.load(),
          shared.body_bytes.load()};
}

void HttpServer::close_after_responses() { parts_->shared->closing.store(true); }

bool HttpServer::wait_idle(std::chrono::milliseconds most) const {
  const auto end = Clock::now() + most;
  while (parts_->shared->exchanges.load() > 0) {
    if (Clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

}  // namespace verbatim::server
