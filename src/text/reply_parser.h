// Token ids of a reply in, typed events out: reasoning, text and tool calls. docs/replies.md states the rules.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/reply_vocabulary.h"
#include "text/stop_strings.h"
#include "text/stream_decoder.h"
#include "text/tool_schema.h"

namespace verbatim::text {

struct ReplyOptions {
  ReplyStart start = ReplyStart::kReasoning;
  std::vector<int32_t> eos = {};         // every id that ends a reply
  std::vector<std::string> stop = {};    // searched for in text, not in reasoning nor in tool calls
  std::string call_id_prefix = "call_";  // a call's id is this and its index: pass something unique to the reply
};

struct ReplyEvent {
  enum class Kind : uint8_t {
    kReasoning,      // text: whole characters, never empty
    kText,           // text: likewise
    kCallBegin,      // text: the tool's name, whole; call, id
    kCallArguments,  // text: a fragment of the arguments; a complete call's fragments make one JSON object
    kCallEnd,        // call, complete
  };
  Kind kind;
  std::string text = {};
  size_t call = 0;       // index in the reply, from 0
  std::string id = {};   // of kCallBegin
  bool complete = true;  // of kCallEnd; false: the reply ended inside the call, whose JSON is left open

  friend bool operator==(const ReplyEvent&, const ReplyEvent&) = default;
};

enum class FinishReason { kStop, kToolCalls, kLength };
const char* to_string(FinishReason reason);  // "stop", "tool_calls", "length"

// One object a reply. Vocabulary and tools are shared, read only, and must outlive it. The concatenation of the events
// depends on the tokens alone, not on how many are fed at a time nor, between two tags, on how the text is cut into
// tokens. Linear in the reply's length.
class ReplyParser {
 public:
  // Throws Error(kUsage) for stop strings that StopStrings refuses.
  ReplyParser(const ReplyVocabulary& vocabulary, const ToolSet& tools, ReplyOptions options);

  // Appends what has become certain to `events` (an event of text may be merged into the last of them). Returns how
  // many ids belong to the reply: fewer than given only if it ended, by an eos id or a stop string; later ids count for
  // nothing.
  size_t feed(std::span<const int32_t> ids, std::vector<ReplyEvent>& events);
  // No more ids come: lets out what was held back. A reply that had not ended by itself was cut: kLength. Calling it
  // again changes nothing.
  FinishReason finish(std::vector<ReplyEvent>& events);

  bool ended() const { return ended_; }                                   // by an eos id, a stop string or finish()
  std::optional<size_t> matched_stop() const { return stop_.matched(); }  // index in ReplyOptions::stop
  size_t tokens() const { return tokens_; }                               // those of the reply, eos included
  size_t reasoning_tokens() const { return reasoning_tokens_; }           // of those, up to and with </think>
  size_t calls() const { return calls_; }                                 // begun
  size_t replaced() const { return decoder_.replaced(); }                 // U+FFFD for bytes that are not UTF-8
  // What the next token of text would belong to: kReasoning, kText or kCallArguments (a call's name included).
  ReplyEvent::Kind part() const;

 private:
  enum class State : uint8_t {
    kReasoning,
    kText,
    kUnoffered,    // in a call amid reasoning whose tool was not offered: text until its end
    kName,         // after <tool_call>
    kBetween,      // in a call, before <arg_key> or </tool_call>
    kKey,          // after <arg_key>
    kBeforeValue,  // after </arg_key>
    kValue,        // after <arg_value>
  };

  void token(int32_t id);
  void text(std::string_view characters);
  void tag(ReplyTag tag);
  void end(bool cut);

  void put(ReplyEvent::Kind kind, std::string_view text);
  void put_visible(std::string_view characters);
  void release_visible(std::string_view characters);

  void open_call();
  bool name_may_be_offered() const;
  void give_name_back();
  void name_is_whole(ReplyTag tag);
  void keep_aside();
  void abandon_key(std::string_view closing);
  void begin_value();
  void add_to_value(std::string_view characters);
  void end_value();
  void end_call(bool complete);

  const ReplyVocabulary& vocabulary_;
  const ToolSet& tools_;
  const ReplyOptions options_;
  std::vector<ReplyEvent>* events_ = nullptr;  // during feed() and finish()

  StreamDecoder decoder_;
  StopStrings stop_;
  State state_;
  bool ended_ = false;
  FinishReason reason_ = FinishReason::kLength;
  size_t tokens_ = 0;
  size_t reasoning_tokens_ = 0;
  size_t calls_ = 0;
  size_t complete_calls_ = 0;

  bool text_begun_;    // something but white space was seen as text
  std::string space_;  // white space after text: dropped unless text follows

  // The call being read.
  bool from_reasoning_ = false;  // where <tool_call> stood
  size_t name_tokens_ = 0;       // since then
  std::string name_;
  size_t tool_ = 0;
  std::set<std::string, std::less<>> keys_;
  std::string gap_;    // what stands between tags
  std::string aside_;  // of the call, but no part of it: comes out as text after it
  std::string key_;
  std::string value_;
  bool is_repeated_ = false;   // the key was there already
  bool is_streaming_ = false;  // the value is a JSON string, opened
};

}  // namespace verbatim::text
