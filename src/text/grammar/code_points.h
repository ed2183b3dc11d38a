// Sets of Unicode scalar values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <vector>

namespace verbatim::text {

struct CodePointRange {
  uint32_t first, last;
  friend bool operator==(const CodePointRange&, const CodePointRange&) = default;
};

// Never holds surrogates.
class CodePoints {
 public:
  CodePoints() = default;
  CodePoints(std::initializer_list<CodePointRange> ranges);
  static CodePoints all();

  void add(uint32_t first, uint32_t last);
  void add(const CodePoints& other);
  CodePoints complement() const;
  CodePoints intersected(const CodePoints& other) const;
  CodePoints without(const CodePoints& other) const { return intersected(other.complement()); }

  bool empty() const { return ranges().empty(); }
  bool contains(uint32_t code_point) const;
  const std::vector<CodePointRange>& ranges() const;  // ascending, disjoint, not touching

 private:
  mutable std::vector<CodePointRange> ranges_;
  mutable bool is_sorted_ = true;
};

}  // namespace verbatim::text
