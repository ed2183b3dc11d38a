// The soak against servers in this process: a right one, and ones that it must catch.
#include "evaluate/soak.h"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/error.h"
#include "tests/server/protocols/scripted_server.h"

namespace verbatim::evaluate {
namespace {

using server::ScriptedOptions;
using server::ScriptedServer;

ScriptedOptions small() {
  ScriptedOptions options;
  options.model.hits_in_ten = 7;
  options.model.step_s = 0.0005;  // so that steps hold several sequences
  return options;
}

SoakOptions against(const ScriptedServer& server) {
  SoakOptions options;
  options.url = server.url();
  options.requests = 150;
  options.concurrency = 8;
  options.cases = 30;
  options.fresh = 10;
  options.prompt_words = 100;
  options.reply_tokens = 40;
  options.silence_s = 20;
  options.sample_s = 0.05;
  options.warm_up_s = 0;
  return options;
}

SoakReport run(const SoakOptions& options) {
  return soak(options, [](const std::string&) {});
}

TEST(Soak, FindsNothingWrongWithARightServer) {
  ScriptedServer server(small());
  const SoakOptions options = against(server);
  const SoakReport report = run(options);
  SCOPED_TRACE(soak_table(report));
  EXPECT_TRUE(report.is_clean());
  EXPECT_EQ(report.requests, options.requests);
  EXPECT_EQ(report.completed + report.cancelled + report.refused, report.requests);
  EXPECT_EQ(report.refused_cases, 0);
  EXPECT_GT(report.cancelled, 0);
  EXPECT_GE(report.checked, report.completed);
  EXPECT_GE(report.kinds.size(), 9u);  // every kind
  EXPECT_GT(report.first_token.count, 0);
  EXPECT_GT(report.between_tokens.count, report.first_token.count);
  EXPECT_GT(report.generated_tokens, report.completed);
  EXPECT_GT(report.memory_warm_bytes, 1 << 20);
  EXPECT_GE(report.memory_most_bytes, report.memory_end_bytes);
  // It used what it is meant to use.
  engine::SchedulerStats stats = server.engine().stats();
  for (int tries = 0; tries < 500 && stats.running + stats.waiting > 0; ++tries) {  // those left end by the next step
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    stats = server.engine().stats();
  }
  EXPECT_GT(stats.cached_tokens, 0);
  EXPECT_GT(stats.accepted_tokens, 0);
  EXPECT_EQ(stats.running, 0);
  EXPECT_EQ(stats.waiting, 0);

  const auto parsed = nlohmann::json::parse(soak_json(options, report));
  EXPECT_EQ(parsed["completed"], report.completed);
  EXPECT_EQ(parsed["wrong"], 0);
  EXPECT_EQ(parsed["clean"], true);
}

TEST(Soak, RequestsAreAFunctionOfTheSeed) {
  const auto kinds = [](uint64_t seed) {
    ScriptedServer server(small());
    SoakOptions options = against(server);
    options.requests = 10;
    options.concurrency = 1;
    options.seed = seed;
    return run(options).kinds;
  };
  EXPECT_EQ(kinds(3), kinds(3));
}

TEST(Soak, NoticesRepliesThatDependOnTheBatch) {
  ScriptedServer server(small());
  server.model().wrong_beyond_spans = 3;
  const SoakReport report = run(against(server));
  EXPECT_GT(report.wrong, 0);
  EXPECT_FALSE(report.is_clean());
  ASSERT_FALSE(report.failures.empty());
  EXPECT_NE(report.failures[0].what.find("alone"), std::string::npos) << report.failures[0].what;
  // The request is there, to ask it again.
  EXPECT_TRUE(nlohmann::json::parse(report.failures[0].body).contains("seed")) << report.failures[0].body;
  EXPECT_NE(soak_table(report).find("FAILED"), std::string::npos);
}

TEST(Soak, NoticesAServerThatDies) {
  auto server = std::make_unique<ScriptedServer>(small());
  SoakOptions options = against(*server);
  options.requests = 0;
  options.seconds = 2;
  options.silence_s = 1;
  bool has_begun = false;
  const SoakReport report = soak(options, [&](const std::string&) { has_begun = true; });
  EXPECT_TRUE(has_begun);
  EXPECT_TRUE(report.is_clean());
  const std::string gone = options.url;
  server.reset();
  EXPECT_THROW(run(options), Error);
}

TEST(Soak, CountsRefusalsApart) {
  ScriptedOptions few = small();
  few.scheduler.queue_limit = 4;
  few.model.slots = 1;
  ScriptedServer server(few);
  SoakOptions options = against(server);
  options.requests = 60;
  options.concurrency = 16;
  const SoakReport report = run(options);
  SCOPED_TRACE(soak_table(report));
  EXPECT_GT(report.refused, 0);
  EXPECT_EQ(report.lost, 0);
  EXPECT_EQ(report.wrong, 0);
}

TEST(Soak, LeavesOutWhatTheServerRefuses) {
  ScriptedOptions narrow = small();
  narrow.context_tokens = 400;
  ScriptedServer server(narrow);
  SoakOptions options = against(server);
  options.prompt_words = 400;
  options.requests = 30;
  const SoakReport report = run(options);
  EXPECT_GT(report.refused_cases, 0);
  EXPECT_FALSE(report.refusals.empty());
  EXPECT_TRUE(report.is_clean()) << soak_table(report);
}

// The command's exit code; `output` gets what it printed.
int command(const std::string& arguments, std::string* output = nullptr) {
  FILE* pipe = ::popen((std::string(VERBATIM_PROGRAM) + " soak " + arguments + " 2>/dev/null").c_str(), "r");
  std::array<char, 4096> buffer;
  for (size_t n; (n = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;)
    if (output != nullptr) output->append(buffer.data(), n);
  const int status = ::pclose(pipe);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(SoakCommand, ExitsWithWhatItFound) {
  ScriptedServer server(small());
  const std::string few =
      server.url() + " --requests 40 --concurrency 8 --cases 24 --fresh 2 --prompt-words 60 --reply-tokens 40 --json";
  std::string output;
  EXPECT_EQ(command(few, &output), 0);
  const auto report = nlohmann::json::parse(output, nullptr, false);
  ASSERT_TRUE(report.is_object()) << output;
  EXPECT_EQ(report["requests"], 40);
  for (const char* key : {"completed", "cancelled", "refused", "lost", "wrong", "tokens_per_s", "first_token",
                          "between_tokens", "memory", "failures"})
    EXPECT_TRUE(report.contains(key)) << key;
  server.model().wrong_beyond_spans = 2;
  output.clear();
  EXPECT_EQ(command(few, &output), 1);
  EXPECT_GT(nlohmann::json::parse(output)["wrong"], 0) << output;
  EXPECT_EQ(command("127.0.0.1:1"), 1);
  EXPECT_EQ(command(""), 2);
  EXPECT_EQ(command("https://127.0.0.1"), 2);
  EXPECT_EQ(command(server.url() + " --concurrency 0"), 2);
}

TEST(Soak, WantsAServersAddress) {
  SoakOptions options;
  options.url = "https://127.0.0.1:1";
  EXPECT_THROW(run(options), Error);
  options.url = "127.0.0.1:1";
  EXPECT_THROW(run(options), Error);
}

}  // namespace
}  // namespace verbatim::evaluate
