#include "text/tokenizer.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "base/mapped_file.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/pretokenizer.h"
#include "text/tokenizer_file.h"
#include "text/utf8.h"

namespace verbatim::text {
namespace {

constexpr size_t kLargestFileBytes = 512 << 20;

// Checks the ranges and joins those that touch.
std::vector<Range> joined(std::span<const Range> trusted, size_t text_bytes) {
  std::vector<Range> ranges;
  size_t last = 0;
  for (const Range& range : trusted) {
    if (range.begin < last || range.end < range.begin || range.end > text_bytes)
      fail(ErrorKind::kUsage, "encode",
           "trusted bytes {} to {} after {} in a text of {}; expected sorted, disjoint ranges", range.begin, range.end,
           last, text_bytes);
    last = range.end;
    if (range.begin == range.end) continue;
    if (!ranges.empty() && ranges.back().end == range.begin) {
      ranges.back().end = range.end;
    } else {
      ranges.push_back(range);
    }
  }
  return ranges;
}

}  // namespace

struct Tokenizer::Data {
  Data(const TokenizerFile& file, const std::string& where)
      : pieces(file.pieces, file.whole),
        byte_ids(file.byte_ids),
        encoder(file.merges, file.byte_ids),
        pretokenizer(file.stages, where),
        finder(file.added),
        added(file.pieces.size(), false),
        special(file.pieces.size(), false) {
    for (const AddedToken& token : file.added) {
      added[static_cast<size_t>(token.id)] = true;
      special[static_cast<size_t>(token.id)] = token.special;
      added_ids.emplace(token.content, token.id);
    }
  }

  PieceTable pieces;
  std::array<int32_t, 256> byte_ids;
  BytePairEncoder encoder;
  Pretokenizer pretokenizer;
  AddedTokenFinder finder;
  std::vector<bool> added, special;  // by id
  std::unordered_map<std::string, int32_t> added_ids;

  void encode_valid(std::string_view text, Pretokenizer::Scratch& scratch, std::vector<int32_t>& ids) const {
    size_t begin = 0;
    for (const size_t end : pretokenizer.split(text, scratch)) {
      const std::string_view piece = text.substr(begin, end - begin);
      if (const int32_t id = pieces.find(piece); id >= 0) {
        ids.push_back(id);
      } else {
        encoder.encode(piece, ids);
      }
      begin = end;
    }
  }

  void encode_ordinary(std::string_view text, Pretokenizer::Scratch& scratch, std::vector<int32_t>& ids) const {
    for (size_t at = 0; at < text.size();) {
      if (const size_t valid = valid_utf8_bytes(text, at)) {
        encode_valid(text.substr(at, valid), scratch, ids);
        at += valid;
      } else {
        for (const size_t end = at + utf8_at(text, at).bytes; at < end; ++at)
          ids.push_back(byte_ids[static_cast<uint8_t>(text[at])]);
      }
    }
  }
};

Tokenizer Tokenizer::load(const std::filesystem::path& tokenizer_json) {
  return parse(read_text_file(tokenizer_json, kLargestFileBytes), tokenizer_json.string());
}

Tokenizer Tokenizer::parse(std::string_view json, const std::string& where) {
  return Tokenizer(std::make_shared<const Data>(parse_tokenizer_file(json, where), where));
}

void Tokenizer::encode(std::string_view text, std::span<const Range> trusted, std::vector<int32_t>& ids) const {
  if (text.size() >= UINT32_MAX)
    fail(ErrorKind::kCapacity, "encode", "a text of {} bytes; expected less than 4 GiB", text.size());
  Pretokenizer::Scratch scratch(data_->pretokenizer);
  const size_t before = ids.size();
  try {
    for (const Segment& segment : data_->finder.cut(text, joined(trusted, text.size()))) {
      if (segment.id >= 0) {
        ids.push_back(segment.id);
      } else {
        data_->encode_ordinary(text.substr(segment.begin, segment.end - segment.begin), scratch, ids);
      }
    }
  } catch (...) {
    ids.resize(before);
    throw;
  }
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool added_tokens) const {
  std::vector<int32_t> ids;
  const Range all = {0, text.size()};
  encode(text, added_tokens ? std::span<const Range>(&all, 1) : std::span<const Range>(), ids);
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string bytes;
  for (const int32_t id : ids)
    if (!skip_special || !is_special(id)) bytes += piece(id);
  return bytes;
}

std::string_view Tokenizer::piece(int32_t id) const {
  return id >= 0 && id < size() ? data_->pieces.piece(id) : std::string_view();
}
bool Tokenizer::is_added(int32_t id) const { return id >= 0 && id < size() && data_->added[static_cast<size_t>(id)]; }
bool Tokenizer::is_special(int32_t id) const {
  return id >= 0 && id < size() && data_->special[static_cast<size_t>(id)];
}

std::optional<int32_t> Tokenizer::find(std::string_view added_token_content) const {
  const auto found = data_->added_ids.find(std::string(added_token_content));
  return found == data_->added_ids.end() ? std::nullopt : std::optional<int32_t>(found->second);
}

int32_t Tokenizer::size() const { return data_->pieces.ids(); }

}  // namespace verbatim::text
