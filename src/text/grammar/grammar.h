// Structured output: what a reply may look like, as masks over token ids. docs/structured-output.md says what is
// supported, what is refused and how JSON is laid out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/grammar/token_table.h"
#include "text/tool_schema.h"

namespace verbatim::text {

// What compiling may cost. Beyond any of them: Error(kUsage) that names the limit.
struct GrammarLimits {
  size_t schema_bytes = 256 << 10;  // of a schema, a regex, all choices, or all tools together
  size_t states = 200'000;          // automaton states, those of steps in between included
  int64_t compile_ms = 700;
};

class Automaton;
class MaskCache;

// What one kind of reply looks like. Immutable to its users: any number of requests on any threads may share it.
class Grammar {
 public:
  Grammar(std::shared_ptr<const TokenTable> tokens, Automaton automaton);
  ~Grammar();
  Grammar(const Grammar&) = delete;
  Grammar& operator=(const Grammar&) = delete;

  const TokenTable& tokens() const { return *tokens_; }
  const Automaton& automaton() const { return *automaton_; }
  MaskCache& masks() const { return *masks_; }  // locks by itself
  size_t states() const;
  // Whether the bytes are a whole reply. Byte by byte: how text is cut into tokens means nothing.
  bool accepts(std::string_view bytes) const;

 private:
  std::shared_ptr<const TokenTable> tokens_;
  std::unique_ptr<const Automaton> automaton_;
  std::unique_ptr<MaskCache> masks_;
};

using GrammarPointer = std::shared_ptr<const Grammar>;
using TokenTablePointer = std::shared_ptr<const TokenTable>;

// All throw Error(kUsage) for what is malformed, not supported (named, with its place), beyond the limits, or such that
// no reply could ever satisfy it.
//
// A value that the schema allows. Properties come in the schema's order.
GrammarPointer compile_json_schema(TokenTablePointer tokens, std::string_view schema, const GrammarLimits& limits = {});
// Any JSON object.
GrammarPointer compile_json_object(TokenTablePointer tokens, const GrammarLimits& limits = {});
// Text that the regex matches from its beginning to its end.
GrammarPointer compile_regex(TokenTablePointer tokens, std::string_view pattern, const GrammarLimits& limits = {});
// One of the strings.
GrammarPointer compile_choice(TokenTablePointer tokens, std::span<const std::string> choices,
                              const GrammarLimits& limits = {});

struct ToolCallOptions {
  std::string named = {};  // only this tool; empty: any of those offered
  size_t min_calls = 1;
  size_t max_calls = 0;  // 0: any number; 1 where parallel calls are off
};
// Tool calls as the model writes them: <tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>,
// tags by token id. ReplyParser with a ToolSet of the same tools reads them back.
GrammarPointer compile_tool_calls(TokenTablePointer tokens, const std::vector<OfferedTool>& tools,
                                  const ToolCallOptions& options = {}, const GrammarLimits& limits = {});

struct MaskOptions {
  std::vector<int32_t> end_tokens = {};  // each ends a reply: allowed where the grammar accepts, and nowhere else
  // Reasoning comes first, and the grammar begins behind the first `reasoning_end_token`. Until then every token is
  // allowed but the end tokens and those of `forbidden_in_reasoning` (<tool_call>, which would end it otherwise).
  // False: the grammar begins with the first token.
  bool has_reasoning = true;
  int32_t reasoning_end_token = -1;
  std::vector<int32_t> forbidden_in_reasoning = {};
};

// Sets the bits (i of word i / 64) of the tokens that may follow `generated` and clears all others. A pure function of
// `generated`, whatever it was asked before; cheap if that is a longer or shorter form of what it was asked lately
// (drafts taken back, several choices of one request). May be called from any thread; copies share their memory of
// earlier calls. Behind a token that was not allowed, and behind an end token, only the end tokens are allowed.
using TokenMaskFunction = std::function<void(std::span<const int32_t> generated, std::span<uint64_t> allowed)>;

// Throws Error(kUsage) without end tokens, or with reasoning but no token that ends it.
TokenMaskFunction make_mask(GrammarPointer grammar, MaskOptions options);

// Compiled grammars by key, the one unused for longest dropped first. Thread safe; two threads that ask for one key at
// the same time may both compile it.
class GrammarCache {
 public:
  explicit GrammarCache(size_t max_grammars = 64, size_t max_states = 2'000'000)
      : max_grammars_(max_grammars), max_states_(max_states) {}

  // The grammar of `key`; else what `compile` returns, kept. What it throws passes through and is not kept. The key
  // must say all that the result depends on: the kind of grammar, its text and options.
  GrammarPointer get(const std::string& key, const std::function<GrammarPointer()>& compile);
  size_t size() const;

 private:
  struct Entry {
    std::string key;
    GrammarPointer grammar;
  };
  size_t max_grammars_, max_states_;
  mutable std::mutex mutex_;
  std::list<Entry> entries_;  // used last first
  std::unordered_map<std::string_view, std::list<Entry>::iterator> by_key_;
  size_t states_ = 0;
};

}  // namespace verbatim::text
