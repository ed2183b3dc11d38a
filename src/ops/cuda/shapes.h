// Shared memory and threads of every kernel that asks for more than a few KB, without CUDA's headers, so that a test
// without a device holds them against what architectures give. Launches use these functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace verbatim::ops::cuda {

// What a block may ask for.
struct Architecture {
  const char* name;
  int64_t shared_bytes;
  bool has_wgmma;
};
inline constexpr std::array<Architecture, 4> kArchitectures = {
    {{"90a", 227 * 1024, true}, {"100a", 227 * 1024, false}, {"120a", 99 * 1024, false}, {"121a", 99 * 1024, false}}};

// sm90_packed_fragments.cu: tiles of eight columns, row tiles of a warp.
constexpr int64_t fragments_shared_bytes(int64_t columns8, int64_t row_tiles) {
  return int64_t{2} * 8 * row_tiles * 128 * columns8 * 4;
}
// sm90_packed_rows.cu (static) and the gate and up of sm90_packed_experts.cu.
constexpr int64_t few_rows_shared_bytes(int64_t terms) { return int64_t{2} * 8 * terms * 128 * 4; }
constexpr int64_t gate_up_shared_bytes(int64_t terms) { return 2 * few_rows_shared_bytes(terms); }
// sm90_packed_experts.cu: places of `experts` experts.
constexpr int64_t places_shared_bytes(int64_t experts) { return (3 * experts + 64) * 4; }
// sm80_packed_tile.cuh, sm80_bf16_tile.cuh and sm80_bf16_slice.cuh for `columns` columns a tile.
constexpr int64_t packed_tile_shared_bytes(int64_t columns) { return int64_t{3} * columns * 72 * 2; }
constexpr int64_t bf16_tile_shared_bytes(int64_t columns) { return (64 + columns) * 72 * 2; }
constexpr int64_t bf16_slice_shared_bytes(int64_t columns) { return (64 + columns) * 264 * 2; }
// sm90a_warpgroup_tile.cuh: a ring of six steps, staged sums, orders and barriers, and what alignment takes. wgmma alone.
constexpr int64_t warpgroup_tile_shared_bytes() {
  return int64_t{6} * (128 * 64 * 2 + 128 * 64 * 2) + 2 * 32 * 68 * 4 + 6 * (40 + 16) + 1024;
}
// sm90_kda_row.cu and kda.cu, heads of `width`.
constexpr int64_t kda_row_shared_bytes(int64_t width) { return (width + 16) * width * 4; }
constexpr int64_t kda_shared_bytes(int64_t width) { return (4 * 16 + 2 * 16 + 36 + 20) * width * 4; }
// sm90_attention_groups.cu and attention.cu (attention of `heads` heads a block; scores of the indexer).
constexpr int64_t attention_group_shared_bytes(int64_t width) { return 16 * width * 4; }
constexpr int64_t attention_shared_bytes(int64_t heads, int64_t width) { return 2 * heads * width * 4; }
constexpr int64_t index_score_shared_bytes(int64_t heads, int64_t width) { return heads * (width + 1) * 4; }
// sm90_hyper.cu, streams of `width`.
constexpr int64_t hyper_shared_bytes(int64_t width) { return (int64_t{32} * 4 * width / 256 + width) * 4; }

}  // namespace verbatim::ops::cuda
