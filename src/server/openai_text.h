// Pieces of JSON that OpenAI's replies have in common.
#pragma once

#include <string>
#include <vector>

#include "server/json_text.h"
#include "server/reply.h"
#include "text/tokenizer.h"

namespace verbatim::server {

// {"token", "logprob", "bytes", "top_logprobs"}, with at most `top` of the latter.
void append_chat_logprob(std::string& out, const text::Tokenizer& tokenizer, const engine::GeneratedToken& token,
                         int top);
// As vLLM has it: null for the first position, then {"ID": {"logprob", "rank", "decoded_token"}} each.
void append_prompt_logprobs(std::string& out, const text::Tokenizer& tokenizer,
                            const std::vector<engine::GeneratedToken>& tokens);
// "usage":{...}
void append_usage_member(std::string& out, const ReplyUsage& usage);
// ,"verbatim":{...}
void append_verbatim_member(std::string& out, const std::vector<ChoiceEnd>& ends);
// ,"finish_reason":... and, once it has ended, ,"stop_reason":...
void append_finish(std::string& out, const std::optional<ChoiceEnd>& end);

}  // namespace verbatim::server
