#include "cli/chat_terminal.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "base/error.h"
#include "tests/cli/chat_helpers.h"
#include "tests/cli/terminal.h"

namespace verbatim::cli {
namespace {

// A conversation whose first reply never ends by itself.
int talk() {
  Script script({std::string(100'000, 'a') + "</think>", "</think>fine<|user|>"});
  script.on_said = [](int64_t) { std::this_thread::sleep_for(std::chrono::milliseconds(5)); };
  ChatSession session(toy_model(1'000'000), script.generate(),
                      [](std::string_view text) { write_all(STDOUT_FILENO, text); }, {.is_styled = true});
  run_chat(session, STDIN_FILENO, STDOUT_FILENO);
  return 0;
}

TEST(ChatTerminal, ControlCStopsTheReplyAndNotTheProgram) {
  Terminal terminal(talk);
  terminal.expect("> ");
  terminal.type("hello\n");
  terminal.expect("aaaaa");
  terminal.type("\x03");
  terminal.expect("[interrupted: ");
  terminal.expect("> ");
  terminal.type("again\n");
  terminal.expect("fine");
  terminal.expect("[stop: ");
  terminal.expect("> ");
  terminal.type("/quit\n");
  EXPECT_EQ(terminal.leave(), 0);
}

TEST(ChatTerminal, ControlCAtThePromptDiscardsTheLine) {
  Terminal terminal(talk);
  terminal.expect("> ");
  terminal.type("half a li");
  terminal.expect("half a li");
  terminal.type("\x03");
  terminal.expect("(/quit or Ctrl-D leaves)");
  terminal.expect("> ");
  terminal.type("one\\\n");
  terminal.expect("... ");
  terminal.type("\x03");
  terminal.expect("leaves)");
  terminal.expect("> ");
  terminal.type("\x04");  // Ctrl-D
  EXPECT_EQ(terminal.leave(), 0);
}

// The signal may be delivered to a thread that is not the one that waits for a line.
TEST(ChatTerminal, ControlCReachesThePromptWhateverThreadGetsIt) {
  Terminal terminal([] {
    std::thread other([] { std::this_thread::sleep_for(std::chrono::seconds(600)); });
    other.detach();
    std::thread([] {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      kill(getpid(), SIGINT);
    }).detach();
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    pthread_sigmask(SIG_BLOCK, &set, nullptr);  // this thread does not get it
    return talk();
  });
  terminal.expect("> ");
  terminal.expect("(/quit or Ctrl-D leaves)");
  terminal.type("/quit\n");
  EXPECT_EQ(terminal.leave(), 0);
}

// Files instead of a terminal: no prompts, and a last line without its end counts.
TEST(ChatTerminal, ReadsAPipe) {
  int input[2];
  ASSERT_EQ(pipe(input), 0);
  write_all(input[1], "one\ntwo");
  close(input[1]);
  Script script({"</think>A<|user|>", "</think>B<|user|>"});
  std::string shown;
  ChatSession session(toy_model(), script.generate(), [&](std::string_view text) { shown += text; }, {});
  run_chat(session, input[0], STDOUT_FILENO);
  close(input[0]);
  EXPECT_EQ(shown.substr(0, 8), "A\n[stop:");
  EXPECT_NE(shown.find("\nB\n[stop:"), std::string::npos);
  EXPECT_EQ(script.prompts.size(), 2u);
}

TEST(ChatTerminal, WritingToAClosedFileIsAnError) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  close(ends[1]);
  EXPECT_THROW(write_all(ends[0], "x"), Error);
  close(ends[0]);
}

// A tiny checkpoint of random weights with a tokenizer and a template.
class ChatCommand : public testing::Test {
 protected:
  void SetUp() override {
    namespace files = std::filesystem;
    directory_ = files::path(testing::TempDir()) / ("chat." + std::to_string(getpid()));
    files::create_directories(directory_);
    for (const auto& entry : files::directory_iterator(files::path(VERBATIM_TINY) / "tiny-bf16"))
      files::copy(entry.path(), directory_ / entry.path().filename(), files::copy_options::recursive);
    write_tokenizer(text::chat_tokens());
    std::ofstream(directory_ / "chat_template.jinja") << kToyTemplate;
    // A token that the tokenizer does not have, which is never generated: replies of random weights go on until they
    // are stopped.
    std::ofstream(directory_ / "generation_config.json") << R"({"eos_token_id": 500})";
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  void write_tokenizer(const std::vector<std::string>& added) {
    std::ofstream(directory_ / "tokenizer.json") << text::byte_tokenizer_json(added);
  }
  int run() const {
    const std::string path = directory_.string();
    execl(VERBATIM_PROGRAM, VERBATIM_PROGRAM, "chat", path.c_str(), "--context", "100000", "--threads", "2", nullptr);
    return 127;
  }
  std::filesystem::path directory_;
};

TEST_F(ChatCommand, ControlCStopsTheReplyAndNotTheProgram) {
  Terminal terminal([this] { return run(); });
  terminal.expect("> ");
  terminal.type("hello\n");
  terminal.expect("\x1b[2m");  // reasoning
  terminal.type("\x03");
  terminal.expect("[interrupted: ");
  terminal.expect("> ");
  terminal.type("/reset\n");
  terminal.expect("(a new conversation)");
  terminal.type("again\n");
  terminal.expect("\x1b[2m");
  terminal.type("\x03");
  terminal.expect("[interrupted: ");
  terminal.type("\x04");
  EXPECT_EQ(terminal.leave(), 0);
}

TEST_F(ChatCommand, RefusesATokenizerOfAnotherModel) {
  std::vector<std::string> many = text::chat_tokens();
  for (int i = 0; i < 300; ++i) many.push_back("<extra " + std::to_string(i) + ">");
  write_tokenizer(many);
  Terminal terminal([this] { return run(); });
  terminal.expect("tokenizer.json has ids up to 568, the model's vocabulary ends at 511");
  EXPECT_EQ(terminal.leave(), 1);
}

TEST_F(ChatCommand, RefusesATokenizerWithoutTheTags) {
  write_tokenizer({"<|user|>", "<think>", "</think>"});
  Terminal terminal([this] { return run(); });
  terminal.expect(
      "the tokenizer has no added token <tool_call> </tool_call> <arg_key> </arg_key> <arg_value> </arg_value>");
  EXPECT_EQ(terminal.leave(), 1);
}

}  // namespace
}  // namespace verbatim::cli
