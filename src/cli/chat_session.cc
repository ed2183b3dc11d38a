#include "cli/chat_session.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/sha256.h"
#include "text/chat_inputs.h"
#include "text/utf8.h"

namespace verbatim::cli {
namespace {

constexpr std::string_view kDim = "\x1b[2m", kPlain = "\x1b[0m";

// A model's text must not drive the terminal: control characters other than line feed and tab are shown as ^X.
std::string printable(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const text::Utf8Char character = text::utf8_at(text, at);
    const char32_t c = character.code_point;
    if ((c < 0x20 && c != '\n' && c != '\t') || c == 0x7F) {
      out += '^';
      out += static_cast<char>(c ^ 0x40);
    } else if (c >= 0x80 && c < 0xA0) {
      text::append_utf8(out, 0xFFFD);
    } else {
      out.append(text, at, character.bytes);
    }
    at += character.bytes;
  }
  return out;
}

std::string_view trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

}  // namespace

ChatSession::ChatSession(ChatModel model, Generate generate, std::function<void(std::string_view)> write,
                         ChatSettings settings)
    : model_(std::move(model)),
      vocabulary_(text::ReplyVocabulary::of(model_.tokenizer, model_.name)),
      generate_(std::move(generate)),
      write_(std::move(write)),
      settings_(std::move(settings)) {
  if (!settings_.effort.empty()) set_effort(settings_.effort);
}

const char* ChatSession::help() {
  return "/system TEXT  set the system message; without TEXT remove it\n"
         "/effort LEVEL how long to reason: low, high or max\n"
         "/reset        begin a new conversation\n"
         "/quit         leave (so does Ctrl-D)\n"
         "Ctrl-C stops a reply. A line that ends in \\ goes on in the next. // begins a message that begins with /.\n";
}

bool ChatSession::line(std::string_view input) {
  if (input.ends_with('\r')) input.remove_suffix(1);
  if (input.ends_with('\\')) {
    input.remove_suffix(1);
    pending_.append(input).append("\n");
    return true;
  }
  const bool is_continued = !pending_.empty();
  std::string message = std::exchange(pending_, {}).append(input);
  if (!is_continued && message.starts_with("//")) {
    message.erase(0, 1);
  } else if (!is_continued && message.starts_with('/')) {
    const size_t end = std::min(message.find_first_of(" \t"), message.size());
    return command(std::string_view(message).substr(1, end - 1), trim(std::string_view(message).substr(end)));
  }
  if (trim(message).empty()) return true;
  if (text::valid_utf8_bytes(message, 0) != message.size()) {
    write_("error: the line is not valid UTF-8; nothing was sent\n");
    return true;
  }
  try {
    answer(message);
  } catch (const std::exception& error) {
    end_style();
    if (!last_shown_.empty() && !last_shown_.ends_with('\n')) write_("\n");
    write_(fmt::format("error: {}\n", printable(error.what())));
  }
  return true;
}

bool ChatSession::command(std::string_view name, std::string_view argument) {
  if (name == "quit" || name == "exit") return false;
  if (name == "help") {
    write_(help());
  } else if (name == "reset") {
    messages_.clear();
    write_("(a new conversation)\n");
  } else if (name == "system") {
    settings_.system = argument;
    write_(argument.empty() ? "(no system message)\n" : "(system message set)\n");
  } else if (name == "effort") {
    try {
      set_effort(argument);
      write_(fmt::format("(effort {})\n", argument));
    } catch (const Error& error) {
      write_(fmt::format("error: {}\n", printable(error.what())));
    }
  } else {
    write_(fmt::format("error: no command /{}; /help lists them, // begins a message that begins with /\n",
                       printable(name)));
  }
  return true;
}

// A template takes anything but low and high as max, so a slip of the hand would go unseen there.
void ChatSession::set_effort(std::string_view effort) {
  if (effort != "low" && effort != "high" && effort != "max")
    fail(ErrorKind::kUsage, "effort", "'{}'; expected low, high or max", effort);
  settings_.effort = effort;
}

std::vector<int32_t> ChatSession::prompt_of(const std::vector<Message>& messages) const {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  if (!settings_.system.empty()) list.push_back({{"role", "system"}, {"content", settings_.system}});
  for (const Message& message : messages) {
    nlohmann::ordered_json one = {{"role", message.role}, {"content", message.content}};
    if (message.role == "assistant") one["reasoning_content"] = message.reasoning;
    list.push_back(std::move(one));
  }
  nlohmann::ordered_json request = {{"messages", std::move(list)}};
  if (!settings_.effort.empty()) request["reasoning_effort"] = settings_.effort;
  return text::prompt_ids(model_.tokenizer, model_.chat_template.render(text::chat_inputs(request)));
}

void ChatSession::answer(const std::string& message) {
  last_shown_.clear();
  was_reasoning_ = false;
  std::vector<Message> messages = messages_;
  messages.push_back({"user", message, {}});
  const std::vector<int32_t> prompt = prompt_of(messages);
  const int64_t room = model_.context_tokens - static_cast<int64_t>(prompt.size());
  if (room < 1)
    fail(ErrorKind::kCapacity, "chat",
         "the conversation has grown to {} tokens; the context holds {}; /reset begins a new one, --context asks for "
         "more",
         prompt.size(), model_.context_tokens);

  text::ReplyParser parser(vocabulary_, no_tools_,
                           {.start = text::reply_start(prompt, vocabulary_), .eos = model_.eos});
  Message reply{"assistant", {}, {}};
  std::vector<int32_t> ids;
  const auto is_interrupted = [this] { return is_interrupted_.load(); };
  const auto on_token = [&](int32_t id) {
    if (is_interrupted()) return false;
    ids.push_back(id);
    std::vector<text::ReplyEvent> events;
    parser.feed({&id, 1}, events);
    show(events, reply);
    return !parser.ended();
  };
  const int64_t most = settings_.most_tokens > 0 ? std::min(settings_.most_tokens, room) : room;
  generate_(prompt, {most, is_interrupted}, on_token);

  const bool has_ended = parser.ended();
  std::vector<text::ReplyEvent> events;
  const text::FinishReason reason = parser.finish(events);
  show(events, reply);
  end_style();
  if (!last_shown_.empty() && !last_shown_.ends_with('\n')) write_("\n");
  const char* how = has_ended ? to_string(reason) : is_interrupted() ? "interrupted" : to_string(reason);
  const std::string summary = fmt::format("[{}: {} tokens, {} of them reasoning; hash {}]\n", how, ids.size(),
                                          parser.reasoning_tokens(), token_hash(ids));
  write_(settings_.is_styled ? fmt::format("{}{}{}", kDim, summary, kPlain) : summary);
  messages.push_back(std::move(reply));
  messages_ = std::move(messages);
}

void ChatSession::show(const std::vector<text::ReplyEvent>& events, Message& reply) {
  for (const text::ReplyEvent& event : events) {
    const bool is_reasoning = event.kind == text::ReplyEvent::Kind::kReasoning;
    (is_reasoning ? reply.reasoning : reply.content) += event.text;
    if (!is_reasoning || settings_.shows_reasoning) show_text(event.text, is_reasoning);
  }
}

void ChatSession::show_text(std::string_view text, bool is_reasoning) {
  if (is_reasoning != was_reasoning_ && !last_shown_.empty()) {  // a blank line between the two
    end_style();
    write_(last_shown_.ends_with("\n\n") ? "" : last_shown_.ends_with('\n') ? "\n" : "\n\n");
  }
  was_reasoning_ = is_reasoning;
  if (is_reasoning && settings_.is_styled && !is_dimmed_) {
    write_(kDim);
    is_dimmed_ = true;
  }
  const std::string shown = printable(text);
  write_(shown);
  last_shown_ += shown;
  if (last_shown_.size() > 2) last_shown_.erase(0, last_shown_.size() - 2);
}

void ChatSession::end_style() {
  if (is_dimmed_) write_(kPlain);
  is_dimmed_ = false;
}

}  // namespace verbatim::cli
