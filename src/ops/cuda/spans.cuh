// Where a row of a step stands, and where its sequence keeps what it reads.
#pragma once

#include "ops/cuda/kernels.h"

namespace verbatim::ops::cuda {

struct Row {
  const DeviceSpan& span;
  const int32_t* pages;
  int64_t row, position;
};

__device__ inline Row row_at(const SpanTable& spans, int64_t row) {
  const DeviceSpan& span = spans.spans[spans.span_of_row[row]];
  return {span, spans.pages + span.pages, row, span.position + row - span.first_row};
}

__device__ inline float* pool_key(const IndexShape& shape, const LatentCache& cache, const Row& at, int64_t pool) {
  const int64_t page_pools = kPageTokens / shape.pool;
  pool += shape.storage_shift;
  return cache.pools + (at.pages[pool / page_pools] * page_pools + pool % page_pools) * shape.width;
}

__device__ inline float* latent_row(const IndexShape& shape, const LatentCache& cache, const Row& at, int64_t position,
                                    int64_t latent_width) {
  position += shape.storage_shift;
  return cache.latents + (at.pages[position / kPageTokens] * kPageTokens + position % kPageTokens) * latent_width;
}

}  // namespace verbatim::ops::cuda
