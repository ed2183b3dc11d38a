// A fixed pool. Work is cut by index, never by timing, so which thread computes what cannot change a result.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace verbatim {

class ThreadPool {
 public:
  // `threads` >= 1 counts the caller: ThreadPool(1) starts no thread.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(begin, end) over disjoint ranges that cover [0, count), each at most `grain` long, and returns when all
  // are done. The first exception of a body is rethrown here; the remaining ranges are then skipped. One caller at a
  // time; a call from inside a body runs in line.
  void for_each(int64_t count, int64_t grain, const std::function<void(int64_t begin, int64_t end)>& body);

 private:
  void worker();
  void run_ranges();

  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  uint64_t generation_ = 0;
  int running_ = 0;
  bool stop_ = false;

  const std::function<void(int64_t, int64_t)>* body_ = nullptr;
  int64_t count_ = 0, grain_ = 1;
  std::atomic<int64_t> next_{0};
  std::exception_ptr error_;
};

}  // namespace verbatim
