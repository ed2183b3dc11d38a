// The routes, a function for each group. Whoever adds a protocol adds one here and its call in server.cc.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "server/api_error.h"
#include "server/response_store.h"
#include "server/router.h"
#include "server/service.h"

namespace verbatim::server {

// What the operator's routes show of the server itself.
struct ServerState {
  std::function<bool()> is_ready;  // takes requests: not draining, engine alive
  std::function<HttpCounts()> http;
};

void add_chat_routes(Router& router, Service& service);
void add_completion_routes(Router& router, Service& service);
void add_model_routes(Router& router, Service& service);    // /v1/models, /tokenize, /detokenize
void add_message_routes(Router& router, Service& service);  // Anthropic's /v1/messages
void add_page_route(Router& router);                        // the chat page at /
void add_response_routes(Router& router, Service& service, ResponseStoreLimits limits);
void add_operation_routes(Router& router, Service& service, ServerState state);  // /health, /metrics, /version

// Seconds since 1970.
int64_t unix_time();
// Ignored fields, as one line at debug level.
void log_unknown_fields(const HttpRequest& request, const std::vector<std::string>& unknown);

}  // namespace verbatim::server
