#include "cli/chat_terminal.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <string>

#include "base/error.h"

namespace verbatim::cli {
namespace {

constexpr size_t kLongestLineBytes = size_t{1} << 24;

// What the handler touches. The pipe wakes the reader whichever thread the signal was delivered to.
std::atomic<ChatSession*> interrupted_session{nullptr};
std::atomic<int> wake_write{-1};
static_assert(std::atomic<ChatSession*>::is_always_lock_free && std::atomic<int>::is_always_lock_free);

extern "C" void on_interrupt(int) {
  const int saved = errno;
  if (ChatSession* session = interrupted_session.load()) session->interrupt();
  const char byte = 0;
  [[maybe_unused]] const ssize_t written = write(wake_write.load(), &byte, 1);  // a full pipe wakes as well
  errno = saved;
}

[[noreturn]] void fail_io(const char* what) { fail(ErrorKind::kIo, "chat", "{}: {}", what, std::strerror(errno)); }

class InterruptGuard {
 public:
  explicit InterruptGuard(ChatSession& session) {
    if (pipe2(ends_, O_CLOEXEC | O_NONBLOCK) != 0) fail_io("no pipe could be made");
    interrupted_session.store(&session);
    wake_write.store(ends_[1]);
    struct sigaction action {};
    action.sa_handler = on_interrupt;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, &before_);
  }
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;
  ~InterruptGuard() {
    sigaction(SIGINT, &before_, nullptr);
    interrupted_session.store(nullptr);
    wake_write.store(-1);
    close(ends_[0]);
    close(ends_[1]);
  }
  int wake() const { return ends_[0]; }
  // Forgets interrupts so far.
  void drain() const {
    char bytes[64];
    while (read(ends_[0], bytes, sizeof bytes) > 0) {
    }
  }

 private:
  int ends_[2] = {-1, -1};
  struct sigaction before_ {};
};

enum class Input { kLine, kEnd, kInterrupted };

class LineReader {
 public:
  LineReader(int input, const InterruptGuard& guard) : input_(input), guard_(guard) {}

  // The next line, without its end. kEnd: there is none (a last line without an end still counts).
  Input next(std::string& line) {
    while (true) {
      if (const size_t end = buffer_.find('\n', searched_); end != std::string::npos) {
        line = buffer_.substr(0, end);
        buffer_.erase(0, end + 1);
        searched_ = 0;
        return Input::kLine;
      }
      searched_ = buffer_.size();
      if (buffer_.size() > kLongestLineBytes)
        fail(ErrorKind::kCapacity, "chat", "a line is longer than {} bytes", kLongestLineBytes);
      pollfd waits[2] = {{input_, POLLIN, 0}, {guard_.wake(), POLLIN, 0}};
      if (poll(waits, 2, -1) < 0 && errno != EINTR) fail_io("waiting for input failed");
      if (waits[1].revents != 0) {
        buffer_.clear();
        searched_ = 0;
        return Input::kInterrupted;
      }
      if (waits[0].revents == 0) continue;
      char bytes[4096];
      const ssize_t count = read(input_, bytes, sizeof bytes);
      if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      if (count < 0 && errno != EIO) fail_io("reading input failed");  // EIO: the terminal has gone
      if (count <= 0) {
        if (buffer_.empty()) return Input::kEnd;
        line.swap(buffer_);
        buffer_.clear();
        searched_ = 0;
        return Input::kLine;
      }
      buffer_.append(bytes, static_cast<size_t>(count));
    }
  }

 private:
  const int input_;
  const InterruptGuard& guard_;
  std::string buffer_;
  size_t searched_ = 0;
};

}  // namespace

void write_all(int output, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = write(output, text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) {
      pollfd wait = {output, POLLOUT, 0};
      poll(&wait, 1, -1);
      continue;
    }
    if (count < 0) fail_io("writing output failed");
    text.remove_prefix(static_cast<size_t>(count));
  }
}

void run_chat(ChatSession& session, int input, int output) {
  const InterruptGuard guard(session);
  LineReader reader(input, guard);
  const bool is_terminal = isatty(input) == 1;
  std::string line;
  while (true) {
    // Interrupts count from before the prompt can be seen: one that answers it is never lost.
    guard.drain();
    session.clear_interrupt();
    if (is_terminal) write_all(output, session.prompt());
    const Input read = reader.next(line);
    if (read == Input::kInterrupted) {
      session.forget_pending();
      if (is_terminal) write_all(output, "\n(/quit or Ctrl-D leaves)\n");
      continue;
    }
    if (read == Input::kEnd || !session.line(line)) break;
  }
  if (is_terminal) write_all(output, "\n");
}

}  // namespace verbatim::cli
