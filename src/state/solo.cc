#include "state/solo.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace verbatim::state {

namespace {

constexpr int64_t kLogitRows = 16;  // rows of the head's product at a time

std::vector<int32_t> first_pages(int64_t count) {
  std::vector<int32_t> pages(static_cast<size_t>(count));
  std::iota(pages.begin(), pages.end(), 0);
  return pages;
}

}  // namespace

Solo::Solo(ops::Ops& ops, const model::Model& model, int64_t tokens, int64_t chunk_rows)
    : ops_(ops),
      model_(model),
      storage_(ops, model.config, 1, pages_for(tokens)),
      sequence_(0, first_pages(pages_for(tokens))),
      workspace_(ops, model.config, chunk_rows),
      row_logits_(ops, static_cast<size_t>(kLogitRows * model.config.vocabulary) * sizeof(float)),
      logits_(static_cast<size_t>(model.config.vocabulary)) {}

void Solo::feed(std::span<const int32_t> ids, std::vector<float>* every_logits) {
  const int64_t vocabulary = model_.config.vocabulary, hidden = model_.config.hidden;
  const auto row_bytes = static_cast<size_t>(vocabulary) * sizeof(float);
  while (!ids.empty()) {
    const auto rows = std::min(static_cast<int64_t>(ids.size()), workspace_.rows());
    const ops::Span span = sequence_.next(0, rows, rows);
    model::forward(ops_, model_, storage_.state(), {&span, 1}, ids.first(static_cast<size_t>(rows)), workspace_);
    sequence_.accept(span, rows);
    ids = ids.subspan(static_cast<size_t>(rows));
    if (every_logits != nullptr) {
      for (int64_t row = 0; row < rows; row += kLogitRows) {
        const int64_t count = std::min(kLogitRows, rows - row);
        model::head(ops_, model_, workspace_.hidden + row * hidden, count, row_logits_.floats());
        every_logits->resize(every_logits->size() + static_cast<size_t>(count * vocabulary));
        ops_.copy_out(every_logits->data() + every_logits->size() - count * vocabulary, row_logits_.floats(),
                      static_cast<size_t>(count) * row_bytes);
      }
      std::copy(every_logits->end() - vocabulary, every_logits->end(), logits_.begin());
    } else if (ids.empty()) {
      model::head(ops_, model_, workspace_.hidden + (rows - 1) * hidden, 1, row_logits_.floats());
      ops_.copy_out(logits_.data(), row_logits_.floats(), row_bytes);
    }
  }
}

int32_t Solo::greedy(int64_t limit) const {
  int32_t best = 0;
  for (int64_t id = 1; id < limit; ++id)
    if (logits_[static_cast<size_t>(id)] > logits_[static_cast<size_t>(best)]) best = static_cast<int32_t>(id);
  return best;
}

}  // namespace verbatim::state
