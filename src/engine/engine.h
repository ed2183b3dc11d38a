// The only thing a server sees: submit requests from any thread, get events, cancel, drain, read statistics. One thread
// of its own runs the scheduler's steps.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

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
  // Takes effect before the next step.
  void cancel(int64_t request);
  // Refuses new requests and returns when all accepted ones have had their last event.
  void drain();
  SchedulerStats stats() const;
  // What ended the engine, if a step failed (its requests were cancelled); empty otherwise.
  std::string failure() const;

 private:
  void run();
  std::unique_lock<std::mutex> enter() const;

  // Held during a step, events included: submit and cancel wait for its end. `callers_` counts who waits, so that a
  // busy loop lets them in between steps.
  mutable std::mutex mutex_;
  mutable std::atomic<int> callers_{0};
  std::condition_variable work_, idle_;
  Scheduler scheduler_;
  bool stop_ = false, draining_ = false;
  std::string failure_;
  std::thread thread_;
};

}  // namespace verbatim::engine
