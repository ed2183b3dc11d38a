#include "base/log.h"

#include <unistd.h>

#include <atomic>

namespace verbatim {

namespace {
std::atomic<LogLevel> threshold{LogLevel::kInfo};
}

void set_log_level(LogLevel level) { threshold = level; }

void log_line(LogLevel level, const std::string& text) {
  if (level < threshold.load()) return;
  static constexpr const char* kNames[] = {"debug", "info", "warning", "error"};
  const std::string line = fmt::format("{}: {}\n", kNames[static_cast<int>(level)], text);
  // A failed write to stderr has nowhere to be reported.
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace verbatim
