// Counters and histograms, and their Prometheus text.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/request.h"
#include "engine/scheduler.h"
#include "server/http_server.h"

namespace verbatim::server {

// Cumulative buckets as Prometheus wants them. Not synchronised.
class Histogram {
 public:
  explicit Histogram(std::span<const double> bounds) : bounds_(bounds), counts_(bounds.size() + 1) {}
  void observe(double value);
  // Appends NAME_bucket, NAME_sum and NAME_count; `labels` without braces.
  void append(std::string& out, std::string_view name, std::string_view labels) const;

 private:
  std::span<const double> bounds_;
  std::vector<int64_t> counts_;
  double sum_ = 0;
};

// May be used from any thread.
class Metrics {
 public:
  Metrics();
  // Once a reply: its times and tokens. `finish` is stop, length, tool_calls or abort.
  void reply_ended(const engine::ReplySummary& summary, std::string_view finish);
  void request_ended(int status);
  // Everything in Prometheus' text format.
  std::string text(const engine::SchedulerStats& stats, const HttpCounts& http, const std::string& model,
                   int64_t context_tokens) const;

 private:
  mutable std::mutex mutex_;
  Histogram first_token_, between_tokens_, whole_, prompt_tokens_, generated_tokens_;
  std::map<std::string, int64_t, std::less<>> finished_;
  std::map<int, int64_t> statuses_;
};

}  // namespace verbatim::server
