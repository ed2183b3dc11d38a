// The body of OpenAI's POST /v1/responses.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "server/generation.h"
#include "server/openai_request.h"

namespace verbatim::server {

struct ResponsesRequest {
  ChatRequest chat;
  bool store = true;
  std::string previous_id;  // empty: none
  // Members of the response that repeat the request ("instructions", "tools", ...).
  std::shared_ptr<const nlohmann::ordered_json> echo;
  // The request's own input items, and the conversation's: those before it, too. JSON arrays.
  std::shared_ptr<const nlohmann::ordered_json> input, conversation;
};

// The previous response's conversation (StoredResponse::conversation), by its id. Throws ApiFailure if there is none.
using PreviousConversation = std::function<std::string(const std::string& id)>;

// `body` must be an object; parts of it are moved out. `unknown` gets the fields that are ignored. Throws ApiFailure,
// 400, that names the field.
ResponsesRequest parse_responses_request(nlohmann::ordered_json& body, const PreviousConversation& previous,
                                         const RequestLimits& limits, const EffortRules& rules,
                                         std::vector<std::string>& unknown);

}  // namespace verbatim::server
