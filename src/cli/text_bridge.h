// What generate needs of the tokenizer, so that it also builds without the text library.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

namespace verbatim::cli {

// The ids of `text`, added tokens recognised in it, by the directory's tokenizer.json. Throws Error(kIo) if it has
// none, Error(kUnsupported) in a build without the text library.
std::vector<int32_t> encode_prompt(const std::string& directory, const std::string& text);
std::string decode_text(const std::string& directory, std::span<const int32_t> ids);

// Encodes many prompts with what one directory holds, loaded when first needed. Throws as encode_prompt does.
class PromptEncoder {
 public:
  explicit PromptEncoder(std::string directory);
  ~PromptEncoder();
  PromptEncoder(const PromptEncoder&) = delete;
  PromptEncoder& operator=(const PromptEncoder&) = delete;

  std::vector<int32_t> text(const std::string& text);
  // {"messages": [...]} and what else a chat request may hold, through the chat template. Unless it says otherwise, a
  // conversation that ends with the assistant gets no generation prompt.
  std::vector<int32_t> messages(nlohmann::ordered_json request);

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

// Number of ids that the directory's tokenizer knows; `vocabulary` where there is no tokenizer.json or no text library.
int64_t token_limit(const std::string& directory, int64_t vocabulary);

}  // namespace verbatim::cli
