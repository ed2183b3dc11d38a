#include "engine/engine.h"

#include <utility>

#include "base/error.h"
#include "base/log.h"

namespace verbatim::engine {

Engine::Engine(StepModel& model, SchedulerOptions options)
    : scheduler_(model, std::move(options)), thread_([this] { run(); }) {}

Engine::~Engine() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  work_.notify_all();
  thread_.join();
}

std::unique_lock<std::mutex> Engine::enter() const {
  ++callers_;
  std::unique_lock lock(mutex_);
  --callers_;
  return lock;
}

int64_t Engine::submit(Request request, EventSink sink) {
  const auto lock = enter();
  if (!failure_.empty()) fail(ErrorKind::kCapacity, "engine", "stopped after a failure: {}", failure_);
  if (draining_ || stop_) fail(ErrorKind::kCapacity, "engine", "draining: no new requests are taken");
  const int64_t id = scheduler_.submit(std::move(request), std::move(sink));
  work_.notify_all();
  return id;
}

void Engine::cancel(int64_t request) {
  const auto lock = enter();
  scheduler_.cancel(request);
  work_.notify_all();
}

void Engine::drain() {
  auto lock = enter();
  draining_ = true;
  idle_.wait(lock, [&] { return scheduler_.idle() || !failure_.empty(); });
}

SchedulerStats Engine::stats() const {
  const auto lock = enter();
  return scheduler_.stats();
}

std::string Engine::failure() const {
  const auto lock = enter();
  return failure_;
}

void Engine::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    work_.wait(lock, [&] { return stop_ || !scheduler_.idle(); });
    if (stop_) scheduler_.cancel_all();
    try {
      scheduler_.step();
    } catch (const std::exception& error) {
      failure_ = error.what();
      log_line(LogLevel::kError, "engine stopped: " + failure_);
      scheduler_.cancel_all();
      scheduler_.discard_cancelled();
    }
    if (scheduler_.idle() || !failure_.empty()) idle_.notify_all();
    if (stop_ && scheduler_.idle()) return;
    // Others submit and cancel between steps; a plain unlock and lock would seldom let them in.
    lock.unlock();
    while (callers_.load() > 0) std::this_thread::yield();
    lock.lock();
  }
}

}  // namespace verbatim::engine
