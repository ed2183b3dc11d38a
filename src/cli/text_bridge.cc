#include "cli/text_bridge.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "text/chat_inputs.h"
#include "text/prompt.h"
#include "text/tokenizer.h"

namespace verbatim::cli {

namespace {

std::filesystem::path tokenizer_file(const std::string& directory) {
  return std::filesystem::path(directory) / "tokenizer.json";
}

}  // namespace

std::vector<int32_t> encode_prompt(const std::string& directory, const std::string& text) {
  return text::Tokenizer::load(tokenizer_file(directory)).encode(text, true);
}

std::string decode_text(const std::string& directory, std::span<const int32_t> ids) {
  return text::Tokenizer::load(tokenizer_file(directory)).decode(ids, false);
}

struct PromptEncoder::Parts {
  std::string directory;
  std::optional<text::Tokenizer> tokenizer;
  std::optional<text::ChatTemplate> chat_template;

  const text::Tokenizer& loaded_tokenizer() {
    if (!tokenizer) tokenizer = text::Tokenizer::load(tokenizer_file(directory));
    return *tokenizer;
  }
};

PromptEncoder::PromptEncoder(std::string directory)
    : parts_(std::make_unique<Parts>(Parts{std::move(directory), {}, {}})) {}
PromptEncoder::~PromptEncoder() = default;

std::vector<int32_t> PromptEncoder::text(const std::string& text) {
  return parts_->loaded_tokenizer().encode(text, true);
}

std::vector<int32_t> PromptEncoder::messages(nlohmann::ordered_json request) {
  if (!parts_->chat_template) parts_->chat_template = text::ChatTemplate::load(parts_->directory);
  const auto& messages = request.at("messages");
  if (!request.contains("add_generation_prompt") && messages.is_array() && !messages.empty() &&
      messages.back().is_object() && messages.back().value("role", "") == "assistant")
    request["add_generation_prompt"] = false;
  return text::prompt_ids(parts_->loaded_tokenizer(), parts_->chat_template->render(text::chat_inputs(request)));
}

int64_t token_limit(const std::string& directory, int64_t vocabulary) {
  if (!std::filesystem::exists(tokenizer_file(directory))) return vocabulary;
  return text::Tokenizer::load(tokenizer_file(directory)).size();
}

}  // namespace verbatim::cli
