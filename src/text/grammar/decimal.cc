#include "text/grammar/decimal.h"

#include <algorithm>
#include <charconv>
#include <utility>

namespace verbatim::text {
namespace {

constexpr int kMaxDigits = 40;
constexpr uint32_t kDigits = 20;

int compare_magnitudes(const Decimal& a, const Decimal& b) {
  if (a.whole.size() != b.whole.size()) return a.whole.size() < b.whole.size() ? -1 : 1;
  if (const int order = a.whole.compare(b.whole); order != 0) return order;
  return a.fraction.compare(b.fraction);  // a longer one that begins alike is larger: no trailing zeros
}

// Ways to write magnitudes.
class Drawer {
 public:
  Drawer(Nfa& nfa, bool only_whole, uint32_t digits) : nfa_(nfa), only_whole_(only_whole), digits_(digits) {}

  void anything(uint32_t from, uint32_t to) const {
    digit(from, '0', '0', [&](uint32_t at) { any_fraction(at, to); });
    longer_than(0, from, to);
  }

  // Magnitudes of at least `bound` (more than it, if exclusive).
  void at_least(const NumberBounds::Bound& bound, uint32_t from, uint32_t to) const {
    const std::string &whole = bound.value.whole, &fraction = bound.value.fraction;
    longer_than(whole == "0" ? 0 : whole.size(), from, to);
    for (size_t i = 0; i < whole.size() && whole != "0"; ++i)  // the same up to digit i, which is larger
      if (whole[i] < '9') {
        const uint32_t at = same(from, whole.substr(0, i));
        digit(at, static_cast<char>(whole[i] + 1), '9',
              [&](uint32_t behind) { any_fraction(exactly(behind, static_cast<uint32_t>(whole.size() - i - 1)), to); });
      }
    const uint32_t equal = same(from, whole);
    if (fraction.empty() && !bound.is_exclusive) return any_fraction(equal, to);
    if (only_whole_) return;
    const uint32_t point = same(equal, ".");
    for (size_t i = 0; i < fraction.size(); ++i)
      if (fraction[i] < '9')
        digit(same(point, fraction.substr(0, i)), static_cast<char>(fraction[i] + 1), '9',
              [&](uint32_t behind) { up_to(behind, kDigits - static_cast<uint32_t>(i) - 1, to); });
    const uint32_t all = same(point, fraction);
    const auto left = kDigits - static_cast<uint32_t>(fraction.size());
    if (!bound.is_exclusive) return up_to(all, left, to);
    uint32_t at = all;  // zeros, then something
    for (uint32_t i = 0; i < left; ++i) {
      digit(at, '1', '9', [&](uint32_t behind) { up_to(behind, left - i - 1, to); });
      at = same(at, "0");
    }
  }

  void at_most(const NumberBounds::Bound& bound, uint32_t from, uint32_t to) const {
    const std::string &whole = bound.value.whole, &fraction = bound.value.fraction;
    if (bound.value.is_zero() && bound.is_exclusive) return;
    if (whole != "0") digit(from, '0', '0', [&](uint32_t at) { any_fraction(at, to); });
    for (uint32_t size = 1; size < whole.size(); ++size)
      digit(from, '1', '9', [&](uint32_t at) { any_fraction(exactly(at, size - 1), to); });
    for (size_t i = 0; i < whole.size() && whole != "0"; ++i) {
      const char lowest = i == 0 ? '1' : '0';
      if (whole[i] <= lowest) continue;
      digit(same(from, whole.substr(0, i)), lowest, static_cast<char>(whole[i] - 1),
            [&](uint32_t behind) { any_fraction(exactly(behind, static_cast<uint32_t>(whole.size() - i - 1)), to); });
    }
    const uint32_t equal = same(from, whole);
    if (!fraction.empty() || !bound.is_exclusive) nfa_.epsilon(equal, to);
    if (only_whole_ || (fraction.empty() && bound.is_exclusive)) return;
    const uint32_t point = same(equal, ".");
    for (size_t i = 0; i < fraction.size(); ++i) {
      const uint32_t at = same(point, fraction.substr(0, i));
      if (i > 0) nfa_.epsilon(at, to);
      if (fraction[i] > '0')
        digit(at, '0', static_cast<char>(fraction[i] - 1),
              [&](uint32_t behind) { up_to(behind, kDigits - static_cast<uint32_t>(i) - 1, to); });
    }
    if (bound.is_exclusive) return;
    uint32_t at = same(point, fraction);
    if (!fraction.empty()) nfa_.epsilon(at, to);
    for (size_t i = fraction.size(); i < kDigits; ++i) {
      at = same(at, "0");
      nfa_.epsilon(at, to);
    }
  }

 private:
  template <typename Then>
  void digit(uint32_t from, char first, char last, Then then) const {
    const uint32_t next = nfa_.state();
    nfa_.bytes(from, static_cast<uint8_t>(first), static_cast<uint8_t>(last), next);
    then(next);
  }
  uint32_t same(uint32_t from, std::string_view text) const {
    const uint32_t to = nfa_.state();
    nfa_.literal(from, text, to);
    return to;
  }
  uint32_t exactly(uint32_t from, uint32_t digits) const {
    for (uint32_t i = 0; i < digits; ++i) digit(from, '0', '9', [&](uint32_t next) { from = next; });
    return from;
  }
  void up_to(uint32_t from, uint32_t digits, uint32_t to) const {
    nfa_.epsilon(from, to);
    for (uint32_t i = 0; i < digits; ++i) {
      from = exactly(from, 1);
      nfa_.epsilon(from, to);
    }
  }
  void any_fraction(uint32_t from, uint32_t to) const {
    nfa_.epsilon(from, to);
    if (!only_whole_) up_to(exactly(same(from, "."), 1), kDigits - 1, to);
  }
  // Whole parts of more than `size` digits, none of them 0.
  void longer_than(size_t size, uint32_t from, uint32_t to) const {
    uint32_t at = from;
    for (uint32_t digits = 1; digits <= digits_; ++digits) {
      digit(at, digits == 1 ? '1' : '0', '9', [&](uint32_t next) { at = next; });
      if (digits > size) any_fraction(at, to);
    }
  }

  Nfa& nfa_;
  bool only_whole_;
  uint32_t digits_;
};

// Magnitudes between bounds, of one sign.
Dfa magnitudes(const std::optional<NumberBounds::Bound>& lower, const std::optional<NumberBounds::Bound>& upper,
               bool only_whole, uint32_t digits, Budget& budget) {
  const auto drawn = [&](auto how) {
    Nfa nfa(budget);
    const uint32_t start = nfa.state(), end = nfa.state();
    how(Drawer(nfa, only_whole, digits), start, end);
    return nfa.determinize(start, end);
  };
  const auto from_lower = [&] {
    return drawn([&](const Drawer& drawer, uint32_t start, uint32_t end) { drawer.at_least(*lower, start, end); });
  };
  const auto to_upper = [&] {
    return drawn([&](const Drawer& drawer, uint32_t start, uint32_t end) { drawer.at_most(*upper, start, end); });
  };
  if (lower && upper) return intersect(from_lower(), to_upper(), budget);
  if (lower) return from_lower();
  if (upper) return to_upper();
  return drawn([](const Drawer& drawer, uint32_t start, uint32_t end) { drawer.anything(start, end); });
}

}  // namespace

std::optional<Decimal> Decimal::parse(std::string_view text) {
  Decimal out;
  if (text.starts_with('-')) {
    out.is_negative = true;
    text.remove_prefix(1);
  }
  std::string digits;
  size_t at = 0;
  const auto take_digits = [&] {
    const size_t begin = at;
    for (; at < text.size() && text[at] >= '0' && text[at] <= '9'; ++at) digits += text[at];
    return at > begin;
  };
  if (!take_digits()) return std::nullopt;
  auto point = static_cast<int64_t>(digits.size());
  if (at < text.size() && text[at] == '.') {
    ++at;
    if (!take_digits()) return std::nullopt;
  }
  if (at < text.size() && (text[at] == 'e' || text[at] == 'E')) {
    ++at;
    if (at < text.size() && text[at] == '+') ++at;
    int exponent = 0;
    const auto [stop, error] = std::from_chars(text.data() + at, text.data() + text.size(), exponent);
    if (error != std::errc() || exponent > 1000 || exponent < -1000) return std::nullopt;
    at = static_cast<size_t>(stop - text.data());
    point += exponent;
  }
  if (at != text.size()) return std::nullopt;
  const size_t first = std::min(digits.find_first_not_of('0'), digits.size());
  digits.erase(0, first);
  point -= static_cast<int64_t>(first);
  digits.erase(digits.find_last_not_of('0') + 1);
  if (digits.empty()) return Decimal{};  // no negative zero
  const auto count = static_cast<int64_t>(digits.size());
  if (point > kMaxDigits || count - point > kMaxDigits) return std::nullopt;
  if (point <= 0) {
    out.fraction = std::string(static_cast<size_t>(-point), '0') + digits;
  } else if (point >= count) {
    out.whole = digits + std::string(static_cast<size_t>(point - count), '0');
  } else {
    out.whole = digits.substr(0, static_cast<size_t>(point));
    out.fraction = digits.substr(static_cast<size_t>(point));
  }
  return out;
}

int compare(const Decimal& a, const Decimal& b) {
  if (a.is_negative != b.is_negative) return a.is_negative ? -1 : 1;
  return a.is_negative ? compare_magnitudes(b, a) : compare_magnitudes(a, b);
}

void NumberBounds::at_least(const Bound& bound) {
  const int order = lower ? compare(bound.value, lower->value) : 1;
  if (order > 0 || (order == 0 && bound.is_exclusive)) lower = bound;
}

void NumberBounds::at_most(const Bound& bound) {
  const int order = upper ? compare(bound.value, upper->value) : -1;
  if (order < 0 || (order == 0 && bound.is_exclusive)) upper = bound;
}

bool NumberBounds::holds(const Decimal& value) const {
  const int low = lower ? compare(value, lower->value) : 1, high = upper ? compare(value, upper->value) : -1;
  return (low > 0 || (low == 0 && !lower->is_exclusive)) && (high < 0 || (high == 0 && !upper->is_exclusive));
}

Dfa numbers_within(const NumberBounds& bounds, bool only_whole, Budget& budget) {
  uint32_t digits = kDigits;
  for (const std::optional<NumberBounds::Bound>* bound : {&bounds.lower, &bounds.upper}) {
    if (!*bound) continue;
    digits = std::max(digits, static_cast<uint32_t>((*bound)->value.whole.size()));
    if ((*bound)->value.fraction.size() > kDigits - 1)
      fail(ErrorKind::kUsage, "structured output",
           "a bound of a number with more than {} digits behind the point; shorten it", kDigits - 1);
  }
  const auto magnitude = [](NumberBounds::Bound bound) {
    bound.value.is_negative = false;
    return bound;
  };
  const auto is_negative = [](const NumberBounds::Bound& bound) { return bound.value.is_negative; };
  Nfa nfa(budget);
  const uint32_t start = nfa.state(), end = nfa.state();
  if (!bounds.upper || !is_negative(*bounds.upper)) {
    std::optional<NumberBounds::Bound> lower = bounds.lower;
    if (lower && is_negative(*lower)) lower.reset();
    nfa.draw(magnitudes(lower, bounds.upper, only_whole, digits, budget), start, end);
  }
  if (!bounds.lower || is_negative(*bounds.lower)) {
    // Magnitudes turn the bounds round. Negative zero is left out.
    std::optional<NumberBounds::Bound> lower = NumberBounds::Bound{Decimal{}, true}, upper;
    if (bounds.upper && is_negative(*bounds.upper)) lower = magnitude(*bounds.upper);
    if (bounds.lower) upper = magnitude(*bounds.lower);
    const uint32_t minus = nfa.state();
    nfa.bytes(start, '-', '-', minus);
    nfa.draw(magnitudes(lower, upper, only_whole, digits, budget), minus, end);
  }
  return nfa.determinize(start, end);
}

}  // namespace verbatim::text
