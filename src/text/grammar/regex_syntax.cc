#include "text/grammar/regex_syntax.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "text/tool_schema.h"
#include "text/unicode_classes.h"
#include "text/utf8.h"

namespace verbatim::text {
namespace {

constexpr int kMaxDepth = 100;
constexpr uint32_t kMaxRepeat = 100'000;

const CodePoints& digits() {
  static const CodePoints set = {{'0', '9'}};
  return set;
}
const CodePoints& word_characters() {
  static const CodePoints set = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
  return set;
}
// ECMA-262's WhiteSpace and LineTerminator.
const CodePoints& spaces() {
  static const CodePoints set = {{0x09, 0x0D},     {0x20, 0x20},     {0xA0, 0xA0},     {0x1680, 0x1680},
                                 {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F},
                                 {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
  return set;
}
const CodePoints& dot() {
  static const CodePoints set = CodePoints{{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}.complement();
  return set;
}
CodePoints of_class(uint8_t class_bit) {
  CodePoints set;
  for (size_t i = 0; i < kUnicodeRangeCount; ++i)
    if (kUnicodeRanges[i].classes & class_bit) set.add(kUnicodeRanges[i].first, kUnicodeRanges[i].last);
  return set;
}

class Parser {
 public:
  Parser(std::string_view pattern, const std::string& where, Budget& budget)
      : pattern_(pattern), where_(where), budget_(budget) {}

  Regex parse() {
    if (valid_utf8_bytes(pattern_, 0) != pattern_.size())
      fail(ErrorKind::kUsage, where_, "a regex that is not UTF-8; send UTF-8");
    do {
      const bool at_begin = anchor('^');
      const uint32_t node = sequence(0);
      const bool at_end = anchor('$');
      if (at_ < pattern_.size() && pattern_[at_] != '|') {
        if (pattern_[at_] == ')') wrong("')' without '('");
        unsupported("an anchor inside the expression");
      }
      regex_.branches.push_back({node, at_begin, at_end});
    } while (take('|'));
    return std::move(regex_);
  }

 private:
  [[noreturn]] void wrong(std::string_view what) const {
    fail(ErrorKind::kUsage, where_, "{} at byte {} of the regex '{}'; write a valid regular expression", what, at_,
         shown());
  }
  [[noreturn]] void unsupported(std::string_view what) const {
    fail(ErrorKind::kUsage, where_, "{} is not supported (byte {} of the regex '{}'); rewrite it without", what, at_,
         shown());
  }
  std::string shown() const {
    return pattern_.size() <= 80 ? std::string(pattern_) : std::string(pattern_.substr(0, 80)) + "...";
  }

  bool take(char c) {
    if (at_ >= pattern_.size() || pattern_[at_] != c) return false;
    ++at_;
    return true;
  }
  // Repeated anchors are one.
  bool anchor(char c) {
    bool found = false;
    while (take(c)) found = true;
    return found;
  }
  bool take(std::string_view text) {
    if (!pattern_.substr(at_).starts_with(text)) return false;
    at_ += text.size();
    return true;
  }

  uint32_t add(RegexNode node) {
    budget_.states(1);
    regex_.nodes.push_back(std::move(node));
    return static_cast<uint32_t>(regex_.nodes.size() - 1);
  }
  uint32_t add_set(CodePoints set) { return add({.kind = RegexNode::Kind::kSet, .set = std::move(set)}); }

  uint32_t either(int depth) {
    RegexNode node{.kind = RegexNode::Kind::kEither};
    do node.parts.push_back(sequence(depth));
    while (take('|'));
    return node.parts.size() == 1 ? node.parts[0] : add(std::move(node));
  }

  // Up to '|', ')', '$' or the end.
  uint32_t sequence(int depth) {
    RegexNode node{.kind = RegexNode::Kind::kSequence};
    while (at_ < pattern_.size() && pattern_[at_] != '|' && pattern_[at_] != ')' && pattern_[at_] != '$')
      node.parts.push_back(repeated(depth));
    return node.parts.size() == 1 ? node.parts[0] : add(std::move(node));
  }

  uint32_t repeated(int depth) {
    uint32_t node = atom(depth);
    bool is_repeated = false;
    while (at_ < pattern_.size()) {
      uint32_t min = 0, max = RegexNode::kEndless;
      if (take('*')) {
      } else if (take('+')) {
        min = is_repeated ? (unsupported("a possessive quantifier"), 0) : 1;
      } else if (pattern_[at_] == '?') {
        ++at_;
        if (is_repeated) {  // lazy: the same texts match
          is_repeated = false;
          continue;
        }
        max = 1;
      } else if (pattern_[at_] == '{') {
        const std::optional<std::pair<uint32_t, uint32_t>> bounds = braces();
        if (!bounds) break;
        min = bounds->first;
        max = bounds->second;
        if (min > max) wrong("a repeat with its bounds the wrong way round");
      } else {
        break;
      }
      if (is_repeated) wrong("two quantifiers in a row");
      is_repeated = true;
      node = add({.kind = RegexNode::Kind::kRepeat, .parts = {node}, .min = min, .max = max});
    }
    return node;
  }

  // {n}, {n,}, {n,m}; anything else is no quantifier.
  std::optional<std::pair<uint32_t, uint32_t>> braces() {
    size_t at = at_ + 1;
    const auto number = [&]() -> std::optional<uint32_t> {
      const size_t begin = at;
      uint64_t value = 0;
      for (; at < pattern_.size() && pattern_[at] >= '0' && pattern_[at] <= '9'; ++at) {
        value = value * 10 + static_cast<uint64_t>(pattern_[at] - '0');
        if (value > kMaxRepeat) fail(ErrorKind::kUsage, where_, "a repeat above {}; make it smaller", kMaxRepeat);
      }
      return at == begin ? std::nullopt : std::optional(static_cast<uint32_t>(value));
    };
    const std::optional<uint32_t> min = number();
    if (!min) return std::nullopt;
    uint32_t max = *min;
    if (at < pattern_.size() && pattern_[at] == ',') {
      ++at;
      max = number().value_or(RegexNode::kEndless);
    }
    if (at >= pattern_.size() || pattern_[at] != '}') return std::nullopt;
    at_ = at + 1;
    return std::pair(*min, max);
  }

  uint32_t atom(int depth) {
    if (depth > kMaxDepth) fail(ErrorKind::kUsage, where_, "a regex nested deeper than {}; make it flatter", kMaxDepth);
    if (take('(')) return group(depth + 1);
    if (take('[')) return add_set(character_class());
    if (take('.')) return add_set(dot());
    if (take('\\')) return add_set(escape(false));
    if (pattern_[at_] == '^') unsupported("an anchor inside the expression");
    if (pattern_[at_] == '*' || pattern_[at_] == '+' || pattern_[at_] == '?')
      wrong("a quantifier with nothing to repeat");
    const uint32_t c = character();
    return add_set({{c, c}});
  }

  uint32_t group(int depth) {
    if (take('?')) {
      if (take(':')) {
      } else if (take("P<") ||
                 (!pattern_.substr(at_).starts_with("<=") && !pattern_.substr(at_).starts_with("<!") && take("<"))) {
        const size_t end = pattern_.find('>', at_);
        if (end == std::string_view::npos) wrong("a group's name without its end");
        at_ = end + 1;
      } else if (at_ < pattern_.size() && std::string_view("=!<").find(pattern_[at_]) != std::string_view::npos) {
        unsupported("look-around");
      } else {
        unsupported("a group with flags");
      }
    }
    const uint32_t node = either(depth);
    if (at_ < pattern_.size() && pattern_[at_] == '$') unsupported("an anchor inside the expression");
    if (!take(')')) wrong("'(' without ')'");
    return node;
  }

  uint32_t character() {
    const Utf8Char c = utf8_at(pattern_, at_);
    at_ += c.bytes;
    return c.code_point;
  }

  uint32_t hex(size_t least, size_t most) {
    uint32_t value = 0;
    size_t count = 0;
    for (; count < most && at_ < pattern_.size(); ++count, ++at_) {
      const char c = pattern_[at_];
      if (c >= '0' && c <= '9')
        value = value * 16 + static_cast<uint32_t>(c - '0');
      else if ((c | 32) >= 'a' && (c | 32) <= 'f')
        value = value * 16 + static_cast<uint32_t>((c | 32) - 'a' + 10);
      else
        break;
    }
    if (count < least) wrong("an escape with too few hexadecimal digits");
    return value;
  }

  uint32_t code_point_escape() {
    if (take('{')) {
      const uint32_t value = hex(1, 6);
      if (!take('}')) wrong("\\u{ without }");
      return value;
    }
    const uint32_t high = hex(4, 4);
    if (high < 0xD800 || high > 0xDBFF || !take("\\u")) return high;
    const uint32_t low = hex(4, 4);
    if (low < 0xDC00 || low > 0xDFFF) wrong("half a surrogate pair");
    return 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
  }

  // Behind a backslash.
  CodePoints escape(bool in_class) {
    if (at_ >= pattern_.size()) wrong("a backslash at the end");
    const char c = pattern_[at_];
    const auto one = [](uint32_t value) { return CodePoints{{value, value}}; };
    const auto value_of = [&](uint32_t value) {
      if (value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)) wrong("a code point that is no character");
      return CodePoints{{value, value}};
    };
    switch (c) {
      case 'd': ++at_; return digits();
      case 'D': ++at_; return digits().complement();
      case 'w': ++at_; return word_characters();
      case 'W': ++at_; return word_characters().complement();
      case 's': ++at_; return spaces();
      case 'S': ++at_; return spaces().complement();
      case 'n': ++at_; return one('\n');
      case 'r': ++at_; return one('\r');
      case 't': ++at_; return one('\t');
      case 'f': ++at_; return one('\f');
      case 'v': ++at_; return one('\v');
      case 'x': ++at_; return value_of(hex(2, 2));
      case 'u': ++at_; return value_of(code_point_escape());
      case 'p':
      case 'P': ++at_; return property(c == 'P');
      case 'b':
      case 'B':
        if (in_class && c == 'b') {
          ++at_;
          return one('\b');
        }
        unsupported("a word boundary (\\b)");
      case '0':
        if (at_ + 1 < pattern_.size() && pattern_[at_ + 1] >= '0' && pattern_[at_ + 1] <= '9')
          unsupported("an octal escape");
        ++at_;
        return one(0);
      default: break;
    }
    if (c >= '1' && c <= '9') unsupported("a back reference");
    if (c == 'k') unsupported("a back reference (\\k)");
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) unsupported(std::string("the escape \\") + c);
    const uint32_t value = character();
    return one(value);
  }

  CodePoints property(bool is_negated) {
    const size_t end = pattern_.find('}', at_);
    if (!take('{') || end == std::string_view::npos) wrong("\\p without {name}");
    const std::string_view name = pattern_.substr(at_, end - at_);
    CodePoints set;
    if (name == "L" || name == "Letter")
      set = of_class(kLetter);
    else if (name == "N" || name == "Number")
      set = of_class(kNumber);
    else
      unsupported("the Unicode property " + std::string(name.substr(0, 40)) + " (L and N are)");
    at_ = end + 1;
    budget_.work(20'000);
    return is_negated ? set.complement() : set;
  }

  // Behind '['.
  CodePoints character_class() {
    const bool is_negated = take('^');
    if (pattern_.substr(at_).starts_with("]")) unsupported("']' as a class's first character (write \\])");
    CodePoints set;
    // One member: a character, which may begin a range, or a set.
    const auto member = [&]() -> std::pair<CodePoints, bool> {
      if (at_ >= pattern_.size()) wrong("'[' without ']'");
      if (pattern_.substr(at_).starts_with("[:")) unsupported("a POSIX class ([:name:])");
      CodePoints found;
      if (take('\\')) {
        found = escape(true);
      } else {
        const uint32_t c = character();
        found.add(c, c);
      }
      return {found, found.ranges().size() == 1 && found.ranges()[0].first == found.ranges()[0].last};
    };
    while (!take(']')) {
      budget_.work(64);
      const auto [first, is_one] = member();
      if (pattern_.substr(at_).starts_with("-") && !pattern_.substr(at_).starts_with("-]")) {
        ++at_;
        const auto [last, last_is_one] = member();
        if (is_one && last_is_one) {
          const uint32_t from = first.ranges()[0].first, to = last.ranges()[0].first;
          if (from > to) wrong("a range the wrong way round");
          set.add(from, to);
          continue;
        }
        set.add('-', '-');  // [\w-.]: a hyphen
        set.add(last);
      }
      set.add(first);
    }
    return is_negated ? set.complement() : set;
  }

  std::string_view pattern_;
  const std::string& where_;
  Budget& budget_;
  size_t at_ = 0;
  Regex regex_;
};

class Drawer {
 public:
  Drawer(const Regex& regex, Spelling spelling, Nfa& nfa) : regex_(regex), spelling_(spelling), nfa_(nfa) {}

  void draw(uint32_t index, uint32_t from, uint32_t to) {
    const RegexNode& node = regex_.nodes[index];
    nfa_.budget().work(4);
    switch (node.kind) {
      case RegexNode::Kind::kEmpty: nfa_.epsilon(from, to); return;
      case RegexNode::Kind::kSet: draw_characters(nfa_, from, node.set, spelling_, to); return;
      case RegexNode::Kind::kEither:
        for (const uint32_t part : node.parts) draw(part, from, to);
        return;
      case RegexNode::Kind::kSequence:
        for (size_t i = 0; i < node.parts.size(); ++i) {
          const uint32_t next = i + 1 == node.parts.size() ? to : nfa_.state();
          draw(node.parts[i], from, next);
          from = next;
        }
        if (node.parts.empty()) nfa_.epsilon(from, to);
        return;
      case RegexNode::Kind::kRepeat: repeat(node, from, to); return;
    }
  }

 private:
  void repeat(const RegexNode& node, uint32_t from, uint32_t to) {
    const auto once = [&](uint32_t begin) {
      const uint32_t end = nfa_.state();
      draw(node.parts[0], begin, end);
      return end;
    };
    // A state of its own: a part that loops must not lead back to what stands before it.
    const uint32_t begin = nfa_.state();
    nfa_.epsilon(from, begin);
    from = begin;
    for (uint32_t i = 0; i < node.min; ++i) from = once(from);
    if (node.max == RegexNode::kEndless) {
      const uint32_t loop = nfa_.state();
      nfa_.epsilon(from, loop);
      nfa_.epsilon(once(loop), loop);
      nfa_.epsilon(loop, to);
      return;
    }
    nfa_.epsilon(from, to);
    for (uint32_t i = node.min; i < node.max; ++i) {
      from = once(from);
      nfa_.epsilon(from, to);
    }
  }

  const Regex& regex_;
  Spelling spelling_;
  Nfa& nfa_;
};

}  // namespace

Regex parse_regex(std::string_view pattern, const std::string& where, Budget& budget) {
  return Parser(pattern, where, budget).parse();
}

void draw_characters(Nfa& nfa, uint32_t from, const CodePoints& set, Spelling spelling, uint32_t to) {
  if (spelling == Spelling::kRaw) return nfa.characters(from, set, to);
  static const CodePoints plain = CodePoints{{0, 0x1F}, {'"', '"'}, {'\\', '\\'}}.complement();
  nfa.characters(from, set.intersected(plain), to);
  for (uint32_t c = 0; c <= '\\'; ++c) {
    if (plain.contains(c) || !set.contains(c)) continue;
    std::string escaped;
    const char character = static_cast<char>(c);
    append_json_escaped(escaped, {&character, 1});
    nfa.literal(from, escaped, to);
  }
}

std::string spell(std::string_view text, Spelling spelling) {
  if (spelling == Spelling::kRaw) return std::string(text);
  std::string out;
  append_json_escaped(out, text);
  return out;
}

Dfa regex_dfa(const Regex& regex, Anchoring anchoring, Spelling spelling, Budget& budget) {
  Nfa nfa(budget);
  const uint32_t start = nfa.state(), end = nfa.state();
  const auto anything = [&] {
    const uint32_t loop = nfa.state();
    draw_characters(nfa, loop, CodePoints::all(), spelling, loop);
    return loop;
  };
  Drawer drawer(regex, spelling, nfa);
  for (const Regex::Branch& branch : regex.branches) {
    uint32_t from = start, to = end;
    if (anchoring == Anchoring::kSearch && !branch.at_begin) {
      from = anything();
      nfa.epsilon(start, from);
    }
    if (anchoring == Anchoring::kSearch && !branch.at_end) {
      to = anything();
      nfa.epsilon(to, end);
    }
    // A state of its own: the branch must not share a beginning that others loop through.
    const uint32_t begin = nfa.state();
    nfa.epsilon(from, begin);
    drawer.draw(branch.node, begin, to);
  }
  return nfa.determinize(start, end);
}

}  // namespace verbatim::text
