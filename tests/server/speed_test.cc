// What the server itself costs, with models that only pretend: CPU a streamed token, and tokens a second beside the
// same work without a server. Labelled long: a busy machine makes such figures move.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>

#include <algorithm>
#include <ctime>

#include "tests/server/test_server.h"

namespace verbatim::server {
namespace {

double cpu_s(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

struct Load {
  int64_t tokens = 0;         // of all replies
  int64_t decode_tokens = 0;  // of those, from when each reply had begun
  double decode_s = 0;        // and what they took, to the last byte of the last reply
  double server_cpu_s = 0;    // of the process without this client
  int64_t pieces = 0;
};

// `streams` replies of `tokens` letters at once, read by this thread alone.
Load run_streams(TestServer& server, int streams, int tokens) {
  const std::string request =
      Client::text_of("POST", "/v1/chat/completions",
                      nlohmann::json{{"messages", {{{"role", "user"}, {"content", "count " + std::to_string(tokens)}}}},
                                     {"stream", true},
                                     {"temperature", 0}}
                          .dump(),
                      {});
  std::vector<Client> clients;
  std::vector<pollfd> waits;
  std::vector<std::string> tails(static_cast<size_t>(streams));
  const double process = cpu_s(CLOCK_PROCESS_CPUTIME_ID);
  const double mine = cpu_s(CLOCK_THREAD_CPUTIME_ID);
  for (int i = 0; i < streams; ++i) {
    clients.emplace_back(server.port());
    clients.back().send(request);
    waits.push_back({clients.back().socket(), POLLIN, 0});
  }
  Load load;
  int open = streams;
  std::optional<Clock::time_point> begun;
  std::vector<int> reads(static_cast<size_t>(streams));
  int silent = streams;  // have had no more than their opening
  std::vector<char> buffer(1 << 16);
  while (open > 0) {
    if (::poll(waits.data(), waits.size(), 30'000) <= 0) break;
    for (size_t i = 0; i < waits.size(); ++i) {
      if (waits[i].revents == 0) continue;
      const ssize_t got = ::recv(waits[i].fd, buffer.data(), buffer.size(), 0);
      if (got <= 0) {
        waits[i].fd = -1;
        --open;
        continue;
      }
      ++load.pieces;
      if (++reads[i] == 2 && --silent == 0) {
        begun = Clock::now();
        load.decode_tokens = -server.engine.stats().generated_tokens;
      }
      tails[i].append(buffer.data(), static_cast<size_t>(got));
      if (tails[i].size() > 64) tails[i].erase(0, tails[i].size() - 64);
      if (tails[i].find("[DONE]") != std::string::npos) {
        waits[i].fd = -1;
        --open;
      }
    }
  }
  EXPECT_EQ(open, 0);
  if (begun) load.decode_s = std::chrono::duration<double>(Clock::now() - *begun).count();
  load.server_cpu_s = cpu_s(CLOCK_PROCESS_CPUTIME_ID) - process - (cpu_s(CLOCK_THREAD_CPUTIME_ID) - mine);
  load.tokens = server.engine.stats().generated_tokens;
  load.decode_tokens += load.tokens;
  return load;
}

TEST(Speed, CpuPerStreamedToken) {
  for (const int streams : {1, 16, 64}) {
    TestServer server;
    const Load load = run_streams(server, streams, 128000 / streams / (streams == 1 ? 4 : 1));
    const double us = load.server_cpu_s * 1e6 / static_cast<double>(load.tokens);
    std::printf("%d streams: %lld tokens, %.2f us of CPU a token, %.2f tokens a read\n", streams,
                static_cast<long long>(load.tokens), us,
                static_cast<double>(load.tokens) / static_cast<double>(load.pieces));
    EXPECT_LT(us, 30);
  }
}

// Tokens a second of 64 replies at once, without a server.
double alone_tokens_per_s(int streams, int tokens) {
  ToldModel model({.step_s = 0.02});
  engine::Scheduler scheduler(model, {.draft_from_text = false});
  const auto prompt =
      model.tokenizer().encode("<|user|>count " + std::to_string(tokens) + "<|assistant|><think>", true);
  for (int i = 0; i < streams; ++i) {
    engine::Request request;
    request.prompt = prompt;
    request.max_tokens = 10000;
    request.sampling.temperature = 0;
    request.stop_tokens = {*model.tokenizer().find("<|user|>")};
    scheduler.submit(request, nullptr);
  }
  while (scheduler.stats().generated_tokens < streams) scheduler.step();
  const auto before = scheduler.stats().generated_tokens;
  const auto start = Clock::now();
  while (!scheduler.idle()) scheduler.step();
  return static_cast<double>(scheduler.stats().generated_tokens - before) /
         std::chrono::duration<double>(Clock::now() - start).count();
}

// Whatever else runs on the machine only slows both: the best of some runs each, taken in turns, are compared.
TEST(Speed, SixtyFourStreamsKeepUpWithTheEngine) {
  constexpr int kStreams = 64, kTokens = 100, kMostRuns = 12;
  double alone = 0;
  double served = 0;
  for (int run = 0; run < kMostRuns && (run < 2 || served <= 0.97 * alone); ++run) {
    alone = std::max(alone, alone_tokens_per_s(kStreams, kTokens));
    TestServer server({.model = {.step_s = 0.02}});
    const Load load = run_streams(server, kStreams, kTokens);
    served = std::max(served, static_cast<double>(load.decode_tokens) / load.decode_s);
    if (run == 0)
      std::printf("a token at a time: %.2f us of CPU a token, %.2f tokens a read\n",
                  load.server_cpu_s * 1e6 / static_cast<double>(load.tokens),
                  static_cast<double>(load.tokens) / static_cast<double>(load.pieces));
  }
  std::printf("tokens/s: %.1f alone, %.1f served (%.2f %%)\n", alone, served, 100 * served / alone);
  EXPECT_GT(served, 0.97 * alone);
}

}  // namespace
}  // namespace verbatim::server
