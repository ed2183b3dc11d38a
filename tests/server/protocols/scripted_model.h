// A model that says what the prompt asks it to say, through the real tokenizer: the text behind the last "say: " of the
// last message, tags included. "say: I think so.</think>Yes." gives reasoning and text. Prompts without it get
// StubModel's arithmetic.
#pragma once

#include <atomic>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "tests/engine/stub_model.h"
#include "text/tokenizer.h"

namespace verbatim::server {

class ScriptedModel final : public engine::StubModel {
 public:
  // `end` follows what was said.
  ScriptedModel(const text::Tokenizer& tokenizer, engine::StubOptions options, int32_t end)
      : StubModel(options),
        tokenizer_(tokenizer),
        end_(end),
        assistant_(*tokenizer.find("<|assistant|>")),
        think_(*tokenizer.find("<think>")),
        user_(*tokenizer.find("<|user|>")),
        observation_(*tokenizer.find("<|observation|>")),
        held_(static_cast<size_t>(options.slots)) {}

  // Tokens come out wrong in steps of more sequences than this: what a batch must never do.
  size_t wrong_beyond_spans = SIZE_MAX;
  std::atomic<bool> throws{false};  // the next step fails

  void forward(std::span<const ops::Span> spans, std::span<const int32_t> ids) override {
    if (throws.load()) throw std::runtime_error("the model broke");
    is_wrong_ = spans.size() > wrong_beyond_spans;
    for (const ops::Span& span : spans)
      held_[static_cast<size_t>(span.sequence)].feed(
          *this, span.position, span.certain,
          ids.subspan(static_cast<size_t>(span.first_row), static_cast<size_t>(span.rows)));
    StubModel::forward(spans, ids);
    is_wrong_ = false;
  }
  int32_t next_after(int64_t sequence, int32_t last, int64_t position) const override {
    const Held& held = held_[static_cast<size_t>(sequence)];
    if (is_wrong_) return follower(last, position + 1);
    if (held.reply.empty()) return follower(last, position);
    const auto said = static_cast<size_t>(position + 1 - held.start);
    return said < held.reply.size() ? held.reply[said] : end_;
  }
  std::shared_ptr<const state::Snapshot> save(const ops::Span& advance, int32_t hidden_row) override {
    auto snapshot = std::make_shared<state::Snapshot>(*StubModel::save(advance, hidden_row));
    const std::vector<int32_t>& ids = held_[static_cast<size_t>(advance.sequence)].ids;
    snapshot->values.resize(1);
    for (int64_t i = 0; i < advance.position; ++i)
      snapshot->values.push_back(static_cast<float>(ids[static_cast<size_t>(i)]));
    return snapshot;
  }
  void restore(const state::Snapshot& snapshot, int32_t slot, int64_t position) override {
    StubModel::restore(snapshot, slot, position);
    std::vector<int32_t> ids;
    for (size_t i = 1; i < snapshot.values.size(); ++i) ids.push_back(static_cast<int32_t>(snapshot.values[i]));
    Held& held = held_[static_cast<size_t>(slot)];
    held = {};
    held.feed(*this, 0, std::ssize(ids), ids);
  }

 private:
  struct Held {
    std::vector<int32_t> ids, reply;
    int64_t start = 0;  // of the reply

    // Rows behind the `certain` ones are drafts, which may hold anything.
    void feed(const ScriptedModel& model, int64_t position, int64_t certain, std::span<const int32_t> rows) {
      ids.resize(static_cast<size_t>(position));
      if (start > position) reply.clear();
      for (const int32_t id : rows) {
        ids.push_back(id);
        if (std::ssize(ids) > position + certain) continue;
        if (id != model.think_ || ids.size() < 2 || ids[ids.size() - 2] != model.assistant_) continue;
        start = std::ssize(ids);
        reply = model.script(ids);
      }
    }
  };

  std::vector<int32_t> script(std::span<const int32_t> prompt) const {
    size_t begin = prompt.size() - 2;
    while (begin > 0 && prompt[begin] != user_ && prompt[begin] != observation_) --begin;
    std::string message = tokenizer_.decode(prompt.subspan(begin, prompt.size() - 2 - begin), false);
    constexpr std::string_view kSay = "say: ";
    const size_t at = message.rfind(kSay);
    if (at == std::string::npos) return {};
    message.erase(0, at + kSay.size());
    return tokenizer_.encode(message.substr(0, message.find("</tool_response>")), true);
  }

  const text::Tokenizer& tokenizer_;
  const int32_t end_, assistant_, think_, user_, observation_;
  std::vector<Held> held_;
  bool is_wrong_ = false;
};

}  // namespace verbatim::server
