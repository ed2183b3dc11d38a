#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "base/mapped_file.h"
#include "cli/commands.h"
#include "text/chat_inputs.h"
#include "text/jinja/template.h"

namespace verbatim::cli {
namespace {

constexpr size_t kLargestInputsBytes = size_t{1} << 30;

struct Options {
  std::string template_path, inputs_path;
};

void run(const Options& options) {
  const std::string source = read_text_file(options.template_path, text::jinja::Limits().template_bytes);
  const std::string name = std::filesystem::path(options.template_path).filename().string();
  const auto parsed = text::jinja::Template::parse(source, name);
  const std::string inputs = read_text_file(options.inputs_path, kLargestInputsBytes);
  const std::string rendered = parsed.render(text::parse_ordered_json(inputs, options.inputs_path)).bytes();
  if (std::fwrite(rendered.data(), 1, rendered.size(), stdout) != rendered.size() || std::fflush(stdout) != 0)
    fail(ErrorKind::kIo, "render", "the text could not be written to standard output");
}

}  // namespace

void add_render(CLI::App& app) {
  const auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("render", "Print what a chat template makes of its inputs, byte for byte");
  command->add_option("template", options->template_path, "A Jinja template (chat_template.jinja)")->required();
  command->add_option("inputs", options->inputs_path, "JSON: the object of the template's variables (messages, ...)")
      ->required();
  command->callback([options] { run(*options); });
}

}  // namespace verbatim::cli
