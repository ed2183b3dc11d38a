// Limits of one rendering, and the exception its parts throw.
#pragma once

#include <fmt/core.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

#include "base/error.h"

namespace verbatim::text::jinja {

// A template and its inputs are data: neither may hang the process or exhaust its memory. Going over any of these is a
// kCapacity error that names the limit.
struct Limits {
  uint64_t steps = 100'000'000;             // expressions evaluated, statements run, items and 16 bytes of text touched
  size_t text_bytes = size_t{64} << 20;     // the output, and any one string on the way
  size_t sequence_items = size_t{1} << 20;  // of a list, or of a range() that is iterated
  size_t value_depth = 200;                 // lists in lists, in the inputs or built by the template
  size_t call_depth = 600;                  // nested expressions, statements and macro calls while rendering
  size_t syntax_depth = 200;                // nested expressions and blocks of the template's text
  size_t template_bytes = size_t{1} << 20;
};

// Thrown inside the interpreter, which turns it into an Error with the template's name and line.
class Fault : public std::runtime_error {
 public:
  Fault(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

template <typename... Args>
[[noreturn]] void fault(ErrorKind kind, fmt::format_string<Args...> text, Args&&... args) {
  throw Fault(kind, fmt::format(text, std::forward<Args>(args)...));
}

// Counts what one rendering has used. Not shared between threads.
class Meter {
 public:
  explicit Meter(const Limits& limits) : limits_(limits) {}

  const Limits& limits() const { return limits_; }

  void charge(uint64_t steps) {
    steps_ += steps;
    if (steps_ > limits_.steps)
      fault(ErrorKind::kCapacity, "the template ran more than {} steps; it loops too long or the inputs are too large",
            limits_.steps);
  }
  // Before text of this many bytes comes into being.
  void charge_text(size_t bytes) {
    if (bytes > limits_.text_bytes)
      fault(ErrorKind::kCapacity, "a string of {} bytes; the limit on text is {} bytes", bytes, limits_.text_bytes);
    charge(1 + bytes / 16);
  }
  // Before a list of this many items comes into being.
  void charge_items(size_t items) {
    if (items > limits_.sequence_items)
      fault(ErrorKind::kCapacity, "a sequence of {} items; the limit is {}", items, limits_.sequence_items);
    charge(1 + items);
  }

  // Held while one level of nesting is open.
  class Level {
   public:
    explicit Level(Meter& meter) : meter_(meter) {
      if (++meter_.depth_ > meter_.limits_.call_depth) {
        --meter_.depth_;
        fault(ErrorKind::kCapacity, "calls, blocks and expressions nest deeper than {} levels",
              meter_.limits_.call_depth);
      }
    }
    ~Level() { --meter_.depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    Meter& meter_;
  };

 private:
  Limits limits_;
  uint64_t steps_ = 0;
  size_t depth_ = 0;
};

}  // namespace verbatim::text::jinja
