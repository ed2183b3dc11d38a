// Parts of a hyper-connection site of four streams that a block of 512 threads makes of 256 columns: leaving the site
// before, and the dots of the four slices, in the CPU's order and bits.
#pragma once

#include "ops/cuda/hyper_maps.cuh"
#include "ops/cuda/sums.cuh"
#include "ops/cuda/weights.cuh"

namespace verbatim::ops::cuda::hyper {

inline constexpr int kColumns = static_cast<int>(kSumSlice), kSliceThreads = 512, kSliceDots = kStreams * kDots;

// X'[k] = post[k] * y + sum over s of comb[s, k] X[s], of one column; `maps` are those of the site that is left.
__device__ inline void leave_column(const float* maps, const float (&old)[kStreams], float added,
                                    float (&mixed)[kStreams]) {
  const float *post = maps + kStreams, *comb = post + kStreams;
#pragma unroll
  for (int k = 0; k < kStreams; ++k) {
    float sum = comb[k] * old[0];
#pragma unroll
    for (int s = 1; s < kStreams; ++s) sum = fmaf(comb[s * kStreams + k], old[s], sum);
    mixed[k] = fmaf(post[k], added, sum);
  }
}

// Sums of the sixteen lanes of four values at once: lane l of sixteen has that of value l / 4. The order of additions
// is lane_tree's.
__device__ inline float four_lane_trees(const float (&values)[4]) {
  const int lane = threadIdx.x % 16;
  const bool upper = lane >= 8, odd = (lane & 4) != 0;
  float a = upper ? values[2] : values[0], b = upper ? values[3] : values[1];
  a = a + __shfl_xor_sync(0xffffffffu, upper ? values[0] : values[2], 8);
  b = b + __shfl_xor_sync(0xffffffffu, upper ? values[1] : values[3], 8);
  float sum = odd ? b : a;
  sum = sum + __shfl_xor_sync(0xffffffffu, odd ? a : b, 4);
  sum = sum + __shfl_xor_sync(0xffffffffu, sum, 2);
  return sum + __shfl_xor_sync(0xffffffffu, sum, 1);
}

// Sixteen threads take three dots of one stream's slice, those of the first eight-part also its squares. Weights of
// BF16 wait in registers, or each thread's in shared memory (`parked`, kParkedBytes), where registers are to be left to
// the blocks of other launches; those of float32 are read where they are used.
enum class Waiting { kRead, kRegisters, kParked };
inline constexpr int kParkedBytes = kSliceThreads * 6 * 16;
template <Waiting kWaiting>
class SliceDots {
 public:
  __device__ SliceDots(const Weights& fn, int64_t width, int64_t first, uint4* parked)
      : stream_(static_cast<int>(threadIdx.x) / 128),
        group_(static_cast<int>(threadIdx.x) / 16 % 8),
        part_(static_cast<int>(threadIdx.x) % 16),
        rows_(fn.data + 3 * group_ * fn.row_bytes),
        row_bytes_(fn.row_bytes),
        at_(stream_ * width + first + part_),
        parked_(parked + threadIdx.x) {
    if constexpr (kWaiting != Waiting::kRead) {
#pragma unroll
      for (int dot = 0; dot < 3; ++dot)
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const uint16_t* from = reinterpret_cast<const uint16_t*>(rows_ + dot * row_bytes_) + at_ + 32 * i;
          packed_[dot][i] = from[0] | static_cast<uint32_t>(from[16]) << 16;
        }
    }
    if constexpr (kWaiting == Waiting::kParked) {
#pragma unroll
      for (int dot = 0; dot < 3; ++dot)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint32_t* own = packed_[dot] + 4 * half;
          parked_[(2 * dot + half) * kSliceThreads] = make_uint4(own[0], own[1], own[2], own[3]);
        }
    }
  }

  // keep(row, dot of kSliceDots, sum) for each dot and row, by one thread; x [row][stream][column] in shared memory.
  template <int kRows, class Keep>
  __device__ void take(const float (*x)[kStreams][kColumns], const Keep& keep) const {
    float sums[kRows][4];
#pragma unroll
    for (int r = 0; r < kRows; ++r) sums[r][0] = sums[r][1] = sums[r][2] = sums[r][3] = 0.0f;
    uint32_t taken[3][4];
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      if constexpr (kWaiting == Waiting::kParked)
        if (i % 8 == 0)
#pragma unroll
          for (int dot = 0; dot < 3; ++dot) {
            const uint4 four = parked_[(2 * dot + i / 8) * kSliceThreads];
            taken[dot][0] = four.x, taken[dot][1] = four.y, taken[dot][2] = four.z, taken[dot][3] = four.w;
          }
      const auto weight = [&](int dot) {
        if constexpr (kWaiting == Waiting::kRead)
          return reinterpret_cast<const float*>(rows_ + dot * row_bytes_)[at_ + 16 * i];
        const uint32_t both = kWaiting == Waiting::kParked ? taken[dot][i / 2 % 4] : packed_[dot][i / 2];
        return __uint_as_float(i % 2 == 0 ? both << 16 : both & 0xffff0000u);
      };
      const float own[3] = {weight(0), weight(1), weight(2)};
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float value = x[r][stream_][i * 16 + part_];
#pragma unroll
        for (int dot = 0; dot < 3; ++dot) sums[r][dot] = fmaf(own[dot], value, sums[r][dot]);
        sums[r][3] = fmaf(value, value, sums[r][3]);
      }
    }
    const int dot = part_ / 4;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float sum = four_lane_trees(sums[r]);
      if (part_ % 4 == 0 && (dot < 3 || group_ == 0))
        keep(r, stream_ * kDots + (dot < 3 ? 3 * group_ + dot : kMaps), sum);
    }
  }

 private:
  int stream_, group_, part_;
  const uint8_t* rows_;
  int64_t row_bytes_, at_;
  uint4* parked_;
  uint32_t packed_[3][8] = {};
};

}  // namespace verbatim::ops::cuda::hyper
