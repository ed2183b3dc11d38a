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

// sm90_stream_product.cu: products of several matrices of one form with `columns8` tiles of eight columns.
inline constexpr int kMostGroup = 8, kStreamThreads = 512;
inline constexpr int64_t kNvfp4PieceBytes = 2304, kStreamBarrierBytes = 1024;
// Tiles of 16 columns, and bytes, of a piece of a row tile: 2 KB of BF16; a slice of NVFP4, or a quarter of one where
// many columns ride along in the ring.
constexpr int64_t stream_piece_tiles(bool bf16, int64_t columns8, bool in_ring) {
  return bf16 || (in_ring && columns8 >= 4) ? 4 : 16;
}
constexpr int64_t stream_piece_bytes(bool bf16, int64_t columns8, bool in_ring) {
  return stream_piece_tiles(bf16, columns8, in_ring) * (bf16 ? 512 : 144);
}
// Threads of a block whose warps share row tiles: fewer where sums of several column tiles are in registers.
constexpr int stream_shared_threads(int64_t columns8) { return columns8 >= 4 ? 256 : kStreamThreads; }
// How often a turn's sums stand in shared memory where columns are in the ring: twice where they are few. (With whole
// columns 64 registers a thread leave no room for it.)
constexpr int stream_sum_buffers(int64_t columns8, int warp_tiles) { return columns8 * warp_tiles <= 2 ? 2 : 1; }
// Rows that come in the ring as they are, a piece of them beside each piece of weights (32 bytes apart, so that rows
// stand in different banks).
inline constexpr int64_t kMostRingRows = 4;
constexpr int64_t stream_ring_row_bytes(int64_t piece_tiles) { return piece_tiles * 64 + 32; }
struct StreamProblem {
  int count = 0, columns8 = 1, slices = 1, parts = 1, terms = 1;
  int layers = 1;                      // of the grid, that take the same weights for other rows
  int64_t row_tiles[kMostGroup] = {};  // of each matrix
  int64_t whole_bytes = 0;             // of columns that stand in shared memory whole; 0: they come as fragments
  bool bf16 = true;                    // or NVFP4
  bool ring_rows = false;              // columns come in the ring as rows, not as fragments
  int64_t beside_bytes = 0;            // of shared memory that other launches take of a multiprocessor at the same time
};
// A block's row tiles at a time, those of a warp, the warps that share them, the stages of a warp's ring.
struct StreamShape {
  int row_tiles = 1, warp_tiles = 1, concurrent = 1, stages = 2;
  int64_t units = 0, blocks = 0, shared_bytes = 0;
  constexpr int warps() const { return row_tiles / warp_tiles * concurrent; }
};
// The shape of the least time by a model of it, in the time that a multiprocessor's share of the memory's rate takes
// for 8 KB, a slice of a row tile of BF16: all bytes at that rate; those of the busiest multiprocessor at 1.3 times it;
// a warp's slices at 6 of these times each (a quarter of that counts beside the others), and 0.7 where their sums go
// through shared memory.
constexpr StreamShape stream_shape(const StreamProblem& p, int multiprocessors, int64_t most_shared_bytes) {
  constexpr int64_t kReserve = 2048, kMostStages = 6;
  int64_t every_tile = 0;
  for (int i = 0; i < p.count; ++i) every_tile += p.row_tiles[i];
  const bool beside = p.beside_bytes > 0;
  const bool small = beside || (p.layers > 1 && p.slices < 4 && p.layers * every_tile > multiprocessors);
  const int most_warps = small ? kStreamThreads / 64 : kStreamThreads / 32;  // of 64 registers a thread, so many fit
  StreamShape best;
  double best_cost = -1;
  for (int warp_tiles = 1; warp_tiles <= 2; ++warp_tiles)
    for (int tiles = warp_tiles; tiles <= kStreamThreads / 32; tiles += warp_tiles)
      for (int concurrent = 1; concurrent <= most_warps && concurrent <= p.slices; concurrent *= 2) {
        StreamShape shape;
        shape.row_tiles = tiles;
        shape.warp_tiles = warp_tiles;
        shape.concurrent = concurrent;
        const int64_t warps = shape.warps();
        if (warps > most_warps || ((p.parts > 1 || p.ring_rows) && concurrent == 1)) continue;
        const bool alone = concurrent == 1, in_ring = !alone && p.whole_bytes == 0;
        if (warp_tiles == 2 && (!in_ring || concurrent < 4)) continue;
        if (!alone && warps * 32 > stream_shared_threads(p.columns8)) continue;
        for (int i = 0; i < p.count; ++i) shape.units += (p.row_tiles[i] + tiles - 1) / tiles;
        if (shape.units == 0) return {};
        const int64_t columns = p.whole_bytes > 0 ? p.whole_bytes : alone ? int64_t{2} * 16 * p.columns8 * 256 : 0;
        const int buffers = in_ring ? stream_sum_buffers(p.columns8, warp_tiles) : 1;
        const int64_t sums = !alone || p.terms > 1 ? buffers * warps * warp_tiles * 512 * p.columns8 : 0;
        const int64_t fixed = kStreamBarrierBytes + columns + sums;
        const int64_t piece_tiles = stream_piece_tiles(p.bf16, p.columns8, in_ring);
        const int64_t fragments = !in_ring      ? 0
                                  : p.ring_rows ? kMostRingRows * stream_ring_row_bytes(piece_tiles)
                                                : piece_tiles * p.columns8 * 256;
        const int64_t stage = warps * (warp_tiles * stream_piece_bytes(p.bf16, p.columns8, in_ring) + fragments);
        // Two such blocks must not share a multiprocessor while another has none; smaller ones may stand beside one,
        // and those of several layers beside each other.
        const int64_t least = small ? 0 : most_shared_bytes / 2 + kReserve;
        const int64_t most = most_shared_bytes - kReserve - p.beside_bytes;
        int64_t stages = small ? 2 : least > fixed ? (least - fixed + stage - 1) / stage : 2;
        // A turn of whole columns ends for all warps together: the next turn's pieces of a warp are on their way by
        // then.
        if (stages < 4 && p.whole_bytes > 0 && !alone && p.slices > 16) stages = 4;
        if (stages < 2) stages = 2;
        if (stages > kMostStages) stages = kMostStages;
        if (stages > 2 && fixed + stages * stage > most) stages = 2;
        if (fixed + stages * stage > most) continue;
        shape.stages = static_cast<int>(stages);
        shape.shared_bytes = fixed + stages * stage > least ? fixed + stages * stage : least;
        shape.blocks = shape.units < multiprocessors ? shape.units : multiprocessors;
        const int64_t whole_rounds = (shape.units + multiprocessors - 1) / multiprocessors;
        const auto rounds = static_cast<double>(whole_rounds);
        const double slices = p.slices, turns = slices / concurrent;
        const double all = static_cast<double>(every_tile) * slices / multiprocessors;
        const double busiest = rounds * tiles * slices / 1.3, latency = rounds * turns * 6.0 * warp_tiles;
        double cost = all > busiest ? all : busiest;
        if (cost < latency) cost = latency;
        cost += latency / 4;
        if (!alone) cost += rounds * turns * 0.7;
        if (in_ring) cost += all * 0.15 * p.columns8 / warp_tiles;  // the fragments' way from the second-level cache
        if (best_cost < 0 || cost < best_cost) best = shape, best_cost = cost;
      }
  if (best.units == 0 && beside) {
    StreamProblem alone = p;
    alone.beside_bytes = 0;
    return stream_shape(alone, multiprocessors, most_shared_bytes);
  }
  return best;
}
// sm90_stream_experts.cu: barriers and portions, rings of both matrices' pieces, sums twice, inputs (of four rows of
// 4,096).
inline constexpr int kExpertWarps = 16, kExpertStages = 2, kExpertPortions = 8;
inline constexpr int64_t kExpertBarrierBytes = 256, kExpertPortionBytes = kExpertPortions * 96;
inline constexpr int64_t kExpertInputBytes = 38 * 1024;
constexpr int64_t expert_shared_bytes() {
  return kExpertBarrierBytes + kExpertPortionBytes + int64_t{kExpertWarps} * kExpertStages * 2 * kNvfp4PieceBytes +
         int64_t{2} * kExpertWarps * 256 * 4 + kExpertInputBytes;
}
// sm90_packed_experts.cu: down (static), gate and up.
constexpr int64_t few_rows_shared_bytes(int64_t terms) { return int64_t{2} * 8 * terms * 128 * 4; }
constexpr int64_t gate_up_shared_bytes(int64_t terms) { return 2 * few_rows_shared_bytes(terms); }
// sm90_packed_experts.cu: places of `experts` experts.
constexpr int64_t places_shared_bytes(int64_t experts) { return (3 * experts + 64) * 4; }
// sm80_packed_tile.cuh, sm80_bf16_tile.cuh and sm80_bf16_slice.cuh for `columns` columns a tile.
constexpr int64_t packed_tile_shared_bytes(int64_t columns) { return int64_t{3} * columns * 72 * 2; }
constexpr int64_t bf16_tile_shared_bytes(int64_t columns) { return (64 + columns) * 72 * 2; }
constexpr int64_t bf16_slice_shared_bytes(int64_t columns) { return (64 + columns) * 264 * 2; }
// sm90a_warpgroup_tile.cuh: a ring of six steps, staged sums, orders and barriers, and what alignment takes. wgmma
// alone.
constexpr int64_t warpgroup_tile_shared_bytes() {
  return int64_t{6} * (128 * 64 * 2 + 128 * 64 * 2) + 2 * 32 * 68 * 4 + 6 * (48 + 16) + 1024;
}
// sm90_kda_row.cu and kda.cu, heads of `width`.
constexpr int64_t kda_row_shared_bytes(int64_t width) {
  return ((3 * 24 + 1 + 2 + 2 + 3 + 3) * width + 2 * 16 + 4) * 4;
}
constexpr int64_t kda_shared_bytes(int64_t width) { return (4 * 16 + 2 * 16 + 36 + 20) * width * 4; }
// sm90_kda_chunks.cu: two chunks of 128 wide heads (6,864 floats of operands, 512 values), S and v_new of 32 columns.
constexpr int64_t kda_chunks_shared_bytes() { return (2 * (6864 + 512) + (128 + 16) * 36 + 16 * 32) * 4 + 16; }
// sm90_bf16_attention.cu: `heads` heads a block, `stages` groups of latents, weights, scores, statistics and barriers.
constexpr int64_t attention_tile_shared_bytes(int64_t heads, int64_t stages, int64_t width) {
  return (heads + stages * 64) * (width * 2 + 16) + heads * (64 * 2 + 16 + 80 * 4 + 2 * 8) + stages * 8;
}
// attention_split.cuh: groups of 64 latents, 512 wide, and float32 queries of `heads` heads, which stand where
// the second group will; then scores and places of `groups` groups. Sums of 64 heads, or of sixteen by eight warps, of
// `columns` columns: weights and latents of groups, products, then statistics, factors and places of all `groups`
// groups.
inline constexpr int kSplitWidth = 512, kSplitGroupBytes = 64 * (kSplitWidth * 2 + 16);
inline constexpr int kSplitQueryBytes = (kSplitWidth + 8) * 4, kSplitStages = 3, kSplitMoreStages = 8;
constexpr int64_t split_weigh_shared_bytes(int64_t heads, int64_t groups) {
  return (heads == 64 ? kSplitStages * kSplitGroupBytes : 2 * kSplitGroupBytes + heads * 80 * 4) + groups * 64 * 4;
}
constexpr int64_t split_sum_shared_bytes(int64_t columns, int64_t stages, int64_t groups) {
  return stages * (64 * 128 + 64 * columns * 2) + groups * (64 * 8 + 64 * 4) + 2 * 64 * 8;
}
constexpr int64_t split_few_sum_shared_bytes(int64_t columns, int64_t groups) {
  return 2 * 8 * (16 * 128 + 64 * columns * 2) + 8 * 16 * (columns + 8) * 4 + groups * (16 * 16 + 64 * 4);
}
// sm90_bf16_indexer.cu: keys of `pools` pools and a row's queries in three terms. indexer.cu: scores held to choose
// from.
constexpr int64_t index_tile_shared_bytes(int64_t pools, int64_t heads, int64_t width) {
  return pools * ((width + 63) / 64 * 128) + (heads + 15) / 16 * 16 * width * 3 * 2;
}
constexpr int64_t select_held_scores(int64_t scores) { return scores < 8192 ? scores : 8192; }
constexpr int64_t select_shared_bytes(int64_t held) { return held * 4; }
// sm90_bf16_absorb.cu: a part of kv_b and tiles of eight rows.
constexpr int64_t absorb_shared_bytes(int64_t tiles) { return 64 * 1024 + tiles * (8 * 1024 + 4 * 32 * 16); }
// sm90_attention_groups.cu and attention.cu (attention of `heads` heads a block; scores of the indexer).
constexpr int64_t attention_group_shared_bytes(int64_t width) { return 16 * width * 4; }
constexpr int64_t attention_shared_bytes(int64_t heads, int64_t width) { return 2 * heads * width * 4; }
constexpr int64_t index_score_shared_bytes(int64_t heads, int64_t width) { return heads * (width + 1) * 4; }
// sampling.cu (static): counts and two halves of sums by bin; and the block that picks, of at most 256 chunks.
constexpr int64_t sample_weigh_shared_bytes(int64_t bins) { return 3 * 4 * bins + 256; }
constexpr int64_t sample_pick_shared_bytes() { return (4096 + 256) * 8 + 256 * 4 + 32 * 16 + 256; }
// sm90_hyper.cu, streams of `width`.
constexpr int64_t hyper_shared_bytes(int64_t width) { return (int64_t{100} * width / 256 + width) * 4; }
// sm90_hyper_cluster.cu, `rows` rows a cluster; weights of a block where there are few.
constexpr int64_t hyper_cluster_shared_bytes(int64_t rows) {
  return rows * (4 * 256 + 16 * 100 + 256 + 16 + 4 + 1) * 4 + 32 + (rows <= 2 ? 512 * 6 * 16 : 0);
}

}  // namespace verbatim::ops::cuda
