// A toy vocabulary for the reply parser's tests: one token a byte, the tags, three eos tokens, and pieces added at
// will.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "text/reply_parser.h"

namespace verbatim::text {

class ReplyToy {
 public:
  ReplyToy() {
    for (int byte = 0; byte < 256; ++byte) pieces_.emplace_back(1, static_cast<char>(byte));
    for (size_t i = 0; i < kReplyTagText.size(); ++i) vocabulary_.tags[i] = special(std::string(kReplyTagText[i]));
    for (const char* text : {"<tool_response>", "</tool_response>"}) special(text);
    for (const char* text : {"<|endoftext|>", "<|user|>", "<|observation|>"}) eos_.push_back(special(text));
    vocabulary_.piece = [this](int32_t id) {
      const auto index = static_cast<size_t>(id);
      return id >= 0 && index < pieces_.size() ? std::string_view(pieces_[index]) : std::string_view{};
    };
    vocabulary_.is_special = [this](int32_t id) { return id >= eos_[0] && id <= eos_[2]; };
  }
  ReplyToy(const ReplyToy&) = delete;
  ReplyToy& operator=(const ReplyToy&) = delete;

  const ReplyVocabulary& vocabulary() const { return vocabulary_; }
  const std::vector<int32_t>& eos() const { return eos_; }
  const std::string& piece(int32_t id) const { return pieces_[static_cast<size_t>(id)]; }
  bool is_control(int32_t id) const { return id >= 256 && id <= eos_[2]; }  // a tag, a tool response or an eos
  int32_t id(const std::string& control) const { return controls_.at(control); }

  // An ordinary token of these bytes.
  int32_t add(const std::string& bytes) {
    const auto [place, is_new] = added_.try_emplace(bytes, static_cast<int32_t>(pieces_.size()));
    if (is_new) pieces_.push_back(bytes);
    return place->second;
  }
  void forget_added() {
    pieces_.resize(pieces_.size() - added_.size());
    added_.clear();
  }
  // Ordinary tokens, a byte each, tags included.
  std::vector<int32_t> plain(std::string_view text) const {
    std::vector<int32_t> ids;
    for (const char byte : text) ids.push_back(static_cast<uint8_t>(byte));
    return ids;
  }
  // Tags and eos tokens as tokens of their own, the rest a byte each.
  std::vector<int32_t> spell(std::string_view text) const {
    std::vector<int32_t> ids;
    while (!text.empty()) {
      size_t used = 1;
      int32_t id = static_cast<uint8_t>(text[0]);
      for (const auto& [control, control_id] : controls_) {
        if (!text.starts_with(control)) continue;
        used = control.size();
        id = control_id;
      }
      ids.push_back(id);
      text.remove_prefix(used);
    }
    return ids;
  }

 private:
  int32_t special(const std::string& text) {
    pieces_.push_back(text);
    return controls_[text] = static_cast<int32_t>(pieces_.size() - 1);
  }
  std::vector<std::string> pieces_;
  std::map<std::string, int32_t> controls_;
  std::map<std::string, int32_t> added_;
  std::vector<int32_t> eos_;
  ReplyVocabulary vocabulary_;
};

// Neighbouring fragments of one kind made one.
inline std::vector<ReplyEvent> joined(const std::vector<ReplyEvent>& events) {
  using Kind = ReplyEvent::Kind;
  std::vector<ReplyEvent> out;
  for (const ReplyEvent& event : events) {
    const bool is_fragment =
        event.kind == Kind::kReasoning || event.kind == Kind::kText || event.kind == Kind::kCallArguments;
    if (is_fragment && !out.empty() && out.back().kind == event.kind && out.back().call == event.call)
      out.back().text += event.text;
    else
      out.push_back(event);
  }
  return out;
}

// One line an event, to read and to compare: R|..., T|..., [0 name id, 0|..., 0] or 0]cut.
inline std::string script(const std::vector<ReplyEvent>& events) {
  std::string out;
  for (const ReplyEvent& event : joined(events)) {
    const std::string call = std::to_string(event.call);
    switch (event.kind) {
      case ReplyEvent::Kind::kReasoning: out += "R|" + event.text; break;
      case ReplyEvent::Kind::kText: out += "T|" + event.text; break;
      case ReplyEvent::Kind::kCallBegin: out += "[" + call + " " + event.text + " " + event.id; break;
      case ReplyEvent::Kind::kCallArguments: out += call + "|" + event.text; break;
      case ReplyEvent::Kind::kCallEnd: out += call + "]" + (event.complete ? "" : "cut"); break;
    }
    out += "\n";
  }
  return out;
}

}  // namespace verbatim::text
