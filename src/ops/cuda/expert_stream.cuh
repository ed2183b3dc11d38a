// What blocks of sm90_stream_experts.cu take, in order: a warp of each deals portions into a list in shared memory that
// all others follow. And how a warp's weights come into its ring.
#pragma once

#include "ops/cuda/packed.cuh"
#include "ops/cuda/ptx/async_copy.cuh"
#include "ops/cuda/ptx/bulk_copy.cuh"
#include "ops/cuda/ptx/dependency.cuh"
#include "ops/cuda/shapes.h"
#include "ops/cuda/slices.cuh"

namespace verbatim::ops::cuda::expert_stream {

inline constexpr int kWarps = kExpertWarps, kStages = kExpertStages, kPlaces = 8, kAdders = 64;
inline constexpr int kFollowers = kWarps * 32 + kAdders, kThreads = kFollowers + 32;
inline constexpr int kPieceBytes = static_cast<int>(2 * kNvfp4PieceBytes), kPartialFloats = 2 * 128;
inline constexpr int kPortions = kExpertPortions;

// Of its equal share of all units a block leaves kPooledPart, no less than kPooledUnits, to the pool. That is dealt by
// kTogether units while more than kSingles a block are left, then by one.
inline constexpr float kPooledPart = 0.1f, kPooledUnits = 5.0f;
inline constexpr int kTogether = 4, kSingles = 6;

// Inputs of one place: [32 inputs][q][16 bytes], inputs 2q, 2q + 1, 2q + 8 and 2q + 9 of both halves; 64 bytes between
// places, so that two neighbours' quarters stand in different banks.
__device__ __host__ constexpr int64_t stored_bytes(int64_t columns) { return columns * 2 + 64; }
__device__ inline int stored_at(int column) {
  return column / 32 * 64 + column % 8 / 2 * 16 + column % 32 / 16 * 8 + column % 16 / 8 * 4 + column % 2 * 2;
}

// Experts of one kind: the shared one, or every routed one.
struct Kind {
  WeightForm form = WeightForm::kNvfp4;
  int columns = 0, slices = 0, row_tiles = 0;
  int sharers = 1, shift = 0, pairs = kWarps;  // 2^shift warps share a unit's slices; pairs of row tiles a unit has
  int all_pairs = 0, units = 0, turns = 0;
  int64_t cost = 1;
  bool whole = false;  // a unit is one slice of NVFP4, or none, to each warp, and has all its pairs
  int tile_bytes = 0;  // of codes, from a row tile to the next
  int unit_bytes = 0, unit_scale_bytes = 0;  // from a unit to the next

  // Of a warp: the first of its slices of a unit, and which of the unit's pairs.
  __device__ int first_slice(int warp) const { return warp & (sharers - 1); }
  __device__ int own_pair(int warp) const { return warp >> shift; }
};

struct Run {
  int32_t expert, first, count;  // places
};

struct Job {
  ExpertsProblem p;
  Kind shared, routed;
  int shared_runs = 0;
  bool direct = false;    // one row
  bool resident = false;  // all inputs fit in shared memory: by row (gate and up) or place (down)
  int64_t x_pitch = 0;    // of stored inputs
  // Of the shared expert each block has so many units, some blocks one more; relative_cost: of a unit in routed ones.
  int shared_least = 0;
  float relative_cost = 0.0f;
  unsigned* counter = nullptr;  // of routed units dealt from the pool; 0 between launches
  // Working memory.
  int32_t* place = nullptr;   // [rows, top]
  int32_t* source = nullptr;  // [places]: row
  Run* runs = nullptr;        // of routed experts
  int32_t* run_count = nullptr;
  uint8_t* x = nullptr;       // stored rows
  uint8_t* hidden = nullptr;  // stored inputs of down, by place
  float* down = nullptr;      // [places][width]
};

__device__ inline Run run_of(const Job& job, bool shared, int index) {
  if (shared) {
    const int begin = index * kPlaces, rows = static_cast<int>(job.p.rows);
    return {static_cast<int32_t>(job.p.experts), static_cast<int32_t>(rows * job.p.top) + begin,
            rows - begin < kPlaces ? rows - begin : kPlaces};
  }
  if (job.direct) return {__ldcg(job.p.chosen + index), index, 1};
  const auto* run = reinterpret_cast<const int32_t*>(job.runs + index);
  return {__ldcg(run), __ldcg(run + 1), __ldcg(run + 2)};
}

// Consecutive units of one expert and all that is to know about it; no units: the end.
struct Portion {
  const uint8_t* data[2];    // from the first unit's first row tile on, of both matrices
  const uint8_t* scales[2];  // likewise
  float factors[2];          // of both matrices' sums
  int32_t units, index;      // how many, and the first
  int32_t first, count;      // places
  int32_t is_shared;
  uint32_t inputs[kPlaces];  // where they stand, in words of 16 bytes; of a place that there is not, the first one's
};
static_assert(kPortions * sizeof(Portion) <= kExpertPortionBytes);

// Portions in shared memory, number n at n % kPortions, and their barriers.
class Dealt {
 public:
  __device__ Dealt(uint64_t* barriers, void* portions)
      : barriers_(barriers), portions_(static_cast<Portion*>(portions)) {}
  __device__ void make() const {
    for (int i = 0; i < kPortions; ++i) {
      ptx::make_barrier(there(i), ptx::kWarpArrivals);
      ptx::make_barrier(left(i), (kWarps + kAdders / 32) * ptx::kWarpArrivals);
      ptx::make_barrier(entered(i), 1);
    }
  }
  __device__ Portion& portion(int n) const { return portions_[n % kPortions]; }
  // It has been dealt; a warp needs it no longer; the first warp begins to copy it.
  __device__ uint64_t* there(int n) const { return barriers_ + n % kPortions; }
  __device__ uint64_t* left(int n) const { return barriers_ + kPortions + n % kPortions; }
  __device__ uint64_t* entered(int n) const { return barriers_ + 2 * kPortions + n % kPortions; }
  __device__ static uint32_t phase(int n) { return static_cast<uint32_t>(n / kPortions) & 1; }

  __device__ const Portion& wait(int n) const {
    ptx::wait_for(there(n), phase(n));
    return portion(n);
  }
  // All lanes, of each warp that follows.
  __device__ void leave(int n, int lane) const { ptx::arrive_warp(left(n), lane); }

 private:
  uint64_t* barriers_;
  Portion* portions_;
};

// A warp that deals: the block's units of the shared expert, its own routed ones, then such from a pool that all blocks
// share. Unit u of a kind is unit u % units of run u / units. Down deals before the launch in front has ended: its
// choices, places and counter were left by launches that gate and up had waited for before they let down start.
template <bool kDown>
class Dealer {
 public:
  __device__ Dealer(const Job& job, const Dealt& dealt, int lane) : job_(job), dealt_(dealt), lane_(lane) {
    shared_ = shared_begin_ = shared_before(blockIdx.x);
    shared_end_ = shared_before(blockIdx.x + 1);
  }
  // Deals all portions. `is_known` says to the block, which waits for it at a barrier, whether the first portion was
  // dealt before the launch in front has ended.
  __device__ void deal_all(bool* is_known) {
    bool waited_for = true, planned = false;
    const auto let_go = [&](bool known) {
      if (!waited_for) return;
      waited_for = false;
      if (lane_ == 0) *is_known = known;
      __syncthreads();
    };
    int unit = 0, end = 0;
    for (;;) {
      const bool shared = shared_ < shared_end_;
      if (!shared && !planned) {
        if (!kDown) {
          let_go(false);
          ptx::wait_for_previous();
        }
        plan(&unit, &end);
        planned = true;
        ptx::let_next_start();
        draw();
      }
      if (!shared && unit == end) {
        const unsigned ticket = __shfl_sync(0xffffffffu, ticket_, 0);
        if (ticket >= tickets_) break;
        const auto drawn = static_cast<int>(ticket);
        unit = owned_ + (drawn < large_ ? drawn * kTogether : drawn + large_ * (kTogether - 1));
        end = unit + (drawn < large_ ? kTogether : 1);
        draws_ = true;
      }
      const int dealt = deal(shared, shared ? shared_ : unit, shared ? shared_end_ - shared_ : end - unit);
      (shared ? shared_ : unit) += dealt;
      let_go(true);
    }
    begin();
    if (lane_ == 0) dealt_.portion(dealt_count_).units = 0;
    finish();
    let_go(true);
  }

 private:
  __device__ int shared_before(int block) const {
    return static_cast<int>(static_cast<unsigned>(block) * static_cast<unsigned>(job_.shared_runs * job_.shared.units) /
                            gridDim.x);
  }
  // The block's own routed units, and the pool. Tickets of the pool stand for several units each, the last ones for
  // one. Each block draws one that is none, and the last of these draws sets the counter back.
  __device__ void plan(int* unit, int* end) {
    const int runs = job_.direct ? static_cast<int>(job_.p.top) : __ldcg(job_.run_count);
    const int routed = runs * job_.routed.units, blocks = static_cast<int>(gridDim.x);
    const int shared_units = job_.shared_runs * job_.shared.units;
    const float mean = (static_cast<float>(routed) + static_cast<float>(shared_units) * job_.relative_cost) /
                       static_cast<float>(blocks);
    int own[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float units = mean - fmaxf(kPooledUnits, kPooledPart * mean) -
                          static_cast<float>(job_.shared_least + i) * job_.relative_cost;
      own[i] = units > 0.0f ? static_cast<int>(units) : 0;
    }
    const auto before = [&](int block, int shared) {
      const int with_more = shared - block * job_.shared_least;
      const int units = with_more * own[1] + (block - with_more) * own[0];
      return units < routed ? units : routed;
    };
    *unit = before(static_cast<int>(blockIdx.x), shared_begin_);
    *end = before(static_cast<int>(blockIdx.x) + 1, shared_end_);
    owned_ = before(blocks, shared_units);
    const int pool = routed - owned_, spare = pool - blocks * kSingles;
    large_ = spare > 0 ? spare / kTogether : 0;
    tickets_ = static_cast<unsigned>(pool - large_ * (kTogether - 1));
  }
  __device__ void draw() {
    if (lane_ == 0) ticket_ = atomicInc(job_.counter, tickets_ + gridDim.x - 1);
  }
  __device__ void begin() { ptx::wait_for(dealt_.left(dealt_count_), Dealt::phase(dealt_count_) ^ 1); }
  __device__ void finish() {
    ptx::arrive_warp(dealt_.there(dealt_count_), lane_);
    ++dealt_count_;
  }
  // Up to `units` units from `unit` on, no more than one run has; returns how many.
  __device__ int deal(bool shared, int unit, int units) {
    const Kind& kind = shared ? job_.shared : job_.routed;
    const auto run = static_cast<int>(static_cast<unsigned>(unit) / static_cast<unsigned>(kind.units));
    const int index = unit - run * kind.units, count = units < kind.units - index ? units : kind.units - index;
    const Run places = run_of(job_, shared, run);
    const ExpertTable& expert = job_.p.table[places.expert];
    const int64_t tile = int64_t{index} * kind.pairs * (kDown ? 2 : 1);
    // Lanes 0 and 1 a matrix each, and each lane a place.
    const int m = lane_ & 1;
    const Weights& w = kDown ? expert.down : m == 0 ? expert.gate : expert.up;
    const int64_t own_tile = tile + (kDown ? m : 0);
    const uint8_t* data = w.data + own_tile * kind.tile_bytes;
    const uint8_t* scales =
        kind.form == WeightForm::kNvfp4 ? w.block_scale + own_tile * packed_scale_tile_bytes(kind.columns) : nullptr;
    const float factor = kind.form == WeightForm::kNvfp4 ? w.matrix_scale * packed_lift(kind.form) : 1.0f;
    const int place = places.first + (lane_ < places.count ? lane_ : 0);
    int slot = place;
    if constexpr (!kDown)
      slot = shared        ? place - static_cast<int>(job_.p.rows * job_.p.top)
             : job_.direct ? 0
                           : __ldcg(job_.source + place);
    begin();
    if (draws_) {
      // The next ticket when the first warp begins to copy what was dealt before this: the time until it wants that
      // ticket's units covers the way there and back.
      if (dealt_count_ > 0) ptx::wait_for(dealt_.entered(dealt_count_ - 1), Dealt::phase(dealt_count_ - 1));
      draw();
      draws_ = false;
    }
    Portion& to = dealt_.portion(dealt_count_);
    if (lane_ < 2) to.data[m] = data, to.scales[m] = scales, to.factors[m] = factor;
    if (lane_ < kPlaces) to.inputs[lane_] = static_cast<uint32_t>(slot * (job_.x_pitch / 16));
    if (lane_ == 0) {
      to.units = count, to.index = index;
      to.first = places.first, to.count = places.count;
      to.is_shared = shared ? 1 : 0;
    }
    finish();
    return count;
  }

  const Job& job_;
  const Dealt& dealt_;
  int lane_, shared_, shared_begin_, shared_end_, dealt_count_ = 0, owned_ = 0, large_ = 0;
  unsigned tickets_ = 0, ticket_ = 0;  // all, and lane 0's last one
  bool draws_ = false;
};

// Tiles of 16 columns of a slice; none past the last.
__device__ inline int tiles_of(const Kind& kind, int slice) {
  const int left = (kind.columns - slice * static_cast<int>(kSliceColumns)) / 16;
  return left < 16 ? left : 16;
}

// Whether each unit is a whole slice of NVFP4 to the warp that takes `slice`.
__device__ inline bool has_whole_slices(const Kind& kind, int slice) {
  return kind.whole && tiles_of(kind, slice) == 16;
}

// A warp's pieces into its ring, in the order in which it takes them; all lanes, sixteen bytes each at a time. Each
// call closes a group of copies.
template <bool kDown>
class Feed {
 public:
  __device__ Feed(const Job& job, const Dealt& dealt, int warp, int lane, uint8_t* ring)
      : job_(job), dealt_(dealt), warp_(warp), lane_(lane), ring_(ring) {}

  // Pieces that wait for no launch: of gate and up those of the first portion, which has been dealt; false if there is
  // none any more.
  __device__ bool fill_known(int stage) {
    if (!kDown && entered_ > 0 && left_ == 0) return false;
    fill(stage);
    return true;
  }
  __device__ void fill(int stage) {
    if (left_ == 0 && !ended_) enter();
    if (!ended_) copy(stage);
    ptx::close_copy_group();
  }

 private:
  __device__ void copy(int stage) {
    uint8_t* to = ring_ + stage * kPieceBytes + lane_ * 16;
    if (whole_) {
      // A whole slice of NVFP4, of a unit that is nothing else of this warp's.
#pragma unroll
      for (int m = 0; m < 2; ++m)
#pragma unroll
        for (int j = 0; j < 4; ++j) ptx::copy_16_bytes(to + m * 2048 + j * 512, data_[m] + j * 512);
      ptx::copy_16_bytes(to + 4096, scales_);
      data_[0] += step_, data_[1] += step_;
      scales_ += scale_step_;
      --left_;
      return;
    }
    const Kind& kind = shared_ ? job_.shared : job_.routed;
    const int tiles = pair_ < kind.all_pairs ? tiles_of(kind, slice_) : 0;
    if (tiles <= 0) {
      // No slice is left for this warp, or no row tile: a piece that nobody reads.
    } else if (kind.form == WeightForm::kNvfp4) {
#pragma unroll
      for (int m = 0; m < 2; ++m)
#pragma unroll
        for (int j = 0; j < 4; ++j)
          if (j * 4 < tiles) ptx::copy_16_bytes(to + m * 2048 + j * 512, data_[m] + j * 512);
      // Lanes 0 to 15 the scales of the first matrix, the others those of the second.
      if (lane_ % 16 < tiles) ptx::copy_16_bytes(to + 4096, scales_);
    } else {
      const int left = tiles - piece_ * 4;
#pragma unroll
      for (int m = 0; m < 2; ++m)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (i < left) ptx::copy_16_bytes(to + m * 2048 + i * 512, data_[m] + piece_ * 2048 + i * 512);
      if (left > 4) {
        ++piece_;
        return;
      }
      piece_ = 0;
    }
    if (++turn_ < kind.turns) {
      slice_ += kind.sharers;
      move(kind, kind.sharers);
      return;
    }
    turn_ = 0;
    --left_;
    pair_ += kind.pairs;
    const int first_slice = kind.first_slice(warp_);
    move(kind, first_slice - slice_);
    slice_ = first_slice;
    data_[0] += step_, data_[1] += step_;
    scales_ += scale_step_;
  }
  // By so many slices.
  __device__ void move(const Kind& kind, int slices) {
    const int step = slices * (kind.form == WeightForm::kNvfp4 ? 2048 : 8192);
    data_[0] += step, data_[1] += step;
    scales_ += slices * 256;
  }
  __device__ void enter() {
    const Portion& portion = dealt_.wait(entered_);
    if (warp_ == 0 && lane_ == 0) ptx::arrive(dealt_.entered(entered_));
    ++entered_;
    left_ = portion.units;
    ended_ = left_ == 0;
    if (ended_) return;
    shared_ = portion.is_shared != 0;
    const Kind& kind = shared_ ? job_.shared : job_.routed;
    const int own_pair = kind.own_pair(warp_), tile = (kDown ? 2 : 1) * own_pair;
    slice_ = kind.first_slice(warp_);
    pair_ = portion.index * kind.pairs + own_pair;
#pragma unroll
    for (int m = 0; m < 2; ++m) data_[m] = portion.data[m] + tile * kind.tile_bytes + lane_ * 16;
    scales_ = portion.scales[lane_ / 16] + tile * kind.columns + lane_ % 16 * 16;
    move(kind, slice_);
    whole_ = has_whole_slices(kind, slice_);
    step_ = kind.unit_bytes;
    scale_step_ = kind.unit_scale_bytes;
  }

  const Job& job_;
  const Dealt& dealt_;
  const uint8_t* data_[2] = {};
  const uint8_t* scales_ = nullptr;  // this lane's
  int step_ = 0, scale_step_ = 0;    // from a unit to the next
  int entered_ = 0, left_ = 0;       // portions, and units of the last of them
  int pair_ = 0, slice_ = 0, turn_ = 0, piece_ = 0, warp_, lane_;
  bool ended_ = false, shared_ = false, whole_ = false;
  uint8_t* ring_;
};

}  // namespace verbatim::ops::cuda::expert_stream
