// Continuous batching over one step loop. Single-threaded: the owner calls submit, cancel and step; engine.h adds the
// thread. What it decides (order, chunks, drafts, evictions) changes times, never a reply.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/drafter.h"
#include "engine/request.h"
#include "engine/sampler.h"
#include "engine/step_model.h"
#include "state/pages.h"
#include "state/prefix_tree.h"
#include "state/storage.h"

namespace verbatim::engine {

// For tests: replaces every source of drafts. `tokens` are prompt and reply so far.
using DraftSource = std::function<std::vector<int32_t>(std::span<const int32_t> tokens, int most)>;

struct SchedulerOptions {
  int64_t step_rows = 0;          // token budget of a step; 0: all the model takes
  int64_t prompt_rows = 512;      // of which prompts may take this many while replies are running
  int64_t queue_limit = 1024;     // requests waiting; more are refused
  int drafts = 3;                 // most drafts a step, 0 to 7; 0: never draft
  bool draft_from_text = true;    // also copy from the text itself
  int64_t snapshot_bytes = 0;     // memory for the prefix tree's snapshots; 0: no prefix cache
  int64_t snapshot_every = 4096;  // tokens between snapshots of a long prompt, rounded up to whole pages
  DraftSource draft_source = {};
  std::function<double()> clock_s = {};  // for tests: instead of the system's, for the costs that drafting goes by
};

struct SchedulerStats {
  int64_t waiting = 0, running = 0;
  int64_t pages_total = 0, pages_free = 0, tree_nodes = 0, tree_snapshots = 0, tree_snapshot_bytes = 0;
  int64_t steps = 0, prompt_tokens = 0, cached_tokens = 0, generated_tokens = 0;
  int64_t drafted_tokens = 0, accepted_tokens = 0, preemptions = 0, finished = 0, cancelled = 0;
  double model_s = 0, sampler_s = 0, scheduler_s = 0;  // time spent in steps, split
};

class Scheduler {
 public:
  // `model` must outlive it.
  Scheduler(StepModel& model, SchedulerOptions options);
  ~Scheduler();

  // Throws Error(kUsage) for a request that makes no sense, Error(kCapacity) for one that can never fit (longer than
  // the context or than all pages) or for a full queue. `sink` gets every event of the request.
  int64_t submit(Request request, EventSink sink);
  // The same in two halves, for an owner that queues requests in front of the scheduler. `check` throws what `submit`
  // throws but for a full queue; it reads nothing that steps change, so any thread may call it.
  void check(const Request& request) const;
  // Takes a request that was checked, under an id that is not in use.
  void enqueue(int64_t id, std::chrono::steady_clock::time_point submitted, Request request, EventSink sink);
  // Frees what the request holds before the next step; its last event says kCancelled. Unknown ids are ignored.
  void cancel(int64_t request);
  void cancel_all();
  // Gives cancelled requests their last event and frees what they hold, without a step.
  void discard_cancelled();
  // Runs one step. False if there was nothing to do.
  bool step();
  bool idle() const;
  // Forgets what the prefix tree holds.
  void clear_cache();
  SchedulerStats stats() const;
  const SchedulerOptions& options() const { return options_; }

 private:
  struct Run;     // one choice of a request
  struct Shared;  // what the choices of a request have in common
  using Clock = std::chrono::steady_clock;

  void admit();
  bool start(Run& run);
  bool reserve(Run& run, int64_t tokens, bool may_preempt);
  void preempt(Run& run);
  void compose();
  void add_span(Run& run, int64_t rows, std::vector<int32_t> drafts);
  void score_prompts();
  void describe_row(const Run& run, int64_t row, std::vector<int32_t>& generated);
  void sample();
  // False once the reply is finished.
  bool take_token(Run& run, int32_t chosen_id, std::span<const float> logits);
  void advance_next_n();
  void take_snapshots();
  void draft();
  void keep_pages(Run& run);
  void finish_runs();
  double clock_s() const;
  void finish(Run& run, FinishReason reason);
  void emit(Run& run, bool last);
  int64_t chunk_limit(const Run& run) const;
  std::vector<int32_t> propose(Run& run);
  void cut_to_mask(const Run& run, std::vector<int32_t>& drafts);

  StepModel& model_;
  SchedulerOptions options_;
  state::PagePool pages_;
  state::PrefixTree tree_;
  std::vector<int32_t> free_slots_;
  DraftPolicy policy_;
  Sampler sampler_;
  std::vector<std::unique_ptr<Run>> waiting_, running_;  // waiting_ in order of service
  std::vector<ops::Span> spans_;
  std::vector<int32_t> step_ids_;
  std::vector<Run*> step_runs_;  // of spans_
  std::vector<uint64_t> allowed_;
  std::vector<ops::SampleRow> how_;  // of rows whose tokens the backend chooses in this step
  std::vector<ops::LogitAdjustment> adjustments_;
  int64_t next_request_ = 1, next_order_ = 0;
  SchedulerStats stats_;
};

}  // namespace verbatim::engine
