// Where a row of a step stands, and where its sequence keeps what it reads.
#pragma once

#include "ops/cuda/kernels.h"
#include "ops/cuda/weights.cuh"

namespace verbatim::ops::cuda {

__device__ inline float cached_value(float element) { return element; }
__device__ inline float cached_value(uint16_t element) { return bf16_value(element); }
__device__ inline void store_cached(float* to, float value) { *to = value; }
__device__ inline void store_cached(uint16_t* to, float value) { *to = static_cast<uint16_t>(bf16_bits(value)); }

struct Row {
  const DeviceSpan& span;
  const int32_t* pages;
  int64_t row, position;
};

__device__ inline Row row_at(const SpanTable& spans, int64_t row) {
  const DeviceSpan& span = spans.spans[spans.span_of_row[row]];
  return {span, spans.pages + span.pages, row, span.position + row - span.first_row};
}

// Element: of the caches, float or (bfloat16) uint16_t. Positions and pools leave 32 bits nowhere.
template <class Element>
__device__ inline Element* pool_key(const IndexShape& shape, const LatentCache& cache, const int32_t* pages,
                                    int64_t pool) {
  // A pool's tokens are a power of two, as they divide a page.
  const int shift = __ffs(static_cast<int>(kPageTokens)) - __ffs(static_cast<int>(shape.pool));
  const auto stored = static_cast<uint32_t>(pool + shape.storage_shift);
  return static_cast<Element*>(cache.pools) +
         ((int64_t{pages[stored >> shift]} << shift) + (stored & ((1u << shift) - 1))) * shape.width;
}

template <class Element>
__device__ inline Element* pool_key(const IndexShape& shape, const LatentCache& cache, const Row& at, int64_t pool) {
  return pool_key<Element>(shape, cache, at.pages, pool);
}

template <class Element>
__device__ inline Element* latent_row(const IndexShape& shape, const LatentCache& cache, const Row& at,
                                      int64_t position, int64_t latent_width) {
  position += shape.storage_shift;
  return static_cast<Element*>(cache.latents) +
         (at.pages[position / kPageTokens] * kPageTokens + position % kPageTokens) * latent_width;
}

}  // namespace verbatim::ops::cuda
