// Operators that read spans: linear attention, sparse attention and its indexer.
#include <algorithm>
#include <cstring>

#include "ops/cuda/attention.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/kda_chunks.h"

namespace verbatim::ops::cuda {

namespace {

// Scores of pools that are kept at a time.
constexpr int64_t kScoreBytes = int64_t{256} << 20;

int64_t aligned(size_t bytes) { return static_cast<int64_t>((bytes + 63) / 64 * 64); }

DeviceSpan device_span(const Span& span, int64_t& side_count) {
  DeviceSpan s{};
  s.first_row = span.first_row;
  s.rows = span.rows;
  s.position = span.position;
  s.state_position = span.state_position;
  s.stored_until = state_position_after(span);
  s.sequence = span.sequence;
  // S moves past what is stored when rows that may be taken back cross a boundary.
  const int64_t last_start = (span.position + span.rows - 1) / kChunkRows * kChunkRows;
  s.side = last_start > s.stored_until ? side_count++ : -1;
  return s;
}

// Spans as linear attention takes them where some have whole chunks: rows before those, the chunks, all that is left.
// Each part finds what the one before it would leave behind as a step of its own.
struct KdaParts {
  std::vector<Span> before, chunked, rest;
  std::vector<int64_t> chunks;  // of each of `chunked`
};

KdaParts kda_parts(std::span<const Span> spans) {
  KdaParts parts;
  for (const Span& span : spans) {
    const KdaSplit split = split_for_chunks(span);
    if (split.chunks == 0) {
      parts.rest.push_back(span);
      continue;
    }
    Span left = span;
    const auto take = [&](std::vector<Span>& to, int64_t rows) {
      if (rows == 0) return;
      Span part = left;
      part.rows = part.certain = rows;
      to.push_back(part);
      left.state_position = state_position_after(part);
      left.first_row += rows;
      left.position += rows;
      left.rows -= rows;
      left.certain -= rows;
    };
    take(parts.before, split.before);
    take(parts.chunked, split.chunks * kChunkRows);
    parts.chunks.push_back(split.chunks);
    if (left.rows > 0) parts.rest.push_back(left);
  }
  return parts;
}

// Page ids that a step of the span can read.
int64_t pages_read(const Span& span, int64_t storage_shift) {
  return (span.position + span.rows - 1 + storage_shift) / kPageTokens + 1;
}

}  // namespace

int64_t position_bound(int64_t position) {
  int64_t bound = int64_t{1} << 14;
  while (bound < position) bound *= 2;
  return bound;
}

SpanTable CudaOps::span_table(std::span<const Span> spans, int64_t storage_shift) {
  last_shift_ = storage_shift;
  SpanTable table;
  table.count = static_cast<int64_t>(spans.size());
  int64_t page_count = 0;
  for (const Span& span : spans) {
    table.rows = std::max(table.rows, span.first_row + span.rows);
    if (span.pages != nullptr) page_count += pages_read(span, storage_shift);
  }
  // Behind the spans, those of linear attention's parts.
  const KdaParts parts = kda_parts(spans);
  const size_t part_count = parts.chunked.empty() ? 0 : parts.before.size() + parts.chunked.size() + parts.rest.size();
  const int64_t rows_at = aligned((spans.size() + part_count) * sizeof(DeviceSpan));
  const int64_t pages_at = rows_at + aligned(static_cast<size_t>(table.rows) * sizeof(int32_t));
  std::vector<std::byte> bytes(static_cast<size_t>(pages_at + page_count * 4));
  auto* rows = reinterpret_cast<int32_t*>(bytes.data() + rows_at);
  auto* pages = reinterpret_cast<int32_t*>(bytes.data() + pages_at);
  std::vector<DeviceSpan> made;
  int64_t page = 0, side_count = 0;
  for (const Span& span : spans) {
    std::fill_n(rows + span.first_row, span.rows, static_cast<int32_t>(made.size()));
    DeviceSpan s = device_span(span, side_count);
    s.pages = page;
    if (span.pages != nullptr) {
      const int64_t own = pages_read(span, storage_shift);
      std::copy_n(span.pages, own, pages + page);
      page += own;
    }
    made.push_back(s);
  }
  side_count = 0;
  if (part_count > 0)
    for (const auto* each : {&parts.before, &parts.chunked, &parts.rest})
      for (const Span& span : *each) made.push_back(device_span(span, side_count));
  if (!made.empty()) std::memcpy(bytes.data(), made.data(), made.size() * sizeof(DeviceSpan));
  const std::byte* device = spans_.put(bytes);
  table.spans = reinterpret_cast<const DeviceSpan*>(device);
  table.span_of_row = reinterpret_cast<const int32_t*>(device + rows_at);
  table.pages = reinterpret_cast<const int32_t*>(device + pages_at);
  return table;
}

void CudaOps::kda(const KdaShape& shape, const KdaWeights& weights, const KdaInputs& inputs, const KdaState& state,
                  std::span<const Span> spans, int64_t /*rows*/, float* out) {
  finish_leave();
  const SpanTable table = span_table(spans, 0);
  if (kda_takes_rows(shape, spans.data(), std::ssize(spans))) {
    check(kda_rows(stream_.get(), shape, weights, inputs, state, table, out), "kda");
    return;
  }
  // A side state for each span that could need one: only those of several rows.
  int64_t sides = 0;
  for (const Span& span : spans) sides += span.rows > 1 ? 1 : 0;
  const int64_t side_bytes = sides * shape.heads * shape.width * shape.width * static_cast<int64_t>(sizeof(float));
  const KdaParts parts = kda_takes_chunks(shape) ? kda_parts(spans) : KdaParts();
  int64_t bytes = side_bytes;
  for (const int64_t chunks : parts.chunks) bytes = std::max(bytes, kda_chunks_bytes(shape, chunks));
  std::byte* working = scratch_.take(bytes, stream_);
  const auto run = [&](const DeviceSpan* first, size_t count) {
    SpanTable some = table;
    some.spans = first;
    some.count = static_cast<int64_t>(count);
    check(cuda::kda(stream_.get(), shape, weights, inputs, state, some, reinterpret_cast<float*>(working), out), "kda");
  };
  if (parts.chunked.empty()) {
    run(table.spans, spans.size());
    return;
  }
  const DeviceSpan* next = table.spans + spans.size();
  run(next, parts.before.size());
  next += parts.before.size();
  for (const int64_t chunks : parts.chunks)
    check(kda_chunks(stream_.get(), shape, weights, inputs, state, next++, chunks, working, out), "kda");
  run(next, parts.rest.size());
}

void CudaOps::append_latents(const IndexShape& shape, int64_t latent_width, const float* latents, const float* keys,
                             const float* gates, const float* ape, std::span<const Span> spans,
                             const LatentCache& cache) {
  finish_leave();
  check(cuda::append_latents(stream_.get(), shape, latent_width, latents, keys, gates, ape,
                             span_table(spans, shape.storage_shift), cache, cache_element_bytes()),
        "append_latents");
}

void CudaOps::select_pools(const IndexShape& shape, const float* q, const float* head_weights,
                           std::span<const Span> spans, const LatentCache& cache, const Selection& selection) {
  finish_leave();
  PoolScores p;
  p.shape = shape;
  p.q = q;
  p.head_weights = head_weights;
  p.spans = span_table(spans, shape.storage_shift);
  p.cache = cache;
  int64_t most = 0;
  for (const Span& span : spans) most = std::max(most, span.position + span.rows);
  p.most_pools = position_bound(most) / shape.pool;
  p.stride = p.most_pools > shape.budget_pools() ? p.most_pools : 0;
  const int64_t rows = p.spans.rows;
  const int64_t block = std::max<int64_t>(1, kScoreBytes / std::max<int64_t>(1, 4 * p.stride));
  p.scores = reinterpret_cast<float*>(scratch_.take(4 * p.stride * std::min(block, rows), stream_));
  for (p.first = 0; p.first < rows; p.first += block) {
    p.count = std::min(block, rows - p.first);
    if (p.stride > 0)
      check(cache_element_bytes() == 2 && scores_fit_tiles(shape)
                ? score_pools_in_tiles(stream_.get(), p)
                : score_pools(stream_.get(), p, cache_element_bytes()),
            "select_pools");
    check(select_best(stream_.get(), p, selection), "select_pools");
  }
}

void CudaOps::sparse_attention(const IndexShape& shape, int64_t heads, int64_t latent_width, float scale,
                               const float* q, std::span<const Span> spans, const LatentCache& cache,
                               const Selection& selection, float* out) {
  finish_leave();
  AttentionProblem p{shape, heads,     latent_width, scale, q, span_table(spans, shape.storage_shift),
                     cache, selection, out};
  const bool tiles = cache_element_bytes() == 2 && attention_fits_tiles(p);
  if (tiles && attention_splits(p, limits_.shared_bytes)) {
    check(attend_split(stream_.get(), p, scratch_.take(attention_split_bytes(p), stream_), limits_.multiprocessors),
          "sparse_attention");
    return;
  }
  const AttentionCut cut = attention_cut(p, limits_.multiprocessors, limits_.shared_bytes);
  const bool floats = cache_element_bytes() == sizeof(float);
  const bool groups = tiles ? !cut.walks : floats && attends_by_groups(p);
  if (groups)
    place_groups(p, reinterpret_cast<float*>(
                        scratch_.take(attention_group_floats(p) * static_cast<int64_t>(sizeof(float)), stream_)));
  check(tiles    ? attend_in_tiles(stream_.get(), p, cut)
        : groups ? attend_groups(stream_.get(), p)
                 : attend_rows(stream_.get(), p, cache_element_bytes()),
        "sparse_attention");
}

void CudaOps::absorb_queries(const Matrix& kv_b, int64_t heads, int64_t key_width, int64_t value_width, const float* q,
                             int64_t rows, float* out) {
  finish_leave();
  AbsorbProduct tiles{weights_of(kv_b), heads, key_width + value_width, 0, key_width, kv_b.columns, q, rows, out};
  if (activations_ == Activations::kBf16 && absorbs_in_tiles(tiles)) {
    check(absorb_queries_in_tiles(stream_.get(), tiles, limits_.shared_bytes), "absorb_queries");
    return;
  }
  const float scale = kv_b.form == WeightForm::kNvfp4 ? kv_b.matrix_scale : 1.0f;
  check(column_product(stream_.get(), weights_of(kv_b), heads, key_width + value_width, key_width, q, rows, scale, out),
        "absorb_queries");
}

void CudaOps::absorb_values(const Matrix& kv_b, int64_t heads, int64_t key_width, int64_t value_width,
                            const float* attended, int64_t rows, float* out) {
  finish_leave();
  AbsorbProduct tiles{
      weights_of(kv_b), heads, key_width + value_width, key_width, kv_b.columns, value_width, attended, rows, out};
  if (activations_ == Activations::kBf16 && absorbs_in_tiles(tiles)) {
    check(absorb_values_in_tiles(stream_.get(), tiles, limits_.shared_bytes), "absorb_values");
    return;
  }
  FmaProduct p;
  p.weights = weights_of(kv_b.row_range(key_width, kv_b.rows - key_width));
  p.outputs = value_width;
  p.x = attended;
  p.x_stride = heads * kv_b.columns;
  p.rows = rows;
  p.y = out;
  p.y_stride = heads * value_width;
  p.batches = heads;
  p.batch_rows = key_width + value_width;
  p.batch_x = kv_b.columns;
  p.batch_y = value_width;
  p.scale = kv_b.form == WeightForm::kNvfp4 ? kv_b.matrix_scale : 1.0f;
  check(fma_product(stream_.get(), p), "absorb_values");
}

}  // namespace verbatim::ops::cuda
