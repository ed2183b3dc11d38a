#include "base/progress.h"

#include <fmt/core.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

namespace verbatim {

Progress::Progress(std::string what, uint64_t total, std::string unit)
    : what_(std::move(what)),
      unit_(std::move(unit)),
      total_(total),
      terminal_(::isatty(STDERR_FILENO) == 1),
      start_(Clock::now()),
      last_(start_) {}

Progress::~Progress() {
  if (terminal_ && printed_) std::fputs("\n", stderr);
}

void Progress::advance(uint64_t done_so_far) {
  using std::chrono::milliseconds;
  const auto now = Clock::now();
  if (now - last_ < (terminal_ ? (printed_ ? milliseconds(200) : milliseconds(1000)) : milliseconds(5000))) return;
  last_ = now;
  printed_ = true;
  const double seconds = std::chrono::duration<double>(now - start_).count();
  const std::string line = fmt::format(
      "{}: {} of {} {} ({:.0f} %), {:.0f} s", what_, done_so_far, total_, unit_,
      total_ == 0 ? 100.0 : 100.0 * static_cast<double>(done_so_far) / static_cast<double>(total_), seconds);
  std::fputs((terminal_ ? "\r" + line + "\x1b[K" : line + "\n").c_str(), stderr);
  std::fflush(stderr);
}

}  // namespace verbatim
