// Cuts ordinary text into the pieces that BPE then works on one by one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace verbatim::text {

// One stage of the file's pre_tokenizer: cut at every match of `pattern`, matches and gaps alike become pieces
// ("isolated"). A literal pattern is plain text, not a regex.
struct SplitStage {
  std::string pattern;
  bool literal = false;
};

// The released pattern, letter by letter. It has a matcher of its own, which takes its classes from `tokenizers`
// (unicode_classes.h); every other regex runs through PCRE2, whose \p{L}, \p{N} and \s are of Unicode 14.
extern const std::string_view kReleasedPattern;
// What ByteLevel with use_regex stands for (GPT-2's pattern).
extern const std::string_view kByteLevelPattern;

enum class Matcher { kFastest, kPcre2Only };  // kPcre2Only is for comparing the two

// Immutable after construction; threads share it.
class Pretokenizer {
 public:
  // Throws Error(kUnsupported) for a regex that PCRE2 cannot compile or would read differently from Oniguruma.
  Pretokenizer(const std::vector<SplitStage>& stages, const std::string& where, Matcher matcher = Matcher::kFastest);
  ~Pretokenizer();
  Pretokenizer(Pretokenizer&&) noexcept;
  Pretokenizer& operator=(Pretokenizer&&) noexcept;

  // What one caller needs for matching: its own memory, not shared between threads.
  class Scratch {
   public:
    explicit Scratch(const Pretokenizer& pretokenizer);
    ~Scratch();
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;

   private:
    friend class Pretokenizer;
    struct Memory;
    std::unique_ptr<Memory> memory_;
    std::vector<size_t> ends_, next_ends_;
  };

  // Cuts valid UTF-8 into consecutive pieces, none empty; returns where each ends. Valid until the next call with the
  // same scratch. Throws Error(kCapacity) if a PCRE2 pattern exhausts its limits on this text.
  const std::vector<size_t>& split(std::string_view text, Scratch& scratch) const;

 private:
  struct Stage;
  std::vector<Stage> stages_;
};

}  // namespace verbatim::text
