// Working memory of the operators that working.h does not speak of, as functions of shapes, without CUDA's headers: the
// most that any of an operator's kernels takes.
#pragma once

#include "ops/cuda/working.h"

namespace verbatim::ops::cuda {

// Rows on their way into packed order: 64 MiB of them (or 16 rows) and their scales.
inline constexpr int64_t kUploadWorkingBytes = (int64_t{64} << 20) / 8 * 9;
// Products of plain matrices: a launch takes so many matrices, and slices of so few columns stand alone.
inline constexpr int64_t kMostProducts = 8, kMostSplitColumns = 32;
inline constexpr int64_t kHyperPitch = 32;
// Rows whose groups of tokens may stand in blocks of their own.
inline constexpr int64_t kMostAttentionRows = 64;

// A bound of the position that a step reaches, coarse enough that steps share their launches: a power of two from 2^14.
constexpr int64_t coarse_position(int64_t position) {
  int64_t bound = int64_t{1} << 14;
  while (bound < position) bound *= 2;
  return bound;
}

// Scores of all pools, for as many rows at a time as fit, where more are complete than are chosen.
inline constexpr int64_t kScoreWorkingBytes = int64_t{256} << 20;
constexpr int64_t score_working_bytes(int64_t pool, int64_t budget_pools, int64_t last_position, int64_t rows) {
  const int64_t pools = coarse_position(last_position) / pool;
  if (pools <= budget_pools) return 0;
  const int64_t most = kScoreWorkingBytes / (4 * pools), at_once = most < 1 ? 1 : most;
  return 4 * pools * (rows < at_once ? rows : at_once);
}

// Experts by kernels that take any form (sm80_bf16_experts.cu, sm90_packed_experts.cu), activations in one term.
struct PlainExperts {
  int64_t gate_slices = 1, down_slices = 1;  // of a part
  bool is_packed = true, rounds_places = false, has_f32 = false;
};
constexpr int64_t plain_experts_bytes(const ExpertsShape& e, const PlainExperts& plain, int64_t rows) {
  const int64_t places = rows * (e.top + (e.has_shared ? 1 : 0));
  const int64_t most_tiles = places / 8 + e.experts + 2;
  const bool splits = !plain.is_packed && rows * (e.top + 1) <= 1024;
  const int64_t gate_slices = splits ? plain.gate_slices : 1, down_slices = splits ? plain.down_slices : 1;
  const int64_t columns = (e.columns + 7) / 8 * 8, inner = (e.inner + 7) / 8 * 8;
  return 2 * working_rounded(4 * (e.experts + 1)) + working_rounded(4 * rows * e.top) +
         2 * working_rounded(4 * places) + 2 * working_rounded(4 * most_tiles) + working_rounded(4) +
         (plain.rounds_places ? 2 * working_rounded(2 * places * columns) : 0) + working_rounded(2 * rows * columns) +
         working_rounded(2 * places * inner) + 2 * working_rounded(4 * gate_slices * places * e.inner) +
         (plain.has_f32 ? working_rounded(4 * places * e.inner) : 0) +
         working_rounded(4 * e.parts * down_slices * places * e.width);
}

// Sampling (sampling.cu): ids of a block, the most blocks a row, rows at a time, bins of a row's histogram.
inline constexpr int64_t kChunkIds = 2048, kMostChunks = 256, kMostSampledIds = kChunkIds * kMostChunks;
inline constexpr int64_t kSampledRows = 64, kSampleBins = 41 * 32;
constexpr int64_t sample_working_bytes(int64_t rows, int64_t ids) {
  const int64_t at_once = rows < kSampledRows ? rows : kSampledRows, chunks = (ids + kChunkIds - 1) / kChunkIds;
  return 2 * working_rounded(8 * at_once * chunks) + working_rounded(4 * at_once * chunks) +
         working_rounded(8 * at_once * kSampleBins) + working_rounded(4 * at_once * kSampleBins) +
         working_rounded(8 * at_once * ids);
}

}  // namespace verbatim::ops::cuda
