#include "server/server.h"

#include "base/error.h"
#include "base/log.h"
#include "server/json_text.h"
#include "server/routes.h"

namespace verbatim::server {
namespace {

ApiKeys keys_of(const std::filesystem::path& file) { return file.empty() ? ApiKeys() : ApiKeys(file); }

AccessOptions access_of(const ServerOptions& options) {
  AccessOptions access = options.access;
  access.bound_host = options.http.host;
  return access;
}

// A path may hold anything; a log line stays one line of printable ASCII.
std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c > 0x20 && c < 0x7f) {
      out += c;
    } else {
      fmt::format_to(std::back_inserter(out), "%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return out;
}

void run(const Route& route, const std::shared_ptr<Exchange>& exchange) {
  if (exchange->is_gone()) return;
  try {
    route.handle(exchange);
  } catch (const std::exception& problem) {
    exchange->respond(error_response(api_error_of(problem), route.errors));
  }
}

}  // namespace

Server::Server(ServedModel model, engine::Engine& engine, ServerOptions options)
    : options_(std::move(options)),
      service_(std::move(model), engine, options_.service),
      keys_(keys_of(options_.api_key_file)),
      access_(router_, keys_, access_of(options_)) {
  add_chat_routes(router_, service_);
  add_completion_routes(router_, service_);
  add_model_routes(router_, service_);
  add_message_routes(router_, service_);
  add_response_routes(router_, service_, options_.responses);
  add_page_route(router_);
  add_operation_routes(router_, service_,
                       {.is_ready = [this] { return !is_draining_.load(); },
                        .http = [this] { return http_ ? http_->counts() : HttpCounts{}; }});
  workers_ = std::make_unique<Workers>(options_.workers, options_.worker_queue);
  HttpHooks hooks;
  hooks.admit = [this](HttpRequest& head) { return access_.check(head, is_draining_.load()); };
  hooks.handle = [this](const std::shared_ptr<Exchange>& exchange) { handle(exchange); };
  hooks.error = [this](const ApiError& error, std::string_view path) {
    return error_response(error, router_.errors(path));
  };
  hooks.done = [this](const HttpRequest& request, const RequestFigures& figures, int status, int64_t bytes_sent) {
    service_.metrics().request_ended(status);
    if (options_.logs_requests) log_request(request, figures, status, bytes_sent);
  };
  http_ = std::make_unique<HttpServer>(options_.http, std::move(hooks));
}

Server::~Server() {
  is_draining_.store(true);
  workers_.reset();  // first: they answer through the connections
  http_.reset();
}

void Server::handle(const std::shared_ptr<Exchange>& exchange) {
  const HttpRequest& request = exchange->request();
  std::vector<std::string> ignored;
  const Route* route = router_.find(request.method, request.path, ignored);
  if (route->work == Work::kQuick) return run(*route, exchange);
  if (!workers_->post([route, exchange] { run(*route, exchange); }))
    exchange->respond(error_response(
        {.status = 503, .message = "too many requests are waiting", .code = "overloaded", .retry_after_s = 1},
        route->errors));
}

void Server::log_request(const HttpRequest& request, const RequestFigures& figures, int status, int64_t bytes_sent) {
  const double total_ms = std::chrono::duration<double>(Clock::now() - request.received).count() * 1e3;
  const std::string path = escaped(request.path.substr(0, 200));
  const std::string method = escaped(request.method.substr(0, 20));
  std::string line = fmt::format("{} {} {} {} {:.1f}ms {}B from={}", request.id, method, path, status, total_ms,
                                 bytes_sent, request.remote);
  std::string members = fmt::format(R"("request":"{}","method":)", request.id);
  append_json_string(members, method);
  members += R"(,"path":)";
  append_json_string(members, path);
  fmt::format_to(std::back_inserter(members), R"(,"status":{},"total_ms":{:.1f},"bytes":{},"client":"{}")", status,
                 total_ms, bytes_sent, request.remote);
  if (!request.key.empty()) {
    line += " key=" + request.key;
    members += R"(,"key":)";
    append_json_string(members, request.key);
  }
  if (figures.prompt_tokens >= 0) {
    line +=
        fmt::format(" prompt={} cached={} generated={} reasoning={} drafted={} accepted={} first={:.1f}ms",
                    figures.prompt_tokens, figures.cached_tokens, figures.generated_tokens, figures.reasoning_tokens,
                    figures.drafted_tokens, figures.accepted_tokens, figures.first_token_s * 1e3);
    fmt::format_to(std::back_inserter(members),
                   R"(,"prompt_tokens":{},"cached_tokens":{},"generated_tokens":{},"reasoning_tokens":{},)"
                   R"("drafted_tokens":{},"accepted_tokens":{},"first_token_ms":{:.1f})",
                   figures.prompt_tokens, figures.cached_tokens, figures.generated_tokens, figures.reasoning_tokens,
                   figures.drafted_tokens, figures.accepted_tokens, figures.first_token_s * 1e3);
  }
  if (!figures.finish.empty()) {
    line += fmt::format(" finish={} hash={}", figures.finish, figures.token_hash);
    fmt::format_to(std::back_inserter(members), R"(,"finish":"{}","token_hash":"{}")", figures.finish,
                   figures.token_hash);
  }
  log_line(LogLevel::kInfo, line, members);
}

void Server::reload_keys() {
  if (!keys_.are_required()) return;
  try {
    keys_.reload();
    log_info("API keys read again: {}", keys_.size());
  } catch (const std::exception& problem) {
    log_line(LogLevel::kError, fmt::format("{}; the keys stay as they were", problem.what()));
  }
}

void Server::begin_drain() {
  is_draining_.store(true);
  http_->close_after_responses();
}

bool Server::drain(std::chrono::milliseconds most) {
  begin_drain();
  return http_->wait_idle(most);
}

}  // namespace verbatim::server
