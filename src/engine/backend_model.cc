#include "engine/backend_model.h"

#include <algorithm>

#include "base/error.h"

namespace verbatim::engine {

namespace {

using model::kHeadRows;

size_t floats(int64_t count) { return static_cast<size_t>(count) * sizeof(float); }

}  // namespace

BackendModel::BackendModel(ops::Ops& ops, const model::Model& model, const BackendModelOptions& options)
    : ops_(ops),
      model_(model),
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
  model::forward(ops_, model_, storage_.state(), spans, ids, buffers_.pass);
}

void BackendModel::gather(const float* from, std::span<const int32_t> rows, int64_t width, float* to) {
  bounce_.resize(static_cast<size_t>(width) * rows.size());
  for (size_t i = 0; i < rows.size();) {
    // Runs of adjoining rows go at once.
    size_t run = 1;
    while (i + run < rows.size() && rows[i + run] == rows[i] + static_cast<int32_t>(run)) ++run;
    ops_.copy_out(bounce_.data() + static_cast<size_t>(width) * i, from + rows[i] * width,
                  floats(width * static_cast<int64_t>(run)));
    i += run;
  }
  ops_.copy_in(to, bounce_.data(), floats(width * std::ssize(rows)));
}

std::span<const float> BackendModel::logits(std::span<const int32_t> rows) {
  const int64_t width = model_.config.hidden, vocabulary = model_.config.vocabulary;
  gather(buffers_.pass.hidden, rows, width, buffers_.gathered.floats());
  host_logits_.resize(rows.size() * static_cast<size_t>(vocabulary));
  for (int64_t first = 0; first < std::ssize(rows); first += kHeadRows) {
    const int64_t count = std::min(kHeadRows, std::ssize(rows) - first);
    model::head(ops_, model_, buffers_.gathered.floats() + first * width, count, buffers_.logits.floats());
    ops_.copy_out(host_logits_.data() + first * vocabulary, buffers_.logits.floats(), floats(count * vocabulary));
  }
  return host_logits_;
}

std::span<const int32_t> BackendModel::greedy_of(const float* hidden, int64_t rows) {
  host_ids_.resize(static_cast<size_t>(rows));
  for (int64_t first = 0; first < rows; first += kHeadRows) {
    const int64_t count = std::min(kHeadRows, rows - first);
    model::head(ops_, model_, hidden + first * model_.config.hidden, count, buffers_.logits.floats());
    ops_.argmax(buffers_.logits.floats(), count, model_.config.vocabulary, sizes_.vocabulary_limit,
                buffers_.greedy_ids.ints());
    ops_.copy_out(host_ids_.data() + first, buffers_.greedy_ids.ints(), sizeof(int32_t) * static_cast<size_t>(count));
  }
  return host_ids_;
}

std::span<const int32_t> BackendModel::greedy(std::span<const int32_t> rows) {
  gather(buffers_.pass.hidden, rows, model_.config.hidden, buffers_.gathered.floats());
  return greedy_of(buffers_.gathered.floats(), std::ssize(rows));
}

void BackendModel::next_n(std::span<const ops::Span> spans, std::span<const int32_t> next_ids,
                          std::span<const int32_t> hidden_rows) {
  gather(buffers_.pass.hidden, hidden_rows, model_.config.hidden, buffers_.gathered.floats());
  model::next_n(ops_, model_, storage_.state(), spans, next_ids, buffers_.gathered.floats(), *buffers_.drafting);
}

void BackendModel::next_n_resumed(const ops::Span& span, int32_t next_id) {
  model::next_n(ops_, model_, storage_.state(), {&span, 1}, {&next_id, 1},
                buffers_.resumed_hidden.floats() + span.sequence * model_.config.hidden, *buffers_.drafting);
}

void BackendModel::keep_selection(std::span<const int32_t> rows) {
  const ops::Selection& selection = buffers_.drafting->sparse.selection;
  const int64_t budget = model::index_shape(model_.config).budget_pools();
  std::vector<int32_t> pools(static_cast<size_t>(budget)), count(1);
  for (int64_t to = 0; to < std::ssize(rows); ++to) {
    // rows ascend and rows[to] >= to, so nothing is overwritten before it is read.
    const int64_t from = rows[static_cast<size_t>(to)];
    if (from == to) continue;
    ops_.copy_out(pools.data(), selection.pools + from * budget, sizeof(int32_t) * pools.size());
    ops_.copy_out(count.data(), selection.counts + from, sizeof(int32_t));
    ops_.copy_in(selection.pools + to * budget, pools.data(), sizeof(int32_t) * pools.size());
    ops_.copy_in(selection.counts + to, count.data(), sizeof(int32_t));
  }
}

std::span<const int32_t> BackendModel::begin_chain(std::span<const int32_t> rows) {
  gather(buffers_.drafting->output, rows, model_.config.hidden, buffers_.chain.floats());
  if (model_.config.index_share_for_drafts) keep_selection(rows);
  return greedy_of(buffers_.chain.floats(), std::ssize(rows));
}

std::span<const int32_t> BackendModel::extend_chain(std::span<const int32_t> keep, std::span<const ops::Span> spans,
                                                    std::span<const int32_t> ids) {
  const int64_t width = model_.config.hidden;
  const bool shared = model_.config.index_share_for_drafts;
  gather(buffers_.chain.floats(), keep, width, buffers_.gathered.floats());
  if (shared) keep_selection(keep);
  model::next_n(ops_, model_, storage_.state(), spans, ids, buffers_.gathered.floats(), *buffers_.drafting, shared);
  bounce_.resize(static_cast<size_t>(width) * keep.size());
  ops_.copy_out(bounce_.data(), buffers_.drafting->output, floats(width * std::ssize(keep)));
  ops_.copy_in(buffers_.chain.floats(), bounce_.data(), floats(width * std::ssize(keep)));
  return greedy_of(buffers_.chain.floats(), std::ssize(keep));
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
