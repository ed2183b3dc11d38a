#include "text/jinja/unicode.h"

#include <algorithm>
#include <span>

#include "text/jinja/unicode_tables.h"

namespace verbatim::text::jinja {
namespace {

// The row whose run holds the character, or null. Runs of stride 2 may interleave, so the row before is looked at too.
template <typename Run>
const Run* find_run(std::span<const Run> runs, uint32_t character) {
  auto after = std::upper_bound(runs.begin(), runs.end(), character,
                                [](uint32_t value, const Run& run) { return value < run.first; });
  for (int looked = 0; after != runs.begin() && looked < 2; ++looked) {
    const Run& run = *--after;
    if (character <= run.last && (character - run.first) % run.stride == 0) return &run;
  }
  return nullptr;
}

const CaseSpecial* find_special(std::span<const CaseSpecial> rows, uint32_t character) {
  const auto at = std::lower_bound(rows.begin(), rows.end(), character,
                                   [](const CaseSpecial& row, uint32_t value) { return row.from < value; });
  return at != rows.end() && at->from == character ? &*at : nullptr;
}

bool map_by(std::span<const CaseRun> runs, std::span<const CaseSpecial> specials, char32_t character,
            CaseMapping& mapping) {
  if (const CaseSpecial* special = find_special(specials, character)) {
    std::copy(std::begin(special->to), std::end(special->to), mapping.begin());
    return true;
  }
  if (const CaseRun* run = find_run(runs, character)) {
    mapping = {static_cast<char32_t>(static_cast<int32_t>(character) + run->delta), 0, 0};
    return true;
  }
  return false;
}

}  // namespace

CaseMapping map_case(char32_t character, Case to) {
  CaseMapping mapping{character, 0, 0};
  switch (to) {
    case Case::kUpper: map_by(kUpper, kUpperSpecial, character, mapping); break;
    case Case::kLower: map_by(kLower, kLowerSpecial, character, mapping); break;
    case Case::kTitle:
      if (!map_by(kTitle, kTitleSpecial, character, mapping)) map_by(kUpper, kUpperSpecial, character, mapping);
      break;
  }
  return mapping;
}

bool is_case_ignorable(char32_t character) { return find_run(kCaseIgnorable, character) != nullptr; }
bool is_lowercase(char32_t character) { return find_run(kLowercase, character) != nullptr; }
bool is_uppercase(char32_t character) { return find_run(kUppercase, character) != nullptr; }
bool is_titlecase(char32_t character) { return find_run(kTitlecase, character) != nullptr; }
bool is_cased(char32_t character) {
  return is_lowercase(character) || is_uppercase(character) || is_titlecase(character);
}
bool is_space(char32_t character) { return find_run(kSpace, character) != nullptr; }
bool is_printable(char32_t character) { return find_run(kNotPrintable, character) == nullptr; }

bool is_line_break(char32_t character) {
  return (character >= 0x0A && character <= 0x0D) || (character >= 0x1C && character <= 0x1E) || character == 0x85 ||
         character == 0x2028 || character == 0x2029;
}

}  // namespace verbatim::text::jinja
