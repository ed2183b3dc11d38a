// A child process on a pseudo-terminal, and what it writes there.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <string>
#include <string_view>

namespace verbatim::cli {

class Terminal {
 public:
  // Runs `child` in a new process whose terminal this is; it leaves with what `child` returns.
  explicit Terminal(const std::function<int()>& child) {
    pid_ = forkpty(&file_, nullptr, nullptr, nullptr);
    if (pid_ == 0) _exit(child());
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;
  ~Terminal() {
    if (pid_ > 0 && !has_left_) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    close(file_);
  }

  void type(std::string_view text) {
    EXPECT_EQ(write(file_, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  // Reads until `text` has come since the last call; returns what was read. Fails after `seconds` without it.
  std::string expect(const std::string& text, int seconds = 60) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
    while (true) {
      if (const size_t at = unread_.find(text); at != std::string::npos) {
        const std::string seen = unread_.substr(0, at + text.size());
        unread_.erase(0, seen.size());
        return seen;
      }
      pollfd wait = {file_, POLLIN, 0};
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
      char bytes[4096];
      ssize_t count = 0;
      if (left.count() <= 0 || poll(&wait, 1, static_cast<int>(left.count())) <= 0 ||
          (count = read(file_, bytes, sizeof bytes)) <= 0) {
        ADD_FAILURE() << "no '" << text << "' in: " << unread_;
        return {};
      }
      unread_.append(bytes, static_cast<size_t>(count));
    }
  }
  // Waits for the child to leave by itself: its exit code, or minus the signal that ended it.
  int leave() {
    int status = 0;
    char bytes[4096];
    while (read(file_, bytes, sizeof bytes) > 0) {  // ends with EIO when the child has closed the terminal
    }
    waitpid(pid_, &status, 0);
    has_left_ = true;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  int file_ = -1;
  pid_t pid_ = -1;
  bool has_left_ = false;
  std::string unread_;
};

}  // namespace verbatim::cli
