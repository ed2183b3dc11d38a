#include "text/tokenizer_file.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "text/utf8.h"

namespace verbatim::text {
namespace {

using nlohmann::json;

constexpr int64_t kMostIds = 1 << 24;
constexpr int kDeepestSequence = 8;

// GPT-2's byte alphabet: printable Latin-1 stands for itself, the other 68 bytes for U+0100 onwards, in order.
std::array<char32_t, 256> byte_alphabet() {
  std::array<char32_t, 256> characters{};
  char32_t next = 0x100;
  for (char32_t byte = 0; byte < 256; ++byte) {
    const bool itself = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    characters[byte] = itself ? byte : next++;
  }
  return characters;
}

class Reader {
 public:
  Reader(std::string_view text, std::string where) : where_(std::move(where)) {
    bytes_of_.fill(-1);
    const std::array<char32_t, 256> alphabet = byte_alphabet();
    for (size_t byte = 0; byte < 256; ++byte) bytes_of_[alphabet[byte]] = static_cast<int16_t>(byte);
    try {
      root_ = json::parse(text);
    } catch (const json::exception& error) {
      format("not JSON: {}", error.what());
    }
  }

  TokenizerFile read() {
    if (!root_.is_object()) format("the top is not an object; expected a tokenizer.json");
    known_keys(root_, "the file",
               {"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor",
                "decoder", "model"});
    if (const json* version = given(root_, "version"); version && *version != "1.0")
      unsupported("version {}; expected \"1.0\"", version->dump());
    for (const char* key : {"truncation", "padding", "normalizer"})
      if (const json* value = given(root_, key)) unsupported("{} {}; expected null", key, shortened(*value));
    if (const json* stage = given(root_, "post_processor")) ids_unchanged(*stage, "post_processor", 0);
    const json* decoder = given(root_, "decoder");
    if (!decoder) unsupported("no decoder; expected ByteLevel");
    ids_unchanged(*decoder, "decoder", 0);
    read_pre_tokenizer();
    read_model();
    read_added_tokens();
    return std::move(file_);
  }

 private:
  template <typename... Args>
  [[noreturn]] void format(fmt::format_string<Args...> text, Args&&... args) const {
    fail(ErrorKind::kFormat, where_, "{}", fmt::format(text, std::forward<Args>(args)...));
  }
  template <typename... Args>
  [[noreturn]] void unsupported(fmt::format_string<Args...> text, Args&&... args) const {
    fail(ErrorKind::kUnsupported, where_, "{}", fmt::format(text, std::forward<Args>(args)...));
  }

  static std::string shortened(const json& value) {
    std::string text = value.dump(-1, ' ', true);
    return text.size() > 80 ? text.substr(0, 77) + "..." : text;
  }

  // The value at `key` unless it is absent or null.
  static const json* given(const json& object, const char* key) {
    const auto found = object.find(key);
    return found == object.end() || found->is_null() ? nullptr : &*found;
  }

  void known_keys(const json& object, std::string_view name, std::initializer_list<std::string_view> keys) const {
    for (const auto& [key, value] : object.items())
      if (std::find(keys.begin(), keys.end(), key) == keys.end() && !value.is_null())
        unsupported("{} has \"{}\": {}, which this engine does not know", name, key, shortened(value));
  }

  bool flag(const json& object, std::string_view name, const char* key, bool otherwise) const {
    const json* value = given(object, key);
    if (!value) return otherwise;
    if (!value->is_boolean()) format("{}'s {} is {}; expected true or false", name, key, shortened(*value));
    return value->get<bool>();
  }

  void must_be(const json& object, std::string_view name, const char* key, bool wanted) const {
    if (flag(object, name, key, wanted) != wanted)
      unsupported("{} with {} {}; expected {}", name, key, !wanted, wanted);
  }

  std::string text_at(const json& object, std::string_view name, const char* key) const {
    const json* value = given(object, key);
    if (!value || !value->is_string()) format("{} has no string \"{}\"", name, key);
    return value->get<std::string>();
  }

  // The members of a Sequence, or the stage itself.
  std::vector<const json*> members(const json& stage, std::string_view name, const char* list_key, int depth) const {
    if (!stage.is_object()) format("{} is {}; expected an object", name, shortened(stage));
    if (text_at(stage, name, "type") != "Sequence") return {&stage};
    known_keys(stage, name, {"type", list_key});
    const json* list = given(stage, list_key);
    if (!list || !list->is_array()) format("{}'s Sequence has no list \"{}\"", name, list_key);
    if (depth == kDeepestSequence) format("{} has more than {} Sequences inside each other", name, kDeepestSequence);
    std::vector<const json*> all;
    for (const json& member : *list)
      for (const json* leaf : members(member, name, list_key, depth + 1)) all.push_back(leaf);
    return all;
  }

  // ByteLevel as a post-processor moves offsets only; as a decoder its flags mean nothing.
  void ids_unchanged(const json& stage, const std::string& name, int depth) const {
    const char* list_key = name == "decoder" ? "decoders" : "processors";
    for (const json* member : members(stage, name, list_key, depth)) {
      if (const std::string type = text_at(*member, name, "type"); type != "ByteLevel")
        unsupported("{} of type {}; expected ByteLevel", name, type);
      known_keys(*member, name, {"type", "add_prefix_space", "trim_offsets", "use_regex"});
    }
  }

  void read_pre_tokenizer() {
    const std::string name = "pre_tokenizer";
    const json* stage = given(root_, "pre_tokenizer");
    if (!stage) unsupported("no pre_tokenizer; expected one that ends in ByteLevel");
    bool byte_level = false;
    for (const json* member : members(*stage, name, "pretokenizers", 0)) {
      const std::string type = text_at(*member, name, "type");
      if (byte_level) unsupported("pre_tokenizer has {} after ByteLevel; expected ByteLevel last", type);
      if (type == "Split") {
        read_split(*member);
      } else if (type == "ByteLevel") {
        known_keys(*member, "ByteLevel", {"type", "add_prefix_space", "trim_offsets", "use_regex"});
        if (flag(*member, "ByteLevel", "add_prefix_space", true))
          unsupported("ByteLevel with add_prefix_space true; expected false");
        if (flag(*member, "ByteLevel", "use_regex", true)) file_.stages.push_back({std::string(kByteLevelPattern)});
        byte_level = true;
      } else {
        unsupported("pre_tokenizer of type {}; expected Split or ByteLevel", type);
      }
    }
    if (!byte_level) unsupported("pre_tokenizer without ByteLevel; expected it last");
  }

  void read_split(const json& split) {
    known_keys(split, "Split", {"type", "pattern", "behavior", "invert"});
    if (const std::string behaviour = text_at(split, "Split", "behavior"); behaviour != "Isolated")
      unsupported("Split with behavior {}; expected Isolated", behaviour);
    flag(split, "Split", "invert", false);  // changes nothing where matches and gaps are both kept apart
    const json* pattern = given(split, "pattern");
    if (!pattern || !pattern->is_object() || pattern->size() != 1)
      format("Split's pattern is {}; expected {{\"Regex\": ...}} or {{\"String\": ...}}",
             pattern ? shortened(*pattern) : "absent");
    const bool literal = pattern->contains("String");
    file_.stages.push_back({text_at(*pattern, "Split's pattern", literal ? "String" : "Regex"), literal});
  }

  void read_model() {
    const json* model = given(root_, "model");
    if (!model || !model->is_object()) format("no object \"model\"; expected a tokenizer.json");
    known_keys(*model, "the model",
               {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                "byte_fallback", "ignore_merges", "vocab", "merges"});
    if (given(*model, "type") && text_at(*model, "the model", "type") != "BPE")
      unsupported("a model of type {}; expected BPE", text_at(*model, "the model", "type"));
    if (const json* dropout = given(*model, "dropout"); dropout && *dropout != 0.0)
      unsupported("the model has dropout {}; expected null", shortened(*dropout));
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
      if (const json* value = given(*model, key); value && *value != "")
        unsupported("the model has {} {}; expected null", key, shortened(*value));
    must_be(*model, "the model", "byte_fallback", false);
    // unk_token and fuse_unk speak of bytes without a piece; read_vocabulary refuses files that have such bytes.
    const bool ignore_merges = flag(*model, "the model", "ignore_merges", false);
    read_vocabulary(*model, ignore_merges);
    read_merges(*model);
  }

  void read_vocabulary(const json& model, bool ignore_merges) {
    const json* vocabulary = given(model, "vocab");
    if (!vocabulary || !vocabulary->is_object()) format("the model has no object \"vocab\"");
    file_.byte_ids.fill(-1);
    id_of_.reserve(vocabulary->size());
    for (const auto& [key, value] : vocabulary->items()) {
      const int32_t id = checked_id(value, key);
      if (key.empty()) format("the vocabulary has an empty piece (id {}); expected at least one byte", id);
      if (!piece_slot(id).empty())
        format("the vocabulary gives id {} to two pieces, one of them {}", id, json(key).dump());
      const std::optional<std::string> bytes = to_bytes(key);
      // Without an alphabet spelling it cannot come out of text: a special token's content, kept as it is.
      piece_slot(id) = bytes ? *bytes : key;
      file_.whole[static_cast<size_t>(id)] = bytes && ignore_merges;
      if (bytes && bytes->size() == 1) file_.byte_ids[static_cast<uint8_t>((*bytes)[0])] = id;
      id_of_.emplace(key, id);
    }
    for (size_t byte = 0; byte < 256; ++byte)
      if (file_.byte_ids[byte] < 0)
        unsupported("the vocabulary has no piece for the byte {:#04x}; expected all 256", byte);
  }

  int32_t checked_id(const json& value, const std::string& name) const {
    if (!value.is_number_integer() || value < 0 || value >= kMostIds)
      format("the id of {} is {}; expected an integer from 0 to {}", json(name).dump(), shortened(value), kMostIds - 1);
    return value.get<int32_t>();
  }

  std::string& piece_slot(int32_t id) {
    const auto index = static_cast<size_t>(id);
    if (index >= file_.pieces.size()) {
      file_.pieces.resize(index + 1);
      file_.whole.resize(index + 1, false);
    }
    return file_.pieces[index];
  }

  // From the byte alphabet; nothing if a character is not in it.
  std::optional<std::string> to_bytes(std::string_view spelling) const {
    std::string bytes;
    for (size_t at = 0; at < spelling.size();) {
      const Utf8Char character = utf8_at(spelling, at);
      if (character.code_point >= bytes_of_.size() || bytes_of_[character.code_point] < 0) return std::nullopt;
      bytes.push_back(static_cast<char>(bytes_of_[character.code_point]));
      at += character.bytes;
    }
    return bytes;
  }

  void read_merges(const json& model) {
    const json* merges = given(model, "merges");
    if (!merges || !merges->is_array()) format("the model has no list \"merges\"");
    file_.merges.reserve(merges->size());
    for (const json& merge : *merges) {
      std::string left, right;
      if (merge.is_string()) {
        const auto& both = merge.get_ref<const std::string&>();
        const size_t space = both.find(' ');
        if (space != std::string::npos && both.find(' ', space + 1) == std::string::npos) {
          left = both.substr(0, space);
          right = both.substr(space + 1);
        }
      } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
        left = merge[0].get<std::string>();
        right = merge[1].get<std::string>();
      }
      const size_t rank = file_.merges.size();
      if (left.empty() || right.empty())
        format("merge {} is {}; expected \"left right\" or [\"left\", \"right\"]", rank, shortened(merge));
      file_.merges.push_back({merge_id(left, rank), merge_id(right, rank), merge_id(left + right, rank)});
    }
  }

  int32_t merge_id(const std::string& piece, size_t rank) const {
    const auto found = id_of_.find(piece);
    if (found == id_of_.end())
      format("merge {} needs the piece {}, which the vocabulary lacks", rank, json(piece).dump());
    return found->second;
  }

  void read_added_tokens() {
    const json* list = given(root_, "added_tokens");
    if (!list) return;
    if (!list->is_array()) format("added_tokens is {}; expected a list", shortened(*list));
    for (const json& entry : *list) {
      const std::string name = fmt::format("added token {}", file_.added.size());
      if (!entry.is_object()) format("{} is {}; expected an object", name, shortened(entry));
      known_keys(entry, name, {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
      AddedToken token;
      token.content = text_at(entry, name, "content");
      if (token.content.empty()) format("{} is empty; expected at least one character", name);
      token.id = checked_id(entry.contains("id") ? entry["id"] : json(), token.content);
      token.single_word = flag(entry, name, "single_word", false);
      token.lstrip = flag(entry, name, "lstrip", false);
      token.rstrip = flag(entry, name, "rstrip", false);
      token.special = flag(entry, name, "special", false);
      token.normalized = flag(entry, name, "normalized", !token.special);
      enter(token);
    }
    refuse_reachable_special_tokens();
  }

  void enter(const AddedToken& token) {
    const std::string shown = json(token.content).dump();
    for (const AddedToken& other : file_.added)
      if (other.id == token.id || other.content == token.content)
        format("added tokens {} (id {}) and {} (id {}) clash", json(other.content).dump(), other.id, shown, token.id);
    if (const auto found = id_of_.find(token.content); found != id_of_.end()) {
      if (found->second != token.id)
        format("added token {} has id {}, but id {} in the vocabulary", shown, token.id, found->second);
      if (file_.pieces[static_cast<size_t>(token.id)] != token.content)
        unsupported("added token {} is also the vocabulary's spelling of other bytes", shown);
    } else if (!piece_slot(token.id).empty()) {
      format("added token {} has id {}, which the vocabulary gives to another piece", shown, token.id);
    }
    piece_slot(token.id) = token.content;
    file_.whole[static_cast<size_t>(token.id)] = false;
    file_.added.push_back(token);
  }

  // Ordinary text must never become a special token.
  void refuse_reachable_special_tokens() const {
    std::vector<bool> special(file_.pieces.size(), false);
    for (const AddedToken& token : file_.added) special[static_cast<size_t>(token.id)] = token.special;
    const auto refuse = [&](int32_t id) {
      unsupported(
          "the special token {} (id {}) is also what merges of ordinary text lead to; expected it to be neither a "
          "merge's result nor a single byte",
          json(file_.pieces[static_cast<size_t>(id)]).dump(-1, ' ', true, json::error_handler_t::replace), id);
    };
    for (const Merge& merge : file_.merges)
      if (special[static_cast<size_t>(merge.result)]) refuse(merge.result);
    for (const int32_t id : file_.byte_ids)
      if (special[static_cast<size_t>(id)]) refuse(id);
  }

  std::string where_;
  json root_;
  std::array<int16_t, 0x144> bytes_of_{};  // by code point of the byte alphabet, whose last is U+0143
  std::unordered_map<std::string, int32_t> id_of_;
  TokenizerFile file_;
};

}  // namespace

TokenizerFile parse_tokenizer_file(std::string_view json, const std::string& where) {
  return Reader(json, where).read();
}

}  // namespace verbatim::text
