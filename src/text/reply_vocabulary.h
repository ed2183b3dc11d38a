// The tags of a reply, and how a prompt's end says where its reply begins.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace verbatim::text {

class Tokenizer;

enum class ReplyTag : uint8_t {
  kThinkBegin,
  kThinkEnd,
  kCallBegin,
  kCallEnd,
  kKeyBegin,
  kKeyEnd,
  kValueBegin,
  kValueEnd,
};
inline constexpr std::array<std::string_view, 8> kReplyTagText = {
    "<think>", "</think>", "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"};

// What the parser needs of a tokenizer: tags are recognised by id alone, so that the same characters spelt with
// ordinary tokens are ordinary text. Looked up once for a checkpoint and shared by all replies.
struct ReplyVocabulary {
  std::array<int32_t, kReplyTagText.size()> tags;     // ids, by ReplyTag
  std::function<std::string_view(int32_t)> piece;     // bytes of a token; empty for unknown ids; called concurrently
  std::function<bool(int32_t)> is_special = nullptr;  // tokens that only a template writes; may be null

  // Throws Error(kUnsupported) that names every tag the tokenizer lacks. `where` begins the message.
  static ReplyVocabulary of(const Tokenizer& tokenizer, const std::string& where);

  std::optional<ReplyTag> tag(int32_t id) const {
    for (size_t i = 0; i < tags.size(); ++i)
      if (tags[i] == id) return static_cast<ReplyTag>(i);
    return std::nullopt;
  }
};

// What the prompt ended in.
enum class ReplyStart {
  kReasoning,    // <think>, as the released template always does (enable_thinking=false does not change that)
  kAnswer,       // </think>: reasoning is over, nothing is said yet
  kMidAnswer,    // text after </think>, which the reply continues: its leading white space counts
  kUnspecified,  // a new turn without either: reasoning if the reply opens with <think>, else text
  kPlain,        // no conversation (/v1/completions): every token is text, tags too, and no white space is removed
};

// Looks back from the prompt's end to the last tag or special token. Never returns kPlain.
ReplyStart reply_start(std::span<const int32_t> prompt, const ReplyVocabulary& vocabulary);

}  // namespace verbatim::text
