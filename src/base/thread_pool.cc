#include "base/thread_pool.h"

#include <algorithm>
#include <exception>

#include "base/error.h"

namespace verbatim {

namespace {
thread_local bool inside_body = false;
}

ThreadPool::ThreadPool(int threads) {
  if (threads < 1 || threads > 4096) fail(ErrorKind::kUsage, "threads", "{} threads; expected 1 to 4096", threads);
  workers_.reserve(static_cast<size_t>(threads - 1));
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { worker(); });
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : workers_) thread.join();
}

void ThreadPool::run_ranges() {
  inside_body = true;
  try {
    for (int64_t begin = next_.fetch_add(grain_); begin < count_; begin = next_.fetch_add(grain_))
      (*body_)(begin, std::min(count_, begin + grain_));
  } catch (...) {
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = std::current_exception();
    next_.store(count_);
  }
  inside_body = false;
}

void ThreadPool::worker() {
  uint64_t seen = 0;
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return stop_ || generation_ != seen; });
    if (stop_) return;
    seen = generation_;
    lock.unlock();
    run_ranges();
    lock.lock();
    if (--running_ == 0) done_.notify_one();
  }
}

void ThreadPool::for_each(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& body) {
  if (count <= 0) return;
  grain = std::max<int64_t>(grain, 1);
  if (workers_.empty() || inside_body || count <= grain) {
    for (int64_t begin = 0; begin < count; begin += grain) body(begin, std::min(count, begin + grain));
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    body_ = &body;
    count_ = count;
    grain_ = grain;
    next_.store(0);
    error_ = nullptr;
    running_ = static_cast<int>(workers_.size());
    ++generation_;
  }
  wake_.notify_all();
  run_ranges();
  std::unique_lock lock(mutex_);
  done_.wait(lock, [&] { return running_ == 0; });
  body_ = nullptr;
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

}  // namespace verbatim
