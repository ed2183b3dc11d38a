// Threads for what would keep a connection's thread from the others: JSON, templates, tokenising, grammars.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace verbatim::server {

class Workers {
 public:
  Workers(int threads, size_t queue_limit);
  // Runs what is queued, then ends.
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  // False if the queue is full. `task` must not throw.
  bool post(std::function<void()> task);

 private:
  void run();

  const size_t queue_limit_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> queue_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace verbatim::server
