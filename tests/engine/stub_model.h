// A model that returns at once: the next token follows from the last one by arithmetic, and its next-n layer agrees
// with it as often as asked. What a sequence holds is recorded, so that a wrong span, page or restore is noticed.
#pragma once

#include <algorithm>
#include <map>
#include <stdexcept>
#include <thread>
#include <vector>

#include "engine/step_model.h"
#include "state/storage.h"

namespace verbatim::engine {

struct StubOptions {
  int32_t vocabulary = 512;
  int64_t max_rows = 512, slots = 64, pages = 4096, max_positions = 1 << 20;
  int hits_in_ten = 10;  // of the next-n layer's drafts
  double step_s = 0;     // simulated time of a forward,
  double row_s = 0;      // of each of its rows,
  double draft_s = 0;    // and of a next-n step
  bool sleeps = true;    // else simulated_s alone tells the time
  float certainty = 10;  // the next token's logit; the others' are 0
};

class StubModel : public StepModel {
 public:
  explicit StubModel(StubOptions options) : options_(options), slots_(static_cast<size_t>(options.slots)) {
    sizes_.vocabulary = sizes_.vocabulary_limit = options.vocabulary;
    sizes_.max_positions = options.max_positions;
    sizes_.max_rows = options.max_rows;
    sizes_.slots = options.slots;
    sizes_.pages = options.pages;
    sizes_.snapshot_bytes = 64;
    sizes_.has_next_n = true;
  }

  // The next token after `last`, which is `position` of what slot `sequence` holds.
  virtual int32_t next_after(int64_t /*sequence*/, int32_t last, int64_t position) const {
    return follower(last, position);
  }
  int32_t follower(int32_t last, int64_t position) const {
    return static_cast<int32_t>((static_cast<uint64_t>(last) * 7919 + static_cast<uint64_t>(position) * 104729 + 13) %
                                static_cast<uint64_t>(options_.vocabulary));
  }

  const StepModelSizes& sizes() const override { return sizes_; }

  void forward(std::span<const ops::Span> spans, std::span<const int32_t> ids) override {
    wait(options_.step_s + options_.row_s * static_cast<double>(ids.size()));
    ++forwards;
    answers_.assign(ids.size(), 0);
    for (const ops::Span& span : spans) {
      int64_t& length = slots_[static_cast<size_t>(span.sequence)];
      if (span.position > length) throw std::runtime_error("a span begins past what its sequence holds");
      length = span.position + span.certain;
      for (int64_t row = 0; row < span.rows; ++row) {
        const int64_t position = span.position + row;
        if (span.pages[position / ops::kPageTokens] < 0 || span.pages[position / ops::kPageTokens] >= sizes_.pages)
          throw std::runtime_error("a page that does not exist");
        const auto at = static_cast<size_t>(span.first_row + row);
        answers_[at] = next_after(span.sequence, ids[at], position);
        if (row >= span.certain) length = position + 1;  // may be taken back, or go on
      }
    }
  }
  std::span<const float> logits(std::span<const int32_t> rows) override {
    logits_.assign(rows.size() * static_cast<size_t>(options_.vocabulary), 0.0f);
    for (size_t i = 0; i < rows.size(); ++i)
      logits_[i * static_cast<size_t>(options_.vocabulary) +
              static_cast<size_t>(answers_[static_cast<size_t>(rows[i])])] = options_.certainty;
    return logits_;
  }
  std::span<const int32_t> greedy(std::span<const int32_t> rows) override {
    greedy_.clear();
    for (const int32_t row : rows) greedy_.push_back(answers_[static_cast<size_t>(row)]);
    return greedy_;
  }
  void next_n(std::span<const ops::Span> spans, std::span<const int32_t> next_ids, std::span<const int32_t>) override {
    wait(options_.draft_s);
    drafted_.assign(next_ids.size(), 0);
    for (const ops::Span& span : spans)
      for (int64_t row = 0; row < span.rows; ++row) {
        const auto at = static_cast<size_t>(span.first_row + row);
        drafted_[at] = draft_after(span.sequence, next_ids[at], span.position + row + 1);
      }
  }
  void next_n_resumed(const ops::Span&, int32_t) override {}
  std::span<const int32_t> draft(std::span<const DraftChain> chains) override {
    drafts_.clear();
    int steps = 0;
    for (const DraftChain& chain : chains) {
      int32_t last = drafted_[static_cast<size_t>(chain.row)];
      drafts_.push_back(last);
      for (int step = 1; step < chain.drafts; ++step) {
        last = draft_after(chain.span.sequence, last, chain.span.position + step);
        drafts_.push_back(last);
      }
      steps = std::max(steps, chain.drafts - 1);
    }
    for (int step = 0; step < steps; ++step) wait(options_.draft_s);
    return drafts_;
  }
  std::shared_ptr<const state::Snapshot> save(const ops::Span& advance, int32_t) override {
    auto snapshot = std::make_shared<state::Snapshot>();
    snapshot->values.assign(16, static_cast<float>(advance.position));
    return snapshot;
  }
  void restore(const state::Snapshot& snapshot, int32_t slot, int64_t position) override {
    if (snapshot.values.front() != static_cast<float>(position))
      throw std::runtime_error("a snapshot of another place");
    slots_[static_cast<size_t>(slot)] = position;
  }

  int64_t forwards = 0;
  double simulated_s = 0;  // time that forwards and next-n steps were told to take

 private:
  void wait(double seconds) {
    simulated_s += seconds;
    if (seconds > 0 && options_.sleeps) std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  }
  int32_t draft_after(int64_t sequence, int32_t last, int64_t position) const {
    const int32_t right = next_after(sequence, last, position);
    return (static_cast<uint64_t>(position) * 2654435761u >> 7) % 10 < static_cast<uint64_t>(options_.hits_in_ten)
               ? right
               : (right + 1) % options_.vocabulary;
  }

  StubOptions options_;
  StepModelSizes sizes_;
  std::vector<int64_t> slots_;
  std::vector<int32_t> answers_, drafted_, greedy_, drafts_;
  std::vector<float> logits_;
};

}  // namespace verbatim::engine
