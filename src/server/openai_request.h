// The bodies of OpenAI's chat and completion requests, with vLLM's and our own fields.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "server/generation.h"
#include "server/json_body.h"

namespace verbatim::server {

struct EffortRules {
  std::string default_effort;  // empty: the template's own
  bool as_template = false;    // pass on what the client sent; otherwise minimal and none are low, medium is high
};

// The template's effort for what a client asked; empty if it asked nothing and there is no default. Throws ApiFailure
// for a word that is no effort.
std::string template_effort(const std::optional<std::string>& asked, const std::string& param,
                            const EffortRules& rules);

// `body` must be an object; parts of it are moved out. `unknown` gets the fields that are ignored. Throw ApiFailure,
// 400, that names the field.
ChatRequest parse_chat_request(nlohmann::ordered_json& body, const RequestLimits& limits, const EffortRules& rules,
                               std::vector<std::string>& unknown);
CompletionRequest parse_completion_request(nlohmann::ordered_json& body, const RequestLimits& limits,
                                           std::vector<std::string>& unknown);

// Pieces for other protocols. Most tokens that a limit can name.
inline constexpr int64_t kMostTokens = int64_t{1} << 40;
// object[name]; refuses `param` if it is no object, "param.name" if that is no string.
const std::string& string_member(const nlohmann::ordered_json& object, const char* name, const std::string& param);
// Some call must be made, or one of the tool of that name; refuses `param` if it is not offered.
void require_call(const std::string& param, ChatRequest& request);
void require_call_of(const std::string& tool, const std::string& param, ChatRequest& request);
// temperature, top_p, top_k, min_p, seed, penalties, logit_bias, stop, stop_token_ids, ignore_eos,
// priority, thinking_budget, draft, stream, model, n.
void read_sampling(Fields& fields, const RequestLimits& limits, Generation& generation);
// One stop string or an array of them, under another name.
void read_stop(Fields& fields, const char* name, const RequestLimits& limits, Generation& generation);
// structured_outputs and guided_*, as vLLM's clients send them.
void read_guided(Fields& fields, const RequestLimits& limits, StructuredOutput& structured);
// Token ids below `limit`.
std::vector<int32_t> read_token_ids(const nlohmann::ordered_json& ids, const std::string& param, int64_t limit);
// {"type": "json_schema", "json_schema": {...}} and its kind.
void read_response_format(const nlohmann::ordered_json& format, const std::string& param, const RequestLimits& limits,
                          StructuredOutput& structured);
// [{"type": "function", "function": {...}}]
std::vector<text::OfferedTool> read_tools(const nlohmann::ordered_json& tools, const RequestLimits& limits);

// Refuses, naming the message: an empty list, tool results that answer no call, and images and videos by URL (this
// server reaches no network and reads no file) or of any kind while the model reads none.
void check_messages(const nlohmann::ordered_json& messages);

}  // namespace verbatim::server
