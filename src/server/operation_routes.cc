// GET /health, /health/ready, /metrics, /version
#include <chrono>
#include <utility>

#include "base/log.h"
#include "server/json_text.h"
#include "server/routes.h"

namespace verbatim::server {

int64_t unix_time() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

void log_unknown_fields(const HttpRequest& request, const std::vector<std::string>& unknown) {
  if (unknown.empty()) return;
  std::string names;
  for (const std::string& name : unknown) {
    if (!names.empty()) names += ' ';
    if (names.size() > 1000) {
      names += "...";
      break;
    }
    append_json_string(names, name);
  }
  log_line(LogLevel::kDebug, fmt::format("{} {}: fields ignored: {}", request.id, request.path, names));
}

void add_operation_routes(Router& router, Service& service, ServerState state) {
  // Alive: the process answers. Answered by the connection's thread, whatever the others do.
  router.add({"GET", "/health",
              [](const std::shared_ptr<Exchange>& exchange) { exchange->respond({.body = R"({"status":"ok"})"}); },
              Work::kQuick, Access::kOpen});
  router.add({"GET", "/health/ready",
              [&service, state](const std::shared_ptr<Exchange>& exchange) {
                const std::string failure = service.engine().failure();
                if (!failure.empty()) {
                  exchange->respond(error_response(
                      {.status = 503, .message = "the engine stopped: " + failure, .code = "engine_failed"},
                      ErrorShape::kOpenAi));
                } else if (!state.is_ready()) {
                  exchange->respond(
                      error_response({.status = 503, .message = "draining", .code = "draining"}, ErrorShape::kOpenAi));
                } else {
                  exchange->respond({.body = R"({"status":"ready"})"});
                }
              },
              Work::kQuick, Access::kOpen});
  router.add({"GET", "/version",
              [](const std::shared_ptr<Exchange>& exchange) {
                exchange->respond({.body = R"({"version":")" VERBATIM_VERSION R"("})"});
              },
              Work::kQuick, Access::kOpen});
  router.add({"GET", "/metrics",
              [&service, state = std::move(state)](const std::shared_ptr<Exchange>& exchange) {
                exchange->respond(
                    {.body = service.metrics().text(service.engine().stats(), state.http(),
                                                    service.model().names.front(), service.model().context_tokens),
                     .content_type = "text/plain; version=0.0.4; charset=utf-8"});
              },
              Work::kQuick});
}

}  // namespace verbatim::server
