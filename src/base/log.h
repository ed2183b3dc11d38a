// Log lines on stderr: "level message", one write a line, so that lines of several threads do not mix.
#pragma once

#include <fmt/core.h>

#include <string>
#include <utility>

namespace verbatim {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

void set_log_level(LogLevel level);
// {"time": ..., "level": ..., "message": ...} a line instead.
void set_log_json(bool is_json);
void log_line(LogLevel level, const std::string& text);
// `members` (JSON: `"status":200,...`, without braces) stand in a JSON line beside the message; a plain one has the
// text alone.
void log_line(LogLevel level, const std::string& text, const std::string& members);

template <typename... Args>
void log_info(fmt::format_string<Args...> text, Args&&... args) {
  log_line(LogLevel::kInfo, fmt::format(text, std::forward<Args>(args)...));
}
template <typename... Args>
void log_warning(fmt::format_string<Args...> text, Args&&... args) {
  log_line(LogLevel::kWarning, fmt::format(text, std::forward<Args>(args)...));
}

}  // namespace verbatim
