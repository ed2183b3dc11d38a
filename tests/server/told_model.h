// A model that answers by a script: what the last user turn says decides the reply, token by token. It remembers what
// each sequence was fed, so a wrong span shows as a wrong reply.
#pragma once

#include <atomic>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "engine/step_model.h"
#include "tests/text/byte_tokenizer.h"

namespace verbatim::server {

// A byte a token, the tags of replies, and <|observation|>.
inline const std::vector<std::string>& told_tokens() {
  static const std::vector<std::string> kTokens = [] {
    std::vector<std::string> tokens = text::chat_tokens();
    tokens.insert(tokens.end(), {"<|observation|>", "<|endoftext|>"});
    return tokens;
  }();
  return kTokens;
}

inline constexpr const char* kToldTemplate =
    "[gMASK]<sop>{% if reasoning_effort is defined %}<|system|>Effort: {{ reasoning_effort }}{% endif %}"
    "{% if tools %}<|system|>{{ tools | tojson }}{% endif %}"
    "{% for m in messages %}{% if m.role == 'system' %}<|system|>{{ m.content }}"
    "{% elif m.role == 'user' %}<|user|>{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{{ part.text }}{% endfor %}{% endif %}"
    "{% elif m.role == 'tool' %}<|observation|>{{ m.content }}"
    "{% else %}<|assistant|><think>{{ m.reasoning_content or '' }}</think>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }}{% for k, v in c.function.arguments.items() %}"
    "<arg_key>{{ k }}</arg_key><arg_value>{{ v }}</arg_value>{% endfor %}</tool_call>{% endfor %}{% endif %}{% endfor "
    "%}"
    "{% if add_generation_prompt %}<|assistant|><think>{% endif %}";

// "count N" is thought about for one word and answered with N letters; anything else is thought about and repeated.
inline std::string default_script(const std::string& user) {
  if (user.starts_with("count ")) {
    std::string reply = "hm</think>";
    for (int i = std::stoi(user.substr(6)); i > 0; --i) reply += static_cast<char>('a' + i % 26);
    return reply;
  }
  return "let me see</think>" + user;
}

struct ToldOptions {
  std::function<std::string(const std::string& user)> script = default_script;
  int64_t slots = 64, pages = 4096, max_rows = 512, max_positions = 65536;
  double step_s = 0;  // simulated time of a step
};

class ToldModel final : public engine::StepModel {
 public:
  explicit ToldModel(ToldOptions options = {})
      : options_(std::move(options)),
        tokenizer_(text::byte_tokenizer(told_tokens())),
        user_(*tokenizer_.find("<|user|>")),
        assistant_(*tokenizer_.find("<|assistant|>")),
        think_(*tokenizer_.find("<think>")),
        slots_(static_cast<size_t>(options_.slots)) {
    sizes_.vocabulary = sizes_.vocabulary_limit = tokenizer_.size();
    sizes_.max_positions = options_.max_positions;
    sizes_.max_rows = options_.max_rows;
    sizes_.slots = options_.slots;
    sizes_.pages = options_.pages;
    sizes_.snapshot_bytes = 64;
  }

  const text::Tokenizer& tokenizer() const { return tokenizer_; }
  const engine::StepModelSizes& sizes() const override { return sizes_; }

  void forward(std::span<const ops::Span> spans, std::span<const int32_t> ids) override {
    if (options_.step_s > 0) std::this_thread::sleep_for(std::chrono::duration<double>(options_.step_s));
    answers_.assign(ids.size(), 0);
    for (const ops::Span& span : spans) {
      Slot& slot = slots_[static_cast<size_t>(span.sequence)];
      const auto position = static_cast<size_t>(span.position);
      if (position == 0) slot = {};
      if (position > slot.fed.size()) throw std::runtime_error("a span begins past what its sequence holds");
      slot.fed.resize(position);
      for (int64_t row = 0; row < span.rows; ++row) {
        const auto at = static_cast<size_t>(span.first_row + row);
        slot.fed.push_back(ids[at]);
        answers_[at] = answer(slot);
      }
    }
    ++forwards;
  }
  std::span<const float> logits(std::span<const int32_t> rows) override {
    const auto width = static_cast<size_t>(sizes_.vocabulary);
    logits_.assign(rows.size() * width, 0.0f);
    for (size_t i = 0; i < rows.size(); ++i)
      logits_[i * width + static_cast<size_t>(answers_[static_cast<size_t>(rows[i])])] = 30.0f;
    return logits_;
  }
  std::span<const int32_t> greedy(std::span<const int32_t> rows) override {
    greedy_.clear();
    for (const int32_t row : rows) greedy_.push_back(answers_[static_cast<size_t>(row)]);
    return greedy_;
  }
  void next_n(std::span<const ops::Span>, std::span<const int32_t>, std::span<const int32_t>) override { refuse(); }
  void next_n_resumed(const ops::Span&, int32_t) override { refuse(); }
  std::span<const int32_t> draft(std::span<const engine::DraftChain>) override { refuse(); }
  std::shared_ptr<const state::Snapshot> save(const ops::Span&, int32_t) override { refuse(); }
  void restore(const state::Snapshot&, int32_t, int64_t) override { refuse(); }

  std::atomic<int64_t> forwards{0};

 private:
  struct Slot {
    std::vector<int32_t> fed, reply;
    size_t reply_at = 0;  // where the reply begins; 0: not known yet
  };
  [[noreturn]] static void refuse() { throw std::runtime_error("no drafts and no prefix cache here"); }

  // A conversation's reply begins behind its last <|assistant|><think>; without one, letters by position.
  int32_t answer(Slot& slot) const {
    const size_t fed = slot.fed.size();
    if (fed >= 2 && slot.fed[fed - 1] == think_ && slot.fed[fed - 2] == assistant_) {
      const auto user = std::find(slot.fed.rbegin(), slot.fed.rend(), user_);
      const auto begin = user.base();
      const auto end = std::find_if(begin, slot.fed.end(), [](int32_t id) { return id >= 256; });
      slot.reply = tokenizer_.encode(options_.script(tokenizer_.decode({begin, end}, false)), true);
      slot.reply_at = fed;
    }
    if (slot.reply_at == 0 || fed < slot.reply_at) return static_cast<int32_t>('a' + fed % 26);
    const size_t said = fed - slot.reply_at;
    return said < slot.reply.size() ? slot.reply[said] : user_;
  }

  ToldOptions options_;
  text::Tokenizer tokenizer_;
  int32_t user_, assistant_, think_;
  engine::StepModelSizes sizes_;
  std::vector<Slot> slots_;
  std::vector<int32_t> answers_, greedy_;
  std::vector<float> logits_;
};

}  // namespace verbatim::server
