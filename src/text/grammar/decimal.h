// Decimal numbers of any length, exactly, and automata of the numbers within bounds.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "text/grammar/dfa.h"

namespace verbatim::text {

struct Decimal {
  bool is_negative = false;
  std::string whole = "0";    // digits, no leading zero but a lone one
  std::string fraction = {};  // digits, no trailing zero

  // A JSON number; none if it is no number or needs more than 40 digits on a side.
  static std::optional<Decimal> parse(std::string_view text);
  bool is_zero() const { return whole == "0" && fraction.empty(); }
  bool is_whole() const { return fraction.empty(); }
};

int compare(const Decimal& a, const Decimal& b);  // < 0, 0, > 0

struct NumberBounds {
  struct Bound {
    Decimal value;
    bool is_exclusive = false;
  };
  std::optional<Bound> lower, upper;

  void at_least(const Bound& bound);  // tightens
  void at_most(const Bound& bound);
  bool holds(const Decimal& value) const;
  bool any() const { return lower || upper; }
};

// The JSON spellings, without exponents, of the numbers within bounds: whole ones only, or with up to 20 digits behind
// the point too. Before the point there are up to 20 digits, or as many as a bound has.
Dfa numbers_within(const NumberBounds& bounds, bool only_whole, Budget& budget);

}  // namespace verbatim::text
