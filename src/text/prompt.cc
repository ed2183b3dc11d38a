#include "text/prompt.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/mapped_file.h"
#include "text/chat_inputs.h"

namespace verbatim::text {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr size_t kLargestConfigBytes = size_t{64} << 20;  // older ones list every added token

Json read_config(const fs::path& path) {
  if (!fs::exists(path)) return Json::object();
  Json config = parse_ordered_json(read_text_file(path, kLargestConfigBytes), path.string());
  if (!config.is_object())
    fail(ErrorKind::kFormat, path.string(), "found {}; an object is expected", config.type_name());
  return config;
}

// {"bos_token": "<s>", ...} out of strings or {"content": "<s>"}.
Json named_tokens(const Json& config) {
  Json tokens = Json::object();
  for (const char* key : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}) {
    const auto found = config.find(key);
    if (found == config.end()) continue;
    if (found->is_string()) tokens[key] = *found;
    if (found->is_object() && found->contains("content") && (*found)["content"].is_string())
      tokens[key] = (*found)["content"];
  }
  return tokens;
}

std::string template_of_config(const Json& config, const fs::path& path) {
  const auto found = config.find("chat_template");
  if (found == config.end())
    fail(ErrorKind::kIo, path.parent_path().string(),
         "neither chat_template.jinja nor a chat_template in tokenizer_config.json; use a checkpoint that has one");
  if (found->is_string()) return found->get<std::string>();
  if (found->is_array()) {
    for (const Json& one : *found) {
      if (one.is_object() && one.value("name", "") == "default" && one.contains("template") &&
          one["template"].is_string())
        return one["template"].get<std::string>();
    }
  }
  fail(ErrorKind::kFormat, path.string(), "chat_template is neither a string nor a list with one named \"default\"");
}

}  // namespace

ChatTemplate ChatTemplate::load(const fs::path& directory) {
  const fs::path config_path = directory / "tokenizer_config.json";
  const Json config = read_config(config_path);
  const fs::path file = directory / "chat_template.jinja";
  const bool has_file = fs::exists(file);
  const std::string source =
      has_file ? read_text_file(file, jinja::Limits().template_bytes) : template_of_config(config, config_path);
  return {jinja::Template::parse(source, (has_file ? file : config_path).filename().string()),
          std::make_shared<const Json>(named_tokens(config))};
}

ChatTemplate ChatTemplate::parse(std::string_view source, const std::string& name) {
  return {jinja::Template::parse(source, name), std::make_shared<const Json>(Json::object())};
}

RenderedPrompt ChatTemplate::render(const Json& inputs) const {
  const jinja::Text text = template_.render(inputs, *tokens_);
  RenderedPrompt prompt;
  prompt.text = text.bytes();
  prompt.trusted.reserve(text.template_spans().size());
  for (const jinja::Span& span : text.template_spans()) prompt.trusted.push_back({span.begin, span.end});
  return prompt;
}

std::vector<int32_t> prompt_ids(const Tokenizer& tokenizer, const RenderedPrompt& prompt) {
  std::vector<int32_t> ids;
  tokenizer.encode(prompt.text, prompt.trusted, ids);
  return ids;
}

}  // namespace verbatim::text
