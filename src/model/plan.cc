#include "model/plan.h"

#include <algorithm>

#include "base/error.h"
#include "checkpoint/stored_matrix.h"
#include "model/glm.h"
#include "model/step_buffers.h"
#include "model/working_memory.h"
#include "ops/cuda_backend.h"

namespace verbatim::model {

namespace {

using checkpoint::Checkpoint;
using checkpoint::Form;
using checkpoint::StoredMatrix;

int64_t blocks(int64_t size) { return (size + checkpoint::kFp8BlockSize - 1) / checkpoint::kFp8BlockSize; }

// Bytes of a matrix [rows, columns] held in a form: weights and their scales, without activation scales.
int64_t matrix_bytes(Form form, int64_t rows, int64_t columns) {
  switch (form) {
    case Form::kBf16: return 2 * rows * columns;
    case Form::kF32: return 4 * rows * columns;
    case Form::kNvfp4:
      return rows * columns / 2 + rows * columns / checkpoint::kNvfp4BlockColumns + static_cast<int64_t>(sizeof(float));
    case Form::kFp8Block: return rows * columns + 4 * blocks(rows) * blocks(columns);
  }
  return 0;
}

// The share of one rank.
int64_t share(int64_t size, int ranks, const Expected& expected) {
  if (size % ranks != 0)
    fail(ErrorKind::kUnsupported, "plan", "{} has a dimension of {} that does not divide by {} ranks; choose a divisor",
         expected.name, size, ranks);
  return size / ranks;
}

int64_t resident_bytes(const Checkpoint& stored, const Expected& expected, const PlanOptions& options) {
  const Split split = expected.row->split;
  if (split == Split::kNotResident) return 0;
  if (expected.row->kind == Kind::kTensor) {
    const checkpoint::TensorView* view = stored.find(expected.name);
    if (view == nullptr) return 0;  // the census has said so
    const auto bytes = static_cast<int64_t>(view->bytes);
    return split == Split::kReplicated ? bytes : share(bytes, options.ranks, expected);
  }
  const StoredMatrix matrix = checkpoint::resolve_matrix(stored, expected.name, expected.shape[0], expected.shape[1]);
  Form form = matrix.form;
  if (expected.group == Group::kNextNExperts && options.next_n_experts == NextNExperts::kPacked) form = Form::kNvfp4;
  int64_t rows = matrix.rows, columns = matrix.columns;
  if (split == Split::kColumns) columns = share(columns, options.ranks, expected);
  if (split == Split::kRows || split == Split::kHeadKeyValues) rows = share(rows, options.ranks, expected);
  const bool scale = options.activation_scales && matrix.input_scale != nullptr;
  return matrix_bytes(form, rows, columns) + (scale ? static_cast<int64_t>(sizeof(float)) : 0);
}

}  // namespace

Plan make_plan(const Checkpoint& stored, const Config& config, const PlanOptions& options) {
  if (options.ranks < 1 || options.ranks > 4096)
    fail(ErrorKind::kUsage, "plan", "{} ranks; expected 1 to 4096", options.ranks);
  if (options.context_tokens < 0 || options.context_tokens > config.max_positions)
    fail(ErrorKind::kUsage, "plan", "a context of {} tokens; expected at most max_position_embeddings ({})",
         options.context_tokens, config.max_positions);
  if (options.sequences < 1 || options.chunk_rows < 1 || options.memory_bytes < 0 || options.snapshot_bytes < 0)
    fail(ErrorKind::kUsage, "plan", "sequences, chunk rows and memory must be positive");
  const int64_t element =
      options.backend == BackendKind::kCpu ? static_cast<int64_t>(sizeof(float)) : ops::kCudaCacheElementBytes;
  const Config local = rank_share(config, options.ranks);

  Plan plan;
  RankPlan rank;
  for_each_expected(config, [&](const Expected& expected) {
    rank.group_bytes[static_cast<size_t>(expected.group)] += resident_bytes(stored, expected, options);
  });
  for (const int64_t bytes : rank.group_bytes) rank.weights_bytes += bytes;
  plan.ranks.assign(static_cast<size_t>(options.ranks), rank);

  const StateSizes whole = state_sizes(config, element), mine = state_sizes(local, element);
  plan.sequence_bytes = whole.sequence_bytes;
  plan.rank_sequence_bytes = mine.sequence_bytes;
  plan.page_bytes = mine.page_bytes;
  plan.token_bytes = mine.page_bytes / ops::kPageTokens;
  plan.snapshot_bytes = whole.snapshot_bytes;
  plan.rank_snapshot_bytes = mine.snapshot_bytes;
  plan.workspace_bytes = StepBuffers::bytes(local, options.chunk_rows, options.sequences);
  plan.context_tokens = options.context_tokens == 0 ? config.max_positions : options.context_tokens;
  plan.pages_per_sequence = (plan.context_tokens + ops::kPageTokens - 1) / ops::kPageTokens;
  if (options.backend == BackendKind::kCuda)
    plan.working_bytes = ops::kCudaFixedBytes +
                         cuda_working_bytes(stored, config, local,
                                            {.rows = options.chunk_rows,
                                             .sequences = options.sequences,
                                             .positions = plan.context_tokens,
                                             .activation_scales = options.activation_scales,
                                             .packed_next_n_experts = options.next_n_experts == NextNExperts::kPacked});

  const int64_t fixed = rank.weights_bytes + plan.workspace_bytes + plan.working_bytes + options.snapshot_bytes;
  const int64_t sequence = mine.sequence_bytes + plan.pages_per_sequence * mine.page_bytes;
  plan.needed_bytes = fixed + options.sequences * sequence;
  plan.memory_bytes = options.memory_bytes;
  if (options.memory_bytes > 0) {
    const int64_t left = options.memory_bytes - fixed;
    plan.fits = plan.needed_bytes <= options.memory_bytes;
    const int64_t for_pages = left / options.sequences - mine.sequence_bytes;
    if (for_pages > 0 && mine.page_bytes > 0)
      plan.largest_context = std::min(for_pages / mine.page_bytes * ops::kPageTokens, config.max_positions);
    // Each sequence has its rows in the step buffers too.
    const int64_t buffers = StepBuffers::bytes(local, options.chunk_rows, 0);
    const int64_t row_bytes = (plan.workspace_bytes - buffers) / options.sequences;
    const int64_t free =
        options.memory_bytes - rank.weights_bytes - plan.working_bytes - options.snapshot_bytes - buffers;
    plan.largest_sequences = std::max<int64_t>(free, 0) / (sequence + row_bytes);
  }
  if (config.has_vision) plan.not_resident.push_back("vision");
  if (!options.activation_scales) plan.not_resident.push_back("input_scale");
  return plan;
}

}  // namespace verbatim::model
