#include "text/reply_parser.h"

#include <algorithm>
#include <utility>

#include "text/utf8.h"

namespace verbatim::text {
namespace {

using Kind = ReplyEvent::Kind;

// What the template's strip() removes: Python's white space.
bool is_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

struct Extent {
  size_t begin, end;  // bytes; equal if there is nothing but white space
};

// Of what is not white space, in whole characters.
Extent extent(std::string_view characters) {
  Extent found{characters.size(), characters.size()};
  bool is_first = true;
  for (size_t at = 0; at < characters.size();) {
    const Utf8Char character = utf8_at(characters, at);
    if (!is_space(character.code_point)) {
      if (is_first) found.begin = at;
      is_first = false;
      found.end = at + character.bytes;
    }
    at += character.bytes;
  }
  return found;
}

std::string_view trim(std::string_view characters) {
  const Extent inner = extent(characters);
  return characters.substr(inner.begin, inner.end - inner.begin);
}

std::string_view text_of(ReplyTag tag) { return kReplyTagText[static_cast<size_t>(tag)]; }

constexpr size_t kMaxUnofferedNameBytes = 128;
constexpr size_t kMaxNameSpaceBytes = 64;

bool is_name_byte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
         c == '.' || c == ':' || c == '/';
}

}  // namespace

const char* to_string(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop: return "stop";
    case FinishReason::kToolCalls: return "tool_calls";
    case FinishReason::kLength: break;
  }
  return "length";
}

ReplyParser::ReplyParser(const ReplyVocabulary& vocabulary, const ToolSet& tools, ReplyOptions options)
    : vocabulary_(vocabulary),
      tools_(tools),
      options_(std::move(options)),
      stop_(options_.stop),
      state_(options_.start == ReplyStart::kReasoning ? State::kReasoning : State::kText),
      text_begun_(options_.start == ReplyStart::kMidAnswer) {}

size_t ReplyParser::feed(std::span<const int32_t> ids, std::vector<ReplyEvent>& events) {
  events_ = &events;
  size_t used = 0;
  while (used < ids.size() && !ended_) token(ids[used++]);
  events_ = nullptr;
  return used;
}

FinishReason ReplyParser::finish(std::vector<ReplyEvent>& events) {
  events_ = &events;
  if (!ended_) {
    text(decoder_.flush());
    if (!ended_) end(true);
  }
  events_ = nullptr;
  return reason_;
}

Kind ReplyParser::part() const {
  if (state_ == State::kReasoning) return Kind::kReasoning;
  return state_ == State::kText || state_ == State::kUnoffered ? Kind::kText : Kind::kCallArguments;
}

void ReplyParser::token(int32_t id) {
  ++tokens_;
  const State before = state_;
  const size_t counted = reasoning_tokens_;
  const bool is_eos = std::find(options_.eos.begin(), options_.eos.end(), id) != options_.eos.end();
  const std::optional<ReplyTag> found =
      is_eos || options_.start == ReplyStart::kPlain ? std::nullopt : vocabulary_.tag(id);
  if (is_eos || found) text(decoder_.flush());
  if (ended_) return;  // a stop string that ends in U+FFFD
  if (is_eos) return end(false);
  if (found)
    tag(*found);
  else
    text(decoder_.push(vocabulary_.piece(id)));

  // <tool_call> and a name in reasoning count as reasoning only if they turn out to be no call.
  const bool was_name = before == State::kName && from_reasoning_;
  if (state_ == State::kName && from_reasoning_)
    ++name_tokens_;
  else if (before == State::kReasoning || (was_name && reasoning_tokens_ != counted))
    ++reasoning_tokens_;
}

void ReplyParser::text(std::string_view characters) {
  if (characters.empty()) return;
  switch (state_) {
    case State::kReasoning: return put(Kind::kReasoning, characters);
    case State::kText:
    case State::kUnoffered: return put_visible(characters);
    case State::kName:
      name_ += characters;
      if (!name_may_be_offered()) give_name_back();
      return;
    case State::kBetween:
    case State::kBeforeValue: gap_ += characters; return;
    case State::kKey: key_ += characters; return;
    case State::kValue: return add_to_value(characters);
  }
}

void ReplyParser::tag(ReplyTag tag) {
  switch (state_) {
    case State::kReasoning:
      if (tag == ReplyTag::kThinkEnd)
        state_ = State::kText;
      else if (tag == ReplyTag::kCallBegin)
        open_call();
      else
        put(Kind::kReasoning, text_of(tag));
      return;
    case State::kText:
      if (tag == ReplyTag::kCallBegin)
        open_call();
      else if (tag == ReplyTag::kThinkBegin && options_.start == ReplyStart::kUnspecified && !text_begun_ &&
               calls_ == 0 && reasoning_tokens_ == 0)
        state_ = State::kReasoning;
      else
        put_visible(text_of(tag));
      return;
    case State::kUnoffered:
      if (tag == ReplyTag::kThinkEnd) {
        state_ = State::kText;
      } else if (tag == ReplyTag::kCallBegin) {
        open_call();
      } else {
        put_visible(text_of(tag));
        if (tag == ReplyTag::kCallEnd) state_ = State::kReasoning;
      }
      return;
    case State::kName:
      if (tag == ReplyTag::kKeyBegin || tag == ReplyTag::kCallEnd) return name_is_whole(tag);
      give_name_back();
      return this->tag(tag);
    case State::kBetween:
      keep_aside();
      if (tag == ReplyTag::kKeyBegin) {
        state_ = State::kKey;
        key_.clear();
      } else if (tag == ReplyTag::kCallEnd) {
        end_call(true);
      } else if (tag == ReplyTag::kCallBegin) {  // </tool_call> was left out
        end_call(true);
        if (!ended_) open_call();
      } else {
        aside_ += text_of(tag);
      }
      return;
    case State::kKey:
      if (tag == ReplyTag::kKeyEnd) {
        state_ = State::kBeforeValue;
      } else if (tag == ReplyTag::kValueBegin) {  // </arg_key> was left out
        begin_value();
      } else if (tag == ReplyTag::kKeyBegin || tag == ReplyTag::kCallBegin || tag == ReplyTag::kCallEnd) {
        abandon_key({});
        return this->tag(tag);
      } else {
        key_ += text_of(tag);
      }
      return;
    case State::kBeforeValue:
      if (tag == ReplyTag::kValueBegin) {
        keep_aside();
        begin_value();
      } else if (tag == ReplyTag::kKeyBegin || tag == ReplyTag::kCallBegin || tag == ReplyTag::kCallEnd) {
        abandon_key(text_of(ReplyTag::kKeyEnd));
        return this->tag(tag);
      } else {
        gap_ += text_of(tag);
      }
      return;
    case State::kValue:
      if (tag == ReplyTag::kValueEnd)
        end_value();
      else
        add_to_value(text_of(tag));
      return;
  }
}

// The reply ends: by an eos id, or (cut) because no more ids come.
void ReplyParser::end(bool cut) {
  switch (state_) {
    case State::kName: give_name_back(); break;
    case State::kBetween:
      keep_aside();
      if (cut && keys_.empty()) put(Kind::kCallArguments, "{");
      end_call(!cut);
      break;
    case State::kKey:
    case State::kBeforeValue:
      // A value that is not whole, or a key without one, is put out as a JSON string left open: no JSON parser takes
      // it for a call, and nothing of it is lost.
      put(Kind::kCallArguments, keys_.empty() ? "{\"" : ", \"");
      value_.clear();
      append_json_escaped(value_, key_);
      put(Kind::kCallArguments, value_);
      keep_aside();
      end_call(false);
      break;
    case State::kValue:
      if (!is_streaming_ && !is_repeated_) {
        std::string opened = "\"";
        append_json_escaped(opened, value_);
        put(Kind::kCallArguments, opened);
      }
      end_call(false);
      break;
    case State::kReasoning:
    case State::kText:
    case State::kUnoffered: break;
  }
  if (ended_) return;  // by a stop string in what just came out
  std::string visible;
  stop_.flush(visible);
  release_visible(visible);
  ended_ = true;
  reason_ = cut ? FinishReason::kLength : complete_calls_ > 0 ? FinishReason::kToolCalls : FinishReason::kStop;
}

void ReplyParser::put(Kind kind, std::string_view text) {
  if (text.empty()) return;
  const size_t call = kind == Kind::kCallArguments ? calls_ - 1 : 0;
  if (!events_->empty() && events_->back().kind == kind && events_->back().call == call)
    events_->back().text += text;
  else
    events_->push_back({.kind = kind, .text = std::string(text), .call = call});
}

// Text in its order of travel: leading white space is dropped, stop strings are looked for, trailing white space waits
// for more text. What comes out is what the template puts back into a later prompt: content.strip().
void ReplyParser::put_visible(std::string_view characters) {
  if (ended_) return;
  if (!text_begun_ && options_.start != ReplyStart::kPlain) {
    characters.remove_prefix(extent(characters).begin);
    if (characters.empty()) return;
  }
  text_begun_ = true;
  std::string visible;
  const std::optional<size_t> match = stop_.push(characters, visible);
  release_visible(visible);
  if (!match) return;
  ended_ = true;
  reason_ = complete_calls_ > 0 ? FinishReason::kToolCalls : FinishReason::kStop;
}

void ReplyParser::release_visible(std::string_view characters) {
  if (options_.start == ReplyStart::kPlain) return put(Kind::kText, characters);
  const Extent inner = extent(characters);
  if (inner.begin < inner.end) {
    put(Kind::kText, space_);
    put(Kind::kText, characters.substr(0, inner.end));
    space_.clear();
    characters.remove_prefix(inner.end);
  }
  space_ += characters;
}

void ReplyParser::open_call() {
  from_reasoning_ = state_ == State::kReasoning || state_ == State::kUnoffered;
  state_ = State::kName;
  name_.clear();
  name_tokens_ = 0;
}

// Once false for a beginning of a name, false for all that it can grow to.
bool ReplyParser::name_may_be_offered() const {
  const std::string_view name = trim(name_);
  if (name_.size() > name.size() + kMaxNameSpaceBytes) return false;
  if (tools_.has_name_with_prefix(name)) return true;
  return name.size() <= kMaxUnofferedNameBytes && std::all_of(name.begin(), name.end(), is_name_byte);
}

// What was read since <tool_call> is no call: it comes out where it stood.
void ReplyParser::give_name_back() {
  const Kind kind = from_reasoning_ ? Kind::kReasoning : Kind::kText;
  state_ = from_reasoning_ ? State::kReasoning : State::kText;
  const std::string whole = std::string(text_of(ReplyTag::kCallBegin)) + name_;
  if (kind == Kind::kText) return put_visible(whole);
  put(kind, whole);
  reasoning_tokens_ += name_tokens_;
  name_tokens_ = 0;
}

void ReplyParser::name_is_whole(ReplyTag tag) {
  const std::optional<size_t> tool = tools_.find(trim(name_));
  if (!tool) {
    state_ = from_reasoning_ ? State::kUnoffered : State::kText;
    put_visible(std::string(text_of(ReplyTag::kCallBegin)) + name_);
    if (!ended_) this->tag(tag);
    return;
  }
  // Text before the call goes out before it.
  std::string visible;
  stop_.flush(visible);
  release_visible(visible);
  tool_ = *tool;
  keys_.clear();
  gap_.clear();
  aside_.clear();
  const size_t call = calls_++;
  events_->push_back({.kind = Kind::kCallBegin,
                      .text = tools_.name(tool_),
                      .call = call,
                      .id = options_.call_id_prefix + std::to_string(call)});
  state_ = State::kBetween;
  this->tag(tag);
}

// White space between tags means nothing; anything else is kept.
void ReplyParser::keep_aside() {
  if (!trim(gap_).empty()) aside_ += gap_;
  gap_.clear();
}

// A key that no value follows.
void ReplyParser::abandon_key(std::string_view closing) {
  aside_ += text_of(ReplyTag::kKeyBegin);
  aside_ += key_;
  aside_ += closing;
  keep_aside();
  state_ = State::kBetween;
}

void ReplyParser::begin_value() {
  state_ = State::kValue;
  value_.clear();
  is_streaming_ = false;
  if (!tools_.declares(tool_, key_)) key_ = std::string(trim(key_));
  is_repeated_ = keys_.contains(key_);
  if (is_repeated_) {
    aside_ += text_of(ReplyTag::kKeyBegin);
    aside_ += key_;
    aside_ += text_of(ReplyTag::kKeyEnd);
    aside_ += text_of(ReplyTag::kValueBegin);
    return;
  }
  std::string fragment = keys_.empty() ? "{\"" : ", \"";
  append_json_escaped(fragment, key_);
  fragment += "\": ";
  put(Kind::kCallArguments, fragment);
  keys_.insert(key_);
  add_to_value({});
}

void ReplyParser::add_to_value(std::string_view characters) {
  if (is_repeated_) {
    aside_ += characters;
    return;
  }
  std::string fragment;
  if (is_streaming_) {
    append_json_escaped(fragment, characters);
  } else {
    value_ += characters;
    is_streaming_ = !tools_.type(tool_, key_).may_be_json(value_);
    if (!is_streaming_) return;
    fragment += '"';
    append_json_escaped(fragment, value_);
  }
  put(Kind::kCallArguments, fragment);
}

void ReplyParser::end_value() {
  state_ = State::kBetween;
  if (is_repeated_)
    aside_ += text_of(ReplyTag::kValueEnd);
  else
    put(Kind::kCallArguments, is_streaming_ ? "\"" : tools_.type(tool_, key_).to_json(value_));
}

void ReplyParser::end_call(bool complete) {
  if (complete) {
    put(Kind::kCallArguments, keys_.empty() ? "{}" : "}");
    ++complete_calls_;
  }
  events_->push_back({.kind = Kind::kCallEnd, .call = calls_ - 1, .complete = complete});
  state_ = State::kText;
  put_visible(std::exchange(aside_, {}));
}

}  // namespace verbatim::text
