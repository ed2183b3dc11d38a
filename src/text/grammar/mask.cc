// Masks from grammars, and the cache of grammars.
#include <algorithm>
#include <deque>
#include <utility>

#include "base/error.h"
#include "text/grammar/grammar.h"
#include "text/grammar/mask_cache.h"

namespace verbatim::text {
namespace {

// How many histories a mask remembers: the choices of one request take turns, and drafts leave a history for a moment.
constexpr size_t kMaxHistories = 24;
// A history that leaves another one by this many tokens or fewer replaces it: drafts taken back.
constexpr size_t kMaxTakenBack = 32;

// Tokens and, behind each of them that the grammar governs, the position.
struct History {
  std::vector<int32_t> tokens;
  size_t begin = 0;        // where the grammar begins; larger than tokens.size(): not yet
  bool is_inside = false;  // reasoning is over
  Frames frames;
  std::vector<Item> items;  // of all positions, one after the other
  struct Mark {
    size_t items;  // where the next position's begin
    Frames::Size frames;
    bool is_complete;
  };
  std::vector<Mark> marks;  // [0] at `begin`, one more a token
};

class MaskState {
 public:
  MaskState(GrammarPointer grammar, MaskOptions options)
      : grammar_(std::move(grammar)), options_(std::move(options)), matcher_(grammar_->automaton()) {}

  void mask(std::span<const int32_t> generated, std::span<uint64_t> allowed) {
    const std::lock_guard lock(mutex_);
    History& history = history_of(generated);
    const TokenTable& tokens = grammar_->tokens();
    full_.assign(std::max(tokens.words(), allowed.size()), 0);
    if (!history.is_inside) {
      std::copy(tokens.known().begin(), tokens.known().end(), full_.begin());
      for (const int32_t id : options_.end_tokens) clear(id);
      for (const int32_t id : options_.forbidden_in_reasoning) clear(id);
    } else {
      load(history);
      grammar_->masks().allow(here_, history.frames, full_);
      for (const Item& item : here_.items)
        for (const TokenEdge& edge : grammar_->automaton().tokens(item.state)) set(edge.token);
      if (here_.is_complete || here_.items.empty())
        for (const int32_t id : options_.end_tokens) set(id);
    }
    std::copy_n(full_.begin(), allowed.size(), allowed.begin());
  }

 private:
  void set(int32_t id) {
    if (id >= 0 && static_cast<size_t>(id) / 64 < full_.size())
      full_[static_cast<size_t>(id) / 64] |= uint64_t{1} << (id % 64);
  }
  void clear(int32_t id) {
    if (id >= 0 && static_cast<size_t>(id) / 64 < full_.size())
      full_[static_cast<size_t>(id) / 64] &= ~(uint64_t{1} << (id % 64));
  }

  // The remembered history with the most in common, brought to `generated`.
  History& history_of(std::span<const int32_t> generated) {
    size_t best = 0, common = 0;
    for (size_t i = 0; i < histories_.size(); ++i) {
      const std::vector<int32_t>& tokens = histories_[i].tokens;
      const size_t length = std::min(tokens.size(), generated.size());
      const auto same = static_cast<size_t>(
          std::mismatch(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(length), generated.begin()).first -
          tokens.begin());
      if (i > 0 && same <= common) continue;
      best = i;
      common = same;
    }
    if (histories_.empty()) {
      histories_.emplace_back();
    } else if (histories_[best].tokens.size() > common + kMaxTakenBack && common < generated.size()) {
      History copy = histories_[best];
      histories_.push_front(std::move(copy));
      best = 0;
      if (histories_.size() > kMaxHistories) histories_.pop_back();
    } else if (best != 0) {  // used last first
      std::rotate(histories_.begin(), histories_.begin() + static_cast<std::ptrdiff_t>(best),
                  histories_.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    }
    History& history = histories_.front();
    take_back(history, common);
    if (history.tokens.empty() && !options_.has_reasoning && !history.is_inside) enter(history);
    for (size_t i = history.tokens.size(); i < generated.size(); ++i) advance(history, generated[i]);
    return history;
  }

  void take_back(History& history, size_t length) const {
    history.tokens.resize(length);
    if (!history.is_inside) return;
    if (history.begin > length) {
      history.is_inside = false;
      history.marks.clear();
      history.items.clear();
      history.frames.resize({1, 0});
      return;
    }
    history.marks.resize(length - history.begin + 1);
    history.items.resize(history.marks.back().items);
    history.frames.resize(history.marks.back().frames);
  }

  void enter(History& history) {
    history.is_inside = true;
    history.begin = history.tokens.size();
    matcher_.begin(history.frames, next_);
    remember(history);
  }

  void remember(History& history) const {
    history.items.insert(history.items.end(), next_.items.begin(), next_.items.end());
    history.marks.push_back({history.items.size(), history.frames.size(), next_.is_complete});
  }

  void load(const History& history) {
    const size_t count = history.marks.size();
    const size_t begin = count > 1 ? history.marks[count - 2].items : 0;
    here_.items.assign(history.items.begin() + static_cast<std::ptrdiff_t>(begin), history.items.end());
    here_.is_complete = history.marks.back().is_complete;
  }

  void advance(History& history, int32_t token) {
    if (!history.is_inside) {
      history.tokens.push_back(token);
      if (token == options_.reasoning_end_token) enter(history);
      return;
    }
    load(history);
    const std::string_view text = grammar_->tokens().text(token);
    if (text.empty()) {
      matcher_.step_token(here_, token, history.frames, next_);
    } else {
      for (size_t i = 0; i < text.size(); ++i) {
        if (i > 0) std::swap(here_, next_);
        matcher_.step(here_, static_cast<uint8_t>(text[i]), history.frames, next_);
      }
    }
    history.tokens.push_back(token);
    remember(history);
  }

  const GrammarPointer grammar_;
  const MaskOptions options_;
  std::mutex mutex_;
  Matcher matcher_;
  Position here_, next_;
  std::vector<uint64_t> full_;
  std::deque<History> histories_;
};

}  // namespace

Grammar::Grammar(std::shared_ptr<const TokenTable> tokens, Automaton automaton)
    : tokens_(std::move(tokens)),
      automaton_(std::make_unique<const Automaton>(std::move(automaton))),
      masks_(std::make_unique<MaskCache>(*automaton_, *tokens_)) {}

Grammar::~Grammar() = default;

size_t Grammar::states() const { return automaton_->states(); }

bool Grammar::accepts(std::string_view bytes) const {
  Matcher matcher(*automaton_);
  Frames frames;
  Position here, next;
  matcher.begin(frames, here);
  for (const char byte : bytes) {
    matcher.step(here, static_cast<uint8_t>(byte), frames, next);
    std::swap(here, next);
  }
  return here.is_complete;
}

TokenMaskFunction make_mask(GrammarPointer grammar, MaskOptions options) {
  if (options.end_tokens.empty())
    fail(ErrorKind::kUsage, "structured output", "no end token is known; a reply could not end; name one");
  if (options.has_reasoning && options.reasoning_end_token < 0)
    fail(ErrorKind::kUsage, "structured output",
         "no token is known that ends reasoning; name it, or ask for no reasoning");
  auto state = std::make_shared<MaskState>(std::move(grammar), std::move(options));
  return [state](std::span<const int32_t> generated, std::span<uint64_t> allowed) { state->mask(generated, allowed); };
}

GrammarPointer GrammarCache::get(const std::string& key, const std::function<GrammarPointer()>& compile) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = by_key_.find(key); found != by_key_.end()) {
      entries_.splice(entries_.begin(), entries_, found->second);
      return found->second->grammar;
    }
  }
  GrammarPointer grammar = compile();
  const std::lock_guard lock(mutex_);
  if (const auto found = by_key_.find(key); found != by_key_.end()) return found->second->grammar;
  entries_.push_front({key, grammar});
  by_key_[entries_.front().key] = entries_.begin();
  states_ += grammar->states();
  while (entries_.size() > 1 && (entries_.size() > max_grammars_ || states_ > max_states_)) {
    states_ -= entries_.back().grammar->states();
    by_key_.erase(entries_.back().key);
    entries_.pop_back();
  }
  return grammar;
}

size_t GrammarCache::size() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

}  // namespace verbatim::text
