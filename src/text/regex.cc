#include "text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>

#include "base/error.h"
#include "text/utf8.h"

namespace verbatim::text {
namespace {

constexpr size_t kJitStackStartBytes = 32 << 10, kJitStackLimitBytes = 64 << 20;

std::string pcre2_message(int code) {
  std::array<PCRE2_UCHAR8, 256> buffer{};
  pcre2_get_error_message_8(code, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

// Lets through what Oniguruma (its Ruby syntax, which `tokenizers` uses) and PCRE2 read alike and refuses the rest by
// name. Script names are spelled out: to PCRE2 10.40 and later, \p{Han} means Script_Extensions, to Oniguruma Script.
class Translator {
 public:
  Translator(const std::string& pattern, const std::string& where) : pattern_(pattern), where_(where) {}

  std::string run() {
    while (position_ < pattern_.size()) step();
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(std::string_view construct, std::string_view why) const {
    fail(ErrorKind::kUnsupported, where_,
         "the pre-tokenizer's regex holds {} at byte {} ({}); expected what docs/tokenizer.md lists", construct,
         position_, why);
  }
  bool starts(std::string_view text) const { return std::string_view(pattern_).substr(position_).starts_with(text); }
  void copy(size_t bytes) {
    out_.append(pattern_, position_, bytes);
    position_ += bytes;
  }

  void step() {
    const char c = pattern_[position_];
    if (c == '\\') return escape();
    if (in_class_) return class_member(c);
    if (c == '(') return group();
    if (c == '[') {
      in_class_ = true;
      copy(1);
      if (starts("^")) copy(1);
      if (starts("]")) refuse("[]", "Oniguruma and PCRE2 differ on an empty class");
      return;
    }
    if (c == '{') return interval();
    copy(1);
  }

  void class_member(char c) {
    if (c == '[') refuse("a class inside a class", "PCRE2 has none");
    if (starts("&&")) refuse("&&", "PCRE2 has no intersection of classes");
    if (c == ']') in_class_ = false;
    copy(1);
  }

  void escape() {
    if (position_ + 1 == pattern_.size()) refuse("a trailing backslash", "nothing to escape");
    const char c = pattern_[position_ + 1];
    const bool alphanumeric = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
    if (!alphanumeric) return copy(2);
    if (c == 'p' || c == 'P') return property();
    if (c == 'x') {  // \xHH and \x{H...} alike
      copy(2);
      const size_t close = starts("{") ? pattern_.find('}', position_) : std::string::npos;
      return copy(close == std::string::npos ? 0 : close + 1 - position_);
    }
    constexpr std::string_view kEverywhere = "sSdDrntfae", kOutsideClasses = "Az";
    if (kEverywhere.find(c) != std::string_view::npos) return copy(2);
    if (!in_class_ && kOutsideClasses.find(c) != std::string_view::npos) return copy(2);
    refuse(std::string("\\") + c, "it means something else to PCRE2, or nothing");
  }

  // \p{L}, \p{^L}, \p{Han}
  void property() {
    const size_t close = pattern_.find('}', position_);
    if (position_ + 2 >= pattern_.size() || pattern_[position_ + 2] != '{' || close == std::string::npos)
      refuse("\\p without {name}", "Oniguruma wants braces");
    std::string name = pattern_.substr(position_ + 3, close - position_ - 3);
    const bool negated = name.starts_with('^');
    if (negated) name.erase(0, 1);
    if (name.empty() || name.find_first_of(":=^") != std::string::npos) refuse("\\p{" + name + "}", "not a plain name");
    out_ +=
        fmt::format("\\{}{{{}{}{}}}", pattern_[position_ + 1], negated ? "^" : "", name.size() > 2 ? "sc:" : "", name);
    position_ = close + 1;
  }

  void group() {
    if (starts("(*")) refuse("(*", "a verb of PCRE2, a callout of Oniguruma");
    if (!starts("(?")) return copy(1);
    for (const std::string_view head : {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?-i:"})
      if (starts(head)) return copy(head.size());
    if (position_ == 0 && starts("(?i)")) return copy(4);
    refuse(std::string_view(pattern_).substr(position_, 4),
           "only (?: (?= (?! (?<= (?<! (?> (?i: (?-i: and a leading (?i) are known");
  }

  // {n}, {n,}, {n,m}; what follows may be ? (lazy) but not + (possessive to PCRE2, a repeat of a repeat to Oniguruma).
  void interval() {
    const size_t close = pattern_.find('}', position_);
    const std::string body = close == std::string::npos ? "" : pattern_.substr(position_ + 1, close - position_ - 1);
    const bool numbers = !body.empty() && body[0] != ',' && body.find_first_not_of("0123456789,") == std::string::npos;
    if (!numbers) refuse("{", "a literal brace, or an interval without a lower bound");
    const bool exact = body.find(',') == std::string::npos;
    copy(close + 1 - position_);
    if (starts("+")) refuse("{n,m}+", "possessive to PCRE2 only");
    if (exact && starts("?")) refuse("{n}?", "lazy to PCRE2, optional to Oniguruma");
  }

  const std::string& pattern_;
  const std::string& where_;
  size_t position_ = 0;
  bool in_class_ = false;
  std::string out_;
};

}  // namespace

struct Regex::Code {
  pcre2_code_8* code = nullptr;
  bool jit = false;
  Code() = default;
  ~Code() { pcre2_code_free_8(code); }
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
};

struct Regex::Memory::State {
  pcre2_match_context_8* context = pcre2_match_context_create_8(nullptr);
  pcre2_jit_stack_8* jit_stack = pcre2_jit_stack_create_8(kJitStackStartBytes, kJitStackLimitBytes, nullptr);
  pcre2_match_data_8* match = pcre2_match_data_create_8(1, nullptr);
  State() {
    if (!context || !match) throw std::bad_alloc();
    if (jit_stack) pcre2_jit_stack_assign_8(context, nullptr, jit_stack);
  }
  ~State() {
    pcre2_match_data_free_8(match);
    pcre2_jit_stack_free_8(jit_stack);
    pcre2_match_context_free_8(context);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
};

Regex::Memory::Memory() = default;
Regex::Memory::~Memory() = default;
void Regex::Memory::reserve() {
  if (!state_) state_ = std::make_unique<State>();
}

Regex::Regex(const std::string& pattern, const std::string& where) : where_(where) {
  const std::string translated = Translator(pattern, where).run();
  const std::unique_ptr<pcre2_compile_context_8, decltype(&pcre2_compile_context_free_8)> context(
      pcre2_compile_context_create_8(nullptr), pcre2_compile_context_free_8);
  if (!context) throw std::bad_alloc();
  pcre2_set_newline_8(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  size_t error_offset = 0;
  auto code = std::make_shared<Code>();
  // MULTILINE because ^ and $ stand at line ends in Oniguruma's Ruby syntax.
  code->code = pcre2_compile_8(reinterpret_cast<PCRE2_SPTR8>(translated.data()), translated.size(),
                               PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error, &error_offset,
                               context.get());
  if (!code->code) {
    fail(ErrorKind::kUnsupported, where, "PCRE2 cannot compile the pre-tokenizer's regex {}: {} at byte {}", translated,
         pcre2_message(error), error_offset);
  }
  code->jit = pcre2_jit_compile_8(code->code, PCRE2_JIT_COMPLETE) == 0;
  code_ = std::move(code);
}

void Regex::for_each_match(std::string_view text, Memory& memory,
                           const std::function<void(size_t, size_t)>& visit) const {
  memory.reserve();
  const Memory::State& state = *memory.state_;
  const auto subject = reinterpret_cast<PCRE2_SPTR8>(text.data());
  size_t start = 0;
  while (start <= text.size()) {
    const int found = code_->jit ? pcre2_jit_match_8(code_->code, subject, text.size(), start, PCRE2_NO_UTF_CHECK,
                                                     state.match, state.context)
                                 : pcre2_match_8(code_->code, subject, text.size(), start, PCRE2_NO_UTF_CHECK,
                                                 state.match, state.context);
    if (found == PCRE2_ERROR_NOMATCH) return;
    if (found < 0) {
      fail(ErrorKind::kCapacity, where_, "the pre-tokenizer's regex failed at byte {} of {}: {}; send shorter text",
           start, text.size(), pcre2_message(found));
    }
    const size_t* bounds = pcre2_get_ovector_pointer_8(state.match);
    visit(bounds[0], bounds[1]);
    start = bounds[1];
    if (bounds[0] == bounds[1]) start += start < text.size() ? utf8_at(text, start).bytes : 1;
  }
}

}  // namespace verbatim::text
