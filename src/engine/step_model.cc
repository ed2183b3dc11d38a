#include "engine/step_model.h"

namespace verbatim::engine {

std::span<const int32_t> StepModel::sample(std::span<const int32_t> rows, std::span<const ops::SampleRow> how,
                                           std::span<const ops::LogitAdjustment> adjustments) {
  const auto vocabulary = static_cast<size_t>(sizes().vocabulary),
             limit = static_cast<size_t>(sizes().vocabulary_limit);
  const std::span<const float> all = logits(rows);
  sampled_.clear();
  size_t next = 0;  // they are in order of rows
  for (size_t i = 0; i < rows.size(); ++i) {
    const std::span<const float> own = all.subspan(i * vocabulary, limit);
    row_.assign(own.begin(), own.end());
    for (; next < adjustments.size() && static_cast<size_t>(adjustments[next].row) == i; ++next) {
      float& logit = row_[static_cast<size_t>(adjustments[next].id)];
      logit = ops::adjusted_logit(logit, adjustments[next]);
    }
    sampled_.push_back(ops::sample_row(row_, how[i], space_));
  }
  return sampled_;
}

}  // namespace verbatim::engine
