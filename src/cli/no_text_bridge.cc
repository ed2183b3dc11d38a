#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/text_bridge.h"

namespace verbatim::cli {

std::vector<int32_t> encode_prompt(const std::string& directory, const std::string& /*text*/) {
  fail(ErrorKind::kUnsupported, directory, "this build has no tokenizer; give --ids");
}

std::string decode_text(const std::string& directory, std::span<const int32_t> /*ids*/) {
  fail(ErrorKind::kUnsupported, directory, "this build has no tokenizer");
}

struct PromptEncoder::Parts {
  std::string directory;
};

PromptEncoder::PromptEncoder(std::string directory) : parts_(std::make_unique<Parts>(Parts{std::move(directory)})) {}
PromptEncoder::~PromptEncoder() = default;

std::vector<int32_t> PromptEncoder::text(const std::string& /*text*/) {
  fail(ErrorKind::kUnsupported, parts_->directory, R"(this build has no tokenizer; give prompts as {{"ids": [...]}})");
}

std::vector<int32_t> PromptEncoder::messages(nlohmann::ordered_json /*request*/) { return text(""); }

int64_t token_limit(const std::string& /*directory*/, int64_t vocabulary) { return vocabulary; }

}  // namespace verbatim::cli
