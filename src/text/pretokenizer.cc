#include "text/pretokenizer.h"

#include <array>
#include <optional>

#include "base/error.h"
#include "text/regex.h"
#include "text/released_pattern.h"

namespace verbatim::text {

const std::string_view kReleasedPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const std::string_view kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

struct Pretokenizer::Stage {
  std::string literal;         // if neither of the others
  std::optional<Regex> regex;  // if not the released pattern
  bool released = false;

  // Appends the ends of matches and gaps in `piece`, which starts at `offset` of the whole text.
  void split(std::string_view piece, size_t offset, Regex::Memory& memory, std::vector<size_t>& ends) const {
    size_t done = 0;
    const auto cut = [&](size_t begin, size_t end) {
      if (begin > done) ends.push_back(offset + begin);
      if (end > begin) ends.push_back(offset + end);
      done = end;
    };
    if (regex) {
      regex->for_each_match(piece, memory, cut);
    } else {
      for (size_t at = piece.find(literal); at != std::string_view::npos; at = piece.find(literal, done))
        cut(at, at + literal.size());
    }
    if (done < piece.size()) ends.push_back(offset + piece.size());
  }
};

struct Pretokenizer::Scratch::Memory {
  Regex::Memory regex;
};

Pretokenizer::Scratch::Scratch(const Pretokenizer& pretokenizer) : memory_(std::make_unique<Memory>()) {
  for (const Stage& stage : pretokenizer.stages_)
    if (stage.regex) memory_->regex.reserve();
}
Pretokenizer::Scratch::~Scratch() = default;

Pretokenizer::Pretokenizer(const std::vector<SplitStage>& stages, const std::string& where, Matcher matcher) {
  for (const SplitStage& stage : stages) {
    Stage& added = stages_.emplace_back();
    if (stage.pattern.empty())
      fail(ErrorKind::kUnsupported, where, "an empty Split pattern; expected one that matches text");
    if (stage.literal) {
      added.literal = stage.pattern;
    } else if (matcher == Matcher::kFastest && stage.pattern == kReleasedPattern) {
      added.released = true;
    } else {
      added.regex.emplace(stage.pattern, where);
    }
  }
}
Pretokenizer::~Pretokenizer() = default;
Pretokenizer::Pretokenizer(Pretokenizer&&) noexcept = default;
Pretokenizer& Pretokenizer::operator=(Pretokenizer&&) noexcept = default;

const std::vector<size_t>& Pretokenizer::split(std::string_view text, Scratch& scratch) const {
  std::vector<size_t>& ends = scratch.ends_;
  ends.clear();
  if (text.empty()) return ends;
  if (stages_.size() == 1 && stages_[0].released) {
    split_by_released_pattern(text, ends);
    return ends;
  }
  ends.push_back(text.size());
  for (const Stage& stage : stages_) {
    std::vector<size_t>& next = scratch.next_ends_;
    next.clear();
    size_t begin = 0;
    for (const size_t end : ends) {
      const std::string_view piece = text.substr(begin, end - begin);
      if (stage.released) {
        const size_t first = next.size();
        split_by_released_pattern(piece, next);
        for (size_t i = first; i < next.size(); ++i) next[i] += begin;
      } else {
        stage.split(piece, begin, scratch.memory_->regex, next);
      }
      begin = end;
    }
    ends.swap(next);
  }
  return ends;
}

}  // namespace verbatim::text
