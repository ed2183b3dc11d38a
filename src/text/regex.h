// A pre-tokenizer's regex, run by PCRE2 (UTF, UCP, JIT) so that it means what it means to Oniguruma.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace verbatim::text {

// Immutable after construction; threads share it, each with its own Memory.
class Regex {
 public:
  // Throws Error(kUnsupported), naming the construct, for syntax that PCRE2 and Oniguruma read differently or that
  // PCRE2 does not know.
  Regex(const std::string& pattern, const std::string& where);

  class Memory {
   public:
    Memory();
    ~Memory();
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
    void reserve();  // allocates; called for the first match otherwise

   private:
    friend class Regex;
    struct State;
    std::unique_ptr<State> state_;
  };

  // Calls visit(begin, end) for the matches in `text` (valid UTF-8), left to right, not overlapping; after an empty
  // match the search moves on by one character. Throws Error(kCapacity) if PCRE2's limits are exhausted.
  void for_each_match(std::string_view text, Memory& memory, const std::function<void(size_t, size_t)>& visit) const;

 private:
  struct Code;
  std::shared_ptr<const Code> code_;
  std::string where_;
};

}  // namespace verbatim::text
