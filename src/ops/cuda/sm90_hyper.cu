// Hyper-connection sites of four streams, widths a multiple of 256, in float32 and the CPU's order and bits, in two
// launches: for many rows, and for widths that no cluster takes (sm90_hyper_cluster.cu). The first leaves the site
// before, if there is one, and takes the dots of every slice of 256: a block owns 256 columns of all four streams and
// walks rows, its weights in registers. The second adds the slices, makes the maps (one warp does the 4 x 4
// normalisation while the others go on), collapses and norms, a block a row. Bytes: the streams twice in and once out,
// y and h.
#include "ops/cuda/hyper_slices.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/ptx/barrier.cuh"
#include "ops/cuda/ptx/dependency.cuh"
#include "ops/cuda/shapes.h"
#include "ops/cuda/sums.cuh"

namespace verbatim::ops::cuda {

namespace {

using namespace hyper;

constexpr int kEnterThreads = 512, kSinkhornThreads = 32;

struct Leaving {
  const float* maps;  // of the site before; null: nothing to leave
  const float* y;
};

// partials [rows][blocks][kSliceDots]. A block owns 256 columns and takes kRows rows at a time, every `stride`-th of
// them from `group` on; what the next ones need is on its way meanwhile.
template <bool kFloat, int kRows>
__global__ void __launch_bounds__(kSliceThreads, 2)
    slices_kernel(Weights fn, Leaving leaving, int64_t width, int64_t rows, float* streams, float* partials) {
  static_assert(kRows == 2);
  __shared__ float x[kRows][kStreams][kColumns], maps[2][kRows][kMaps];
  const auto blocks = static_cast<int>(width / kColumns);
  const int rank = static_cast<int>(blockIdx.x) % blocks, thread = static_cast<int>(threadIdx.x);
  const int64_t group = blockIdx.x / blocks, stride = gridDim.x / blocks;
  ptx::let_next_start();
  const SliceDots<kFloat ? Waiting::kRead : Waiting::kRegisters> dots(fn, width, rank * kColumns, nullptr);
  const bool leaves = leaving.maps != nullptr;
  const int column = thread % kColumns, own = thread / kColumns;
  const int64_t at = rank * kColumns + column;
  float old[kStreams], added = 0.0f, map = 0.0f;
  // Of rows first and first + 1; rows past the end are zeros.
  const auto load = [&](int64_t first) {
    const int64_t row = first + own;
    const float* from = streams + row * kStreams * width + at;
#pragma unroll
    for (int s = 0; s < kStreams; ++s) old[s] = row < rows ? from[s * width] : 0.0f;
    if (!leaves) return;
    added = row < rows ? leaving.y[row * width + at] : 0.0f;
    if (thread < kRows * kMaps) map = first + thread / kMaps < rows ? leaving.maps[first * kMaps + thread] : 0.0f;
  };
  const auto place_maps = [&](int buffer) {
    if (leaves && thread < kRows * kMaps) maps[buffer][0][thread] = map;
  };
  ptx::wait_for_previous();
  load(group * kRows);
  place_maps(0);
  __syncthreads();
  int buffer = 0;
  for (int64_t first = group * kRows; first < rows; first += stride * kRows, buffer ^= 1) {
    const int64_t row = first + own;
    if (leaves) {
      float mixed[kStreams];
      leave_column(maps[buffer][own], old, added, mixed);
      float* to = streams + row * kStreams * width + at;
#pragma unroll
      for (int s = 0; s < kStreams; ++s) {
        x[own][s][column] = mixed[s];
        if (row < rows) to[s * width] = mixed[s];
      }
    } else {
#pragma unroll
      for (int s = 0; s < kStreams; ++s) x[own][s][column] = old[s];
    }
    load(first + stride * kRows);
    __syncthreads();
    dots.template take<kRows>(x, [&](int r, int dot, float sum) {
      if (first + r < rows) partials[((first + r) * blocks + rank) * kSliceDots + dot] = sum;
    });
    place_maps(buffer ^ 1);
    __syncthreads();
  }
}

__global__ void __launch_bounds__(kEnterThreads + kSinkhornThreads)
    maps_kernel(HyperShape shape, const float* base, const float* scale, const float* norm, const float* streams,
                const float* partials, float* maps, float* h) {
  extern __shared__ float parts[];  // [blocks][kSliceDots], then what is collapsed [width]
  __shared__ float dots[kDots], map[kMaps], sums[kEnterThreads / 16];
  const int thread = threadIdx.x, lane = thread % 32;
  const int64_t row = blockIdx.x, width = shape.width;
  const auto blocks = static_cast<int>(width / kColumns);
  ptx::let_next_start();
  ptx::wait_for_previous();
  streams += row * kStreams * width;
  h += row * width;
  for (int i = thread; i < blocks * kSliceDots; i += kEnterThreads + kSinkhornThreads)
    parts[i] = partials[row * blocks * kSliceDots + i];
  __syncthreads();
  if (thread < kDots) {
    float sum = 0.0f;
    for (int stream = 0; stream < kStreams; ++stream) {
      const float* part = parts + stream * kDots + thread;
#pragma unroll 16
      for (int block = 0; block < blocks; ++block) sum = stream + block == 0 ? part[0] : sum + part[block * kSliceDots];
    }
    dots[thread] = sum;
  }
  __syncthreads();
  if (thread < 32) {
    const float value = MapLane(shape, base, scale, lane).value(lane < kDots ? dots[lane] : 0.0f);
    if (lane < kMaps) map[lane] = value;
    if (lane < 2 * kStreams) maps[row * kMaps + lane] = value;
  }
  __syncthreads();
  if (thread >= kEnterThreads) {
    const float comb = normalised(shape, map[2 * kStreams + lane % 16]);
    if (lane < 16) maps[row * kMaps + 2 * kStreams + lane] = comb;
    return;
  }
  // Collapse, all threads; then the sum of squares by slices, sixteen threads each.
  float* collapsed = parts + blocks * kSliceDots;
#pragma unroll 8
  for (int64_t k = thread; k < width; k += kEnterThreads) {
    float value = map[0] * streams[k];
#pragma unroll
    for (int s = 1; s < kStreams; ++s) value = fmaf(map[s], streams[s * width + k], value);
    collapsed[k] = value;
  }
  const int group = thread / 16, part = thread % 16;
  const auto collapsed_slices = static_cast<int>(width / kSumSlice);
  float total = 0.0f;
  for (int begin = 0; begin < collapsed_slices; begin += kEnterThreads / 16) {
    ptx::synchronise_some<1, kEnterThreads>();
    float sum = 0.0f;
    if (begin + group < collapsed_slices) {
      const float* own = collapsed + (begin + group) * kSumSlice + part;
#pragma unroll
      for (int i = 0; i < 16; ++i) sum = fmaf(own[i * 16], own[i * 16], sum);
    }
    sum = lane_tree(sum);
    if (part == 0) sums[group] = sum;
    ptx::synchronise_some<1, kEnterThreads>();
    for (int i = 0; i < kEnterThreads / 16 && begin + i < collapsed_slices; ++i)
      total = begin + i == 0 ? sums[0] : total + sums[i];
  }
  const float factor = 1.0f / sqrtf(total / static_cast<float>(width) + shape.norm_epsilon);
#pragma unroll 8
  for (int64_t k = thread; k < width; k += kEnterThreads) h[k] = norm[k] * (collapsed[k] * factor);
}

}  // namespace

bool hyper_fits(const HyperShape& shape, const Weights& fn) {
  return shape.streams == kStreams && shape.width % kSumSlice == 0 &&
         (fn.form == WeightForm::kBf16 || fn.form == WeightForm::kF32);
}

int64_t hyper_partial_floats(const HyperShape& shape, int64_t rows) {
  return rows * kSliceDots * (shape.width / kColumns);
}

cudaError_t hyper_site(cudaStream_t stream, const HyperShape& shape, const Weights& fn, const float* base,
                       const float* scale, const float* norm, const float* leaving_maps, const float* leaving_y,
                       int64_t rows, float* streams, float* partials, float* maps, float* h) {
  if (rows == 0) return cudaSuccess;
  constexpr int kRows = 2, kMostBlocks = 256;
  const int64_t columns = shape.width / kColumns, most = kMostBlocks / columns > 0 ? kMostBlocks / columns : 1;
  const int64_t wanted = (rows + kRows - 1) / kRows, groups = wanted < most ? wanted : most;
  const auto blocks = static_cast<unsigned>(groups * columns);
  const Leaving leaving{leaving_maps, leaving_y};
  const auto slices = fn.form == WeightForm::kF32 ? slices_kernel<true, kRows> : slices_kernel<false, kRows>;
  const cudaError_t error =
      launch(slices, blocks, kSliceThreads, 0, stream, fn, leaving, shape.width, rows, streams, partials);
  if (error != cudaSuccess) return error;
  return launch(maps_kernel, static_cast<unsigned>(rows), kEnterThreads + kSinkhornThreads,
                static_cast<size_t>(hyper_shared_bytes(shape.width)), stream, shape, base, scale, norm,
                static_cast<const float*>(streams), static_cast<const float*>(partials), maps, h);
}

}  // namespace verbatim::ops::cuda
