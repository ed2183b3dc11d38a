// Chains of drafts of several sequences at once, against the next-n layer's steps of each alone, one by one, with every
// token read back and handed in again.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <vector>

#include "engine/backend_model.h"
#include "tests/model/tiny_models.h"

namespace verbatim::engine {

// What is drafted behind `text`, whose last token the model has not run.
inline std::vector<int32_t> drafted_alone(ops::Ops& ops, const model::Model& model, std::span<const int32_t> text,
                                          int count) {
  const model::Config& c = model.config;
  const int64_t rows = std::ssize(text) - 1;
  const state::Storage storage(ops, c, 1, state::pages_for(rows + ops::kWindowRows));
  std::vector<int32_t> pages;
  for (int64_t page = 0; page < storage.pages(); ++page) pages.push_back(static_cast<int32_t>(page));
  const state::Sequence sequence(0, pages);
  ops::Span span = sequence.next(0, rows, rows);
  model::Workspace pass(ops, c, rows), space(ops, c, rows);
  model::forward(ops, model, storage.state(), {&span, 1}, text.first(static_cast<size_t>(rows)), pass);
  model::next_n(ops, model, storage.state(), {&span, 1}, text.subspan(1), pass.hidden, space);

  const auto row_bytes = static_cast<size_t>(c.hidden) * sizeof(float);
  const int64_t budget = model::index_shape(c).budget_pools();
  ops::Buffer hidden(ops, row_bytes), logits(ops, static_cast<size_t>(c.vocabulary) * sizeof(float)),
      id(ops, sizeof(int32_t));
  // The last row's output and pools, to the front.
  const auto last_row = [&](void* array, size_t bytes) {
    std::vector<std::byte> row(bytes);
    ops.copy_out(row.data(), static_cast<std::byte*>(array) + static_cast<size_t>(rows - 1) * bytes, bytes);
    ops.copy_in(array, row.data(), bytes);
  };
  last_row(space.output, row_bytes);
  last_row(space.sparse.selection.pools, static_cast<size_t>(budget) * sizeof(int32_t));
  last_row(space.sparse.selection.counts, sizeof(int32_t));
  std::vector<int32_t> drafts(static_cast<size_t>(count));
  span.rows = span.certain = 1;
  span.position = rows;
  for (int32_t& draft : drafts) {
    ops.copy(hidden.floats(), space.output, row_bytes);
    model::head(ops, model, hidden.floats(), 1, logits.floats());
    ops.argmax(logits.floats(), 1, c.vocabulary, c.vocabulary, id.ints());
    ops.copy_out(&draft, id.ints(), sizeof(int32_t));
    model::next_n(ops, model, storage.state(), {&span, 1}, std::span<const int32_t>(&draft, 1), hidden.floats(), space,
                  c.index_share_for_drafts);
    ++span.position;
  }
  return drafts;
}

// Several rounds of the same shapes, which a backend that records steps launches anew, records and replays.
inline void check_draft_chains(ops::Ops& ops, const model::Model& model) {
  constexpr int64_t kPages = 4;
  const std::vector<int64_t> lengths = {20, 75, 3, 130};
  const std::vector<int> depths = {2, 7, 1, 4};
  const auto slots = std::ssize(lengths);
  BackendModel backend(ops, model, {.max_rows = 256, .slots = slots, .pages = kPages * slots});
  for (uint64_t round = 0; round < 4; ++round) {
    std::vector<std::vector<int32_t>> texts;
    std::vector<state::Sequence> sequences;
    std::vector<ops::Span> spans;
    std::vector<int32_t> ids, next_ids, rows, expected;
    std::vector<DraftChain> chains;
    for (size_t i = 0; i < lengths.size(); ++i) {
      texts.push_back(model::random_ids(lengths[i], 100 * round + i));
      std::vector<int32_t> pages;
      for (int64_t page = 0; page < kPages; ++page)
        pages.push_back(static_cast<int32_t>(page * slots) + static_cast<int32_t>(i));
      sequences.emplace_back(static_cast<int32_t>(i), pages);
    }
    for (size_t i = 0; i < lengths.size(); ++i) {
      const ops::Span span = sequences[i].next(std::ssize(ids), lengths[i] - 1, lengths[i] - 1);
      spans.push_back(span);
      ids.insert(ids.end(), texts[i].begin(), texts[i].end() - 1);
      next_ids.insert(next_ids.end(), texts[i].begin() + 1, texts[i].end());
      DraftChain chain{static_cast<int32_t>(ids.size()) - 1, depths[i], span};
      chain.span.rows = chain.span.certain = 1;
      chain.span.position = span.rows;
      chains.push_back(chain);
      const auto own = drafted_alone(ops, model, texts[i], depths[i]);
      expected.insert(expected.end(), own.begin(), own.end());
    }
    for (size_t row = 0; row < ids.size(); ++row) rows.push_back(static_cast<int32_t>(row));
    backend.forward(spans, ids);
    backend.next_n(spans, next_ids, rows);
    const auto drafts = backend.draft(chains);
    EXPECT_EQ(std::vector(drafts.begin(), drafts.end()), expected) << "round " << round;
  }
}

}  // namespace verbatim::engine
