#include "text/jinja/lexer.h"

#include <algorithm>
#include <array>

#include "text/jinja/represent.h"
#include "text/jinja/text.h"
#include "text/utf8.h"

namespace verbatim::text::jinja {
namespace {

constexpr size_t kNowhere = std::string::npos;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_name(char c) { return is_name_start(c) || is_digit(c); }

// \n for every line end, and without the last one.
std::string normalize_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out.push_back(source[i]);
      continue;
    }
    out.push_back('\n');
    if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

class Lexer {
 public:
  Lexer(std::string source, uint32_t& line) : source_(std::move(source)), line_(line) {}

  std::vector<Token> run() {
    line_ = 1;
    while (position_ < source_.size()) data_and_tag();
    push(Token::Kind::kEnd);
    return std::move(tokens_);
  }

 private:
  bool at(std::string_view text, size_t position) const { return source_.compare(position, text.size(), text) == 0; }
  bool at(std::string_view text) const { return at(text, position_); }

  void advance_to(size_t position) {
    line_ += static_cast<uint32_t>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(position_),
                                              source_.begin() + static_cast<std::ptrdiff_t>(position), '\n'));
    position_ = position;
  }

  size_t after_space(size_t position) const {
    while (position < source_.size()) {
      const Utf8Char character = utf8_at(source_, position);
      if (!is_space(character.code_point)) break;
      position += character.bytes;
    }
    return position;
  }

  Token& push(Token::Kind kind) {
    tokens_.emplace_back();
    tokens_.back().kind = kind;
    tokens_.back().line = line_;
    return tokens_.back();
  }

  // The data from position_ to `end`, where a tag with this sign begins. line_start: position_ begins a line.
  void push_data(size_t end, char sign, bool is_variable) {
    std::string_view data = std::string_view(source_).substr(position_, end - position_);
    if (sign == '-') {
      const Text text(std::string(data), Origin::kTemplate);
      data = data.substr(0, strip(text, Side::kRight).size());
    } else if (sign != '+' && !is_variable) {
      const size_t newline = data.rfind('\n');
      const bool line_starts = position_ == 0 || source_[position_ - 1] == '\n';
      if (newline != kNowhere || line_starts) {
        const size_t line_begin = newline == kNowhere ? 0 : newline + 1;
        if (after_space(position_ + line_begin) >= end) data = data.substr(0, line_begin);
      }
    }
    if (!data.empty()) push(Token::Kind::kData).text = std::string(data);
    advance_to(end);
  }

  char sign_at(size_t position) const {
    const bool has_sign = position < source_.size() && (source_[position] == '-' || source_[position] == '+');
    return has_sign ? source_[position] : '\0';
  }

  void data_and_tag() {
    size_t tag = position_;
    for (;; ++tag) {
      tag = source_.find('{', tag);
      if (tag == kNowhere) {
        push(Token::Kind::kData).text = source_.substr(position_);
        advance_to(source_.size());
        return;
      }
      const char kind = tag + 1 < source_.size() ? source_[tag + 1] : '\0';
      if (kind == '{' || kind == '%' || kind == '#') break;
    }
    const char kind = source_[tag + 1];
    const char sign = sign_at(tag + 2);
    const size_t inside = tag + 2 + (sign != '\0' ? 1 : 0);
    push_data(tag, sign, kind == '{');
    if (kind == '#') return comment(inside);
    if (kind == '%')
      if (const size_t raw_begins = end_of_raw_tag(inside, "raw"); raw_begins != kNowhere) return raw(raw_begins);
    push(kind == '{' ? Token::Kind::kVariableBegin : Token::Kind::kBlockBegin);
    advance_to(inside);
    expression(kind == '{');
  }

  void comment(size_t inside) {
    const size_t end = source_.find("#}", inside);
    if (end == kNowhere) fault(ErrorKind::kFormat, "a comment is not closed; '#}}' is missing");
    const char sign = end > inside ? sign_at(end - 1) : '\0';
    advance_to(end + 2);
    after_tag(sign, true);
  }

  // Past a closing tag: '-' takes all white space after it, and a block or comment without '+' one newline.
  void after_tag(char sign, bool trims_newline) {
    if (sign == '-') {
      advance_to(after_space(position_));
    } else if (sign != '+' && trims_newline && at("\n")) {
      advance_to(position_ + 1);
    }
  }

  // From behind "{%" and its sign: the position behind `name` and the tag's end, or npos when it is another tag. For
  // endraw the position is that of the tag's end.
  size_t end_of_raw_tag(size_t inside, std::string_view name) const {
    size_t position = after_space(inside);
    if (!at(name, position)) return kNowhere;
    position = after_space(position + name.size());
    if (at("-%}", position) || at("%}", position) || (name == "endraw" && at("+%}", position))) return position;
    return kNowhere;
  }

  void raw(size_t tag_end) {
    const char open_sign = sign_at(tag_end);
    advance_to(tag_end + (open_sign != '\0' ? 3 : 2));
    if (open_sign == '-') advance_to(after_space(position_));
    for (size_t tag = source_.find("{%", position_); tag != kNowhere; tag = source_.find("{%", tag + 1)) {
      const char sign = sign_at(tag + 2);
      const size_t end = end_of_raw_tag(tag + 2 + (sign != '\0' ? 1 : 0), "endraw");
      if (end == kNowhere) continue;
      push_data(tag, sign, false);
      const char close_sign = sign_at(end);
      advance_to(end + (close_sign != '\0' ? 3 : 2));
      after_tag(close_sign, true);
      return;
    }
    fault(ErrorKind::kFormat, "a raw block is not closed; '{{% endraw %}}' is missing");
  }

  // Tokens up to and with the end of the tag.
  void expression(bool variable) {
    std::string open;
    while (position_ < source_.size()) {
      if (open.empty() && tag_ends(variable)) return;
      const size_t next = after_space(position_);
      if (next != position_) {
        advance_to(next);
      } else if (is_digit(source_[position_])) {
        number();
      } else if (is_name_start(source_[position_])) {
        name();
      } else if (source_[position_] == '"' || source_[position_] == '\'') {
        string();
      } else {
        operator_token(open);
      }
    }
  }

  bool tag_ends(bool variable) {
    const std::string_view close = variable ? "}}" : "%}";
    const char sign = sign_at(position_);
    const bool signed_end = sign != '\0' && at(close, position_ + 1) && (sign == '-' || !variable);
    if (!signed_end && !at(close)) return false;
    push(variable ? Token::Kind::kVariableEnd : Token::Kind::kBlockEnd);
    advance_to(position_ + (signed_end ? 3 : 2));
    after_tag(signed_end ? sign : '\0', !variable);
    return true;
  }

  // Past digits with single underscores between them, from a position that holds a digit; else the position itself.
  template <typename IsDigit>
  size_t after_digits(size_t position, IsDigit is_one) const {
    const auto one = [&](size_t i) { return i < source_.size() && is_one(source_[i]); };
    if (!one(position)) return position;
    while (one(position) || (position < source_.size() && source_[position] == '_' && one(position + 1))) ++position;
    return position;
  }

  size_t after_exponent(size_t position) const {
    if (position >= source_.size() || (source_[position] | 0x20) != 'e') return position;
    const size_t digits = position + 1 + (sign_at(position + 1) != '\0' ? 1 : 0);
    const size_t end = after_digits(digits, is_digit);
    return end > digits ? end : position;
  }

  void number() {
    const size_t whole = after_digits(position_, is_digit);
    size_t end = whole;
    if (end < source_.size() && source_[end] == '.') {
      const size_t fraction = after_digits(end + 1, is_digit);
      if (fraction > end + 1) end = fraction;
    }
    end = after_exponent(end);
    const bool after_dot = position_ > 0 && source_[position_ - 1] == '.';
    if (end > whole && !after_dot) {
      Token& token = push(Token::Kind::kFloat);
      token.number = *parse_float(source_.substr(position_, end - position_));
      advance_to(end);
      return;
    }
    integer();
  }

  void integer() {
    struct Form {
      char letter;
      int base;
    };
    for (const auto& [letter, base] : {Form{'b', 2}, Form{'o', 8}, Form{'x', 16}}) {
      if (source_[position_] != '0' || position_ + 1 >= source_.size() || (source_[position_ + 1] | 0x20) != letter)
        continue;
      const auto is_one = [base = base](char c) {
        const char lower = static_cast<char>(c | 0x20);
        return base == 16 ? is_digit(c) || (lower >= 'a' && lower <= 'f') : is_digit(c) && c - '0' < base;
      };
      const size_t digits = position_ + 2 + (position_ + 2 < source_.size() && source_[position_ + 2] == '_' ? 1 : 0);
      const size_t end = after_digits(digits, is_one);
      if (end > digits) return push_integer(position_ + 2, end, base);
    }
    const auto is_zero = [](char c) { return c == '0'; };
    push_integer(position_,
                 source_[position_] == '0' ? after_digits(position_, is_zero) : after_digits(position_, is_digit), 10);
  }

  void push_integer(size_t digits, size_t end, int base) {
    std::string text = source_.substr(digits, end - digits);
    text.erase(std::remove(text.begin(), text.end(), '_'), text.end());
    push(Token::Kind::kInteger).integer = *parse_integer(text, base);
    advance_to(end);
  }

  void name() {
    size_t end = position_;
    while (end < source_.size() && is_name(source_[end])) ++end;
    if (end < source_.size() && static_cast<unsigned char>(source_[end]) >= 0x80) refuse_character(end);
    push(Token::Kind::kName).text = source_.substr(position_, end - position_);
    advance_to(end);
  }

  [[noreturn]] void refuse_character(size_t position) const {
    const Utf8Char character = utf8_at(source_, position);
    fault(static_cast<unsigned char>(source_[position]) >= 0x80 ? ErrorKind::kUnsupported : ErrorKind::kFormat,
          "the character '{}' in a tag; names are of ASCII letters, digits and _",
          source_.substr(position, character.bytes));
  }

  void operator_token(std::string& open) {
    constexpr std::array kOperators = {
        std::string_view("//"), std::string_view("**"), std::string_view("=="), std::string_view("!="),
        std::string_view(">="), std::string_view("<="), std::string_view("+"),  std::string_view("-"),
        std::string_view("/"),  std::string_view("*"),  std::string_view("%"),  std::string_view("~"),
        std::string_view("["),  std::string_view("]"),  std::string_view("("),  std::string_view(")"),
        std::string_view("{"),  std::string_view("}"),  std::string_view(">"),  std::string_view("<"),
        std::string_view("="),  std::string_view("."),  std::string_view(":"),  std::string_view("|"),
        std::string_view(","),  std::string_view(";")};
    const auto* found = std::find_if(kOperators.begin(), kOperators.end(), [&](std::string_view op) { return at(op); });
    if (found == kOperators.end()) refuse_character(position_);
    const char c = (*found)[0];
    if (c == '(' || c == '[' || c == '{') open.push_back(c == '(' ? ')' : static_cast<char>(c + 2));
    if (c == ')' || c == ']' || c == '}') {
      if (open.empty()) fault(ErrorKind::kFormat, "unexpected '{}'", c);
      if (open.back() != c) fault(ErrorKind::kFormat, "unexpected '{}', expected '{}'", c, open.back());
      open.pop_back();
    }
    push(Token::Kind::kOperator).text = std::string(*found);
    advance_to(position_ + found->size());
  }

  void string() {
    const char quote = source_[position_];
    size_t end = position_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) fault(ErrorKind::kFormat, "a string is not closed; a {} is missing", quote);
    std::string text = unescape(std::string_view(source_).substr(position_ + 1, end - position_ - 1));
    push(Token::Kind::kString).text = std::move(text);
    advance_to(end + 1);
  }

  // Python's unicode-escape.
  static std::string unescape(std::string_view raw) {
    std::string out;
    for (size_t i = 0; i < raw.size();) {
      if (raw[i] != '\\') {
        out.push_back(raw[i++]);
        continue;
      }
      const char c = raw[i + 1];
      i += 2;
      constexpr std::string_view kNames = "abfnrtv\\'\"";
      constexpr std::string_view kValues = "\a\b\f\n\r\t\v\\'\"";
      if (const size_t simple = kNames.find(c); simple != kNowhere) {
        out.push_back(kValues[simple]);
      } else if (c == '\n') {
        // A line continued.
      } else if (c >= '0' && c <= '7') {
        uint32_t value = static_cast<uint32_t>(c - '0');
        for (int digits = 1; digits < 3 && i < raw.size() && raw[i] >= '0' && raw[i] <= '7'; ++digits, ++i)
          value = value * 8 + static_cast<uint32_t>(raw[i] - '0');
        append_utf8(out, value);
      } else if (c == 'x' || c == 'u' || c == 'U') {
        const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        append_utf8(out, hexadecimal(raw.substr(i, digits), digits, c));
        i += digits;
      } else if (c == 'N') {
        fault(ErrorKind::kUnsupported, "the escape \\N{{...}} in a string; write the character itself");
      } else {
        out.push_back('\\');
        out.push_back(c);
      }
    }
    return out;
  }

  static char32_t hexadecimal(std::string_view digits, size_t wanted, char letter) {
    const bool all_hex = std::all_of(digits.begin(), digits.end(),
                                     [](char c) { return is_digit(c) || ((c | 0x20) >= 'a' && (c | 0x20) <= 'f'); });
    if (digits.size() != wanted || !all_hex)
      fault(ErrorKind::kFormat, "the escape \\{} in a string needs {} hexadecimal digits", letter, wanted);
    const auto value = static_cast<uint32_t>(*parse_integer(digits, 16));
    if (value > 0x10FFFF) fault(ErrorKind::kFormat, "the escape \\{}{} is not a character", letter, digits);
    if (value >= 0xD800 && value <= 0xDFFF)
      fault(ErrorKind::kUnsupported, "the escape \\{}{} is half of a surrogate pair; write the character itself",
            letter, digits);
    return value;
  }

  std::string source_;
  uint32_t& line_;
  size_t position_ = 0;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source, const Limits& limits, uint32_t& line) {
  line = 1;
  if (source.size() > limits.template_bytes)
    fault(ErrorKind::kCapacity, "the template has {} bytes; the limit is {}", source.size(), limits.template_bytes);
  const size_t valid = valid_utf8_bytes(source, 0);
  if (valid != source.size()) fault(ErrorKind::kFormat, "the template is not valid UTF-8 (byte {})", valid);
  return Lexer(normalize_newlines(source), line).run();
}

std::string describe(const Token& token) {
  switch (token.kind) {
    case Token::Kind::kData: return "text";
    case Token::Kind::kVariableBegin: return "'{{'";
    case Token::Kind::kVariableEnd: return "'}}'";
    case Token::Kind::kBlockBegin: return "'{%'";
    case Token::Kind::kBlockEnd: return "'%}'";
    case Token::Kind::kName: return "the name '" + token.text + "'";
    case Token::Kind::kString: return "a string";
    case Token::Kind::kInteger:
    case Token::Kind::kFloat: return "a number";
    case Token::Kind::kOperator: return "'" + token.text + "'";
    case Token::Kind::kEnd: break;
  }
  return "the end of the template";
}

}  // namespace verbatim::text::jinja
