#include "server/openai_text.h"

#include <algorithm>

namespace verbatim::server {
namespace {

void append_token_logprob(std::string& out, const text::Tokenizer& tokenizer, int32_t id, float logprob) {
  const std::string_view piece = tokenizer.piece(id);
  out += R"("token":)";
  append_json_bytes_as_string(out, piece);
  out += R"(,"logprob":)";
  append_json_number(out, logprob);
  out += R"(,"bytes":[)";
  for (size_t i = 0; i < piece.size(); ++i) {
    if (i > 0) out += ',';
    append_json_integer(out, static_cast<unsigned char>(piece[i]));
  }
  out += ']';
}

}  // namespace

void append_chat_logprob(std::string& out, const text::Tokenizer& tokenizer, const engine::GeneratedToken& token,
                         int top) {
  out += '{';
  append_token_logprob(out, tokenizer, token.id, token.logprob);
  out += R"(,"top_logprobs":[)";
  const size_t listed = std::min(token.top.size(), static_cast<size_t>(std::max(top, 0)));
  for (size_t i = 0; i < listed; ++i) {
    out += i > 0 ? ",{" : "{";
    append_token_logprob(out, tokenizer, token.top[i].id, token.top[i].logprob);
    out += '}';
  }
  out += "]}";
}

void append_prompt_logprobs(std::string& out, const text::Tokenizer& tokenizer,
                            const std::vector<engine::GeneratedToken>& tokens) {
  out += "[null";
  for (const engine::GeneratedToken& token : tokens) {
    out += ",{";
    bool is_listed = false;
    const auto append = [&](int32_t id, float logprob, int64_t rank) {
      fmt::format_to(std::back_inserter(out), R"("{}":{{"logprob":)", id);
      append_json_number(out, logprob);
      if (rank > 0) fmt::format_to(std::back_inserter(out), R"(,"rank":{})", rank);
      out += R"(,"decoded_token":)";
      append_json_bytes_as_string(out, tokenizer.piece(id));
      out += '}';
    };
    for (size_t i = 0; i < token.top.size(); ++i) {
      if (i > 0) out += ',';
      append(token.top[i].id, token.top[i].logprob, static_cast<int64_t>(i) + 1);
      is_listed = is_listed || token.top[i].id == token.id;
    }
    if (!is_listed) {
      if (!token.top.empty()) out += ',';
      append(token.id, token.logprob, 0);
    }
    out += '}';
  }
  out += ']';
}

void append_usage_member(std::string& out, const ReplyUsage& usage) {
  fmt::format_to(std::back_inserter(out),
                 R"("usage":{{"prompt_tokens":{},"completion_tokens":{},"total_tokens":{},)"
                 R"("prompt_tokens_details":{{"cached_tokens":{}}},)"
                 R"("completion_tokens_details":{{"reasoning_tokens":{},"accepted_prediction_tokens":0,)"
                 R"("rejected_prediction_tokens":0}}}})",
                 usage.prompt_tokens, usage.generated_tokens, usage.prompt_tokens + usage.generated_tokens,
                 usage.cached_tokens, usage.reasoning_tokens);
}

void append_verbatim_member(std::string& out, const std::vector<ChoiceEnd>& ends) {
  std::vector<const ChoiceEnd*> list;
  list.reserve(ends.size());
  for (const ChoiceEnd& end : ends) list.push_back(&end);
  out += R"(,"verbatim":)";
  append_verbatim_block(out, list);
}

void append_finish(std::string& out, const std::optional<ChoiceEnd>& end) {
  if (!end) {
    out += R"(,"finish_reason":null)";
    return;
  }
  fmt::format_to(std::back_inserter(out), R"(,"finish_reason":"{}","stop_reason":)", text::to_string(end->reason));
  if (end->stop) {
    append_json_string(out, *end->stop);
  } else {
    out += "null";
  }
}

}  // namespace verbatim::server
