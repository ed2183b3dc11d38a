// Tables read off Python 3.11 (Unicode 14.0); made by scripts/make_unicode_tables.py, used by unicode.cc alone.
#pragma once

#include <cstdint>
#include <span>

namespace verbatim::text::jinja {

// Code points first, first + stride, ..., last. Rows ascend and do not overlap, except that runs of stride 2 may
// interleave with the next row.
struct CodePointRun {
  uint32_t first, last, stride;
};
// Each code point of the run maps to itself + delta.
struct CaseRun {
  uint32_t first, last, stride;
  int32_t delta;
};
// One code point that maps to two or three; unused places are 0.
struct CaseSpecial {
  uint32_t from, to[3];
};

extern const std::span<const CaseRun> kUpper, kLower, kTitle;  // kTitle: where title case differs from upper case
extern const std::span<const CaseSpecial> kUpperSpecial, kLowerSpecial, kTitleSpecial;
extern const std::span<const CodePointRun> kCaseIgnorable, kLowercase, kUppercase, kTitlecase, kSpace, kNotPrintable;

}  // namespace verbatim::text::jinja
