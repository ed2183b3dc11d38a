// Conversations to token ids.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/template.h"
#include "text/tokenizer.h"

namespace verbatim::text {

struct RenderedPrompt {
  std::string text;
  std::vector<Range> trusted;  // what the template wrote: sorted, disjoint
};

// The chat template of a checkpoint. Immutable; may be used from any number of threads. Copies share it.
class ChatTemplate {
 public:
  // DIR/chat_template.jinja or, when there is none, the chat_template of DIR/tokenizer_config.json (a string, or the
  // one named "default" of a list). The tokens that tokenizer_config.json names (bos_token, eos_token, ...) are
  // variables of the template, as in Hugging Face's, and trusted. Throws Error: kIo (neither file), kFormat,
  // kUnsupported.
  static ChatTemplate load(const std::filesystem::path& directory);
  static ChatTemplate parse(std::string_view source, const std::string& name);

  // inputs: the template's variables, as chat_inputs() makes them. Throws what Template::render throws.
  RenderedPrompt render(const nlohmann::ordered_json& inputs) const;

 private:
  ChatTemplate(jinja::Template parsed, std::shared_ptr<const nlohmann::ordered_json> tokens)
      : template_(std::move(parsed)), tokens_(std::move(tokens)) {}

  jinja::Template template_;
  std::shared_ptr<const nlohmann::ordered_json> tokens_;
};

// The whole text encoded at once, so that harmless text gets the ids that encoding the flat string gives; added tokens
// are recognised only where the template wrote every byte of them.
std::vector<int32_t> prompt_ids(const Tokenizer& tokenizer, const RenderedPrompt& prompt);

}  // namespace verbatim::text
