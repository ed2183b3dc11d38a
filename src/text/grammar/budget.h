// What compiling a grammar may still cost.
#pragma once

#include <chrono>
#include <cstddef>

#include "base/error.h"
#include "text/grammar/grammar.h"

namespace verbatim::text {

class Budget {
 public:
  explicit Budget(const GrammarLimits& limits)
      : limits_(limits), end_(Clock::now() + std::chrono::milliseconds(limits.compile_ms)) {}

  // Throw Error(kUsage) once a limit is passed. states: newly made ones. work: steps of some nanoseconds each.
  void states(size_t count) {
    states_ += count;
    if (states_ > limits_.states)
      fail(ErrorKind::kUsage, "structured output",
           "the grammar needs more than {} automaton states; make the schema or regex smaller: fewer alternatives, "
           "smaller repeats",
           limits_.states);
    work(count * 16);
  }
  void work(size_t steps) {
    work_ += steps;
    if (work_ < kStepsBetweenLooks) return;
    work_ = 0;
    if (Clock::now() > end_)
      fail(ErrorKind::kUsage, "structured output",
           "the grammar takes more than {} ms to compile; make the schema or regex smaller", limits_.compile_ms);
  }
  void bytes(size_t count, std::string_view what) const {
    if (count > limits_.schema_bytes)
      fail(ErrorKind::kUsage, "structured output", "{} of {} bytes; at most {} are taken; send less", what, count,
           limits_.schema_bytes);
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr size_t kStepsBetweenLooks = 100'000;
  GrammarLimits limits_;
  Clock::time_point end_;
  size_t states_ = 0;
  size_t work_ = 0;
};

}  // namespace verbatim::text
