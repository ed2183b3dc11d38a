// A conversation on a terminal: what a line typed does, and how a reply is shown. Knows no model and no terminal.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/prompt.h"
#include "text/reply_parser.h"
#include "text/tokenizer.h"

namespace verbatim::cli {

struct GenerateOptions {
  int64_t most_tokens = 0;               // generate at most so many
  std::function<bool()> is_interrupted;  // asked between steps of the prompt and of the reply; true: stop
};

// Continues `prompt`: calls on_token with each id as it is chosen, eos ids included, until it returns false, or
// most_tokens are out, or is_interrupted() is true. Throws Error. `prompt` usually begins with the last prompt and its
// reply.
using Generate = std::function<void(std::span<const int32_t> prompt, const GenerateOptions& options,
                                    const std::function<bool(int32_t)>& on_token)>;

struct ChatModel {
  text::Tokenizer tokenizer;
  text::ChatTemplate chat_template;
  std::vector<int32_t> eos;
  int64_t context_tokens = 0;  // prompt and reply together
  std::string name;            // of the checkpoint, for messages
};

struct ChatSettings {
  std::string system = {};  // empty: no system message
  std::string effort = {};  // low, high or max; empty: the template's own
  int64_t most_tokens = 0;  // of a reply; 0: what the context leaves
  bool is_styled = false;   // reasoning dimmed by terminal codes
  bool shows_reasoning = true;
};

class ChatSession {
 public:
  // Throws Error(kUnsupported) if the tokenizer lacks the tags that replies are read by, Error(kUsage) for an unknown
  // effort. `write` gets all that is to be shown: whole characters, no control codes but the session's own.
  ChatSession(ChatModel model, Generate generate, std::function<void(std::string_view)> write, ChatSettings settings);

  // A line typed, without its end: a command, or a message, which is answered at once. A line that ends in a backslash
  // is continued by the next one. What fails is reported and leaves the conversation as it was. Returns false to leave.
  bool line(std::string_view input);
  // "> ", or "... " for a line that continues another.
  const char* prompt() const { return pending_.empty() ? "> " : "... "; }
  void forget_pending() { pending_.clear(); }

  // Stops the reply at its next token; what was said so far stays in the conversation. May be called from a signal
  // handler and from any thread. Holds until clear_interrupt().
  void interrupt() { is_interrupted_.store(true); }
  void clear_interrupt() { is_interrupted_.store(false); }

  static const char* help();

 private:
  struct Message {
    std::string role, content, reasoning;
  };
  bool command(std::string_view name, std::string_view argument);
  void set_effort(std::string_view effort);
  void answer(const std::string& message);
  std::vector<int32_t> prompt_of(const std::vector<Message>& messages) const;
  void show(const std::vector<text::ReplyEvent>& events, Message& reply);
  void show_text(std::string_view text, bool is_reasoning);
  void end_style();

  const ChatModel model_;
  const text::ReplyVocabulary vocabulary_;
  const text::ToolSet no_tools_;
  const Generate generate_;
  const std::function<void(std::string_view)> write_;
  ChatSettings settings_;
  std::vector<Message> messages_;
  std::string pending_;
  std::atomic<bool> is_interrupted_{false};
  static_assert(std::atomic<bool>::is_always_lock_free);

  // Of the reply being shown.
  bool was_reasoning_ = false;
  bool is_dimmed_ = false;
  std::string last_shown_;  // the last two bytes
};

}  // namespace verbatim::cli
