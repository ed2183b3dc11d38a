#include "cli/prompt_file.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/mapped_file.h"
#include "cli/text_bridge.h"

namespace verbatim::cli {

namespace {

constexpr size_t kMaxPromptBytes = size_t{4} << 30;

std::vector<int32_t> parse_ids(const nlohmann::ordered_json& ids, const std::string& where, int64_t vocabulary) {
  std::vector<int32_t> out;
  if (!ids.is_array()) fail(ErrorKind::kFormat, where, "ids: {}; expected a list of token ids", ids.type_name());
  for (const auto& id : ids) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= static_cast<uint64_t>(vocabulary))
      fail(ErrorKind::kFormat, where, "token id {}; expected 0 to {}", id.dump(), vocabulary - 1);
    out.push_back(id.get<int32_t>());
  }
  return out;
}

}  // namespace

std::vector<std::vector<int32_t>> read_prompts(const std::string& file, const std::string& directory,
                                               const model::Config& config, int64_t budget) {
  const std::string text = read_text_file(file, kMaxPromptBytes);
  PromptEncoder encoder(directory);
  std::vector<std::vector<int32_t>> prompts;
  int64_t tokens = 0, number = 0;
  for (size_t at = 0; at < text.size() && (budget == 0 || tokens < budget);) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    at = end + 1;
    const std::string where = fmt::format("{}:{}", file, ++number);
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    auto parsed = nlohmann::ordered_json::parse(line, nullptr, false);
    static constexpr const char* kExpected = R"(expected {"messages": [...]}, {"text": "..."} or {"ids": [...]})";
    if (parsed.is_discarded() || !parsed.is_object()) fail(ErrorKind::kFormat, where, "no JSON object; {}", kExpected);
    const auto kinds = parsed.count("messages") + parsed.count("text") + parsed.count("ids");
    if (kinds != 1) fail(ErrorKind::kFormat, where, "{} of messages, text and ids; {}", kinds, kExpected);
    std::vector<int32_t> ids;
    if (parsed.contains("ids")) {
      ids = parse_ids(parsed["ids"], where, config.vocabulary);
    } else if (parsed.contains("text")) {
      if (!parsed["text"].is_string()) fail(ErrorKind::kFormat, where, "text is no string; {}", kExpected);
      ids = encoder.text(parsed["text"].get<std::string>());
    } else {
      ids = encoder.messages(std::move(parsed));
    }
    if (budget > 0) ids.resize(std::min(ids.size(), static_cast<size_t>(budget - tokens)));
    if (static_cast<int64_t>(ids.size()) > config.max_positions)
      fail(ErrorKind::kFormat, where, "{} tokens; expected at most the model's {} positions", ids.size(),
           config.max_positions);
    tokens += static_cast<int64_t>(ids.size());
    if (!ids.empty()) prompts.push_back(std::move(ids));
  }
  if (prompts.empty()) fail(ErrorKind::kUsage, file, "holds no prompts; expected JSON lines");
  return prompts;
}

}  // namespace verbatim::cli
