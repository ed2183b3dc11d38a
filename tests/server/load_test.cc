// Many clients at once: streams arrive as they are made, /health answers meanwhile, and who goes away is let go.
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "tests/server/test_server.h"

namespace verbatim::server {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

bool becomes_true(const std::function<bool()>& condition, int wait_ms = 5000) {
  const auto end = Clock::now() + milliseconds(wait_ms);
  while (!condition()) {
    if (Clock::now() > end) return false;
    std::this_thread::sleep_for(milliseconds(1));
  }
  return true;
}

std::string streaming(const std::string& user) {
  return Client::text_of("POST", "/v1/chat/completions",
                         json{{"messages", {{{"role", "user"}, {"content", user}}}}, {"stream", true}}.dump(), {});
}

// How late the system wakes a thread that does nothing but sleep: what no server can be quicker than.
class Lateness {
 public:
  Lateness() : thread_([this] { run(); }) {}
  ~Lateness() { worst_ms(); }
  double worst_ms() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
    return worst_ms_;
  }

 private:
  void run() {
    while (!stop_) {
      const auto start = Clock::now();
      std::this_thread::sleep_for(milliseconds(2));
      worst_ms_ = std::max(worst_ms_, std::chrono::duration<double>(Clock::now() - start).count() * 1e3 - 2);
    }
  }
  std::atomic<bool> stop_{false};
  double worst_ms_ = 0;
  std::thread thread_;
};

// 60 tokens, 10 ms each: the pieces of each stream come over that time, not in one burst at its end.
TEST(Streams, ArriveAsTheyAreMade) {
  TestServer server({.model = {.step_s = 0.01}});
  Client client(server.port());
  client.send(streaming("count 60"));
  std::vector<Client::Piece> pieces;
  EXPECT_EQ(client.answer(false, &pieces).status, 200);
  ASSERT_GT(pieces.size(), 40u);
  const auto first = pieces.front().when;
  const double spread = std::chrono::duration<double>(pieces.back().when - first).count();
  EXPECT_GT(spread, 0.5);
  std::vector<double> gaps;
  for (size_t i = 2; i < pieces.size(); ++i)
    gaps.push_back(std::chrono::duration<double>(pieces[i].when - pieces[i - 1].when).count());
  EXPECT_LT(*std::max_element(gaps.begin(), gaps.end()), 0.25 * spread);
  // A piece holds about one token: the middle one of all came in the middle of the time.
  const double middle = std::chrono::duration<double>(pieces[pieces.size() / 2].when - first).count();
  EXPECT_GT(middle, 0.25 * spread);
  EXPECT_LT(middle, 0.75 * spread);
}

TEST(Streams, SixtyFourProgressAndHealthAnswers) {
  TestServer server({.model = {.step_s = 0.02}});
  std::vector<Client> clients;
  for (int i = 0; i < 64; ++i) {
    clients.emplace_back(server.port());
    clients.back().send(streaming("count 60"));
  }
  ASSERT_TRUE(becomes_true([&] { return server.engine.stats().running == 64; }));
  std::vector<double> health_ms;
  Lateness lateness;
  std::vector<std::vector<Client::Piece>> pieces(clients.size());
  std::vector<std::thread> readers;
  std::atomic<int> whole{0};
  for (size_t i = 0; i < clients.size(); ++i)
    readers.emplace_back([&, i] {
      const Answer answer = clients[i].answer(false, &pieces[i]);
      whole += answer.status == 200 && answer.body.ends_with("data: [DONE]\n\n");
    });
  while (server.engine.stats().running > 0) {
    const auto start = Clock::now();
    EXPECT_EQ(server.get("/health").status, 200);
    health_ms.push_back(std::chrono::duration<double>(Clock::now() - start).count() * 1e3);
    std::this_thread::sleep_for(milliseconds(5));
  }
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(whole, 64);
  for (const auto& stream : pieces) {
    EXPECT_GT(stream.size(), 40u);
    EXPECT_GT(std::chrono::duration<double>(stream.back().when - stream.front().when).count(), 0.8);
  }
  std::sort(health_ms.begin(), health_ms.end());
  const double late_ms = lateness.worst_ms();
  std::printf(
      "/health beside 64 streams: median %.2f ms, slowest of %zu %.2f ms; a sleeping thread woke %.2f ms late\n",
      health_ms[health_ms.size() / 2], health_ms.size(), health_ms.back(), late_ms);
  EXPECT_LT(health_ms[health_ms.size() * 9 / 10], 50);
  EXPECT_LT(health_ms.back(), 50 + 3 * late_ms);  // three threads wake for an answer
}

// Rendering and tokenising megabytes must not keep /health waiting.
TEST(Streams, HealthAnswersBesideLongPrompts) {
  TestServer server({.model = {.pages = 1 << 20, .max_positions = 1 << 24}});
  const std::string body =
      json{{"messages", {{{"role", "user"}, {"content", std::string(3 << 20, 'x')}}}}, {"max_tokens", 1 << 30}}.dump();
  std::vector<std::thread> clients;
  std::atomic<int> left{6};
  for (int i = 0; i < 6; ++i)
    clients.emplace_back([&] {
      EXPECT_EQ(server.post_text("/v1/chat/completions", body).status, 400);  // more than the context: after tokenising
      --left;
    });
  double slowest_ms = 0;
  Lateness lateness;
  while (left > 0) {
    const auto start = Clock::now();
    EXPECT_EQ(server.get("/health").status, 200);
    slowest_ms = std::max(slowest_ms, std::chrono::duration<double>(Clock::now() - start).count() * 1e3);
    std::this_thread::sleep_for(milliseconds(2));
  }
  for (std::thread& client : clients) client.join();
  const double late_ms = lateness.worst_ms();
  std::printf("/health beside long prompts: slowest %.2f ms; a sleeping thread woke %.2f ms late\n", slowest_ms,
              late_ms);
  EXPECT_LT(slowest_ms, 50 + 3 * late_ms);
}

struct Gone {
  const char* name;
  bool streams;
  int slots;       // 0: the request waits behind another
  int prompt = 0;  // bytes
};

class Cancellation : public testing::TestWithParam<Gone> {};

TEST_P(Cancellation, FreesWithinAStep) {
  const Gone& gone = GetParam();
  TestServer server(
      {.model = {.slots = gone.slots == 0 ? 1 : gone.slots, .pages = 8192, .max_rows = 64, .step_s = 0.02}});
  const auto idle = server.engine.stats();
  std::optional<Client> first;
  if (gone.slots == 0) {
    first.emplace(server.port());
    first->send(streaming("count 30000"));
    ASSERT_TRUE(becomes_true([&] { return server.engine.stats().running == 1; }));
  }
  json body = {{"messages",
                {{{"role", "user"}, {"content", "count 30000" + std::string(static_cast<size_t>(gone.prompt), ' ')}}}}};
  if (gone.streams) body["stream"] = true;
  Client client(server.port());
  client.send(Client::text_of("POST", "/v1/chat/completions", body.dump(), {}));
  const auto has_it = [&] {
    const auto stats = server.engine.stats();
    return gone.slots == 0 ? stats.waiting == 1 : stats.running == 1;
  };
  ASSERT_TRUE(becomes_true(has_it));
  if (gone.prompt == 0 && gone.slots > 0) {
    ASSERT_TRUE(becomes_true([&] { return server.engine.stats().generated_tokens > 3; }));
  }
  client.close();
  const int64_t steps = server.model.forwards;
  ASSERT_TRUE(becomes_true([&] { return server.engine.stats().cancelled == 1; }));
  // The step that was running, and one for the news to travel.
  EXPECT_LE(server.model.forwards - steps, 2);
  if (first) {
    EXPECT_EQ(server.engine.stats().running, 1);
    first->close();
    ASSERT_TRUE(becomes_true([&] { return server.engine.stats().cancelled == 2; }));
  }
  EXPECT_TRUE(becomes_true([&] { return server.engine.stats().running == 0 && server.engine.stats().waiting == 0; }));
  EXPECT_EQ(server.engine.stats().pages_free, idle.pages_free);
  EXPECT_TRUE(becomes_true([&] { return server.server->http_counts().exchanges == 0; }));
  EXPECT_EQ(server.chat("hi").status, 200);
}

INSTANTIATE_TEST_SUITE_P(Clients, Cancellation,
                         testing::Values(Gone{"streaming", true, 8}, Gone{"whole", false, 8}, Gone{"queued", false, 0},
                                         Gone{"queued_stream", true, 0}, Gone{"long_prompt", false, 8, 20000},
                                         Gone{"long_prompt_stream", true, 8, 20000}),
                         [](const auto& gone) { return gone.param.name; });

// A half-closed client has said that it will send no more; like other servers, this one takes it for gone.
TEST(CancellationOf, HalfClosedClients) {
  TestServer server({.model = {.step_s = 0.01}});
  Client client(server.port());
  client.send(streaming("count 30000"));
  ASSERT_TRUE(becomes_true([&] { return server.engine.stats().running == 1; }));
  client.shut_down_sending();
  EXPECT_TRUE(becomes_true([&] { return server.engine.stats().cancelled == 1; }));
}

TEST(CancellationOf, ManyAtOnce) {
  TestServer server({.model = {.slots = 16, .step_s = 0.002}});
  for (int round = 0; round < 5; ++round) {
    std::vector<Client> clients;
    for (int i = 0; i < 40; ++i) {
      clients.emplace_back(server.port());
      clients.back().send(streaming("count 5000"));
    }
    ASSERT_TRUE(becomes_true([&] {
      const auto stats = server.engine.stats();
      return stats.running + stats.waiting == 40;
    }));
    clients.clear();
    EXPECT_TRUE(becomes_true([&] { return server.engine.stats().cancelled == 40 * (round + 1); }));
  }
  EXPECT_TRUE(becomes_true([&] { return server.server->http_counts().connections == 0; }));
}

TEST(Queue, IsBounded) {
  TestServer server({.model = {.slots = 1, .step_s = 0.01}, .scheduler = {.queue_limit = 3, .draft_from_text = false}});
  std::vector<Client> clients;
  for (int i = 0; i < 8; ++i) {
    clients.emplace_back(server.port());
    clients.back().send(streaming("count 30000"));
    ASSERT_TRUE(becomes_true([&] {
      const auto stats = server.engine.stats();
      return stats.running == 1 && stats.waiting >= std::min(i, 3);
    }));
  }
  const Answer full = server.chat("hi");
  EXPECT_EQ(full.status, 503);
  EXPECT_TRUE(full.headers.contains("retry-after"));
  clients.clear();
  EXPECT_TRUE(becomes_true([&] { return server.engine.stats().running == 0; }));
  EXPECT_EQ(server.chat("hi").status, 200);
}

}  // namespace
}  // namespace verbatim::server
