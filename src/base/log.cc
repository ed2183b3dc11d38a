#include "base/log.h"

#include <unistd.h>

#include <atomic>
#include <chrono>

namespace verbatim {

namespace {
std::atomic<LogLevel> threshold{LogLevel::kInfo};
std::atomic<bool> writes_json{false};

// What JSON strings must not hold; bytes above 0x7f stay as they are.
std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      fmt::format_to(std::back_inserter(out), "\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out += c;
    }
  }
  return out;
}
}  // namespace

void set_log_level(LogLevel level) { threshold = level; }

void set_log_json(bool is_json) { writes_json = is_json; }

void log_line(LogLevel level, const std::string& text) { log_line(level, text, {}); }

void log_line(LogLevel level, const std::string& text, const std::string& members) {
  if (level < threshold.load()) return;
  static constexpr const char* kNames[] = {"debug", "info", "warning", "error"};
  const char* name = kNames[static_cast<int>(level)];
  std::string line;
  if (writes_json.load()) {
    const double now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
    line = fmt::format(R"({{"time":{:.3f},"level":"{}","message":"{}"{}{}}})", now, name, escaped(text),
                       members.empty() ? "" : ",", members);
    line += '\n';
  } else {
    line = fmt::format("{}: {}\n", name, text);
  }
  // A failed write to stderr has nowhere to be reported.
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace verbatim
