// Progress of long work: a line redrawn in place on a terminal, plain lines at most every few seconds otherwise.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace verbatim {

class Progress {
 public:
  // `unit` follows the counts ("tensors"). Nothing is printed before the first second has passed.
  Progress(std::string what, uint64_t total, std::string unit);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void advance(uint64_t done_so_far);

 private:
  using Clock = std::chrono::steady_clock;
  std::string what_, unit_;
  uint64_t total_;
  bool terminal_, printed_ = false;
  Clock::time_point start_, last_;
};

}  // namespace verbatim
