// HTTP itself: routes that do not exist, requests that are none, clients that are slow, many or gone, and what all of
// that costs in memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <thread>

#include "server/heap.h"
#include "tests/server/test_server.h"

namespace verbatim::server {
namespace {

using std::chrono::milliseconds;

int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t pages = 0;
  file >> pages >> pages;
  return pages * 4096;
}

// Of the connections that went away: the server notices soon, not at once.
bool becomes_true(const std::function<bool()>& condition, int wait_ms = 5000) {
  const auto end = Clock::now() + milliseconds(wait_ms);
  while (!condition()) {
    if (Clock::now() > end) return false;
    std::this_thread::sleep_for(milliseconds(2));
  }
  return true;
}

const std::string kHead = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";

TEST(Http, RoutesThatDoNotExist) {
  TestServer server;
  EXPECT_EQ(server.get("/nowhere").status, 404);
  EXPECT_EQ(server.get("/nowhere").error("code"), "not_found");
  const Answer wrong = server.get("/v1/chat/completions");
  EXPECT_EQ(wrong.status, 405);
  EXPECT_EQ(wrong.headers.at("allow"), "POST");
  EXPECT_EQ(server.get("/v1/models/unknown").status, 404);
  EXPECT_EQ(server.get("/v1/models/alias%2Fof-it").status, 200);
  EXPECT_EQ(server.get("/v1/models/alias/of-it").json()["id"], "alias/of-it");
  EXPECT_EQ(server.get("/%00").status, 400);
  EXPECT_EQ(server.get("/../../etc/passwd").status, 404);
  EXPECT_EQ(server.get("/health?x=1").status, 200);
  const Answer head = Client(server.port()).request("HEAD", "/health");
  EXPECT_EQ(head.status, 200);
  EXPECT_TRUE(head.body.empty());
}

TEST(Http, NotHttp) {
  TestServer server;
  for (const std::string& bytes :
       {std::string("hello\r\n\r\n"), std::string("GET / HTTP/9.9\r\n\r\n"), std::string("GET  HTTP/1.1\r\n\r\n"),
        std::string("GET / HTTP/1.1\r\n\r\n"), std::string("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"),
        std::string("GET http://localhost/ HTTP/1.1\r\nHost: localhost\r\n\r\n"), std::string("\0\0\0\0\r\n\r\n", 8),
        std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"),
        kHead + "Content-Length: 5\r\nContent-Length: 6\r\n\r\n{}", kHead + "Content-Length: -1\r\n\r\n{}",
        kHead + "Content-Length: 99999999999999999999999\r\n\r\n{}",
        kHead + "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        kHead + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        kHead + "Transfer-Encoding: chunked\r\n\r\nxyz\r\n"}) {
    Client client(server.port());
    client.send(bytes);
    EXPECT_EQ(client.answer().status, 400) << bytes;
    EXPECT_TRUE(client.ends_within(5000)) << bytes;
  }
  Client client(server.port());
  client.send(kHead + "\r\n{}");
  EXPECT_EQ(client.answer().status, 411);
  EXPECT_EQ(server.get("/health").status, 200);
}

TEST(Http, KeepAliveAndPipelining) {
  TestServer server;
  Client client(server.port());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(client.request("GET", "/health").status, 200);
  std::string many;
  for (int i = 0; i < 300; ++i) many += Client::text_of("GET", "/health", "", {});
  std::thread sender([&] { client.send(many); });
  for (int i = 0; i < 300; ++i) ASSERT_EQ(client.answer().status, 200) << i;
  sender.join();
  const std::string chat = R"({"messages":[{"role":"user","content":"x"}],"stream":true})";
  client.send(Client::text_of("POST", "/v1/chat/completions", chat, {}) + Client::text_of("GET", "/health", "", {}));
  EXPECT_EQ(sse_data(client.answer().body).back(), "[DONE]");
  EXPECT_EQ(client.answer().status, 200);
}

TEST(Http, BodiesInPieces) {
  TestServer server;
  const std::string chat = R"({"messages":[{"role":"user","content":"hi"}],"temperature":0})";
  Client client(server.port());
  client.send(kHead + "Transfer-Encoding: chunked\r\n\r\n");
  for (const char byte : chat) client.send(std::string("1\r\n") + byte + "\r\n");
  client.send("0\r\n\r\n");
  EXPECT_EQ(client.answer().json()["choices"][0]["message"]["content"], "hi");
  client.send(kHead + "Content-Length: " + std::to_string(chat.size()) + "\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_NE(client.receive().find("100 Continue"), std::string::npos);
  client.send(chat);
  EXPECT_EQ(client.answer().json()["choices"][0]["message"]["content"], "hi");
  Client old(server.port());  // a stream without chunks ends with its connection
  const std::string stream = R"({"messages":[{"role":"user","content":"hi"}],"stream":true})";
  old.send(
      "POST /v1/chat/completions HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: " +
      std::to_string(stream.size()) + "\r\n\r\n" + stream);
  EXPECT_EQ(sse_data(old.answer().body).back(), "[DONE]");
}

TEST(Http, RequestIds) {
  TestServer server;
  const Answer one = server.get("/health");
  const Answer other = server.get("/health");
  EXPECT_FALSE(one.headers.at("x-request-id").empty());
  EXPECT_NE(one.headers.at("x-request-id"), other.headers.at("x-request-id"));
}

ServerOptions impatient() {
  ServerOptions options;
  options.http.limits.header_timeout = milliseconds(600);
  options.http.limits.body_timeout = milliseconds(600);
  options.http.limits.idle_timeout = milliseconds(600);
  options.http.limits.write_timeout = milliseconds(600);
  return options;
}

TEST(SlowClients, AreLetGo) {
  TestServer server({.server = impatient()});
  Client silent(server.port()), header(server.port()), body(server.port()), idle(server.port());
  idle.request("GET", "/health");
  header.send("GET /health HTTP/1.1\r\nHost: loc");
  body.send(kHead + "Content-Length: 1000\r\n\r\n{");
  std::atomic<bool> stop{false};
  std::thread trickle([&] {  // a byte now and then does not help
    while (!stop) {
      if (!header.send("x") || !body.send(" ")) break;
      std::this_thread::sleep_for(milliseconds(50));
    }
  });
  EXPECT_TRUE(silent.ends_within(3000));
  EXPECT_TRUE(idle.ends_within(3000));
  EXPECT_TRUE(becomes_true([&] { return server.server->http_counts().exchanges == 0; }));
  stop = true;
  trickle.join();
  EXPECT_EQ(header.answer().status, 408);
  EXPECT_EQ(body.answer().status, 408);
  EXPECT_TRUE(becomes_true([&] { return server.server->http_counts().connections == 0; }));
  EXPECT_EQ(server.server->http_counts().body_bytes, 0);
}

TEST(SlowClients, WhoDoesNotReadIsCancelled) {
  TestServer server(
      {.model = {.script = [](const std::string&) { return std::string(60000, 'x'); }}, .server = impatient()});
  Client client(server.port());
  const int small = 4096;
  ::setsockopt(client.socket(), SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
  const std::string body =
      R"({"messages":[{"role":"user","content":"x"}],"stream":true,"logprobs":true,"top_logprobs":20,"max_tokens":60000})";
  client.send(Client::text_of("POST", "/v1/chat/completions", body, {}));
  EXPECT_TRUE(becomes_true([&] { return server.engine.stats().running == 1; }));
  EXPECT_TRUE(becomes_true([&] { return server.server->http_counts().connections == 0; }, 20000));
  EXPECT_TRUE(becomes_true([&] { return server.engine.stats().running == 0; }));
}

// What a client without a key, one with it, and one of a server without keys can make the server hold.
enum class Who { kNoKeys, kWithKey, kWithoutKey };
class Huge : public testing::TestWithParam<Who> {};

TEST_P(Huge, HeadersAndBodiesAreRefused) {
  keep_heap_small();
  const KeyFile file("sk-first-key\n");
  const bool is_stranger = GetParam() == Who::kWithoutKey;
  ServerOptions options;
  if (GetParam() != Who::kNoKeys) options.api_key_file = file.path();
  TestServer server({.server = options});
  EXPECT_EQ(server.get("/health").status, 200);
  const std::string head = kHead + (GetParam() == Who::kWithKey ? "x-api-key: sk-first-key\r\n" : "");
  const std::string block(64 << 10, 'a');
  std::string lines;
  for (int i = 0; i < 1000; ++i) lines += "X-Header-" + std::to_string(i) + ": value\r\n";
  struct Row {
    const char* name;
    std::string begin, piece;
    int status;  // of the answer, to who may ask
  };
  const std::vector<Row> rows = {
      {"declared body", head + "Content-Length: 1073741824\r\n\r\n", block, 413},
      {"chunked body", head + "Transfer-Encoding: chunked\r\n\r\n", "10000\r\n" + block + "\r\n", 413},
      {"body without length", head + "\r\n", block, 411},
      {"endless headers", head, lines, 431},
      {"endless header line", head + "X-Long: ", block, 431},
      {"endless chunk header", head + "Transfer-Encoding: chunked\r\n\r\n1;x=", block, 400}};
  const int64_t before = resident_bytes();
  for (const Row& row : rows) {
    int64_t most = before;
    Client client(server.port());
    client.send(row.begin);
    for (int64_t sent = 0; sent < int64_t{1} << 30 && client.send(row.piece); sent += std::ssize(row.piece))
      most = std::max(most, resident_bytes());
    EXPECT_EQ(client.answer().status, is_stranger && row.status != 431 ? 401 : row.status) << row.name;
    EXPECT_TRUE(client.ends_within(5000)) << row.name;
    std::printf("%s: resident memory up by at most %.1f MiB\n", row.name, static_cast<double>(most - before) / 0x1p20);
    EXPECT_LT(most - before, int64_t{32} << 20) << row.name;
  }
  EXPECT_TRUE(becomes_true([&] { return server.server->http_counts().connections == 0; }));
  EXPECT_EQ(server.server->http_counts().body_bytes, 0);
  EXPECT_EQ(server.get("/health").status, 200);
}

INSTANTIATE_TEST_SUITE_P(Clients, Huge, testing::Values(Who::kNoKeys, Who::kWithKey, Who::kWithoutKey));

TEST(Limits, TwoThousandIdleConnections) {
  TestServer server({.server = {.http = {.limits = {.connections = 512}}}});
  EXPECT_EQ(server.get("/health").status, 200);
  const int64_t before = resident_bytes();
  std::vector<Client> clients;
  for (int i = 0; i < 2000; ++i) clients.emplace_back(server.port());
  EXPECT_TRUE(becomes_true([&] { return server.server->http_counts().refused_connections >= 1480; }));
  EXPECT_LE(server.server->http_counts().connections, 512);
  const int64_t after = resident_bytes();
  std::printf("resident: %.1f MiB more\n", static_cast<double>(after - before) / 0x1p20);
  EXPECT_LT(after - before, int64_t{32} << 20);
  int refused = 0;
  for (Client& client : clients) {
    const std::string said = client.receive(0);
    refused += said.find(" 503 ") != std::string::npos;
  }
  EXPECT_GE(refused, 1480);
  clients.clear();
  EXPECT_TRUE(becomes_true([&] { return server.server->http_counts().connections == 0; }));
  EXPECT_EQ(server.get("/health").status, 200);
}

TEST(Limits, AllBodiesTogether) {
  ServerOptions options;
  options.http.limits.all_body_bytes = 1 << 20;
  TestServer server({.server = options});
  std::vector<Client> clients;
  for (int i = 0; i < 3; ++i) {
    clients.emplace_back(server.port());
    clients.back().send(kHead + "Content-Length: 600000\r\n\r\n" + std::string(500000, ' '));
  }
  const auto answered = [&] {
    return std::count_if(clients.begin(), clients.end(), [](Client& client) { return client.has_something(); });
  };
  EXPECT_TRUE(becomes_true([&] { return answered() == 1; }));
  for (Client& client : clients) {
    if (client.has_something()) {
      EXPECT_EQ(client.answer().status, 503);
    }
  }
  EXPECT_EQ(server.server->http_counts().body_bytes, 1000000);
  clients.clear();
  EXPECT_TRUE(becomes_true([&] { return server.server->http_counts().body_bytes == 0; }));
}

TEST(Limits, WorkersQueue) {
  ServerOptions options;
  options.worker_queue = 0;
  TestServer server({.server = options});
  const Answer answer = server.chat("hi");
  EXPECT_EQ(answer.status, 503);
  EXPECT_EQ(answer.error("code"), "overloaded");
  EXPECT_EQ(server.get("/health").status, 200);
}

TEST(Streams, SilentOnesAreKeptAlive) {
  ServerOptions options;
  options.http.limits.keep_alive = milliseconds(200);
  TestServer server({.model = {.step_s = 1}, .server = options});
  Client client(server.port());
  client.send(Client::text_of("POST", "/v1/chat/completions",
                              R"({"messages":[{"role":"user","content":"x"}],"stream":true,"max_tokens":2})", {}));
  const Answer answer = client.answer();
  EXPECT_NE(answer.body.find("\n\n: keep-alive\n\n"), std::string::npos) << answer.body;
  EXPECT_TRUE(answer.body.ends_with("data: [DONE]\n\n"));
}

// A step that fails ends the engine: its clients are told, and the server says that it is not ready.
TEST(Failure, OfTheEngine) {
  for (const bool streams : {false, true}) {
    TestServer server(
        {.model = {.script = [](const std::string&) -> std::string { throw std::runtime_error("boom"); }}});
    const Answer answer = server.chat("x", {{"stream", streams}});
    if (streams) {
      const std::vector<std::string> events = sse_data(answer.body);
      ASSERT_GE(events.size(), 2u);
      EXPECT_NE(events[events.size() - 2].find("boom"), std::string::npos) << answer.body;
      EXPECT_EQ(events.back(), "[DONE]");
    } else {
      EXPECT_EQ(answer.status, 500);
      EXPECT_EQ(answer.error("type"), "server_error");
      EXPECT_NE(answer.error("message").find("boom"), std::string::npos);
    }
    EXPECT_EQ(server.get("/health").status, 200);
    const Answer ready = server.get("/health/ready");
    EXPECT_EQ(ready.status, 503);
    EXPECT_EQ(ready.error("code"), "engine_failed");
    EXPECT_EQ(server.chat("x").status, 503);
  }
}

TEST(Drain, RunningRepliesFinishAndNewOnesAreRefused) {
  TestServer server({.model = {.step_s = 0.005}});
  Client running(server.port());
  running.send(Client::text_of("POST", "/v1/chat/completions",
                               R"({"messages":[{"role":"user","content":"count 100"}],"stream":true})", {}));
  ASSERT_TRUE(becomes_true([&] { return server.engine.stats().running == 1; }));
  server.server->begin_drain();
  const Answer refused = server.chat("hi");
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.error("code"), "draining");
  EXPECT_TRUE(refused.headers.contains("retry-after"));
  EXPECT_EQ(server.get("/health").status, 200);        // alive
  EXPECT_EQ(server.get("/health/ready").status, 503);  // not ready
  EXPECT_TRUE(server.server->drain(milliseconds(10000)));
  EXPECT_EQ(sse_data(running.answer().body).back(), "[DONE]");
}

}  // namespace
}  // namespace verbatim::server
