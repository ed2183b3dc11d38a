#include "engine/engine.h"

#include <utility>

#include "base/error.h"
#include "base/log.h"

namespace verbatim::engine {

Engine::Engine(StepModel& model, SchedulerOptions options)
    : scheduler_(model, std::move(options)), stats_(scheduler_.stats()), thread_([this] { run(); }) {}

Engine::~Engine() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  work_.notify_all();
  thread_.join();
}

int64_t Engine::submit(Request request, EventSink sink) {
  const auto now = std::chrono::steady_clock::now();
  scheduler_.check(request);
  const std::lock_guard lock(mutex_);
  if (!failure_.empty()) fail(ErrorKind::kCapacity, "engine", "stopped after a failure: {}", failure_);
  if (draining_ || stop_) fail(ErrorKind::kCapacity, "engine", "draining: no new requests are taken");
  const int64_t waiting = stats_.waiting + submitted_choices_, limit = scheduler_.options().queue_limit;
  if (waiting + request.choices > limit)
    fail(ErrorKind::kCapacity, "request", "{} requests wait already; the queue holds {}", waiting, limit);
  submitted_choices_ += request.choices;
  const int64_t id = next_id_++;
  submissions_.push_back({id, now, std::move(request), std::move(sink)});
  work_.notify_all();
  return id;
}

void Engine::cancel(int64_t request) {
  const std::lock_guard lock(mutex_);
  cancellations_.push_back(request);
  work_.notify_all();
}

void Engine::stop_accepting() {
  const std::lock_guard lock(mutex_);
  draining_ = true;
}

void Engine::drain() {
  std::unique_lock lock(mutex_);
  draining_ = true;
  idle_.wait(lock, [&] { return !busy_ && submissions_.empty(); });
}

SchedulerStats Engine::stats() const {
  const std::lock_guard lock(mutex_);
  SchedulerStats stats = stats_;
  stats.waiting += submitted_choices_;
  return stats;
}

std::string Engine::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

// A request that came while the engine failed is cancelled like those before it.
void Engine::step() {
  if (!failure().empty()) {
    scheduler_.cancel_all();
    scheduler_.discard_cancelled();
    return;
  }
  try {
    scheduler_.step();
  } catch (const std::exception& error) {
    log_line(LogLevel::kError, std::string("engine stopped: ") + error.what());
    {
      const std::lock_guard lock(mutex_);
      failure_ = error.what();
    }
    scheduler_.cancel_all();
    scheduler_.discard_cancelled();
  }
}

void Engine::run() {
  std::vector<Submission> submissions;
  std::vector<int64_t> cancellations;
  std::unique_lock lock(mutex_);
  for (;;) {
    busy_ = !scheduler_.idle();
    stats_ = scheduler_.stats();
    if (!busy_ && submissions_.empty()) idle_.notify_all();
    work_.wait(lock, [&] { return stop_ || busy_ || !submissions_.empty() || !cancellations_.empty(); });
    if (stop_ && !busy_ && submissions_.empty()) return;
    const bool stop = stop_;
    busy_ = true;
    submissions.swap(submissions_);
    cancellations.swap(cancellations_);
    stats_.waiting += std::exchange(submitted_choices_, 0);
    lock.unlock();
    for (Submission& each : submissions)
      scheduler_.enqueue(each.id, each.submitted, std::move(each.request), std::move(each.sink));
    for (const int64_t request : cancellations) scheduler_.cancel(request);
    if (stop) scheduler_.cancel_all();
    submissions.clear();
    cancellations.clear();
    step();
    lock.lock();
  }
}

}  // namespace verbatim::engine
