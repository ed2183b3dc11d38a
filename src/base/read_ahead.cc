#include "base/read_ahead.h"

#include <algorithm>
#include <utility>

namespace verbatim {

namespace {

constexpr size_t kPieceBytes = 4 << 20;

}  // namespace

ReadAhead::ReadAhead(std::vector<Range> ranges, uint64_t ahead)
    : ranges_(std::move(ranges)), ahead_(ahead), thread_([this] { read_all(); }) {}

ReadAhead::~ReadAhead() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void ReadAhead::passed(uint64_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
    passed_ = std::max(passed_, bytes);
  }
  changed_.notify_one();
}

ReadAhead::Next ReadAhead::await(uint64_t end) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return stop_ || end <= passed_ + ahead_; });
  return stop_ ? Next::kStop : end <= passed_ ? Next::kSkip : Next::kRead;
}

void ReadAhead::read_all() {
  try {
    std::vector<std::byte> piece(kPieceBytes);
    uint64_t begin = 0;
    for (const Range& range : ranges_) {
      for (size_t done = 0; done < range.bytes;) {
        const size_t bytes = std::min(range.bytes - done, kPieceBytes);
        const Next next = await(begin + bytes);
        if (next == Next::kStop) return;
        if (next == Next::kRead) range.file->read(range.offset + done, std::span(piece).first(bytes));
        done += bytes;
        begin += bytes;
      }
    }
  } catch (...) {
    const std::lock_guard lock(mutex_);
    error_ = std::current_exception();
  }
}

}  // namespace verbatim
