// A chat model of a toy tokenizer and template, and replies read from a script.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cli/chat_session.h"
#include "tests/text/byte_tokenizer.h"

namespace verbatim::cli {

inline constexpr const char* kToyTemplate =
    "[gMASK]<sop>{% if reasoning_effort is defined %}<|system|>Effort: {{ reasoning_effort }}{% endif %}"
    "{% for m in messages %}{% if m.role == 'system' %}<|system|>{% elif m.role == 'user' %}<|user|>"
    "{% else %}<|assistant|><think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|><think>{% endif %}";

inline ChatModel toy_model(int64_t context_tokens = 4096) {
  const text::Tokenizer tokenizer = text::byte_tokenizer(text::chat_tokens());
  return {
      tokenizer, text::ChatTemplate::parse(kToyTemplate, "toy"), {*tokenizer.find("<|user|>")}, context_tokens, "toy"};
}

// Replies that are told one after the other, whatever the prompt, which is kept as text.
class Script {
 public:
  explicit Script(std::vector<std::string> replies) : replies_(std::move(replies)) {}

  Generate generate() {
    return [this](std::span<const int32_t> prompt, const GenerateOptions& options,
                  const std::function<bool(int32_t)>& on_token) {
      prompts.push_back(tokenizer_.decode(prompt, false));
      most_tokens = options.most_tokens;
      if (on_prompt) on_prompt();
      int64_t said = 0;
      for (const int32_t id : tokenizer_.encode(replies_[next_++ % replies_.size()], true)) {
        if (said++ == options.most_tokens || options.is_interrupted() || !on_token(id)) return;
        if (on_said) on_said(said);
      }
    };
  }

  std::vector<std::string> prompts;
  int64_t most_tokens = 0;
  std::function<void()> on_prompt;
  std::function<void(int64_t said)> on_said;

 private:
  const text::Tokenizer tokenizer_ = text::byte_tokenizer(text::chat_tokens());
  std::vector<std::string> replies_;
  size_t next_ = 0;
};

}  // namespace verbatim::cli
