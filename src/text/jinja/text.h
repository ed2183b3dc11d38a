// Text that knows, byte by byte, whether the template or the input wrote it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/unicode.h"

namespace verbatim::text::jinja {

// Bytes begin..end, end excluded.
struct Span {
  size_t begin;
  size_t end;
  bool operator==(const Span&) const = default;
};

enum class Origin : bool { kInput, kTemplate };

// UTF-8 bytes with the spans that the template wrote. What is in no such span came from the inputs, or was made of them
// (a number's digits, JSON). Two template spans that come to touch are one span.
class Text {
 public:
  Text() = default;
  Text(std::string bytes, Origin origin);

  const std::string& bytes() const { return bytes_; }
  size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }
  const std::vector<Span>& template_spans() const { return spans_; }  // ascending, disjoint, not touching, not empty
  bool wholly_template() const;                                       // holds for empty text
  Origin origin_at(size_t byte) const;

  // Set by `safe` and `escape`: adding text without it escapes that text for HTML first, as in Jinja2.
  bool markup() const { return markup_; }
  void set_markup(bool markup) { markup_ = markup; }

  void append(std::string_view bytes, Origin origin);
  void append(const Text& other) { append(other, 0, other.size()); }
  void append(const Text& other, size_t begin, size_t end);  // bytes begin..end of other

  Text slice(size_t begin, size_t end) const;  // bytes; keeps markup()
  Text without_origin() const;                 // the same bytes, all from the input

  // In characters (code points), which is what Python counts.
  size_t characters() const;
  size_t offset_of(size_t character) const;  // its first byte; size() at or past the end

 private:
  std::string bytes_;
  std::vector<Span> spans_;
  bool markup_ = false;
};

// Python's str methods; what they keep they keep with its origin, and what they make of a character has that
// character's origin. Results carry markup() over.
Text upper(const Text& text);
Text lower(const Text& text);
Text title(const Text& text);        // str.title: a word begins at each cased character after one that is not
Text title_words(const Text& text);  // the filter `title`: words begin after white space and -({[<
Text capitalize(const Text& text);
Text reversed(const Text& text);
enum class Side { kLeft, kRight, kBoth };
Text strip(const Text& text, Side side);                          // white space
Text strip(const Text& text, Side side, std::string_view chars);  // any of these characters
Text escape_html(const Text& text);  // & < > " '; the result is markup; markup stays as it is

// Where the first `part` at or after byte `from` begins, or npos; time linear in the sizes.
size_t find_bytes(std::string_view bytes, std::string_view part, size_t from);

// How many characters stand before this byte.
size_t characters_before(std::string_view bytes, size_t byte);

}  // namespace verbatim::text::jinja
