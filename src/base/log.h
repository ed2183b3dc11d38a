// Log lines on stderr: "level message", one write a line, so that lines of several threads do not mix.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>

namespace verbatim {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

void set_log_level(LogLevel level);
void log_line(LogLevel level, const std::string& text);

template <typename... Args>
void log_info(fmt::format_string<Args...> text, Args&&... args) {
  log_line(LogLevel::kInfo, fmt::format(text, std::forward<Args>(args)...));
}
template <typename... Args>
void log_warning(fmt::format_string<Args...> text, Args&&... args) {
  log_line(LogLevel::kWarning, fmt::format(text, std::forward<Args>(args)...));
}

}  // namespace verbatim
