// What blocks of sm90_stream_experts.cu take, in order, and how a warp's weights come into its ring.
#pragma once

#include "ops/cuda/packed.cuh"
#include "ops/cuda/ptx/async_copy.cuh"
#include "ops/cuda/shapes.h"
#include "ops/cuda/slices.cuh"

namespace verbatim::ops::cuda::expert_stream {

inline constexpr int kWarps = kExpertWarps, kStages = kExpertStages, kPlaces = 8, kAdders = 64;
inline constexpr int kThreads = kWarps * 32 + kAdders;
inline constexpr int kPieceBytes = static_cast<int>(2 * kNvfp4PieceBytes), kPartialFloats = 2 * 128;

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
  int sharers = 1, pairs = kWarps;  // warps that share a unit's slices, and pairs of row tiles a unit has
  int all_pairs = 0, units = 0, turns = 0;
  int64_t cost = 1;
};

struct Run {
  int32_t expert, first, count;  // places
};

struct Job {
  ExpertsProblem p;
  Kind shared, routed;
  int shared_runs = 0;
  bool direct = false;    // one row
  bool resident = false;  // every place's inputs fit in shared memory: slots are rows (gate and up) or places (down)
  int64_t x_pitch = 0;    // of stored inputs
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
  if (job.direct) return {job.p.chosen[index], index, 1};
  return job.runs[index];
}

__device__ inline float scale_of(const Weights& w) {
  return w.form == WeightForm::kNvfp4 ? w.matrix_scale * packed_lift(w.form) : 1.0f;
}

// A block's units: shared ones from shared_first on, then routed ones; unit u of a kind is unit u % units of run
// u / units. All blocks cost about the same.
struct Plan {
  int shared_first, shared_count, routed_first, routed_count;
};
__device__ inline int64_t shared_before(const Job& job, int64_t block) {
  return block * (int64_t{job.shared_runs} * job.shared.units) / gridDim.x;
}
__device__ inline int64_t routed_before(const Job& job, int64_t block, int64_t routed) {
  const int64_t all = int64_t{job.shared_runs} * job.shared.units * job.shared.cost + routed * job.routed.cost;
  const int64_t cost = block * all / gridDim.x - shared_before(job, block) * job.shared.cost;
  const int64_t at = cost <= 0 ? 0 : (cost + job.routed.cost / 2) / job.routed.cost;
  return block == gridDim.x || at > routed ? routed : at;
}

// The units of a block, one after the other.
class Units {
 public:
  bool shared;
  int run, index;

  __device__ Units(const Job& job, const Plan& plan) : job_(job), plan_(plan) {
    shared = plan.shared_count > 0;
    left_ = plan.shared_count;
    run = index = 0;
    if (shared) run = plan.shared_first / job.shared.units, index = plan.shared_first % job.shared.units;
  }
  // Routed units, once they are known.
  __device__ bool settle() {
    if (left_ > 0) return true;
    if (entered_ || plan_.routed_count == 0) return false;
    entered_ = true, shared = false;
    left_ = plan_.routed_count;
    run = plan_.routed_first / job_.routed.units, index = plan_.routed_first % job_.routed.units;
    return true;
  }
  __device__ bool has_known() const { return left_ > 0; }
  __device__ const Kind& kind() const { return shared ? job_.shared : job_.routed; }
  // Units of this expert that the block still has.
  __device__ int rest() const { return left_ < kind().units - index ? left_ : kind().units - index; }
  // So many further, no more than rest(); true if another expert's units begin, or none.
  __device__ bool skip(int count) {
    left_ -= count;
    index += count;
    if (index < kind().units) return left_ == 0;
    index = 0;
    ++run;
    return true;
  }

 private:
  const Job& job_;
  const Plan& plan_;
  int left_;
  bool entered_ = false;
};

// Tiles of 16 columns of a slice; none past the last.
__device__ inline int tiles_of(const Kind& kind, int slice) {
  const int left = (kind.columns - slice * static_cast<int>(kSliceColumns)) / 16;
  return left < 16 ? left : 16;
}

// Whether each unit is a whole slice of NVFP4 to the warp that takes `slice`.
__device__ inline bool has_whole_slices(const Kind& kind, int slice) {
  return kind.form == WeightForm::kNvfp4 && kind.turns == 1 && kind.all_pairs % kind.pairs == 0 &&
         tiles_of(kind, slice) == 16;
}

// A warp's pieces into its ring, in the order in which it takes them; all lanes, sixteen bytes each at a time. Each
// call closes a group of copies.
template <bool kDown>
class Feed {
 public:
  __device__ Feed(const Job& job, const Plan& plan, int warp, int lane, uint8_t* ring)
      : job_(job), units_(job, plan), warp_(warp), lane_(lane), ring_(ring) {}

  // Pieces of the shared expert alone, before the routed ones are known; false if there is none.
  __device__ bool fill_known(int stage) {
    if (!units_.has_known()) return false;
    copy(stage);
    ptx::close_copy_group();
    return true;
  }
  __device__ void fill(int stage) {
    if (units_.settle()) copy(stage);
    ptx::close_copy_group();
  }

 private:
  __device__ void copy(int stage) {
    if (changed_) enter();
    if (whole_ > 0) {
      copy_whole(stage);
      return;
    }
    const Kind& kind = units_.kind();
    const int tiles = units_.index * kind.pairs + pair_ < kind.all_pairs ? tiles_of(kind, slice_) : 0;
    uint8_t* to = ring_ + stage * kPieceBytes + lane_ * 16;
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
      move(kind, kind.sharers, 0);
      return;
    }
    turn_ = 0;
    changed_ = units_.skip(1);
    move(kind, first_slice_ - slice_, (kDown ? 2 : 1) * kind.pairs);
    slice_ = first_slice_;
  }
  // A whole slice of NVFP4, of a unit that is nothing else of this warp's.
  __device__ void copy_whole(int stage) {
    uint8_t* to = ring_ + stage * kPieceBytes + lane_ * 16;
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int j = 0; j < 4; ++j) ptx::copy_16_bytes(to + m * 2048 + j * 512, data_[m] + j * 512);
    ptx::copy_16_bytes(to + 4096, scales_);
    data_[0] += step_, data_[1] += step_;
    scales_ += scale_step_;
    if (--left_ == 0) changed_ = units_.skip(whole_);
  }
  // By so many slices and row tiles.
  __device__ void move(const Kind& kind, int slices, int tiles) {
    const int codes = kind.form == WeightForm::kNvfp4 ? 2048 : 8192;
    const int64_t step = int64_t{tiles} * packed_tile_bytes(kind.form, kind.columns) + slices * codes;
    data_[0] += step, data_[1] += step;
    scales_ += int64_t{tiles} * kind.columns + slices * 256;
  }
  __device__ void enter() {
    changed_ = false;
    const Kind& kind = units_.kind();
    const ExpertTable& expert = job_.p.table[run_of(job_, units_.shared, units_.run).expert];
    slice_ = first_slice_ = warp_ % kind.sharers;
    pair_ = warp_ / kind.sharers;
    const int64_t pair = int64_t{units_.index} * kind.pairs + pair_;
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      const Weights& w = kDown ? expert.down : m == 0 ? expert.gate : expert.up;
      data_[m] = w.data + (kDown ? 2 * pair + m : pair) * packed_tile_bytes(kind.form, kind.columns) + lane_ * 16;
      if (lane_ / 16 == m) scales_ = w.block_scale + (kDown ? 2 * pair + m : pair) * kind.columns + lane_ % 16 * 16;
    }
    move(kind, slice_, 0);
    whole_ = left_ = has_whole_slices(kind, slice_) ? units_.rest() : 0;
    step_ = (kDown ? 2 : 1) * int64_t{kind.pairs} * packed_tile_bytes(kind.form, kind.columns);
    scale_step_ = (kDown ? 2 : 1) * kind.pairs * kind.columns;
  }

  const Job& job_;
  Units units_;
  int64_t step_ = 0;
  int whole_ = 0, left_ = 0, scale_step_ = 0;
  const uint8_t* data_[2] = {};
  const uint8_t* scales_ = nullptr;  // this lane's
  int pair_ = 0, first_slice_ = 0, slice_ = 0, turn_ = 0, piece_ = 0, warp_, lane_;
  bool changed_ = true;
  uint8_t* ring_;
};

}  // namespace verbatim::ops::cuda::expert_stream
