// The only thing a server sees: submit requests from any thread, get events, cancel, drain, read statistics. One thread
// of its own runs the scheduler's steps; no call but drain waits for a step.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/request.h"
#include "engine/scheduler.h"

namespace verbatim::engine {

class Engine {
 public:
  // `model` must outlive it; nobody else may use it meanwhile.
  Engine(StepModel& model, SchedulerOptions options);
  // Cancels what is running; every request gets its last event.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Throws what Scheduler::submit throws, and Error(kCapacity) while draining or after a failure.
  int64_t submit(Request request, EventSink sink);
  // Takes effect before the next step. Unknown ids are ignored.
  void cancel(int64_t request);
  // Refuses new requests from now on; those accepted go on.
  void stop_accepting();
  // The same, and returns when all accepted ones have had their last event.
  void drain();
  // As of the end of the last step.
  SchedulerStats stats() const;
  // What ended the engine, if a step failed (its requests were cancelled); empty otherwise.
  std::string failure() const;

 private:
  struct Submission {
    int64_t id;
    std::chrono::steady_clock::time_point submitted;
    Request request;
    EventSink sink;
  };
  void run();
  void step();

  Scheduler scheduler_;  // steps belong to the thread; check() to everyone
  // Guards what follows; never held during a step.
  mutable std::mutex mutex_;
  std::condition_variable work_, idle_;
  std::vector<Submission> submissions_;
  std::vector<int64_t> cancellations_;
  SchedulerStats stats_;
  int64_t next_id_ = 1, submitted_choices_ = 0;  // of submissions_
  bool busy_ = false, stop_ = false, draining_ = false;
  std::string failure_;
  std::thread thread_;
};

}  // namespace verbatim::engine
