#include "evaluate/soak.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "base/error.h"
#include "evaluate/http_client.h"
#include "evaluate/soak_cases.h"

namespace verbatim::evaluate {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr size_t kShownFailures = 20;
constexpr size_t kShownBodyBytes = 64 << 10;
constexpr int kTriesAlone = 10;  // of a request that the server is too busy for

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

struct Known {
  SoakCase request;
  SoakReply alone;
};

struct Asked {
  ClientResponse response;
  SoakReply reply;
  bool was_streamed = false;
};

// How a request of the load is sent, and left.
struct Sending {
  bool stream = false, draft = true;
  int leave_after_events = 0;   // of a stream; 0: never
  milliseconds leave_after{0};  // whatever has come; 0: never
};

struct Times {
  std::vector<float> first_ms, between_ms;
};

Asked ask(HttpClient& client, const SoakCase& request, const Sending& sending, Times* times) {
  Asked asked;
  asked.was_streamed = sending.stream;
  const std::string body = request.request(sending.stream, sending.draft);
  if (!sending.stream) {
    asked.response = client.post(path_of(request.route), body, {.leave_after = sending.leave_after});
    if (asked.response.status == 200 && !asked.response.was_abandoned)
      asked.reply = read_whole(request.route, asked.response.body);
    return asked;
  }
  StreamedReply stream(request.route, request.choices);
  EventReader reader;
  const Clock::time_point sent = Clock::now();
  std::optional<Clock::time_point> last;
  int events = 0;
  const auto on_event = [&](std::string_view, std::string_view data) {
    if (!stream.event(data)) return true;
    const Clock::time_point now = Clock::now();
    if (times != nullptr) {
      const double ms = std::chrono::duration<double, std::milli>(now - last.value_or(sent)).count();
      (last ? times->between_ms : times->first_ms).push_back(static_cast<float>(ms));
    }
    last = now;
    ++events;
    return sending.leave_after_events == 0 || events < sending.leave_after_events;
  };
  asked.response = client.post(path_of(request.route), body,
                               {.on_body = [&](std::string_view piece) { return reader.feed(piece, on_event); },
                                .leave_after = sending.leave_after});
  asked.reply = stream.reply(!asked.response.was_abandoned && asked.response.status == 200);
  return asked;
}

// One at a time, nothing else running, nothing drafted. Waits while the server is busy.
Asked ask_alone(HttpClient& client, const SoakCase& request) {
  for (int tries = 1;; ++tries) {
    Asked asked = ask(client, request, {.stream = false, .draft = false}, nullptr);
    const bool is_busy = asked.response.status == 429 || asked.response.status == 503;
    if (!is_busy || tries == kTriesAlone) return asked;
    std::this_thread::sleep_for(milliseconds(200));
  }
}

int retry_after_s(const ClientResponse& response) {
  const std::string value = response.header("Retry-After");
  int seconds = 1;
  std::from_chars(value.data(), value.data() + value.size(), seconds);
  return std::clamp(seconds, 1, 5);
}

bool is_refusal(int status) { return status >= 400 && status < 500 && status != 429; }

std::string message_of(const std::string& body) {
  const auto parsed = nlohmann::json::parse(body, nullptr, false);
  if (parsed.is_object() && parsed.contains("error") && parsed["error"].is_object() &&
      parsed["error"].contains("message") && parsed["error"]["message"].is_string())
    return parsed["error"]["message"];
  return body.substr(0, 200);
}

SoakTimes summary_of(std::vector<float>& values) {
  SoakTimes times{.count = std::ssize(values)};
  if (values.empty()) return times;
  std::sort(values.begin(), values.end());
  times.median_ms = values[values.size() / 2];
  times.p99_ms = values[(values.size() - 1) * 99 / 100];
  return times;
}

// The value of process_resident_memory_bytes; below 0 if it is not there.
int64_t resident_bytes(const std::string& metrics) {
  constexpr std::string_view kName = "\nprocess_resident_memory_bytes";
  const std::string text = "\n" + metrics;
  const size_t at = text.find(kName);
  if (at == std::string::npos) return -1;
  const std::string line = text.substr(at + 1, text.find('\n', at + 1) - at - 1);
  const std::string value = line.substr(line.rfind(' ') + 1);
  double bytes = -1;
  std::from_chars(value.data(), value.data() + value.size(), bytes);
  return static_cast<int64_t>(bytes);
}

class Soak {
 public:
  Soak(const SoakOptions& options, const std::function<void(const std::string&)>& say)
      : options_(options), say_(say), address_(ServerAddress::parse(options.url)) {}

  SoakReport run() {
    mix_ = {.model = model_name(), .prompt_words = options_.prompt_words, .reply_tokens = options_.reply_tokens};
    run_alone();
    load();
    check_fresh();
    report_.first_token = summary_of(times_.first_ms);
    report_.between_tokens = summary_of(times_.between_ms);
    return std::move(report_);
  }

 private:
  std::unique_ptr<HttpClient> client() const {
    return std::make_unique<HttpClient>(address_, options_.key,
                                        milliseconds(static_cast<int64_t>(options_.silence_s * 1e3)));
  }

  std::string model_name() const {
    const ClientResponse models = client()->get("/v1/models");
    if (models.status != 200)
      fail(ErrorKind::kIo, options_.url, "/v1/models answers {}: {}", models.status, message_of(models.body));
    const auto parsed = nlohmann::json::parse(models.body, nullptr, false);
    if (!parsed.is_object() || !parsed.contains("data") || parsed["data"].empty())
      fail(ErrorKind::kIo, options_.url, "/v1/models lists no model");
    return parsed["data"][0].value("id", "");
  }

  void run_alone() {
    const Clock::time_point start = Clock::now();
    const auto one = client();
    CaseMaker maker(mix_, options_.seed);
    std::optional<SoakCase> next_turn;
    while (std::ssize(known_) + report_.refused_cases < options_.cases) {
      SoakCase request = next_turn ? *next_turn : maker.next();
      const bool is_first_turn = !next_turn.has_value();
      next_turn.reset();
      const Asked asked = ask_alone(*one, request);
      if (is_refusal(asked.response.status)) {
        ++report_.refused_cases;
        ++report_.refusals[request.kind + ": " + message_of(asked.response.body)];
        continue;
      }
      if (asked.response.status != 200)
        fail(ErrorKind::kIo, options_.url, "{} alone: status {}: {}", request.kind, asked.response.status,
             message_of(asked.response.body));
      if (!asked.reply.problem.empty())
        fail(ErrorKind::kIo, options_.url, "{} alone: {}", request.kind, asked.reply.problem);
      known_.push_back({request, asked.reply});
      if (request.can_go_on && is_first_turn) next_turn = maker.next_turn(request, asked.reply);
    }
    report_.reference_s = seconds_since(start);
    if (known_.empty())
      fail(ErrorKind::kUnsupported, options_.url, "the server refused every request; the first because: {}",
           report_.refusals.begin()->first);
    say_(fmt::format("{} requests run alone in {:.1f} s", known_.size(), report_.reference_s));
  }

  void load() {
    start_ = Clock::now();
    std::vector<std::thread> threads;
    threads.reserve(static_cast<size_t>(options_.concurrency));
    std::atomic<int> running{options_.concurrency};
    for (int i = 0; i < options_.concurrency; ++i)
      threads.emplace_back([this, i, &running] {
        work(static_cast<uint64_t>(i));
        running.fetch_sub(1);
      });
    watch([&running] { return running.load() > 0; });
    for (std::thread& thread : threads) thread.join();
    report_.load_s = seconds_since(start_);
  }

  bool is_over() const {
    return seconds_since(start_) >= options_.seconds || (options_.requests > 0 && begun_.load() >= options_.requests);
  }

  void work(uint64_t number) {
    std::mt19937_64 random(options_.seed * 1'000'003 + number);
    CaseMaker maker(mix_, options_.seed * 7919 + number + 1);
    const auto own = client();
    Times times;
    while (!is_over()) {
      const int64_t order = begun_.fetch_add(1);
      if (options_.requests > 0 && order >= options_.requests) break;
      const bool is_fresh = random() % 12 == 0 && fresh_made_.fetch_add(1) < options_.fresh;
      const Known known = is_fresh ? Known{maker.next(), {}} : known_[random() % known_.size()];
      Sending sending{.stream = random() % 3 != 0, .draft = random() % 4 != 0};
      if (!is_fresh && random() % 8 == 0) {
        if (sending.stream && random() % 4 != 0) {
          sending.leave_after_events = static_cast<int>(1 + random() % 20);
        } else {
          sending.leave_after = milliseconds(1 + random() % 400);
        }
      }
      const int busy_s = one_request(*own, known, is_fresh, sending, times);
      for (int tenth = 0; tenth < busy_s * 10 && !is_over(); ++tenth) std::this_thread::sleep_for(milliseconds(100));
    }
    const std::lock_guard lock(mutex_);
    const auto append = [](std::vector<float>& to, const std::vector<float>& from) {
      to.insert(to.end(), from.begin(), from.end());
    };
    append(times_.first_ms, times.first_ms);
    append(times_.between_ms, times.between_ms);
  }

  // Returns how long to wait, in seconds, because the server was busy.
  int one_request(HttpClient& client, const Known& known, bool is_fresh, const Sending& sending, Times& times) {
    Asked asked;
    std::string problem;
    try {
      asked = ask(client, known.request, sending, &times);
    } catch (const std::exception& error) {
      problem = error.what();
    }
    const int status = asked.response.status;
    const std::lock_guard lock(mutex_);
    ++report_.requests;
    ++report_.kinds[known.request.kind];
    if (status == 429 || status == 503) {
      ++report_.refused;
      return retry_after_s(asked.response);
    }
    if (problem.empty() && asked.response.was_abandoned) {
      ++report_.cancelled;
      if (status != 200 || !asked.was_streamed) return 0;
      ++report_.checked;
      // What the server said before the client left: an error is one, if it left late.
      if (const std::string wrong = difference_of_beginning(asked.reply, known.alone); !wrong.empty())
        failed(report_.wrong, known.request, wrong);
      return 0;
    }
    if (is_fresh && problem.empty() && is_refusal(status)) {
      ++report_.refused_cases;
      ++report_.refusals[known.request.kind + ": " + message_of(asked.response.body)];
      return 0;
    }
    if (problem.empty() && status != 200)
      problem = fmt::format("status {}: {}", status, message_of(asked.response.body));
    if (problem.empty()) problem = asked.reply.problem;
    if (!problem.empty()) {
      failed(report_.lost, known.request, problem);
      return 0;
    }
    ++report_.completed;
    report_.generated_tokens += asked.reply.generated_tokens;
    if (is_fresh) {
      fresh_.push_back({known.request, std::move(asked.reply)});
      return 0;
    }
    ++report_.checked;
    if (const std::string wrong = difference(asked.reply, known.alone); !wrong.empty())
      failed(report_.wrong, known.request, wrong + (asked.was_streamed ? " (streamed)" : ""));
    return 0;
  }

  void failed(int64_t& count, const SoakCase& request, const std::string& what) {
    ++count;
    if (report_.failures.size() < kShownFailures)
      report_.failures.push_back({request.kind, what, path_of(request.route), request.body.substr(0, kShownBodyBytes)});
  }

  // Reads the server's memory now and then while the load runs.
  void watch(const std::function<bool()>& is_running) {
    const double warm_up_s = options_.warm_up_s >= 0 ? options_.warm_up_s : options_.seconds / 10;
    std::vector<std::pair<double, double>> readings;
    const auto reader = client();
    double next_s = 0, told_s = 0;
    const auto read = [&] {
      int64_t bytes = -1;
      try {
        bytes = resident_bytes(reader->get("/metrics").body);
      } catch (const Error&) {
        // The requests tell whether the server is gone.
      }
      if (bytes < 0) return;
      const double now_s = seconds_since(start_);
      report_.memory_most_bytes = std::max(report_.memory_most_bytes, bytes);
      report_.memory_end_bytes = bytes;
      if (now_s < warm_up_s) return;
      if (readings.empty()) report_.memory_warm_bytes = bytes;
      readings.emplace_back(now_s, static_cast<double>(bytes));
    };
    while (is_running()) {
      const double now_s = seconds_since(start_);
      if (now_s >= next_s) {
        read();
        next_s = now_s + options_.sample_s;
      }
      if (now_s - told_s >= 10) {
        told_s = now_s;
        const std::lock_guard lock(mutex_);
        say_(fmt::format("{:.0f} s: {} requests, {} completed, {} wrong, {} lost", now_s, report_.requests,
                         report_.completed, report_.wrong, report_.lost));
      }
      std::this_thread::sleep_for(milliseconds(20));
    }
    read();
    double mean_s = 0, mean_bytes = 0, products = 0, squares = 0;
    for (const auto& [at_s, bytes] : readings) {
      mean_s += at_s / static_cast<double>(readings.size());
      mean_bytes += bytes / static_cast<double>(readings.size());
    }
    for (const auto& [at_s, bytes] : readings) {
      products += (at_s - mean_s) * (bytes - mean_bytes);
      squares += (at_s - mean_s) * (at_s - mean_s);
    }
    if (squares > 0) report_.memory_slope_bytes_per_s = products / squares;
  }

  void check_fresh() {
    const Clock::time_point start = Clock::now();
    const auto one = client();
    for (const Known& known : fresh_) {
      std::string problem;
      Asked asked;
      try {
        asked = ask_alone(*one, known.request);
        problem = asked.response.status != 200
                      ? fmt::format("status {}: {}", asked.response.status, message_of(asked.response.body))
                      : asked.reply.problem;
      } catch (const Error& error) {
        problem = error.what();
      }
      if (!problem.empty()) {
        failed(report_.unchecked, known.request, "run alone after the load: " + problem);
        continue;
      }
      ++report_.checked;
      if (const std::string wrong = difference(known.alone, asked.reply); !wrong.empty())
        failed(report_.wrong, known.request, wrong);
    }
    report_.check_s = seconds_since(start);
  }

  const SoakOptions& options_;
  const std::function<void(const std::string&)>& say_;
  const ServerAddress address_;
  SoakMix mix_;
  std::vector<Known> known_;
  Clock::time_point start_;
  std::atomic<int64_t> begun_{0}, fresh_made_{0};

  std::mutex mutex_;          // during the load: what follows
  std::vector<Known> fresh_;  // `alone` is the reply under load
  Times times_;
  SoakReport report_;
};

}  // namespace

SoakReport soak(const SoakOptions& options, const std::function<void(const std::string&)>& say) {
  return Soak(options, say).run();
}

}  // namespace verbatim::evaluate
