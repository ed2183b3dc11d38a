#include <fmt/core.h>

#include <cstdio>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "base/mapped_file.h"
#include "cli/commands.h"
#include "text/chat_inputs.h"
#include "text/prompt.h"
#include "text/tokenizer.h"

namespace verbatim::cli {
namespace {

constexpr size_t kLargestInputBytes = size_t{1} << 30;

struct Options {
  std::string directory, text, file, messages;
  bool no_added_tokens = false, json = false;
  CLI::Option* text_option = nullptr;
};

std::string input(const Options& options) {
  if (options.text_option->count() > 0) return options.text;
  if (!options.file.empty()) return read_text_file(options.file, kLargestInputBytes);
  return {std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()};
}

// A piece as a JSON string; bytes that are no whole character show as U+FFFD.
std::string quoted(std::string_view piece) {
  return nlohmann::json(piece).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// The prompt of a conversation: a chat request, or its messages alone.
std::vector<int32_t> conversation_ids(const text::Tokenizer& tokenizer, const Options& options) {
  const auto chat_template = text::ChatTemplate::load(options.directory);
  auto request = text::parse_ordered_json(read_text_file(options.messages, kLargestInputBytes), options.messages);
  if (request.is_array()) request = {{"messages", std::move(request)}};
  return text::prompt_ids(tokenizer, chat_template.render(text::chat_inputs(request)));
}

void run(const Options& options) {
  const auto tokenizer = text::Tokenizer::load(std::filesystem::path(options.directory) / "tokenizer.json");
  const std::vector<int32_t> ids = options.messages.empty() ? tokenizer.encode(input(options), !options.no_added_tokens)
                                                            : conversation_ids(tokenizer, options);
  if (options.json) {
    nlohmann::ordered_json output = {{"ids", ids}, {"pieces", nlohmann::json::array()}};
    for (const int32_t id : ids) output["pieces"].push_back(tokenizer.piece(id));
    fmt::print("{}\n", output.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
    return;
  }
  for (const int32_t id : ids) fmt::print("{:>7}  {}\n", id, quoted(tokenizer.piece(id)));
}

}  // namespace

void add_tokenize(CLI::App& app) {
  const auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("tokenize", "Print the tokens of a text: standard input unless given");
  command->add_option("directory", options->directory, "Checkpoint, or any folder with a tokenizer.json")->required();
  options->text_option = command->add_option("--text", options->text, "The text itself");
  CLI::Option* file =
      command->add_option("--file", options->file, "A file that holds the text")->excludes(options->text_option);
  CLI::Option* plain = command->add_flag("--no-added-tokens", options->no_added_tokens,
                                         "Read <|user|> and the like as ordinary text, as message text is");
  command
      ->add_option("--messages", options->messages,
                   "JSON: a chat request or its messages, put through the checkpoint's chat template")
      ->excludes(options->text_option, file, plain);
  command->add_flag("--json", options->json, R"(Print {"ids": [...], "pieces": [...]})");
  command->callback([options] { run(*options); });
}

}  // namespace verbatim::cli
