#include "engine/scheduler.h"

#include <algorithm>
#include <random>

#include "base/error.h"
#include "base/sha256.h"

namespace verbatim::engine {

using ops::kPageTokens;
using state::pages_for;

namespace {

template <typename... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> text, Args&&... args) {
  fail(ErrorKind::kUsage, "request", text, std::forward<Args>(args)...);
}

}  // namespace

struct Scheduler::Shared {
  int64_t id = 0;
  Request request;
  EventSink sink;
  uint64_t seed = 0;
  Clock::time_point submitted;
  TokenCounts prompt_counts;
  bool on_backend = false;  // the backend chooses its tokens
  bool cancelled = false;
  bool prompt_done = false;  // some choice has run the whole prompt: the others find it in the tree
};

struct Scheduler::Run {
  std::shared_ptr<Shared> shared;
  int choice = 0;
  int64_t order = 0;                        // of arrival; a preempted run keeps it
  std::vector<int32_t> tokens;              // prompt and reply
  std::optional<state::Sequence> sequence;  // while it holds a slot and pages
  int64_t kept_tokens = 0;                  // whose pages the tree was given
  int64_t branch_at = 0;                    // where it leaves an earlier request's text; 0: nowhere
  int64_t reply_snapshot_at = 0;            // where the tree holds this run's latest reply snapshot; 0: none
  int64_t first_snapshot_tokens = 0;        // known when it was started: the prompt, or prompt and reply if preempted

  DraftPolicy::History history;
  SuffixMatcher suffixes;
  std::vector<int32_t> next_drafts;  // from the next-n layer, for the coming step
  bool next_n_complete = false;      // the next-n layer has every row so far
  bool resumed = false;              // its next-n row before the first fed token is to be recomputed

  // Of the current step.
  ops::Span span;
  std::vector<int32_t> drafts;
  bool from_next_n = false;
  int64_t known_rows = 0, accepted_rows = 0;
  int32_t next_n_row = -1;

  std::vector<GeneratedToken> fresh, fresh_prompt;
  int64_t scored = 0;  // prompt tokens behind the first whose log probabilities were reported
  ReplySummary summary;
  std::optional<FinishReason> finished;

  const Request& request() const { return shared->request; }
  int64_t known() const { return std::ssize(tokens); }
  int64_t prompt_tokens() const { return std::ssize(shared->request.prompt); }
  bool scores_prompt() const { return request().prompt_logprobs >= 0 && choice == 0 && scored + 1 < prompt_tokens(); }
  std::span<const int32_t> reply() const { return std::span(tokens).subspan(shared->request.prompt.size()); }
  bool before(const Run& other) const {
    return std::pair(request().priority, order) < std::pair(other.request().priority, other.order);
  }
};

Scheduler::Scheduler(StepModel& model, SchedulerOptions options)
    : model_(model),
      options_(std::move(options)),
      pages_(model.sizes().pages),
      tree_(pages_, options_.snapshot_bytes),
      policy_(options_.drafts) {
  const StepModelSizes& sizes = model.sizes();
  if (options_.step_rows == 0) options_.step_rows = sizes.max_rows;
  options_.step_rows = std::clamp<int64_t>(options_.step_rows, 1, sizes.max_rows);
  options_.prompt_rows = std::max<int64_t>(options_.prompt_rows, 1);
  options_.snapshot_every = std::max<int64_t>(pages_for(options_.snapshot_every), 1) * kPageTokens;
  for (int64_t slot = sizes.slots - 1; slot >= 0; --slot) free_slots_.push_back(static_cast<int32_t>(slot));
}

Scheduler::~Scheduler() {
  for (const auto& run : running_)
    if (run->sequence)
      for (const int32_t page : run->sequence->pages()) pages_.release(page);
}

// ---- requests in and out
// ---------------------------------------------------------------------------------------------
void Scheduler::check(const Request& request) const {
  const StepModelSizes& sizes = model_.sizes();
  if (request.prompt.empty()) refuse("an empty prompt; expected at least one token");
  for (const int32_t id : request.prompt)
    if (id < 0 || id >= sizes.vocabulary) refuse("prompt token {}; expected 0 to {}", id, sizes.vocabulary - 1);
  if (request.max_tokens < (request.prompt_logprobs >= 0 ? 0 : 1))
    refuse("max_tokens {}; expected at least 1, or 0 with prompt_logprobs", request.max_tokens);
  if (request.choices < 1 || request.choices > 128) refuse("{} choices; expected 1 to 128", request.choices);
  const SamplingOptions& s = request.sampling;
  if (!(s.temperature >= 0.0f && s.temperature <= 100.0f)) refuse("temperature {}; expected 0 to 100", s.temperature);
  if (!(s.top_p > 0.0f && s.top_p <= 1.0f)) refuse("top_p {}; expected above 0, at most 1", s.top_p);
  if (!(s.min_p >= 0.0f && s.min_p <= 1.0f)) refuse("min_p {}; expected 0 to 1", s.min_p);
  if (s.top_k < 0) refuse("top_k {}; expected 0 (all) or more", s.top_k);
  if (!(s.repetition_penalty > 0.0f)) refuse("repetition_penalty {}; expected above 0", s.repetition_penalty);
  if (request.reasoning_budget >= 0 &&
      (request.reasoning_end_token < 0 || request.reasoning_end_token >= sizes.vocabulary))
    refuse("a reasoning budget needs the token that ends reasoning; found {}", request.reasoning_end_token);

  const int64_t most = std::ssize(request.prompt) + request.max_tokens;
  if (most > sizes.max_positions)
    fail(ErrorKind::kCapacity, "request", "{} prompt tokens and {} to generate; the context holds {}",
         request.prompt.size(), request.max_tokens, sizes.max_positions);
  if (pages_for(most + 1) > sizes.pages)
    fail(ErrorKind::kCapacity, "request", "{} tokens need {} pages; there are {}", most, pages_for(most + 1),
         sizes.pages);
}

int64_t Scheduler::submit(Request request, EventSink sink) {
  check(request);
  if (std::ssize(waiting_) + request.choices > options_.queue_limit)
    fail(ErrorKind::kCapacity, "request", "{} requests wait already; the queue holds {}", waiting_.size(),
         options_.queue_limit);
  const int64_t id = next_request_++;
  enqueue(id, Clock::now(), std::move(request), std::move(sink));
  return id;
}

void Scheduler::enqueue(int64_t id, Clock::time_point submitted, Request request, EventSink sink) {
  auto shared = std::make_shared<Shared>();
  shared->id = id;
  shared->sink = std::move(sink);
  shared->submitted = submitted;
  shared->on_backend = may_choose_on_backend(request);
  if (request.sampling.seed) {
    shared->seed = *request.sampling.seed;
  } else {
    std::random_device device;
    shared->seed = uint64_t{device()} << 32 | device();
  }
  for (const int32_t token : request.prompt) shared->prompt_counts.add(token);
  shared->request = std::move(request);
  for (int choice = 0; choice < shared->request.choices; ++choice) {
    auto run = std::make_unique<Run>();
    run->shared = shared;
    run->choice = choice;
    run->order = next_order_++;
    run->tokens = shared->request.prompt;
    run->history = policy_.begin();
    const auto at =
        std::find_if(waiting_.begin(), waiting_.end(), [&](const auto& other) { return run->before(*other); });
    waiting_.insert(at, std::move(run));
  }
}

void Scheduler::cancel(int64_t request) {
  for (const auto* list : {&waiting_, &running_})
    for (const auto& run : *list)
      if (run->shared->id == request) run->shared->cancelled = true;
}

void Scheduler::cancel_all() {
  for (const auto* list : {&waiting_, &running_})
    for (const auto& run : *list) run->shared->cancelled = true;
}

void Scheduler::discard_cancelled() { finish_runs(); }

bool Scheduler::idle() const { return waiting_.empty() && running_.empty(); }

void Scheduler::clear_cache() { tree_.clear(); }

SchedulerStats Scheduler::stats() const {
  SchedulerStats stats = stats_;
  stats.waiting = std::ssize(waiting_);
  stats.running = std::ssize(running_);
  stats.pages_total = pages_.total();
  stats.pages_free = pages_.free();
  stats.tree_nodes = tree_.nodes();
  stats.tree_snapshots = tree_.snapshots();
  stats.tree_snapshot_bytes = tree_.snapshot_bytes();
  return stats;
}

void Scheduler::emit(Run& run, bool last) {
  if (run.fresh.empty() && run.fresh_prompt.empty() && !last) return;
  Event event{run.shared->id, run.choice, std::move(run.fresh), std::move(run.fresh_prompt), {}};
  run.fresh.clear();
  run.fresh_prompt.clear();
  if (last) event.summary = run.summary;
  if (run.shared->sink) run.shared->sink(event);
}

void Scheduler::finish(Run& run, FinishReason reason) {
  if (run.sequence) {
    keep_pages(run);
    for (const int32_t page : run.sequence->pages()) pages_.release(page);
    free_slots_.push_back(run.sequence->slot());
    run.sequence.reset();
  }
  run.summary.reason = reason;
  run.summary.seed = run.shared->seed;
  run.summary.prompt_tokens = run.prompt_tokens();
  run.summary.generated_tokens = std::ssize(run.reply());
  run.summary.token_hash = token_hash(run.reply());
  ++(reason == FinishReason::kCancelled ? stats_.cancelled : stats_.finished);
  emit(run, true);
}

// ---- admission
// -------------------------------------------------------------------------------------------------------
bool Scheduler::start(Run& run) {
  if (free_slots_.empty()) return false;
  // Rows whose logits are still to be reported are computed.
  state::PrefixTree::Match match = tree_.find(run.tokens, run.scores_prompt() ? run.scored : run.known() - 1);
  const int64_t needed = pages_for(run.known() + 1) - std::ssize(match.pages);
  if (needed > pages_.free() + tree_.evictable_pages()) {
    for (const int32_t page : match.pages) pages_.release(page);
    return false;
  }
  const int32_t slot = free_slots_.back();
  free_slots_.pop_back();
  if (match.tokens > 0) model_.restore(*match.snapshot, slot, match.tokens);
  run.sequence.emplace(slot, std::move(match.pages), match.tokens);
  run.kept_tokens = match.tokens;
  run.branch_at = match.matched_tokens > match.tokens ? match.matched_tokens : 0;
  run.reply_snapshot_at = 0;
  run.first_snapshot_tokens = run.known();
  run.next_n_complete = model_.sizes().has_next_n && options_.drafts > 0 && match.next_n_complete;
  run.resumed = match.tokens > 0;
  run.next_drafts.clear();
  if (run.summary.preemptions == 0) run.summary.cached_tokens = match.tokens;
  stats_.cached_tokens += match.tokens;
  return true;
}

void Scheduler::admit() {
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    Run& run = **it;
    // Other choices wait until the prompt can be found in the tree.
    const bool early = run.choice > 0 && !run.shared->prompt_done && options_.snapshot_bytes > 0;
    if (early) {
      ++it;
      continue;
    }
    if (!start(run)) break;  // in order: nobody overtakes
    running_.push_back(std::move(*it));
    it = waiting_.erase(it);
  }
  std::sort(running_.begin(), running_.end(), [](const auto& a, const auto& b) { return a->before(*b); });
}

bool Scheduler::reserve(Run& run, int64_t tokens, bool may_preempt) {
  while (std::ssize(run.sequence->pages()) < pages_for(tokens)) {
    std::optional<int32_t> page = pages_.take();
    if (!page && tree_.evict_page()) page = pages_.take();
    if (page) {
      run.sequence->append_page(*page);
      continue;
    }
    if (!may_preempt) return false;
    // The last in order that is not part of this step yet gives way, this run itself if it is the last.
    Run* victim = nullptr;
    for (const auto& other : running_)
      if (other->sequence && other->known_rows == 0) victim = other.get();
    if (victim == nullptr) return false;
    const bool self = victim == &run;
    preempt(*victim);
    if (self) return false;
  }
  return true;
}

void Scheduler::preempt(Run& run) {
  keep_pages(run);
  for (const int32_t page : run.sequence->pages()) pages_.release(page);
  free_slots_.push_back(run.sequence->slot());
  run.sequence.reset();
  run.next_drafts.clear();
  ++run.summary.preemptions;
  ++stats_.preemptions;
}

// ---- a step
// ----------------------------------------------------------------------------------------------------------
int64_t Scheduler::chunk_limit(const Run& run) const {
  int64_t limit = INT64_MAX;
  if (options_.snapshot_bytes == 0) return limit;
  const int64_t length = run.sequence->length();
  const int64_t every = (length / options_.snapshot_every + 1) * options_.snapshot_every;
  for (const int64_t wanted : {run.branch_at, run.first_snapshot_tokens / kPageTokens * kPageTokens, every})
    if (wanted > length) limit = std::min(limit, wanted - length);
  return limit;
}

std::vector<int32_t> Scheduler::propose(Run& run) {
  const int64_t left = run.request().max_tokens - std::ssize(run.reply()) - 1;
  const int most = static_cast<int>(std::clamp<int64_t>(left, 0, options_.drafts));
  run.from_next_n = false;
  std::vector<int32_t> drafts;
  if (most == 0 || !run.request().draft) return drafts;
  if (options_.draft_source) {
    drafts = options_.draft_source(run.tokens, most);
  } else {
    if (options_.draft_from_text) {
      run.suffixes.update(run.tokens);
      drafts = run.suffixes.propose(run.tokens, most);
    }
    if (drafts.empty()) {
      drafts = run.next_drafts;
      run.from_next_n = true;
    }
  }
  if (std::ssize(drafts) > most) drafts.resize(static_cast<size_t>(most));
  if (run.request().mask) cut_to_mask(run, drafts);
  return drafts;
}

// A draft that the mask forbids could only be rejected.
void Scheduler::cut_to_mask(const Run& run, std::vector<int32_t>& drafts) {
  std::vector<int32_t> generated(run.reply().begin(), run.reply().end());
  const int32_t limit = model_.sizes().vocabulary_limit;
  allowed_.resize(static_cast<size_t>(limit + 63) / 64);
  for (size_t i = 0; i < drafts.size(); ++i) {
    std::fill(allowed_.begin(), allowed_.end(), 0);
    run.request().mask(generated, allowed_);
    const auto id = static_cast<size_t>(drafts[i]);
    if (drafts[i] >= limit || (allowed_[id / 64] >> (id % 64) & 1) == 0) {
      drafts.resize(i);
      return;
    }
    generated.push_back(drafts[i]);
  }
}

void Scheduler::add_span(Run& run, int64_t rows, std::vector<int32_t> drafts) {
  const int64_t length = run.sequence->length();
  run.known_rows = rows;
  run.drafts = std::move(drafts);
  run.span = run.sequence->next(std::ssize(step_ids_), rows + std::ssize(run.drafts), rows);
  step_ids_.insert(step_ids_.end(), run.tokens.begin() + length, run.tokens.begin() + length + rows);
  step_ids_.insert(step_ids_.end(), run.drafts.begin(), run.drafts.end());
  spans_.push_back(run.span);
  step_runs_.push_back(&run);
}

void Scheduler::compose() {
  spans_.clear();
  step_ids_.clear();
  step_runs_.clear();
  for (const auto& run : running_) {
    run->known_rows = 0;
    run->accepted_rows = 0;
    run->next_n_row = -1;
  }
  int64_t left = options_.step_rows;
  // Replies first, one token and its drafts each.
  for (const auto& each : running_) {
    Run& run = *each;
    if (!run.sequence || run.known() - run.sequence->length() != 1 || left == 0) continue;
    const int64_t length = run.sequence->length();
    if (!reserve(run, length + 2, true)) continue;
    std::vector<int32_t> drafts = propose(run);
    if (std::ssize(drafts) > left - 1) drafts.resize(static_cast<size_t>(left - 1));
    if (!drafts.empty() && !reserve(run, length + 2 + std::ssize(drafts), false)) drafts.clear();
    left -= 1 + std::ssize(drafts);
    add_span(run, 1, std::move(drafts));
  }
  // Then prompts in order, in what the budget leaves.
  int64_t prompt_left = step_runs_.empty() ? left : std::min(left, options_.prompt_rows);
  for (const auto& each : running_) {
    Run& run = *each;
    if (!run.sequence || run.known_rows > 0) continue;
    const int64_t length = run.sequence->length(), remaining = run.known() - length;
    const int64_t rows = std::min({remaining, prompt_left, chunk_limit(run)});
    if (remaining < 2 || rows == 0) continue;
    if (!reserve(run, length + rows + 1, true)) continue;
    prompt_left -= rows;
    stats_.prompt_tokens += rows;
    add_span(run, rows, {});
  }
  // Preempted ones wait again, in their old place.
  for (auto it = running_.begin(); it != running_.end();) {
    if ((*it)->sequence) {
      ++it;
      continue;
    }
    const auto at =
        std::find_if(waiting_.begin(), waiting_.end(), [&](const auto& other) { return (*it)->before(*other); });
    waiting_.insert(at, std::move(*it));
    it = running_.erase(it);
  }
}

bool Scheduler::take_token(Run& run, int32_t chosen_id, std::span<const float> logits) {
  const Request& request = run.request();
  const std::span<const int32_t> reply = run.reply();
  GeneratedToken token;
  const bool over_budget = request.reasoning_budget >= 0 && std::ssize(reply) >= request.reasoning_budget &&
                           std::find(reply.begin(), reply.end(), request.reasoning_end_token) == reply.end();
  if (over_budget) {
    token.id = request.reasoning_end_token;
  } else if (logits.empty()) {
    token.id = chosen_id;
  } else {
    token.id = sampler_.sample(logits, {&request, run.shared->seed, run.choice, reply, &run.shared->prompt_counts,
                                        model_.sizes().vocabulary_limit});
  }
  if (request.hash_logits) token.logits_hash = hash_logits(logits);
  if (request.logprobs >= 0)
    sampler_.log_probabilities(logits, model_.sizes().vocabulary_limit, request.logprobs, token);
  const double seconds = std::chrono::duration<double>(Clock::now() - run.shared->submitted).count();
  if (run.summary.token_times_s.empty()) run.summary.first_token_s = seconds;
  run.summary.token_times_s.push_back(seconds);
  run.tokens.push_back(token.id);
  ++stats_.generated_tokens;
  const auto& stops = request.stop_tokens;
  if (std::find(stops.begin(), stops.end(), token.id) != stops.end() || (request.stop && request.stop(run.reply())))
    run.finished = FinishReason::kStop;
  else if (std::ssize(run.reply()) >= request.max_tokens)
    run.finished = FinishReason::kLength;
  run.fresh.push_back(std::move(token));
  return !run.finished;
}

// Row p's logits say how likely prompt token p + 1 was.
void Scheduler::score_prompts() {
  constexpr int64_t kRowsAtOnce = 16;  // bounds the logits held
  const auto vocabulary = static_cast<size_t>(model_.sizes().vocabulary);
  for (Run* run : step_runs_) {
    if (!run->scores_prompt()) continue;
    const int64_t end = std::min(run->span.position + run->known_rows, run->prompt_tokens() - 1);
    while (run->scored < end) {
      const int64_t count = std::min(kRowsAtOnce, end - run->scored);
      std::vector<int32_t> rows;
      for (int64_t i = 0; i < count; ++i)
        rows.push_back(static_cast<int32_t>(run->span.first_row + run->scored + i - run->span.position));
      const std::span<const float> logits = model_.logits(rows);
      for (int64_t i = 0; i < count; ++i) {
        GeneratedToken token;
        token.id = run->tokens[static_cast<size_t>(++run->scored)];
        sampler_.log_probabilities(logits.subspan(static_cast<size_t>(i) * vocabulary, vocabulary),
                                   model_.sizes().vocabulary_limit, run->request().prompt_logprobs, token);
        run->fresh_prompt.push_back(std::move(token));
      }
    }
  }
}

// Rows whose tokens the backend chooses, and how. A drafted row has the drafts before it among its tokens.
void Scheduler::describe_row(const Run& run, int64_t row, std::vector<int32_t>& generated) {
  const auto before = static_cast<size_t>(row - (run.known_rows - 1));
  generated.assign(run.reply().begin(), run.reply().end());
  generated.insert(generated.end(), run.drafts.begin(), run.drafts.begin() + static_cast<std::ptrdiff_t>(before));
  const SamplingContext context{&run.request(), run.shared->seed,           run.choice,
                                generated,      &run.shared->prompt_counts, model_.sizes().vocabulary_limit};
  sampler_.adjust(context, static_cast<int32_t>(how_.size()), adjustments_);
  how_.push_back(Sampler::describe(context));
}

void Scheduler::sample() {
  std::vector<int32_t> backend_rows, logit_rows, generated;
  how_.clear();
  adjustments_.clear();
  bool all_greedy = true;
  for (Run* run : step_runs_) {
    if (run->sequence->length() + run->known_rows < run->known() || run->request().max_tokens == 0) continue;
    const bool on_backend = run->shared->on_backend;
    auto& rows = on_backend ? backend_rows : logit_rows;
    for (int64_t row = run->known_rows - 1; row < run->span.rows; ++row) {
      rows.push_back(static_cast<int32_t>(run->span.first_row + row));
      if (!on_backend) continue;
      describe_row(*run, row, generated);
      all_greedy = all_greedy && how_.back().temperature == 0.0f;
    }
  }
  const auto start = Clock::now();
  // Copied: a model may give both from one buffer.
  std::vector<int32_t> chosen;
  if (!backend_rows.empty()) {
    const auto ids = all_greedy && adjustments_.empty() ? model_.greedy(backend_rows)
                                                        : model_.sample(backend_rows, how_, adjustments_);
    chosen.assign(ids.begin(), ids.end());
  }
  const std::span<const float> logits = logit_rows.empty() ? std::span<const float>() : model_.logits(logit_rows);
  stats_.model_s += std::chrono::duration<double>(Clock::now() - start).count();

  const auto sampling = Clock::now();
  const auto vocabulary = static_cast<size_t>(model_.sizes().vocabulary);
  size_t next_chosen = 0, next_logits = 0;
  for (Run* run : step_runs_) {
    run->accepted_rows = run->known_rows;
    if (run->sequence->length() + run->known_rows == run->known()) {
      run->shared->prompt_done = true;
      if (run->request().max_tokens == 0) {
        run->finished = FinishReason::kLength;
        run->sequence->accept(run->span, run->accepted_rows);
        continue;
      }
      const size_t drafts = run->drafts.size();
      for (size_t i = 0; i <= drafts; ++i) {
        const bool goes_on = run->shared->on_backend
                                 ? take_token(*run, chosen[next_chosen + i], {})
                                 : take_token(*run, -1, logits.subspan((next_logits + i) * vocabulary, vocabulary));
        if (!goes_on || i == drafts || run->tokens.back() != run->drafts[i]) break;
        ++run->accepted_rows;
      }
      (run->shared->on_backend ? next_chosen : next_logits) += drafts + 1;
      const int64_t accepted = run->accepted_rows - run->known_rows;
      run->summary.drafted_tokens += std::ssize(run->drafts);
      run->summary.accepted_tokens += accepted;
      stats_.drafted_tokens += std::ssize(run->drafts);
      stats_.accepted_tokens += accepted;
      if (run->from_next_n)
        policy_.record_acceptance(run->history, static_cast<int>(drafts), static_cast<int>(accepted));
    }
    run->sequence->accept(run->span, run->accepted_rows);
  }
  stats_.sampler_s += std::chrono::duration<double>(Clock::now() - sampling).count();
}

void Scheduler::advance_next_n() {
  std::vector<ops::Span> spans;
  std::vector<int32_t> ids, hidden_rows;
  for (Run* run : step_runs_) {
    if (!run->next_n_complete) continue;
    if (!run->request().draft || run->history.off || run->request().max_tokens == 0) {
      run->next_n_complete = false;
      continue;
    }
    const int64_t first = run->span.position, rows = run->accepted_rows;
    if (run->resumed) {
      ops::Span before = run->span;
      before.first_row = 0;
      before.rows = before.certain = 1;
      before.position = first - 1;
      before.pages = run->sequence->pages().data();
      model_.next_n_resumed(before, run->tokens[static_cast<size_t>(first)]);
      run->resumed = false;
    }
    ops::Span span = run->span;
    span.first_row = std::ssize(ids);
    span.rows = span.certain = rows;
    span.pages = run->sequence->pages().data();
    spans.push_back(span);
    for (int64_t row = 0; row < rows; ++row) {
      ids.push_back(run->tokens[static_cast<size_t>(first + row + 1)]);
      hidden_rows.push_back(static_cast<int32_t>(run->span.first_row + row));
    }
    run->next_n_row = static_cast<int32_t>(ids.size()) - 1;
  }
  if (!spans.empty()) model_.next_n(spans, ids, hidden_rows);
}

void Scheduler::keep_pages(Run& run) {
  const int64_t whole = run.sequence->length() / kPageTokens * kPageTokens;
  if (whole <= run.kept_tokens || options_.snapshot_bytes == 0) return;
  tree_.insert(std::span(run.tokens).first(static_cast<size_t>(whole)), run.sequence->pages(), run.next_n_complete);
  run.kept_tokens = whole;
}

void Scheduler::take_snapshots() {
  if (options_.snapshot_bytes == 0) return;
  for (Run* run : step_runs_) {
    const int64_t before = run->span.position, length = run->sequence->length();
    const int64_t at = length / kPageTokens * kPageTokens;
    if (at <= before) continue;
    keep_pages(*run);
    const bool reply = at > run->first_snapshot_tokens;
    const bool wanted = reply || at == run->branch_at || at % options_.snapshot_every == 0 ||
                        at == run->first_snapshot_tokens / kPageTokens * kPageTokens;
    if (!wanted || ops::state_position_after(run->span) > at) continue;
    const auto prefix = std::span(run->tokens).first(static_cast<size_t>(at));
    if (tree_.has_snapshot(prefix)) continue;
    const ops::Span advance = run->sequence->advance_state(at);
    tree_.attach(prefix, model_.save(advance, static_cast<int32_t>(run->span.first_row + at - 1 - before)));
    if (!reply) continue;
    // Of a reply only the latest is kept.
    if (run->reply_snapshot_at > 0)
      tree_.detach(std::span(run->tokens).first(static_cast<size_t>(run->reply_snapshot_at)));
    run->reply_snapshot_at = at;
  }
}

void Scheduler::draft() {
  std::vector<Run*> runs;
  std::vector<DraftChain> chains;
  for (Run* run : step_runs_) {
    run->next_drafts.clear();
    if (run->finished || run->next_n_row < 0 || !run->next_n_complete || options_.draft_source) continue;
    if (run->known() - run->sequence->length() != 1) continue;
    const int depth = policy_.depth(run->history);
    if (depth == 0 || !reserve(*run, run->known() + 1 + depth, false)) continue;
    DraftChain chain{run->next_n_row, depth, run->span};
    chain.span.rows = chain.span.certain = 1;
    chain.span.position = run->sequence->length();
    chain.span.pages = run->sequence->pages().data();
    chains.push_back(chain);
    runs.push_back(run);
  }
  if (chains.empty()) return;
  std::span<const int32_t> ids = model_.draft(chains);
  for (size_t i = 0; i < runs.size(); ++i) {
    const auto own = ids.first(static_cast<size_t>(chains[i].drafts));
    runs[i]->next_drafts.assign(own.begin(), own.end());
    ids = ids.subspan(own.size());
  }
}

void Scheduler::finish_runs() {
  for (auto* list : {&running_, &waiting_}) {
    for (auto it = list->begin(); it != list->end();) {
      Run& run = **it;
      if (run.shared->cancelled && !run.finished) run.finished = FinishReason::kCancelled;
      if (!run.finished) {
        emit(run, false);
        ++it;
        continue;
      }
      finish(run, *run.finished);
      it = list->erase(it);
    }
  }
}

double Scheduler::clock_s() const {
  return options_.clock_s ? options_.clock_s() : std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

bool Scheduler::step() {
  const auto start = Clock::now();
  const double start_s = clock_s();
  const double model_before = stats_.model_s, sampler_before = stats_.sampler_s;
  finish_runs();
  admit();
  compose();
  if (spans_.empty()) return !idle();
  auto timed = [&](auto&& work) {
    const auto from = Clock::now();
    work();
    stats_.model_s += std::chrono::duration<double>(Clock::now() - from).count();
  };
  timed([&] { model_.forward(spans_, step_ids_); });
  score_prompts();
  sample();
  timed([&] { advance_next_n(); });
  timed([&] { take_snapshots(); });
  timed([&] { draft(); });
  ++stats_.steps;

  int64_t drafts = 0;
  bool only_replies = true;
  for (const Run* run : step_runs_) {
    drafts += std::ssize(run->drafts);
    only_replies = only_replies && run->known_rows == 1;
  }
  const auto sequences = std::ssize(step_runs_);
  finish_runs();
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  if (only_replies)
    policy_.record_cost(sequences, static_cast<int>((drafts + sequences / 2) / sequences), clock_s() - start_s);
  stats_.scheduler_s += seconds - (stats_.model_s - model_before) - (stats_.sampler_s - sampler_before);
  return true;
}

}  // namespace verbatim::engine
