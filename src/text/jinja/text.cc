#include "text/jinja/text.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "text/utf8.h"

namespace verbatim::text::jinja {

Text::Text(std::string bytes, Origin origin) : bytes_(std::move(bytes)) {
  if (origin == Origin::kTemplate && !bytes_.empty()) spans_.push_back({0, bytes_.size()});
}

bool Text::wholly_template() const {
  return bytes_.empty() || (spans_.size() == 1 && spans_[0] == Span{0, bytes_.size()});
}

Origin Text::origin_at(size_t byte) const {
  const auto after = std::upper_bound(spans_.begin(), spans_.end(), byte,
                                      [](size_t value, const Span& span) { return value < span.begin; });
  return after != spans_.begin() && byte < std::prev(after)->end ? Origin::kTemplate : Origin::kInput;
}

void Text::append(std::string_view bytes, Origin origin) {
  if (bytes.empty()) return;
  const size_t begin = bytes_.size();
  bytes_.append(bytes);
  if (origin == Origin::kInput) return;
  if (!spans_.empty() && spans_.back().end == begin) {
    spans_.back().end = bytes_.size();
  } else {
    spans_.push_back({begin, bytes_.size()});
  }
}

void Text::append(const Text& other, size_t begin, size_t end) {
  if (begin >= end) return;
  const size_t base = bytes_.size();
  bytes_.append(other.bytes_, begin, end - begin);
  auto span = std::upper_bound(other.spans_.begin(), other.spans_.end(), begin,
                               [](size_t value, const Span& one) { return value < one.end; });
  for (; span != other.spans_.end() && span->begin < end; ++span) {
    const Span moved{base + std::max(span->begin, begin) - begin, base + std::min(span->end, end) - begin};
    if (!spans_.empty() && spans_.back().end == moved.begin) {
      spans_.back().end = moved.end;
    } else {
      spans_.push_back(moved);
    }
  }
}

Text Text::slice(size_t begin, size_t end) const {
  Text part;
  part.append(*this, begin, end);
  part.markup_ = markup_;
  return part;
}

Text Text::without_origin() const {
  Text plain(bytes_, Origin::kInput);
  plain.markup_ = markup_;
  return plain;
}

size_t characters_before(std::string_view bytes, size_t byte) {
  return static_cast<size_t>(std::count_if(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(byte),
                                           [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

size_t find_bytes(std::string_view bytes, std::string_view part, size_t from) {
  if (from > bytes.size()) return std::string_view::npos;
  if (part.empty()) return from;
  // memmem, because string_view::find takes time in the product of the sizes.
  const void* found = memmem(bytes.data() + from, bytes.size() - from, part.data(), part.size());
  return found != nullptr ? static_cast<size_t>(static_cast<const char*>(found) - bytes.data())
                          : std::string_view::npos;
}

size_t Text::characters() const { return characters_before(bytes_, bytes_.size()); }

size_t Text::offset_of(size_t character) const {
  for (size_t i = 0; i < bytes_.size(); ++i) {
    if ((static_cast<unsigned char>(bytes_[i]) & 0xC0) == 0x80) continue;
    if (character-- == 0) return i;
  }
  return bytes_.size();
}

namespace {

// Calls visit(character, begin, end) for each character in order.
template <typename Visit>
void for_each_character(const Text& text, Visit visit) {
  const std::string& bytes = text.bytes();
  for (size_t at = 0; at < bytes.size();) {
    const Utf8Char character = utf8_at(bytes, at);
    visit(character.code_point, at, at + character.bytes);
    at += character.bytes;
  }
}

void append_mapped(Text& out, const CaseMapping& mapping, Origin origin) {
  std::string bytes;
  append_utf8(bytes, mapping[0]);
  for (size_t i = 1; i < mapping.size() && mapping[i] != 0; ++i) append_utf8(bytes, mapping[i]);
  out.append(bytes, origin);
}

// Unicode's Final_Sigma, as Python applies it: a cased character before, none after, case-ignorable ones skipped.
bool is_final_sigma(std::string_view bytes, size_t begin, size_t end) {
  bool cased_before = false;
  for (size_t at = begin; at > 0;) {
    --at;
    if ((static_cast<unsigned char>(bytes[at]) & 0xC0) == 0x80) continue;
    const char32_t character = utf8_at(bytes, at).code_point;
    if (is_case_ignorable(character)) continue;
    cased_before = is_cased(character);
    break;
  }
  if (!cased_before) return false;
  for (size_t at = end; at < bytes.size();) {
    const Utf8Char character = utf8_at(bytes, at);
    at += character.bytes;
    if (is_case_ignorable(character.code_point)) continue;
    return !is_cased(character.code_point);
  }
  return true;
}

CaseMapping lower_at(std::string_view bytes, char32_t character, size_t begin, size_t end) {
  constexpr char32_t kSigma = 0x3A3;
  constexpr char32_t kFinalSigma = 0x3C2;
  if (character == kSigma && is_final_sigma(bytes, begin, end)) return {kFinalSigma, 0, 0};
  return map_case(character, Case::kLower);
}

Text carry_markup(Text out, const Text& from) {
  out.set_markup(from.markup());
  return out;
}

}  // namespace

Text upper(const Text& text) {
  Text out;
  for_each_character(text, [&](char32_t character, size_t begin, size_t) {
    append_mapped(out, map_case(character, Case::kUpper), text.origin_at(begin));
  });
  return carry_markup(std::move(out), text);
}

Text lower(const Text& text) {
  Text out;
  for_each_character(text, [&](char32_t character, size_t begin, size_t end) {
    append_mapped(out, lower_at(text.bytes(), character, begin, end), text.origin_at(begin));
  });
  return carry_markup(std::move(out), text);
}

Text title(const Text& text) {
  Text out;
  bool in_word = false;
  for_each_character(text, [&](char32_t character, size_t begin, size_t end) {
    append_mapped(out, in_word ? lower_at(text.bytes(), character, begin, end) : map_case(character, Case::kTitle),
                  text.origin_at(begin));
    in_word = is_cased(character);
  });
  return carry_markup(std::move(out), text);
}

Text title_words(const Text& text) {
  const auto separates = [](char32_t c) {
    return c == '-' || c == '(' || c == '{' || c == '[' || c == '<' || is_space(c);
  };
  // Words and the runs between them are lowered one by one, so a sigma sees only its own word.
  Text out;
  size_t piece_begin = 0;
  bool piece_separates = false;
  const auto finish = [&](size_t end) {
    if (piece_begin == end) return;
    const size_t first_end = piece_begin + utf8_at(text.bytes(), piece_begin).bytes;
    out.append(upper(text.slice(piece_begin, first_end)));
    out.append(lower(text.slice(first_end, end)));
    piece_begin = end;
  };
  for_each_character(text, [&](char32_t character, size_t begin, size_t) {
    if (separates(character) != piece_separates) {
      finish(begin);
      piece_separates = !piece_separates;
    }
  });
  finish(text.size());
  return out;  // "".join() of the pieces: no longer markup
}

Text capitalize(const Text& text) {
  Text out;
  for_each_character(text, [&](char32_t character, size_t begin, size_t end) {
    append_mapped(out, begin == 0 ? map_case(character, Case::kTitle) : lower_at(text.bytes(), character, begin, end),
                  text.origin_at(begin));
  });
  return carry_markup(std::move(out), text);
}

Text reversed(const Text& text) {
  Text out;
  const std::string& bytes = text.bytes();
  for (size_t end = bytes.size(); end > 0;) {
    size_t begin = end - 1;
    while (begin > 0 && (static_cast<unsigned char>(bytes[begin]) & 0xC0) == 0x80) --begin;
    out.append(text, begin, end);
    end = begin;
  }
  return carry_markup(std::move(out), text);
}

namespace {

template <typename Drop>
Text strip_if(const Text& text, Side side, Drop drop) {
  const std::string& bytes = text.bytes();
  size_t begin = 0;
  size_t end = bytes.size();
  while (side != Side::kRight && begin < end) {
    const Utf8Char character = utf8_at(bytes, begin);
    if (!drop(character.code_point)) break;
    begin += character.bytes;
  }
  while (side != Side::kLeft && end > begin) {
    size_t at = end - 1;
    while (at > begin && (static_cast<unsigned char>(bytes[at]) & 0xC0) == 0x80) --at;
    if (!drop(utf8_at(bytes, at).code_point)) break;
    end = at;
  }
  return text.slice(begin, end);
}

}  // namespace

Text strip(const Text& text, Side side) { return strip_if(text, side, is_space); }

Text strip(const Text& text, Side side, std::string_view chars) {
  std::u32string dropped;
  for (size_t at = 0; at < chars.size();) {
    const Utf8Char character = utf8_at(chars, at);
    dropped.push_back(character.code_point);
    at += character.bytes;
  }
  return strip_if(text, side, [&](char32_t c) { return dropped.find(c) != std::u32string::npos; });
}

Text escape_html(const Text& text) {
  if (text.markup()) return text;
  Text out;
  const std::string& bytes = text.bytes();
  size_t kept = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    std::string_view entity;
    switch (bytes[i]) {
      case '&': entity = "&amp;"; break;
      case '<': entity = "&lt;"; break;
      case '>': entity = "&gt;"; break;
      case '"': entity = "&#34;"; break;
      case '\'': entity = "&#39;"; break;
      default: continue;
    }
    out.append(text, kept, i);
    out.append(entity, text.origin_at(i));
    kept = i + 1;
  }
  out.append(text, kept, bytes.size());
  out.set_markup(true);
  return out;
}

}  // namespace verbatim::text::jinja
