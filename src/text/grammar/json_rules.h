// The rules of JSON that schemas share. Each is drawn when it is first asked for.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "text/grammar/automaton.h"
#include "text/grammar/dfa.h"
#include "text/grammar/regex_syntax.h"

namespace verbatim::text {

// Lay-out: behind '{', '[' and ',' and before '}' and ']' either nothing, one space, or a line break and up to
// kMaxIndent spaces; behind ':' nothing or one space; no other white space. Nothing inside empty braces.
class JsonRules {
 public:
  static constexpr uint32_t kMaxIndent = 32;

  explicit JsonRules(AutomatonBuilder& builder) : builder_(builder) {}

  // A JSON string of at least `minimum` and at most `maximum` characters, with its quotes.
  RuleId string(uint32_t minimum = 0, uint32_t maximum = kNoMaximum);
  // Any text as it is, without quotes, likewise bounded.
  RuleId raw_string(uint32_t minimum = 0, uint32_t maximum = kNoMaximum);
  // A JSON string whose characters, in Spelling::kJson, `body` matches.
  RuleId string_of(const Dfa& body);
  RuleId integer();  // up to 20 digits
  RuleId number();   // up to 20 digits before and after the point, and two of an exponent
  RuleId boolean();
  RuleId value();
  RuleId object();
  RuleId array();
  RuleId gap();  // matches nothing too
  // `key` a JSON text with its quotes. Returns the state where the value begins.
  StateId key(StateId from, std::string_view key);
  StateId colon(StateId from);

  AutomatonBuilder& builder() { return builder_; }
  Budget& budget() { return builder_.budget(); }

 private:
  enum class Once : uint8_t { kInteger, kNumber, kBoolean, kValue, kObject, kArray, kGap };
  std::optional<RuleId>& once(Once what) { return once_[static_cast<size_t>(what)]; }
  RuleId regex_rule(Once what, std::string_view pattern);
  RuleId counted_string(Spelling spelling, uint32_t minimum, uint32_t maximum);
  void draw_members(RuleId rule, StateId from, char open, char close, StateId to, bool is_object);

  AutomatonBuilder& builder_;
  std::array<std::optional<RuleId>, 7> once_;
  std::map<std::pair<uint32_t, uint32_t>, RuleId> strings_, raw_strings_;
};

}  // namespace verbatim::text
