// The bodies of Anthropic's /v1/messages and /v1/messages/count_tokens.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "server/generation.h"
#include "server/openai_request.h"

namespace verbatim::server {

// What becomes of the reasoning in the reply. It is part of the output tokens in any case.
enum class ThinkingShown {
  kNo,         // no thinking blocks: the client did not ask for thinking
  kSignature,  // blocks without text ("display": "omitted")
  kYes,
};

struct MessagesRequest {
  ChatRequest chat;
  ThinkingShown thinking = ThinkingShown::kNo;
};

// `body` must be an object; parts of it are moved out. `unknown` gets the fields that are ignored. `counts_only`: for
// count_tokens, which takes no max_tokens. Throws ApiFailure, 400, that names the field.
MessagesRequest parse_messages_request(nlohmann::ordered_json& body, bool counts_only, const RequestLimits& limits,
                                       const EffortRules& rules, std::vector<std::string>& unknown);

}  // namespace verbatim::server
