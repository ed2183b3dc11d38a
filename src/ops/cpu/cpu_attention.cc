// Sparse attention and its pooled indexer on the CPU.
#include <algorithm>
#include <bit>
#include <functional>
#include <vector>

#include "base/thread_pool.h"
#include "ops/cpu/attention_kernels.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/products.h"
#include "ops/cpu/scratch.h"

namespace verbatim::ops::cpu {

namespace {

struct Row {
  const Span* span;
  int64_t row, position;
};

std::vector<Row> rows_of(std::span<const Span> spans) {
  std::vector<Row> rows;
  for (const Span& span : spans)
    for (int64_t i = 0; i < span.rows; ++i) rows.push_back({&span, span.first_row + i, span.position + i});
  return rows;
}

int64_t complete_pools(const IndexShape& shape, int64_t position) { return (position + 1) / shape.pool; }

// Pools are counted from the sequence's first token; a page holds whole ones.
float* pool_key(const IndexShape& shape, const LatentCache& cache, const Span& span, int64_t pool) {
  const int64_t page_pools = kPageTokens / shape.pool;
  pool += shape.storage_shift;
  return static_cast<float*>(cache.pools) +
         (span.pages[pool / page_pools] * page_pools + pool % page_pools) * shape.width;
}

float* latent_row(const IndexShape& shape, const LatentCache& cache, const Span& span, int64_t position,
                  int64_t latent_width) {
  position += shape.storage_shift;
  return static_cast<float*>(cache.latents) +
         (span.pages[position / kPageTokens] * kPageTokens + position % kPageTokens) * latent_width;
}

}  // namespace

void CpuOps::append_latents(const IndexShape& shape, int64_t latent_width, const float* latents, const float* keys,
                            const float* gates, const float* ape, std::span<const Span> spans,
                            const LatentCache& cache) {
  const int64_t width = shape.width, ring = shape.tail_ring();
  const std::vector<Row> rows = rows_of(spans);
  // Pools first: a pool's earlier tokens may be in the ring slots that this step's last tokens are going to take.
  pool_.for_each(static_cast<int64_t>(rows.size()), 16, [&](int64_t begin, int64_t end) {
    std::vector<const float*> pointers(static_cast<size_t>(2 * shape.pool));
    for (int64_t r = begin; r < end; ++r) {
      const auto& [span, row, position] = rows[static_cast<size_t>(r)];
      std::copy_n(latents + row * latent_width, latent_width, latent_row(shape, cache, *span, position, latent_width));
      if ((position + 1) % shape.pool != 0) continue;
      for (int64_t i = 0; i < shape.pool; ++i) {
        const int64_t token = position + 1 - shape.pool + i;
        const int64_t slot = (span->sequence * ring + token % ring) * width;
        const int64_t own = (row - (position - token)) * width;
        const bool earlier = token < span->position;
        pointers[static_cast<size_t>(i)] = earlier ? cache.tail_key + slot : keys + own;
        pointers[static_cast<size_t>(shape.pool + i)] = earlier ? cache.tail_gate + slot : gates + own;
      }
      kernels_.attention->pool_key(pointers.data(), pointers.data() + shape.pool, ape, shape.pool, width,
                                   pool_key(shape, cache, *span, position / shape.pool));
    }
  });
  for (const Span& span : spans) {
    const int64_t end = span.position + span.rows;
    for (int64_t position = std::max(span.position, end - ring); position < end; ++position) {
      const int64_t from = (span.first_row + position - span.position) * width;
      const int64_t to = (span.sequence * ring + position % ring) * width;
      std::copy_n(keys + from, width, cache.tail_key + to);
      std::copy_n(gates + from, width, cache.tail_gate + to);
    }
  }
}

namespace {

// Order-preserving image of a score: a larger score has the larger image, both zeros are one, NaN is least.
uint32_t score_order(float score) {
  if (score != score) return 0;
  const auto bits = std::bit_cast<uint32_t>(score == 0.0f ? 0.0f : score);
  return (bits & 0x80000000u) ? ~bits : bits | 0x80000000u;
}

// The `budget` best of scores, lower index on ties, ascending.
void select_best(const float* scores, int64_t count, int64_t budget, std::vector<uint32_t>& work, int32_t* chosen) {
  work.resize(static_cast<size_t>(count));
  std::transform(scores, scores + count, work.begin(), score_order);
  std::nth_element(work.begin(), work.begin() + (budget - 1), work.end(), std::greater<>());
  const uint32_t last = work[static_cast<size_t>(budget - 1)];
  int64_t ties = budget - std::count_if(work.begin(), work.end(), [&](uint32_t order) { return order > last; });
  for (int64_t pool = 0; pool < count; ++pool) {
    const uint32_t order = score_order(scores[pool]);
    if (order > last || (order == last && ties-- > 0)) *chosen++ = static_cast<int32_t>(pool);
  }
}

}  // namespace

void CpuOps::select_pools(const IndexShape& shape, const float* q, const float* head_weights,
                          std::span<const Span> spans, const LatentCache& cache, const Selection& selection) {
  const int64_t budget = shape.budget_pools(), page_pools = kPageTokens / shape.pool;
  const int64_t q_stride = shape.heads * shape.width;
  std::vector<Row> scored;
  for (const Row& row : rows_of(spans)) {
    const int64_t pools = complete_pools(shape, row.position);
    selection.counts[row.row] = static_cast<int32_t>(std::min(pools, budget));
    if (pools > budget)
      scored.push_back(row);
    else
      for (int64_t i = 0; i < pools; ++i) selection.pools[row.row * budget + i] = static_cast<int32_t>(i);
  }

  // Batches of rows whose scores fit a few megabytes. Within one, a piece of work is a run of pages for up to kRows
  // rows of one sequence: each page is read once for all of them.
  constexpr int64_t kBatchScores = int64_t{1} << 22, kRows = 8, kPages = 16;
  struct Piece {
    size_t first, rows;
    int64_t page;
  };
  const auto total = static_cast<int64_t>(scored.size());
  for (int64_t first = 0, next = 0; first < total; first = next) {
    std::vector<int64_t> offsets;
    std::vector<Piece> pieces;
    int64_t scores_count = 0;
    for (next = first; next < total; ++next) {
      const int64_t pools = complete_pools(shape, scored[static_cast<size_t>(next)].position);
      if (next > first && scores_count + pools > kBatchScores) break;
      offsets.push_back(scores_count);
      scores_count += pools;
    }
    for (int64_t begin = first, end = 0; begin < next; begin = end) {
      for (end = begin + 1; end < next && end - begin < kRows; ++end)
        if (scored[static_cast<size_t>(end)].span != scored[static_cast<size_t>(begin)].span) break;
      const int64_t pools = complete_pools(shape, scored[static_cast<size_t>(end - 1)].position);
      for (int64_t page = 0; page * page_pools < pools + shape.storage_shift; page += kPages)
        pieces.push_back({static_cast<size_t>(begin), static_cast<size_t>(end - begin), page});
    }
    struct ScoreScratch;
    float* scores = thread_scratch<ScoreScratch>(scores_count, "select_pools");
    pool_.for_each(static_cast<int64_t>(pieces.size()), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const Piece& piece = pieces[static_cast<size_t>(i)];
        for (int64_t page = piece.page; page < piece.page + kPages; ++page) {
          for (size_t j = piece.first; j < piece.first + piece.rows; ++j) {
            const auto& [span, row, position] = scored[j];
            const int64_t pool = std::max<int64_t>(page * page_pools - shape.storage_shift, 0);
            const int64_t stop = (page + 1) * page_pools - shape.storage_shift;
            const int64_t count = std::min(stop, complete_pools(shape, position)) - pool;
            if (count <= 0) continue;
            kernels_.attention->score_pools(q + row * q_stride, head_weights + row * shape.heads, shape.heads,
                                            shape.width, pool_key(shape, cache, *span, pool), count,
                                            scores + offsets[j - static_cast<size_t>(first)] + pool);
          }
        }
      }
    });
    pool_.for_each(next - first, 1, [&](int64_t begin, int64_t end) {
      std::vector<uint32_t> work;
      for (int64_t i = begin; i < end; ++i) {
        const Row& row = scored[static_cast<size_t>(first + i)];
        select_best(scores + offsets[static_cast<size_t>(i)], complete_pools(shape, row.position), budget, work,
                    selection.pools + row.row * budget);
      }
    });
  }
}

void CpuOps::sparse_attention(const IndexShape& shape, int64_t heads, int64_t latent_width, float scale, const float* q,
                              std::span<const Span> spans, const LatentCache& cache, const Selection& selection,
                              float* out) {
  const std::vector<Row> rows = rows_of(spans);
  const auto count = static_cast<int64_t>(rows.size());
  // Few rows: heads are cut as well, four or more together so that they share the reading of a latent.
  const int64_t pieces_wanted = 4 * static_cast<int64_t>(pool_.threads());
  const int64_t cuts =
      count >= pieces_wanted ? 1 : std::min((pieces_wanted + count - 1) / std::max<int64_t>(count, 1), (heads + 3) / 4);
  const int64_t piece_heads = ((heads + cuts - 1) / cuts + 3) / 4 * 4;
  const int64_t row_pieces = (heads + piece_heads - 1) / piece_heads;
  pool_.for_each(count * row_pieces, 1, [&](int64_t begin, int64_t end) {
    std::vector<const float*> visible;
    for (int64_t i = begin; i < end; ++i) {
      const auto& [span, row, position] = rows[static_cast<size_t>(i / row_pieces)];
      visible.clear();
      for (int64_t j = 0; j < selection.counts[row]; ++j) {
        const int64_t token = int64_t{selection.pools[row * shape.budget_pools() + j]} * shape.pool;
        for (int64_t k = 0; k < shape.pool; ++k)
          visible.push_back(latent_row(shape, cache, *span, token + k, latent_width));
      }
      if (shape.always_select_tail)
        for (int64_t token = complete_pools(shape, position) * shape.pool; token <= position; ++token)
          visible.push_back(latent_row(shape, cache, *span, token, latent_width));

      const int64_t first_head = i % row_pieces * piece_heads;
      Attend attend;
      attend.latents = visible.data();
      attend.tokens = static_cast<int64_t>(visible.size());
      attend.latent_width = latent_width;
      attend.heads = std::min(piece_heads, heads - first_head);
      attend.scale = scale;
      attend.q = q + (row * heads + first_head) * latent_width;
      attend.out = out + (row * heads + first_head) * latent_width;
      struct AttendScratch;
      attend.scratch = thread_scratch<AttendScratch>(attend_scratch(attend.heads), "sparse_attention");
      kernels_.attention->attend(attend);
    }
  });
}

void CpuOps::absorb_queries(const Matrix& kv_b, int64_t heads, int64_t key_width, int64_t value_width, const float* q,
                            int64_t rows, float* out) {
  pool_.for_each(heads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t head = begin; head < end; ++head) {
      const int64_t first = head * (key_width + value_width);
      ColumnProduct product;
      product.x = q + head * key_width;
      product.x_stride = heads * key_width;
      product.rows = rows;
      product.weights = kv_b.data + first * kv_b.row_bytes;
      product.row_bytes = kv_b.row_bytes;
      product.count = key_width;
      product.columns = kv_b.columns;
      product.y = out + head * kv_b.columns;
      product.y_stride = heads * kv_b.columns;
      if (kv_b.form == WeightForm::kNvfp4 || kv_b.form == WeightForm::kFp8Block) {
        struct DecodedScratch;
        float* decoded = thread_scratch<DecodedScratch>(key_width * kv_b.columns, "absorb_queries");
        Matrix unscaled = kv_b;  // the matrix scale multiplies sums
        unscaled.matrix_scale = 1.0f;
        for (int64_t row = 0; row < key_width; ++row)
          unpack_row(*kernels_.matmul, unscaled, first + row, decoded + row * kv_b.columns);
        product.weights = decoded;
        product.row_bytes = kv_b.columns * 4;
        if (kv_b.form == WeightForm::kNvfp4) product.scale = kv_b.matrix_scale;
      }
      if (kv_b.form == WeightForm::kBf16)
        kernels_.attention->columns_bf16(product);
      else
        kernels_.attention->columns_f32(product);
    }
  });
}

void CpuOps::absorb_values(const Matrix& kv_b, int64_t heads, int64_t key_width, int64_t value_width,
                           const float* attended, int64_t rows, float* out) {
  const int64_t width = kv_b.columns;
  pool_.for_each(heads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t head = begin; head < end; ++head) {
      Matrix values = kv_b.row_range(head * (key_width + value_width) + key_width, value_width);
      // kv_b's own input is the latent, which is rounded before it is cached if at all; not the attended mixture.
      values.input_scale = 0.0f;
      matmul(values, attended + head * width, heads * width, rows, 1, out + head * value_width, heads * value_width);
    }
  });
}

}  // namespace verbatim::ops::cpu
