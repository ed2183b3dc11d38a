// A bounded load of mixed requests against a running server, each reply checked against the same request alone.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace verbatim::evaluate {

struct SoakOptions {
  std::string url, key;
  double seconds = 60;   // of load; requests begun before its end run to theirs
  int64_t requests = 0;  // end the load after so many; 0: no such limit
  int concurrency = 16;  // clients, each with one request at a time
  uint64_t seed = 1;     // of the requests
  int64_t cases = 48;    // requests that are run alone before the load and drawn again and again
  int64_t fresh = 200;   // requests made once, which are run alone after the load; at most so many
  int64_t prompt_words = 600, reply_tokens = 96;  // of the longest
  double warm_up_s = -1;   // memory is compared from here on; below 0: a tenth of the load's time
  double silence_s = 120;  // a server that sends nothing for so long has lost the request
  double sample_s = 1;     // between readings of the server's memory
};

// The median and what 99 of 100 stay below, in milliseconds.
struct SoakTimes {
  double median_ms = 0, p99_ms = 0;
  int64_t count = 0;
};

struct SoakFailure {
  std::string kind, what;
  std::string path, body;  // the request, to ask it again
};

struct SoakReport {
  int64_t requests = 0;   // sent during the load
  int64_t completed = 0;  // of these
  int64_t cancelled = 0;  // left by the client, as intended
  int64_t refused = 0;    // 429 and 503: the server did not accept them
  int64_t lost = 0;       // accepted or acceptable, and not answered in full
  int64_t wrong = 0;      // replies that differ from the same request's alone
  int64_t checked = 0;    // replies compared with one: all completed, and the beginnings of those left while streaming
  int64_t unchecked = 0;  // completed, but running them alone failed
  int64_t refused_cases = 0;                // that the server refused when run alone, by a 4xx: not part of the load
  std::map<std::string, int64_t> kinds;     // requests by kind
  std::map<std::string, int64_t> refusals;  // of cases: "kind: message"
  std::vector<SoakFailure> failures;        // of wrong and lost ones, the first 20
  int64_t generated_tokens = 0;             // of completed replies
  double reference_s = 0, load_s = 0, check_s = 0;
  SoakTimes first_token, between_tokens;  // of streamed replies, at the client; tokens of one event count as one
  // The server's resident memory; below 0: its /metrics do not tell.
  int64_t memory_warm_bytes = -1, memory_end_bytes = -1, memory_most_bytes = -1;
  double memory_slope_bytes_per_s = 0;  // least squares over the readings after the warm-up

  bool is_clean() const { return wrong == 0 && lost == 0 && unchecked == 0 && completed > 0; }
};

// `say` gets lines of progress. Throws Error: kUsage for a URL that is none, kIo if the server does not answer,
// kUnsupported if it refuses every request.
SoakReport soak(const SoakOptions& options, const std::function<void(const std::string&)>& say);

std::string soak_table(const SoakReport& report);
std::string soak_json(const SoakOptions& options, const SoakReport& report);

}  // namespace verbatim::evaluate
