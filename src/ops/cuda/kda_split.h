// Which rows linear attention takes in whole chunks (kda_chunks.h), and the working memory of that, without CUDA's
// headers.
#pragma once

#include <cstdint>

#include "ops/ops.h"

namespace verbatim::ops::cuda {

inline constexpr int kKdaWidth = 128, kKdaRows = static_cast<int>(kChunkRows);
// Chunks of a launch; those of two launches are kept, in turn. Bytes of one and a head.
inline constexpr int64_t kKdaSegment = 16, kKdaChunkBytes = (6864 + kKdaRows * kKdaWidth) * 4;

// Rows of a span up to a multiple of kChunkRows, which kda() takes first, and the whole chunks behind them of rows that
// are certain; none where they are too few to be worth it. What is left comes last, by kda() again.
struct KdaSplit {
  int64_t before = 0, chunks = 0;
};
constexpr KdaSplit split_for_chunks(const Span& span) {
  constexpr int64_t kFewestChunks = 2;
  const int64_t before = (kChunkRows - span.position % kChunkRows) % kChunkRows;
  const int64_t chunks = (span.certain - before) / kChunkRows;
  return chunks < kFewestChunks ? KdaSplit() : KdaSplit{before, chunks};
}
constexpr bool kda_takes_chunks(const KdaShape& shape) { return shape.width == kKdaWidth && shape.lower_bound <= 0.0f; }

constexpr int64_t kda_chunks_kept(int64_t chunks) { return chunks < 2 * kKdaSegment ? chunks : 2 * kKdaSegment; }
// Chunks that are kept, and the last one's keys and decays.
constexpr int64_t kda_chunks_bytes(const KdaShape& shape, int64_t chunks) {
  return shape.heads * (kda_chunks_kept(chunks) * kKdaChunkBytes + int64_t{2} * kKdaRows * kKdaWidth * 4);
}

}  // namespace verbatim::ops::cuda
