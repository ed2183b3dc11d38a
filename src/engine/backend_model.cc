#include "engine/backend_model.h"

#include <algorithm>
#include <atomic>
#include <numeric>

#include "base/error.h"

namespace verbatim::engine {

namespace {

using model::kHeadRows;

size_t floats(int64_t count) { return static_cast<size_t>(count) * sizeof(float); }

// What a step does, for backends that record (Ops::step): each always works on the same buffers of one BackendModel, of
// which every one has its own tags.
constexpr uint64_t kTags = 16;
std::atomic<uint64_t> next_tags{1};
enum Tag : uint64_t { kForward, kLogits, kGreedy, kNextN, kFirstDraft, kDraft };

}  // namespace

BackendModel::BackendModel(ops::Ops& ops, const model::Model& model, const BackendModelOptions& options)
    : ops_(ops),
      model_(model),
      tags_(next_tags++ * kTags),
      storage_(ops, model.config, options.slots, options.pages),
      buffers_(ops, model.config, options.max_rows, options.slots) {
  const model::Config& c = model.config;
  sizes_.vocabulary = static_cast<int32_t>(c.vocabulary);
  sizes_.vocabulary_limit = options.vocabulary_limit > 0 ? options.vocabulary_limit : sizes_.vocabulary;
  sizes_.max_positions = options.max_positions > 0 ? std::min(options.max_positions, c.max_positions) : c.max_positions;
  sizes_.max_rows = options.max_rows;
  sizes_.slots = options.slots;
  sizes_.pages = options.pages;
  sizes_.snapshot_bytes = model::state_sizes(c, sizeof(float)).snapshot_bytes;
  sizes_.has_next_n = model.weights.next_n.has_value();
}

void BackendModel::forward(std::span<const ops::Span> spans, std::span<const int32_t> ids) {
  ops_.step(tags_ + kForward, spans, ids,
            [&] { model::forward(ops_, model_, storage_.state(), spans, ids, buffers_.pass); });
}

void BackendModel::gather(const float* from, std::span<const int32_t> rows, int64_t width, float* to) {
  ops_.gather(from, rows.data(), std::ssize(rows), width, to);
}

void BackendModel::head_of(std::span<const int32_t> rows) {
  ops_.step(tags_ + kLogits, {}, rows, [&] {
    gather(buffers_.pass.hidden, rows, model_.config.hidden, buffers_.gathered.floats());
    model::head(ops_, model_, buffers_.gathered.floats(), std::ssize(rows), buffers_.logits.floats());
  });
}

std::span<const float> BackendModel::logits(std::span<const int32_t> rows) {
  const int64_t vocabulary = model_.config.vocabulary;
  host_logits_.resize(rows.size() * static_cast<size_t>(vocabulary));
  for (int64_t first = 0; first < std::ssize(rows); first += kHeadRows) {
    const auto own = rows.subspan(static_cast<size_t>(first))
                         .first(static_cast<size_t>(std::min(kHeadRows, std::ssize(rows) - first)));
    head_of(own);
    ops_.copy_out(host_logits_.data() + first * vocabulary, buffers_.logits.floats(),
                  floats(std::ssize(own) * vocabulary));
  }
  return host_logits_;
}

std::span<const int32_t> BackendModel::greedy(std::span<const int32_t> rows) {
  host_ids_.resize(rows.size());
  for (int64_t first = 0; first < std::ssize(rows); first += kHeadRows) {
    const auto own = rows.subspan(static_cast<size_t>(first))
                         .first(static_cast<size_t>(std::min(kHeadRows, std::ssize(rows) - first)));
    ops_.step(tags_ + kGreedy, {}, own, [&] {
      gather(buffers_.pass.hidden, own, model_.config.hidden, buffers_.gathered.floats());
      model::head(ops_, model_, buffers_.gathered.floats(), std::ssize(own), buffers_.logits.floats());
      ops_.argmax(buffers_.logits.floats(), std::ssize(own), model_.config.vocabulary, sizes_.vocabulary_limit,
                  buffers_.greedy_ids.ints());
    });
    ops_.copy_out(host_ids_.data() + first, buffers_.greedy_ids.ints(), own.size_bytes());
  }
  return host_ids_;
}

std::span<const int32_t> BackendModel::sample(std::span<const int32_t> rows, std::span<const ops::SampleRow> how,
                                              std::span<const ops::LogitAdjustment> adjustments) {
  host_ids_.resize(rows.size());
  size_t next = 0;
  for (size_t first = 0; first < rows.size(); first += kHeadRows) {
    const size_t count = std::min<size_t>(kHeadRows, rows.size() - first);
    head_of(rows.subspan(first, count));
    own_adjustments_.clear();
    for (; next < adjustments.size() && static_cast<size_t>(adjustments[next].row) < first + count; ++next) {
      own_adjustments_.push_back(adjustments[next]);
      own_adjustments_.back().row -= static_cast<int32_t>(first);
    }
    ops_.sample(buffers_.logits.floats(), static_cast<int64_t>(count), model_.config.vocabulary,
                sizes_.vocabulary_limit, how.subspan(first, count), own_adjustments_, buffers_.greedy_ids.ints());
    ops_.copy_out(host_ids_.data() + first, buffers_.greedy_ids.ints(), count * sizeof(int32_t));
  }
  return host_ids_;
}

void BackendModel::next_n_of(std::span<const ops::Span> spans, std::span<const int32_t> ids) {
  ops_.step(tags_ + kNextN, spans, ids, [&] {
    model::next_n(ops_, model_, storage_.state(), spans, ids, buffers_.gathered.floats(), *buffers_.drafting);
  });
}

void BackendModel::next_n(std::span<const ops::Span> spans, std::span<const int32_t> next_ids,
                          std::span<const int32_t> hidden_rows) {
  gather(buffers_.pass.hidden, hidden_rows, model_.config.hidden, buffers_.gathered.floats());
  next_n_of(spans, next_ids);
}

void BackendModel::next_n_resumed(const ops::Span& span, int32_t next_id) {
  gather(buffers_.resumed_hidden.floats(), {&span.sequence, 1}, model_.config.hidden, buffers_.gathered.floats());
  next_n_of({&span, 1}, {&next_id, 1});
}

void BackendModel::move_to_front(void* numbers, std::span<const int32_t> rows, int64_t width) {
  auto* as_floats = static_cast<float*>(numbers);
  gather(as_floats, rows, width, buffers_.gathered.floats());
  ops_.copy(as_floats, buffers_.gathered.floats(), floats(std::ssize(rows) * width));
}

void BackendModel::draft_greedily(int64_t rows) {
  const model::Config& c = model_.config;
  for (int64_t first = 0; first < rows; first += kHeadRows) {
    const int64_t count = std::min(kHeadRows, rows - first);
    model::head(ops_, model_, buffers_.drafting->output + first * c.hidden, count, buffers_.logits.floats());
    ops_.argmax(buffers_.logits.floats(), count, c.vocabulary, sizes_.vocabulary_limit,
                buffers_.draft_ids.ints() + first);
  }
}

// The longest chains come first, so that those that go on are always the first rows. Positions do not depend on tokens:
// everything is asked for before the host waits.
std::span<const int32_t> BackendModel::draft(std::span<const DraftChain> chains) {
  for (const DraftChain& chain : chains)
    if (chain.drafts < 1 || chain.drafts >= ops::kWindowRows)
      fail(ErrorKind::kUsage, "draft", "{} drafts; expected 1 to {}", chain.drafts, ops::kWindowRows - 1);
  if (std::ssize(chains) > sizes_.slots)
    fail(ErrorKind::kUsage, "draft", "{} chains; expected at most {}", chains.size(), sizes_.slots);
  if (chains.empty()) return {};
  const model::Config& c = model_.config;
  const bool shared = c.index_share_for_drafts;
  std::vector<size_t> order(chains.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return chains[a].drafts > chains[b].drafts; });
  std::vector<size_t> begin;  // of each chain's ids in the result
  size_t total = 0;
  for (const DraftChain& chain : chains) {
    begin.push_back(total);
    total += static_cast<size_t>(chain.drafts);
  }

  model::Workspace& space = *buffers_.drafting;
  int32_t* newest = buffers_.draft_ids.ints();
  int32_t* all = newest + sizes_.slots;
  std::vector<size_t> places;  // in the result, of the ids from `all` on
  const auto keep = [&](size_t count, int draft) {
    ops_.copy(all + places.size(), newest, count * sizeof(int32_t));
    for (size_t i = 0; i < count; ++i) places.push_back(begin[order[i]] + static_cast<size_t>(draft));
  };
  std::vector<int32_t> rows(order.size());
  std::transform(order.begin(), order.end(), rows.begin(), [&](size_t i) { return chains[i].row; });
  ops_.step(tags_ + kFirstDraft, {}, rows, [&] {
    move_to_front(space.output, rows, c.hidden);
    if (shared) {  // the pools chosen for those rows serve the whole chain
      move_to_front(space.sparse.selection.pools, rows, model::index_shape(c).budget_pools());
      move_to_front(space.sparse.selection.counts, rows, 1);
    }
    draft_greedily(std::ssize(rows));
  });
  keep(rows.size(), 0);
  std::vector<ops::Span> spans;
  for (int draft = 1; draft < chains[order.front()].drafts; ++draft) {
    spans.clear();
    for (const size_t i : order) {
      if (chains[i].drafts <= draft) break;
      ops::Span span = chains[i].span;
      span.first_row = std::ssize(spans);
      span.position += draft - 1;
      spans.push_back(span);
    }
    const ops::StepIds ids = ops::StepIds::on_backend(newest, std::ssize(spans));
    ops_.step(tags_ + kDraft, spans, ids, [&] {
      model::next_n(ops_, model_, storage_.state(), spans, ids, space.output, space, shared);
      draft_greedily(ids.count);
    });
    keep(spans.size(), draft);
  }

  host_ids_.resize(total);
  ops_.copy_out(host_ids_.data(), all, total * sizeof(int32_t));
  draft_ids_.resize(total);
  for (size_t i = 0; i < total; ++i) draft_ids_[places[i]] = host_ids_[i];
  return draft_ids_;
}

template <typename Visit>
void BackendModel::visit_slot(int32_t slot, int64_t position, const Visit& visit) {
  const model::Config& c = model_.config;
  const int64_t state = c.linear_heads * c.linear_head_width * c.linear_head_width, row = 3 * c.linear_width();
  for (const ops::KdaState& layer : storage_.state().linear) {
    visit(layer.state + slot * state, state);
    for (int64_t before = 1; before < ops::kConvTaps; ++before)
      visit(layer.conv + (slot * ops::kConvRing + (position - before) % ops::kConvRing) * row, row);
  }
  if (c.next_n_layers > 0) {
    const ops::LatentCache& cache = storage_.state().sparse.back();
    const int64_t tail = model::index_shape(c).tail_ring() * c.index_width;
    visit(cache.tail_key + slot * tail, tail);
    visit(cache.tail_gate + slot * tail, tail);
  }
  visit(buffers_.resumed_hidden.floats() + slot * c.hidden, c.hidden);
}

std::shared_ptr<const state::Snapshot> BackendModel::save(const ops::Span& advance, int32_t hidden_row) {
  const model::Config& c = model_.config;
  for (size_t layer = 0, linear = 0; layer < model_.weights.layers.size(); ++layer) {
    const model::Layer& weights = model_.weights.layers[layer];
    if (weights.mixer == model::MixerKind::kLinear)
      ops_.kda(model::kda_shape(c), weights.linear.vectors, {}, storage_.state().linear[linear++], {&advance, 1}, 0,
               nullptr);
  }
  const int32_t slot = advance.sequence;
  gather(buffers_.pass.hidden, {&hidden_row, 1}, c.hidden, buffers_.resumed_hidden.floats() + slot * c.hidden);
  auto snapshot = std::make_shared<state::Snapshot>();
  visit_slot(slot, advance.position, [&](const float* values, int64_t count) {
    const size_t at = snapshot->values.size();
    snapshot->values.resize(at + static_cast<size_t>(count));
    ops_.copy_out(snapshot->values.data() + at, values, floats(count));
  });
  return snapshot;
}

void BackendModel::restore(const state::Snapshot& snapshot, int32_t slot, int64_t position) {
  size_t at = 0;
  visit_slot(slot, position, [&](float* values, int64_t count) {
    ops_.copy_in(values, snapshot.values.data() + at, floats(count));
    at += static_cast<size_t>(count);
  });
}

}  // namespace verbatim::engine
