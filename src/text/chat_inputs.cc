#include "text/chat_inputs.h"

#include <array>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace verbatim::text {
namespace {

using Json = nlohmann::ordered_json;

// Finds the integers that the parser would turn into rounded floats, and refuses what is nested too deeply.
class IntegerCheck : public nlohmann::json_sax<Json> {
 public:
  explicit IntegerCheck(std::string where) : where_(std::move(where)) {}

  bool number_float(double, const std::string& text) override {
    if (text.find_first_of(".eE") == std::string::npos)
      fail(ErrorKind::kFormat, where_, "the integer {} does not fit in 64 bits; send it as a string", text);
    return true;
  }
  bool number_unsigned(uint64_t number) override {
    if (number > static_cast<uint64_t>(INT64_MAX))
      fail(ErrorKind::kFormat, where_, "the integer {} does not fit in 64 bits; send it as a string", number);
    return true;
  }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception& problem) override {
    fail(ErrorKind::kFormat, where_, "not JSON at byte {}: {}", position, problem.what());
  }
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(int64_t) override { return true; }
  bool string(std::string&) override { return true; }
  bool binary(Json::binary_t&) override { return true; }
  bool start_object(size_t) override { return enter(); }
  bool key(std::string&) override { return true; }
  bool end_object() override { return leave(); }
  bool start_array(size_t) override { return enter(); }
  bool end_array() override { return leave(); }

 private:
  // No deeper than a template takes values: copying a tree costs stack by the level.
  bool enter() {
    if (++depth_ > kMostDepth) fail(ErrorKind::kFormat, where_, "nested deeper than {} levels", kMostDepth);
    return true;
  }
  bool leave() {
    --depth_;
    return true;
  }

  static constexpr int kMostDepth = 200;
  int depth_ = 0;
  std::string where_;
};

bool is_one_of(const std::string& text, std::initializer_list<std::string_view> choices) {
  for (const std::string_view choice : choices)
    if (text == choice) return true;
  return false;
}

// A member that is there and not null.
const Json* present(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && !found->is_null() ? &*found : nullptr;
}

Json normal_part(const Json& part, bool in_tool_message, bool& is_image, bool& is_video, const std::string& where) {
  is_image = is_video = false;
  if (part.is_string()) return part;
  const Json* type = part.is_object() ? present(part, "type") : nullptr;
  const std::string name = type != nullptr && type->is_string() ? type->get<std::string>() : "";
  is_image = is_one_of(name, {"image", "image_url", "input_image"});
  is_video = is_one_of(name, {"video", "video_url"});
  if (is_image) return {{"type", "image"}};
  if (is_video) return {{"type", "video"}};
  if (name == "text") {
    const Json* text = present(part, "text");
    if (text == nullptr || !text->is_string())
      fail(ErrorKind::kFormat, where, "a text part without a string in 'text'");
    return {{"type", "text"}, {"text", *text}};
  }
  if (in_tool_message && part.is_object()) return part;
  fail(ErrorKind::kUnsupported, where,
       "a content part of type '{}'; text, image, image_url, video and video_url are supported", name);
}

Json normal_content(const Json& message, size_t index, bool is_tool, std::vector<MediaPart>* media,
                    const std::string& where) {
  const Json* content = present(message, "content");
  if (content == nullptr) return "";
  if (content->is_string()) return *content;
  if (!content->is_array())
    fail(ErrorKind::kFormat, where, "'content' is {}; a string, null or an array of parts is expected",
         content->type_name());
  Json parts = Json::array();
  for (size_t i = 0; i < content->size(); ++i) {
    bool is_image = false;
    bool is_video = false;
    parts.push_back(normal_part((*content)[i], is_tool, is_image, is_video, where));
    if (media != nullptr && (is_image || is_video)) media->push_back({is_video, index, i});
  }
  return parts;
}

Json normal_arguments(const Json* arguments, const std::string& where) {
  if (arguments == nullptr) return Json::object();
  if (arguments->is_object()) return *arguments;
  if (arguments->is_string()) {
    const std::string& text = arguments->get_ref<const std::string&>();
    if (text.find_first_not_of(" \t\r\n") == std::string::npos) return Json::object();
    Json parsed = parse_ordered_json(text, where + ".arguments");
    if (parsed.is_object()) return parsed;
    fail(ErrorKind::kFormat, where, "'arguments' holds {}; a JSON object is expected", parsed.type_name());
  }
  fail(ErrorKind::kFormat, where, "'arguments' is {}; an object, or a string that holds one, is expected",
       arguments->type_name());
}

Json normal_tool_calls(const Json& calls, const std::string& where) {
  if (!calls.is_array()) fail(ErrorKind::kFormat, where, "'tool_calls' is {}; an array is expected", calls.type_name());
  Json normal = Json::array();
  for (size_t i = 0; i < calls.size(); ++i) {
    const std::string here = fmt::format("{}.tool_calls[{}]", where, i);
    Json call = calls[i];
    if (!call.is_object()) fail(ErrorKind::kFormat, here, "found {}; an object is expected", call.type_name());
    // Either {"function": {"name", "arguments"}} or {"name", "arguments"}.
    const bool wrapped = present(call, "function") != nullptr;
    Json& function = wrapped ? call["function"] : call;
    if (!function.is_object())
      fail(ErrorKind::kFormat, here, "'function' is {}; an object is expected", function.type_name());
    const Json* name = present(function, "name");
    if (name == nullptr || !name->is_string())
      fail(ErrorKind::kFormat, here, "the function's name is missing or no string");
    function["arguments"] = normal_arguments(present(function, "arguments"), here);
    normal.push_back(std::move(call));
  }
  return normal;
}

Json normal_message(const Json& message, size_t index, std::vector<MediaPart>* media) {
  const std::string where = fmt::format("messages[{}]", index);
  if (!message.is_object()) fail(ErrorKind::kFormat, where, "found {}; an object is expected", message.type_name());
  const Json* role = present(message, "role");
  if (role == nullptr || !role->is_string()) fail(ErrorKind::kFormat, where, "'role' is missing or no string");
  std::string role_name = role->get<std::string>();
  if (role_name == "developer") role_name = "system";
  if (!is_one_of(role_name, {"system", "user", "assistant", "tool"}))
    fail(ErrorKind::kUnsupported, where, "the role '{}'; system, developer, user, assistant and tool are supported",
         role_name);

  Json normal = Json::object();
  for (const auto& [key, value] : message.items())
    if (!is_one_of(key, {"role", "content", "tool_calls", "reasoning", "reasoning_content"})) normal[key] = value;
  normal["role"] = role_name;
  normal["content"] = normal_content(message, index, role_name == "tool", media, where);
  const Json* reasoning = present(message, "reasoning_content");
  if (reasoning == nullptr) reasoning = present(message, "reasoning");
  if (reasoning != nullptr) {
    if (!reasoning->is_string())
      fail(ErrorKind::kFormat, where, "'reasoning_content' is {}; a string is expected", reasoning->type_name());
    normal["reasoning_content"] = *reasoning;
  }
  if (const Json* calls = present(message, "tool_calls")) normal["tool_calls"] = normal_tool_calls(*calls, where);
  return normal;
}

Json array_or_null(const Json& request, const char* key) {
  const Json* value = present(request, key);
  if (value == nullptr) return nullptr;
  if (!value->is_array()) fail(ErrorKind::kFormat, key, "found {}; an array is expected", value->type_name());
  return *value;
}

}  // namespace

Json parse_ordered_json(std::string_view text, const std::string& where) {
  IntegerCheck check(where);
  Json::sax_parse(text, &check);
  try {
    return Json::parse(text);
  } catch (const nlohmann::json::exception& problem) {
    fail(ErrorKind::kFormat, where, "not JSON: {}", problem.what());
  }
}

Json chat_inputs(const Json& request, std::vector<MediaPart>* media) {
  if (!request.is_object())
    fail(ErrorKind::kFormat, "chat", "the request is {}; an object is expected", request.type_name());
  const Json* messages = present(request, "messages");
  if (messages == nullptr || !messages->is_array())
    fail(ErrorKind::kFormat, "chat", "'messages' is missing or no array");
  Json variables = Json::object();
  variables["messages"] = Json::array();
  for (size_t i = 0; i < messages->size(); ++i)
    variables["messages"].push_back(normal_message((*messages)[i], i, media));
  variables["tools"] = array_or_null(request, "tools");
  variables["documents"] = array_or_null(request, "documents");
  variables["add_generation_prompt"] = true;
  for (const char* key : {"add_generation_prompt", "reasoning_effort", "clear_thinking"})
    if (const Json* value = present(request, key)) variables[key] = *value;
  if (const Json* more = present(request, "chat_template_kwargs")) {
    if (!more->is_object())
      fail(ErrorKind::kFormat, "chat_template_kwargs", "found {}; an object is expected", more->type_name());
    for (const auto& [key, value] : more->items()) {
      if (is_one_of(key, {"messages", "tools", "documents"}))
        fail(ErrorKind::kFormat, "chat_template_kwargs", "'{}' belongs to the request itself", key);
      variables[key] = value;
    }
  }
  return variables;
}

}  // namespace verbatim::text
