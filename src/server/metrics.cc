#include "server/metrics.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>

namespace verbatim::server {
namespace {

// vLLM's bounds, so that dashboards made for it fit.
constexpr double kFirstToken[] = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,  0.25,  0.5,   0.75,
                                  1.0,   2.5,   5.0,  7.5,  10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0};
constexpr double kBetweenTokens[] = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3,  0.4,
                                     0.5,  0.75,  1.0,  2.5,   5.0, 7.5,  10., 20.0, 40.0};
constexpr double kWhole[] = {0.3,  0.5,  0.8,  1.0,  1.5,   2.0,   2.5,   5.0,   10.0,   15.0,  20.0,
                             30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0};
constexpr double kTokens[] = {1,    2,    5,     10,    20,    50,     100,    200,    500,    1000,
                              2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000, 1000000};

// Of this process; 0 if the system does not say.
int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t size = 0, resident = 0;
  if (!(file >> size >> resident)) return 0;
  return resident * ::sysconf(_SC_PAGESIZE);
}

std::string escaped_label(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace

void Histogram::observe(double value) {
  const auto at = std::lower_bound(bounds_.begin(), bounds_.end(), value);
  ++counts_[static_cast<size_t>(at - bounds_.begin())];
  sum_ += value;
}

void Histogram::append(std::string& out, std::string_view name, std::string_view labels) const {
  const auto to = std::back_inserter(out);
  int64_t total = 0;
  for (size_t i = 0; i < bounds_.size(); ++i) {
    total += counts_[i];
    fmt::format_to(to, "{}_bucket{{{},le=\"{}\"}} {}\n", name, labels, bounds_[i], total);
  }
  total += counts_.back();
  fmt::format_to(to, "{}_bucket{{{},le=\"+Inf\"}} {}\n", name, labels, total);
  fmt::format_to(to, "{}_sum{{{}}} {}\n{}_count{{{}}} {}\n", name, labels, sum_, name, labels, total);
}

Metrics::Metrics()
    : first_token_(kFirstToken),
      between_tokens_(kBetweenTokens),
      whole_(kWhole),
      prompt_tokens_(kTokens),
      generated_tokens_(kTokens) {
  for (const char* finish : {"stop", "length", "tool_calls", "abort"}) finished_[finish] = 0;
}

void Metrics::reply_ended(const engine::ReplySummary& summary, std::string_view finish) {
  const std::lock_guard lock(mutex_);
  const auto found = finished_.find(finish);
  ++(found != finished_.end() ? found->second : finished_[std::string(finish)]);
  if (summary.token_times_s.empty()) return;
  first_token_.observe(summary.first_token_s);
  for (size_t i = 1; i < summary.token_times_s.size(); ++i)
    between_tokens_.observe(summary.token_times_s[i] - summary.token_times_s[i - 1]);
  whole_.observe(summary.token_times_s.back());
  prompt_tokens_.observe(static_cast<double>(summary.prompt_tokens));
  generated_tokens_.observe(static_cast<double>(summary.generated_tokens));
}

void Metrics::request_ended(int status) {
  const std::lock_guard lock(mutex_);
  ++statuses_[status];
}

std::string Metrics::text(const engine::SchedulerStats& stats, const HttpCounts& http, const std::string& model,
                          int64_t context_tokens) const {
  std::string out;
  const std::string labels = fmt::format("model_name=\"{}\"", escaped_label(model));
  const auto head = [&out](std::string_view name, std::string_view type, std::string_view help) {
    fmt::format_to(std::back_inserter(out), "# HELP {0} {2}\n# TYPE {0} {1}\n", name, type, help);
  };
  const auto one = [&](std::string_view name, std::string_view type, std::string_view help, auto value) {
    head(name, type, help);
    fmt::format_to(std::back_inserter(out), "{}{{{}}} {}\n", name, labels, value);
  };
  const double used = stats.pages_total > 0
                          ? 1.0 - static_cast<double>(stats.pages_free) / static_cast<double>(stats.pages_total)
                          : 0.0;
  one("vllm:num_requests_running", "gauge", "Sequences being computed.", stats.running);
  one("vllm:num_requests_waiting", "gauge", "Sequences waiting for a place.", stats.waiting);
  one("vllm:kv_cache_usage_perc", "gauge", "Share of pages in use, those of the prefix cache included.", used);
  one("vllm:gpu_cache_usage_perc", "gauge", "The same, under its older name.", used);
  one("vllm:num_preemptions_total", "counter", "Sequences that gave way and were run again.", stats.preemptions);
  one("vllm:prompt_tokens_total", "counter", "Prompt tokens computed or found in the cache.",
      stats.prompt_tokens + stats.cached_tokens);
  one("vllm:generation_tokens_total", "counter", "Tokens generated.", stats.generated_tokens);
  one("vllm:prefix_cache_queries_total", "counter", "Prompt tokens looked for in the prefix cache.",
      stats.prompt_tokens + stats.cached_tokens);
  one("vllm:prefix_cache_hits_total", "counter", "Prompt tokens found there.", stats.cached_tokens);
  one("vllm:spec_decode_num_draft_tokens_total", "counter", "Tokens drafted.", stats.drafted_tokens);
  one("vllm:spec_decode_num_accepted_tokens_total", "counter", "Drafted tokens that were right.",
      stats.accepted_tokens);

  const std::lock_guard lock(mutex_);
  head("vllm:request_success_total", "counter", "Replies ended, by reason.");
  for (const auto& [finish, count] : finished_)
    fmt::format_to(std::back_inserter(out), "vllm:request_success_total{{{},finished_reason=\"{}\"}} {}\n", labels,
                   finish, count);
  const auto histogram = [&](std::string_view name, std::string_view help, const Histogram& values) {
    head(name, "histogram", help);
    values.append(out, name, labels);
  };
  histogram("vllm:time_to_first_token_seconds", "From a request's arrival to its first token.", first_token_);
  histogram("vllm:time_per_output_token_seconds", "From one token of a reply to the next.", between_tokens_);
  histogram("vllm:inter_token_latency_seconds", "The same, under its newer name.", between_tokens_);
  histogram("vllm:e2e_request_latency_seconds", "From a request's arrival to its last token.", whole_);
  histogram("vllm:request_prompt_tokens", "Prompt tokens of a request.", prompt_tokens_);
  histogram("vllm:request_generation_tokens", "Generated tokens of a reply.", generated_tokens_);

  one("verbatim:context_tokens", "gauge", "Most tokens of a prompt and its reply.", context_tokens);
  one("verbatim:steps_total", "counter", "Steps of the engine.", stats.steps);
  one("verbatim:step_model_seconds_total", "counter", "Time of steps spent in the model.", stats.model_s);
  one("verbatim:step_sampler_seconds_total", "counter", "Time of steps spent sampling.", stats.sampler_s);
  one("verbatim:step_scheduler_seconds_total", "counter", "Time of steps spent scheduling.", stats.scheduler_s);
  one("verbatim:pages", "gauge", "Pages of 64 tokens.", stats.pages_total);
  one("verbatim:pages_free", "gauge", "Those that hold nothing.", stats.pages_free);
  one("verbatim:prefix_cache_snapshots", "gauge", "Snapshots in the prefix cache.", stats.tree_snapshots);
  one("verbatim:prefix_cache_snapshot_bytes", "gauge", "Their memory.", stats.tree_snapshot_bytes);
  one("verbatim:requests_cancelled_total", "counter", "Replies whose client went away.", stats.cancelled);
  one("verbatim:http_connections", "gauge", "Open connections.", http.connections);
  one("verbatim:http_requests_open", "gauge", "Requests not yet answered in full.", http.exchanges);
  one("verbatim:http_connections_refused_total", "counter", "Connections beyond the limit.", http.refused_connections);
  one("verbatim:http_body_bytes", "gauge", "Request bodies held.", http.body_bytes);
  head("verbatim:http_responses_total", "counter", "Responses, by status; 499: the client went away.");
  for (const auto& [status, count] : statuses_)
    fmt::format_to(std::back_inserter(out), "verbatim:http_responses_total{{{},status=\"{}\"}} {}\n", labels, status,
                   count);
  // As Prometheus' own client libraries name it, without labels.
  head("process_resident_memory_bytes", "gauge", "Resident memory of the server.");
  fmt::format_to(std::back_inserter(out), "process_resident_memory_bytes {}\n", resident_bytes());
  return out;
}

}  // namespace verbatim::server
