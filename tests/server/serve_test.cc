// `verbatim serve` as its users start, signal and end it, around a small checkpoint.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/checkpoint/test_files.h"
#include "tests/server/client.h"
#include "tests/server/told_model.h"

namespace verbatim::server {
namespace {

using checkpoint::TemporaryDirectory;
using nlohmann::json;

// The tiny checkpoint with a tokenizer of bytes and tags, its template and its end tokens.
class Checkpoint {
 public:
  Checkpoint() {
    std::filesystem::copy(std::filesystem::path(VERBATIM_TINY) / "tiny-nvfp4", path(),
                          std::filesystem::copy_options::recursive);
    std::ofstream(path() / "tokenizer.json") << text::byte_tokenizer_json(told_tokens());
    std::ofstream(path() / "chat_template.jinja") << kToldTemplate;
    const text::Tokenizer tokenizer = text::byte_tokenizer(told_tokens());
    std::ofstream(path() / "generation_config.json")
        << json{{"eos_token_id", {*tokenizer.find("<|user|>"), *tokenizer.find("<|endoftext|>")}}};
  }
  std::filesystem::path path() const { return directory_.path() / "small"; }

 private:
  TemporaryDirectory directory_;
};

// A running `verbatim serve`; ended and waited for at the latest when it goes.
class Process {
 public:
  explicit Process(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {VERBATIM_PROGRAM, "serve"});
    int ends[2];
    if (::pipe(ends) != 0) throw std::runtime_error("no pipe");
    id_ = ::fork();
    if (id_ == 0) {
      ::dup2(ends[1], STDERR_FILENO);
      ::close(ends[0]);
      std::vector<char*> argv;
      for (std::string& one : arguments) argv.push_back(one.data());
      argv.push_back(nullptr);
      ::alarm(120);
      ::execv(argv[0], argv.data());
      ::_exit(127);
    }
    ::close(ends[1]);
    reader_ = std::thread([this, from = ends[0]] {
      char bytes[4096];
      for (ssize_t got; (got = ::read(from, bytes, sizeof bytes)) > 0;) {
        const std::lock_guard lock(mutex_);
        text_.append(bytes, static_cast<size_t>(got));
      }
      ::close(from);
    });
  }
  ~Process() {
    if (id_ > 0) {
      signal(SIGKILL);
      wait();
    }
  }

  void signal(int number) const { ::kill(id_, number); }
  int wait() {
    int status = 0;
    ::waitpid(std::exchange(id_, -1), &status, 0);
    reader_.join();
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  std::string text() {
    const std::lock_guard lock(mutex_);
    return text_;
  }
  bool says(const std::string& what, int wait_ms = 30'000) {
    for (int waited = 0; waited < wait_ms; waited += 10) {
      if (text().find(what) != std::string::npos) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }
  uint16_t port() {
    if (!says("base_url http://127.0.0.1:")) throw std::runtime_error("it does not start: " + text());
    const std::string all = text();
    return static_cast<uint16_t>(std::stoi(all.substr(all.find("http://127.0.0.1:") + 17)));
  }

 private:
  pid_t id_ = -1;
  std::mutex mutex_;
  std::string text_;
  std::thread reader_;
};

std::vector<std::string> arguments(const Checkpoint& checkpoint, std::vector<std::string> more = {}) {
  more.insert(more.begin(), {checkpoint.path().string(), "--port", "0", "--memory", "512MiB", "--sequences", "4",
                             "--context", "4096", "--threads", "2"});
  return more;
}

const json kChat = {
    {"messages", {{{"role", "user"}, {"content", "tell me something"}}}}, {"max_tokens", 40}, {"seed", 11}};

TEST(Serve, StartsSaysWhereServesAndEnds) {
  const Checkpoint checkpoint;
  Process process(arguments(checkpoint, {"--served-name", "small", "--served-name", "alias"}));
  const uint16_t port = process.port();
  const std::string said = process.text();
  for (const char* part : {"small on cpu", "4 sequences at once", "context 4096 tokens", "memory: weights",
                           "model small", "Anthropic clients"})
    EXPECT_NE(said.find(part), std::string::npos) << part << "\n" << said;
  EXPECT_EQ(Client(port).request("GET", "/v1/models").json()["data"][1]["id"], "alias");

  // The same request gives the same reply, whole or streamed, alone or beside others, drafted or not.
  const std::string hash =
      Client(port).request("POST", "/v1/chat/completions", kChat.dump()).json()["verbatim"]["token_hash"];
  EXPECT_EQ(hash.size(), 16u);
  std::vector<std::thread> others;
  std::atomic<int> same{0};
  for (int i = 0; i < 8; ++i)
    others.emplace_back([&, i] {
      json body = kChat;
      body["stream"] = i % 2 == 0;
      body["draft"] = i % 4 < 2;
      const Answer answer = Client(port).request("POST", "/v1/chat/completions", body.dump());
      same += answer.body.find("\"token_hash\":\"" + hash + "\"") != std::string::npos;
    });
  for (std::thread& other : others) other.join();
  EXPECT_EQ(same, 8);

  Client running(port);
  json longer = kChat;
  longer["stream"] = true;
  longer["max_tokens"] = 300;
  longer["ignore_eos"] = true;
  running.send(Client::text_of("POST", "/v1/chat/completions", longer.dump(), {}));
  EXPECT_FALSE(running.receive().empty());
  process.signal(SIGTERM);
  EXPECT_TRUE(process.says("draining"));
  EXPECT_EQ(Client(port).request("POST", "/v1/chat/completions", kChat.dump()).status, 503);
  std::string rest;
  for (std::string piece; !(piece = running.receive()).empty();) rest += piece;
  EXPECT_NE(rest.find("[DONE]"), std::string::npos);
  EXPECT_EQ(process.wait(), 0);
  EXPECT_NE(process.text().find("POST /v1/chat/completions 200"), std::string::npos);
  EXPECT_NE(process.text().find("hash=" + hash), std::string::npos);
}

TEST(Serve, ASecondSignalEndsItAtOnce) {
  const Checkpoint checkpoint;
  Process process(arguments(checkpoint));
  const uint16_t port = process.port();
  Client running(port);
  json longer = kChat;
  longer["stream"] = true;
  longer["max_tokens"] = 4000;  // seconds of work
  longer["ignore_eos"] = true;
  running.send(Client::text_of("POST", "/v1/chat/completions", longer.dump(), {}));
  EXPECT_FALSE(running.receive().empty());
  process.signal(SIGINT);
  EXPECT_TRUE(process.says("draining"));
  process.signal(SIGINT);
  EXPECT_EQ(process.wait(), -SIGINT);
}

TEST(Serve, KeysAndJsonLogs) {
  const Checkpoint checkpoint;
  const std::filesystem::path keys = checkpoint.path() / "keys";
  std::ofstream(keys) << "alice sk-alices-key\n";
  Process process(arguments(checkpoint, {"--api-key-file", keys.string(), "--log-json", "--log-debug"}));
  const uint16_t port = process.port();
  json body = kChat;
  body["a_field_of_tomorrow"] = 1;
  EXPECT_EQ(Client(port).request("POST", "/v1/chat/completions", body.dump()).status, 401);
  EXPECT_EQ(Client(port).request("POST", "/v1/chat/completions", body.dump(), {{"x-api-key", "sk-alices-key"}}).status,
            200);
  std::ofstream(keys) << "bob sk-bobs-own-key\n";
  process.signal(SIGHUP);
  EXPECT_TRUE(process.says("API keys read again"));
  EXPECT_EQ(Client(port).request("GET", "/v1/models", "", {{"x-api-key", "sk-alices-key"}}).status, 401);
  EXPECT_EQ(Client(port).request("GET", "/v1/models", "", {{"x-api-key", "sk-bobs-own-key"}}).status, 200);
  process.signal(SIGTERM);
  EXPECT_EQ(process.wait(), 0);
  std::istringstream lines(process.text());
  bool has_request = false;
  bool has_ignored = false;
  for (std::string line; std::getline(lines, line);) {
    const json parsed = json::parse(line, nullptr, false);
    ASSERT_TRUE(parsed.is_object()) << line;
    EXPECT_TRUE(parsed.contains("level") && parsed.contains("message") && parsed.contains("time")) << line;
    has_request = has_request || (parsed.value("status", 0) == 200 && parsed.value("key", "") == "alice" &&
                                  parsed.value("generated_tokens", 0) > 0 && parsed.contains("token_hash"));
    has_ignored = has_ignored || parsed["message"].get<std::string>().find("a_field_of_tomorrow") != std::string::npos;
    EXPECT_EQ(line.find("sk-"), std::string::npos) << "a key in the log";
  }
  EXPECT_TRUE(has_request);
  EXPECT_TRUE(has_ignored);
}

TEST(Serve, Refusals) {
  const Checkpoint checkpoint;
  const auto refused = [&](std::vector<std::string> given, int code, const std::string& says) {
    Process process(std::move(given));
    EXPECT_EQ(process.wait(), code) << process.text();
    EXPECT_NE(process.text().find(says), std::string::npos) << process.text();
  };
  refused({}, 2, "directory");
  refused(arguments(checkpoint, {"--nonsense"}), 2, "nonsense");
  refused(arguments(checkpoint, {"--effort", "huge"}), 2, "--effort");
  refused({checkpoint.path().string(), "--memory", "1MiB"}, 1, "give more memory");
  refused({checkpoint.path().string(), "--memory", "much"}, 2, "--memory");
  refused(arguments(checkpoint, {"--api-key-file", "/nonexistent"}), 1, "/nonexistent");
  refused(arguments(checkpoint, {"--host", "203.0.113.7"}), 1, "cannot listen");
  refused({std::string(VERBATIM_TINY) + "/tiny-nvfp4"}, 1, "tokenizer.json");
  Process first(arguments(checkpoint));
  std::vector<std::string> taken = arguments(checkpoint);
  taken[2] = std::to_string(first.port());
  refused(std::move(taken), 1, "cannot listen");
  first.signal(SIGTERM);
  EXPECT_EQ(first.wait(), 0);
}

TEST(Serve, WarnsWhenOpenToTheNetwork) {
  const Checkpoint checkpoint;
  Process process(arguments(checkpoint, {"--host", "0.0.0.0"}));
  EXPECT_TRUE(process.says("open to the network without keys"));
  EXPECT_TRUE(process.says("base_url http://localhost:"));
  process.signal(SIGTERM);
  EXPECT_EQ(process.wait(), 0);
}

}  // namespace
}  // namespace verbatim::server
