#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "base/error.h"
#include "cli/chat_session.h"
#include "cli/chat_terminal.h"
#include "cli/commands.h"
#include "cli/loaded.h"
#include "state/solo.h"

namespace verbatim::cli {
namespace {

struct Options {
  RunOptions run;
  ChatSettings settings;
  int64_t context = 8192, chunk = 512;
  bool hides_reasoning = false;
};

// One sequence, continued from turn to turn as long as each prompt begins with all that was fed before it.
class SoloGenerator {
 public:
  explicit SoloGenerator(const Options& options)
      : loaded_(options.run),
        context_(std::min(options.context, loaded_.source.config.max_positions)),
        chunk_(std::min(options.chunk, context_)) {}

  const model::Config& config() const { return loaded_.source.config; }
  int64_t context() const { return context_; }
  // Ids from here on are never chosen.
  void set_limit(int64_t limit) { limit_ = std::min(limit, loaded_.source.config.vocabulary); }

  void generate(std::span<const int32_t> prompt, const GenerateOptions& options,
                const std::function<bool(int32_t)>& on_token) {
    const bool continues = solo_ && fed_.size() < prompt.size() && std::equal(fed_.begin(), fed_.end(), prompt.begin());
    if (!continues) {
      solo_.reset();  // before the new one: both may not fit
      fed_.clear();
      solo_ = std::make_unique<state::Solo>(*loaded_.ops, loaded_.model, context_, chunk_);
    }
    while (fed_.size() < prompt.size()) {
      if (options.is_interrupted()) return;
      feed(prompt.subspan(fed_.size(), std::min(prompt.size() - fed_.size(), static_cast<size_t>(chunk_))));
    }
    for (int64_t chosen = 0; chosen < options.most_tokens; ++chosen) {
      if (options.is_interrupted()) return;
      if (chosen > 0) feed({&last_, 1});
      last_ = solo_->greedy(limit_);
      if (!on_token(last_)) return;
    }
  }

 private:
  void feed(std::span<const int32_t> ids) {
    try {
      solo_->feed(ids);
    } catch (...) {
      solo_.reset();  // how much of it arrived is not known
      throw;
    }
    fed_.insert(fed_.end(), ids.begin(), ids.end());
  }

  Loaded loaded_;
  const int64_t context_, chunk_;
  int64_t limit_ = 0;
  std::unique_ptr<state::Solo> solo_;
  std::vector<int32_t> fed_;
  int32_t last_ = 0;
};

void run(const Options& options) {
  const std::filesystem::path directory = options.run.path;
  // The cheap refusals first.
  auto tokenizer = text::Tokenizer::load(directory / "tokenizer.json");
  auto chat_template = text::ChatTemplate::load(directory);
  SoloGenerator generator(options);
  if (tokenizer.size() > generator.config().vocabulary)
    fail(ErrorKind::kFormat, options.run.path,
         "tokenizer.json has ids up to {}, the model's vocabulary ends at {}; use the tokenizer.json that belongs to "
         "the "
         "checkpoint",
         tokenizer.size() - 1, generator.config().vocabulary - 1);
  generator.set_limit(tokenizer.size());
  ChatModel model{std::move(tokenizer), std::move(chat_template), generator.config().end_tokens, generator.context(),
                  (directory / "tokenizer.json").string()};
  ChatSettings settings = options.settings;
  settings.is_styled = isatty(STDOUT_FILENO) == 1;
  settings.shows_reasoning = !options.hides_reasoning;
  ChatSession session(
      std::move(model),
      [&generator](std::span<const int32_t> prompt, const GenerateOptions& generate_options,
                   const std::function<bool(int32_t)>& on_token) {
        generator.generate(prompt, generate_options, on_token);
      },
      [](std::string_view text) { write_all(STDOUT_FILENO, text); }, std::move(settings));
  if (isatty(STDIN_FILENO) == 1) write_all(STDOUT_FILENO, ChatSession::help());
  run_chat(session, STDIN_FILENO, STDOUT_FILENO);
}

}  // namespace

void add_chat(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("chat", "Talk to a checkpoint that has tokenizer.json and a chat template");
  add_run_options(*command, options->run);
  command->add_option("--system", options->settings.system, "System message");
  command->add_option("--effort", options->settings.effort, "How long to reason (default: the template's own)")
      ->check(CLI::IsMember({"low", "high", "max"}));
  command->add_flag("--hide-reasoning", options->hides_reasoning, "Show the answers alone");
  command
      ->add_option("--tokens", options->settings.most_tokens,
                   "Most tokens of a reply (default: what the context leaves)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  command->add_option("--context", options->context, "Most tokens of the conversation; memory is set aside for them")
      ->check(CLI::Range(int64_t{16}, int64_t{1} << 40))
      ->capture_default_str();
  command->add_option("--chunk", options->chunk, "Prompt tokens a step")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->callback([options] { run(*options); });
}

}  // namespace verbatim::cli
