#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "evaluate/soak.h"

namespace verbatim::evaluate {
namespace {

double tokens_per_s(const SoakReport& report) {
  return report.load_s > 0 ? static_cast<double>(report.generated_tokens) / report.load_s : 0;
}

std::string megabytes(int64_t bytes) {
  return bytes < 0 ? "unknown" : fmt::format("{:.1f} MB", static_cast<double>(bytes) / 1e6);
}

nlohmann::ordered_json json_of(const SoakTimes& times) {
  return {{"median_ms", times.median_ms}, {"p99_ms", times.p99_ms}, {"count", times.count}};
}

}  // namespace

std::string soak_table(const SoakReport& report) {
  std::string out;
  const auto line = [&out](const char* name, const std::string& value) {
    out += fmt::format("{:<22} {}\n", name, value);
  };
  line("requests", std::to_string(report.requests));
  line("completed", std::to_string(report.completed));
  line("cancelled", std::to_string(report.cancelled));
  line("refused", std::to_string(report.refused));
  line("lost", std::to_string(report.lost));
  line("replies checked", std::to_string(report.checked));
  line("wrong", std::to_string(report.wrong));
  if (report.unchecked > 0) line("not checked", std::to_string(report.unchecked));
  line("load", fmt::format("{:.1f} s; before it {:.1f} s, after it {:.1f} s alone", report.load_s, report.reference_s,
                           report.check_s));
  line("tokens", fmt::format("{} ({:.1f} tokens/s)", report.generated_tokens, tokens_per_s(report)));
  const auto times = [](const SoakTimes& one) {
    return fmt::format("median {:.1f} ms, p99 {:.1f} ms ({})", one.median_ms, one.p99_ms, one.count);
  };
  line("time to first token", times(report.first_token));
  line("between tokens", times(report.between_tokens));
  if (report.memory_warm_bytes < 0) {
    line("server's memory", "its /metrics do not tell");
  } else {
    line("server's memory", fmt::format("{} after the warm-up, {} at the end, at most {}; {:+.1f} kB a second",
                                        megabytes(report.memory_warm_bytes), megabytes(report.memory_end_bytes),
                                        megabytes(report.memory_most_bytes), report.memory_slope_bytes_per_s / 1e3));
  }
  std::string kinds;
  for (const auto& [kind, count] : report.kinds)
    kinds += fmt::format("{}{} {}", kinds.empty() ? "" : ", ", count, kind);
  line("kinds", kinds);
  for (const auto& [what, count] : report.refusals) out += fmt::format("left out ({}x): {}\n", count, what);
  for (const SoakFailure& failure : report.failures)
    out += fmt::format("FAILED {}: {}\n  POST {} {}\n", failure.kind, failure.what, failure.path, failure.body);
  return out;
}

std::string soak_json(const SoakOptions& options, const SoakReport& report) {
  nlohmann::ordered_json out;
  out["url"] = options.url;
  out["seed"] = options.seed;
  out["concurrency"] = options.concurrency;
  out["requests"] = report.requests;
  out["completed"] = report.completed;
  out["cancelled"] = report.cancelled;
  out["refused"] = report.refused;
  out["lost"] = report.lost;
  out["checked"] = report.checked;
  out["wrong"] = report.wrong;
  out["unchecked"] = report.unchecked;
  out["reference_s"] = report.reference_s;
  out["load_s"] = report.load_s;
  out["check_s"] = report.check_s;
  out["generated_tokens"] = report.generated_tokens;
  out["tokens_per_s"] = tokens_per_s(report);
  out["first_token"] = json_of(report.first_token);
  out["between_tokens"] = json_of(report.between_tokens);
  const auto bytes = [](int64_t value) { return value < 0 ? nlohmann::ordered_json() : nlohmann::ordered_json(value); };
  out["memory"] = {{"warm_bytes", bytes(report.memory_warm_bytes)},
                   {"end_bytes", bytes(report.memory_end_bytes)},
                   {"most_bytes", bytes(report.memory_most_bytes)},
                   {"slope_bytes_per_s", report.memory_slope_bytes_per_s}};
  out["kinds"] = report.kinds;
  out["left_out"] = report.refusals;
  out["failures"] = nlohmann::ordered_json::array();
  for (const SoakFailure& failure : report.failures)
    out["failures"].push_back(
        {{"kind", failure.kind}, {"what", failure.what}, {"path", failure.path}, {"body", failure.body}});
  out["clean"] = report.is_clean();
  // What the server sent may not be UTF-8.
  return out.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace verbatim::evaluate
