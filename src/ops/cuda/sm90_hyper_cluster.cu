// Hyper-connection sites of four streams in one launch, in float32 and the CPU's order and bits. A cluster of
// width / 256 blocks takes kRows rows at a time: a block owns 256 columns of all four streams, leaves the site before
// on them, takes the dots of its four slices, and collapses what it still has in shared memory. Blocks exchange twice:
// the slices' dots, of which every block makes the maps (warps of their own, which go on to the 4 x 4 normalisation),
// and the sums of squares of what is collapsed. Weights wait in registers (BF16) and serve all rows of a cluster; with
// one or two rows a cluster, in shared memory: a thread has 48 registers then, and the block fits beside those of the
// streaming launches in front and behind. Shared memory: kRows * (4 * 256 + 16 * 100 + 256) floats and little more, 93
// KB for eight rows; 48 KB of weights. Bytes: fn (0.8 MB) a cluster, the streams in and out, y and h.
#include "ops/cuda/hyper_cluster.h"
#include "ops/cuda/hyper_slices.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/ptx/barrier.cuh"
#include "ops/cuda/ptx/bulk_copy.cuh"
#include "ops/cuda/ptx/cluster.cuh"
#include "ops/cuda/ptx/dependency.cuh"
#include "ops/cuda/shapes.h"

namespace verbatim::ops::cuda {

namespace {

using namespace hyper;

constexpr int kWorkers = kSliceThreads, kMostBlocks = 16;

struct Site {
  HyperShape shape;
  Weights fn;
  const float *base, *scale, *norm;
  const float *leaving_maps, *leaving_y;  // of the site before; null: nothing to leave
  int64_t rows;
  float *streams, *maps, *h;
};

template <int kRows>
constexpr int map_warps() {
  return kRows < 4 ? kRows : 4;
}

// What a block keeps in shared memory.
template <int kRows>
struct alignas(16) Shared {
  float x[kRows][kStreams][kColumns];
  float dots[kRows][kMostBlocks][kSliceDots];  // of every block: [stream][dot]
  union {                                      // one after the other
    float leaving[kRows][kMaps];
    float own_dots[kRows][kSliceDots];
    float collapsed[kRows][kColumns];
  };
  float squares[kRows][kMostBlocks];
  float pre[kRows][kStreams];
  float factor[kRows];
  alignas(8) uint64_t dots_there, squares_there;
};
static_assert(sizeof(Shared<1>) + kParkedBytes <= hyper_cluster_shared_bytes(1) &&
              sizeof(Shared<2>) + kParkedBytes <= hyper_cluster_shared_bytes(2) &&
              sizeof(Shared<8>) <= hyper_cluster_shared_bytes(8));

// Clusters of few rows leave room for other launches' blocks: 48 registers a thread, as a multiprocessor's quarter
// that takes five of the seventeen warps must have room for four of 64 registers beside them.
template <int kRows>
constexpr bool kLeavesRoom = kRows <= 2;
template <int kRows>
constexpr int kBoundThreads = kLeavesRoom<kRows> ? 640 : kWorkers + 32 * map_warps<kRows>();

// The warps that make maps: warp `own` takes rows own, own + map_warps, ...
template <int kRows>
__device__ void make_maps(const Site& p, Shared<kRows>& shared, int own, int64_t cluster, int64_t clusters, int blocks,
                          int rank) {
  constexpr int kMapWarps = map_warps<kRows>();
  const int lane = threadIdx.x % 32;
  const MapLane map_lane(p.shape, p.base, p.scale, lane);
  uint32_t parity = 0;
  for (int64_t first = cluster * kRows; first < p.rows; first += clusters * kRows, parity ^= 1) {
    if (own == 0 && lane == 0)
      ptx::arrive_expecting(&shared.dots_there, static_cast<uint32_t>(kRows * blocks * kSliceDots * 4));
    ptx::wait_for_cluster(&shared.dots_there, parity);
    float values[kRows / kMapWarps];
#pragma unroll
    for (int j = 0; j < kRows / kMapWarps; ++j) {
      const int r = own + j * kMapWarps, dot = lane < kDots ? lane : 0;
      float sum = 0.0f;
      for (int stream = 0; stream < kStreams; ++stream) {
        const float* part = &shared.dots[r][0][stream * kDots + dot];
#pragma unroll 16
        for (int block = 0; block < blocks; ++block)
          sum = stream + block == 0 ? part[0] : sum + part[block * kSliceDots];
      }
      values[j] = map_lane.value(sum);
      if (lane < kStreams) shared.pre[r][lane] = values[j];
    }
    ptx::arrive_at_some<2, kWorkers + 32 * kMapWarps>();
#pragma unroll
    for (int j = 0; j < kRows / kMapWarps; ++j) {
      const int r = own + j * kMapWarps;
      if (first + r >= p.rows || rank != r * blocks / kRows) continue;
      float* maps = p.maps + (first + r) * kMaps;
      if (lane < 2 * kStreams) maps[lane] = values[j];
      const float comb = normalised(p.shape, __shfl_sync(0xffffffffu, values[j], 2 * kStreams + lane % 16));
      if (lane < 16) maps[2 * kStreams + lane] = comb;
    }
  }
}

template <bool kFloat, int kRows>
__global__ void __launch_bounds__(kBoundThreads<kRows>, kLeavesRoom<kRows> ? 2 : 1)
    site_kernel(const __grid_constant__ Site p) {
  extern __shared__ __align__(16) uint8_t memory[];
  auto& shared = *reinterpret_cast<Shared<kRows>*>(memory);
  constexpr int kMapWarps = map_warps<kRows>(), kHalfRows = (kRows + 1) / 2;
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const int64_t width = p.shape.width;
  const auto blocks = static_cast<int>(width / kColumns);
  const auto rank = static_cast<int>(ptx::cluster_rank());
  const int64_t cluster = blockIdx.x / blocks, clusters = gridDim.x / blocks;
  ptx::let_next_start();
  if (thread == 0) {
    ptx::make_barrier(&shared.dots_there, 1);
    ptx::make_barrier(&shared.squares_there, 1);
    ptx::fence_barriers();
  }
  ptx::synchronise_cluster();
  if (warp >= kWorkers / 32) {
    ptx::wait_for_previous();
    make_maps<kRows>(p, shared, warp - kWorkers / 32, cluster, clusters, blocks, rank);
    return;
  }

  constexpr Waiting kWaiting = kFloat ? Waiting::kRead : kLeavesRoom<kRows> ? Waiting::kParked : Waiting::kRegisters;
  const SliceDots<kWaiting> dots(p.fn, width, rank * kColumns,
                                 reinterpret_cast<uint4*>(memory + sizeof(Shared<kRows>)));
  const int column = thread % kColumns, half = thread / kColumns;
  const int64_t at = rank * kColumns + column;
  const float norm = p.norm[at];
  const bool leaves = p.leaving_maps != nullptr;
  ptx::wait_for_previous();

  uint32_t parity = 0;
  for (int64_t first = cluster * kRows; first < p.rows; first += clusters * kRows, parity ^= 1) {
    if (thread == 0) ptx::arrive_expecting(&shared.squares_there, static_cast<uint32_t>(kRows * blocks * 4));
    // Leave the site before. Threads of this half take rows half, half + 2, ...; rows past the end are zeros.
    float old[kHalfRows][kStreams], added[kHalfRows];
#pragma unroll
    for (int j = 0; j < kHalfRows; ++j) {
      const int64_t row = first + half + 2 * j;
      const bool live = half + 2 * j < kRows && row < p.rows;
      const float* from = p.streams + row * kStreams * width + at;
#pragma unroll
      for (int s = 0; s < kStreams; ++s) old[j][s] = live ? from[s * width] : 0.0f;
      added[j] = live && leaves ? p.leaving_y[row * width + at] : 0.0f;
    }
    if (leaves) {
      for (int i = thread; i < kRows * kMaps; i += kWorkers)
        shared.leaving[0][i] = first + i / kMaps < p.rows ? p.leaving_maps[first * kMaps + i] : 0.0f;
      ptx::synchronise_some<1, kWorkers>();
    }
#pragma unroll
    for (int j = 0; j < kHalfRows; ++j) {
      const int r = half + 2 * j;
      if (r >= kRows) continue;
      float mixed[kStreams];
      if (leaves) leave_column(shared.leaving[r], old[j], added[j], mixed);
      float* to = p.streams + (first + r) * kStreams * width + at;
#pragma unroll
      for (int s = 0; s < kStreams; ++s) {
        shared.x[r][s][column] = leaves ? mixed[s] : old[j][s];
        if (leaves && first + r < p.rows) to[s * width] = mixed[s];
      }
    }
    ptx::synchronise_some<1, kWorkers>();
    dots.template take<kRows>(shared.x, [&](int r, int dot, float sum) { shared.own_dots[r][dot] = sum; });
    ptx::synchronise_some<1, kWorkers>();
    // Warp w sends them to block w.
    if (warp < blocks && lane < kSliceDots / 4) {
      const uint32_t barrier = ptx::address_in_block(&shared.dots_there, static_cast<uint32_t>(warp));
#pragma unroll
      for (int r = 0; r < kRows; ++r)
        ptx::store_counted(ptx::address_in_block(&shared.dots[r][rank][4 * lane], static_cast<uint32_t>(warp)),
                           *reinterpret_cast<const float4*>(&shared.own_dots[r][4 * lane]), barrier);
    }
    ptx::synchronise_some<2, kWorkers + 32 * kMapWarps>();

    float collapsed[kHalfRows];
#pragma unroll
    for (int j = 0; j < kHalfRows; ++j) {
      const int r = half + 2 * j;
      if (r >= kRows) continue;
      const float* pre = shared.pre[r];
      float value = pre[0] * shared.x[r][0][column];
#pragma unroll
      for (int s = 1; s < kStreams; ++s) value = fmaf(pre[s], shared.x[r][s][column], value);
      shared.collapsed[r][column] = collapsed[j] = value;
    }
    ptx::synchronise_some<1, kWorkers>();
    if (warp < kRows) {
      float sum = 0.0f;
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        const float value = shared.collapsed[warp][i * 16 + lane % 16];
        sum = fmaf(value, value, sum);
      }
      sum = lane_tree(sum);
      if (lane < blocks)
        ptx::store_counted(ptx::address_in_block(&shared.squares[warp][rank], static_cast<uint32_t>(lane)), sum,
                           ptx::address_in_block(&shared.squares_there, static_cast<uint32_t>(lane)));
      ptx::wait_for_cluster(&shared.squares_there, parity);
      float total = shared.squares[warp][0];
#pragma unroll 15
      for (int i = 1; i < blocks; ++i) total = total + shared.squares[warp][i];
      if (lane == 0) shared.factor[warp] = 1.0f / sqrtf(total / static_cast<float>(width) + p.shape.norm_epsilon);
    }
    ptx::synchronise_some<1, kWorkers>();
#pragma unroll
    for (int j = 0; j < kHalfRows; ++j) {
      const int r = half + 2 * j;
      if (r < kRows && first + r < p.rows) p.h[(first + r) * width + at] = norm * (collapsed[j] * shared.factor[r]);
    }
  }
}

template <int kRows>
constexpr int threads_of() {
  return kWorkers + 32 * map_warps<kRows>();
}

template <bool kFloat, int kRows>
cudaError_t launch_site(cudaStream_t stream, const Site& site) {
  const auto blocks = static_cast<unsigned>(site.shape.width / kColumns);
  const auto bytes = static_cast<size_t>(hyper_cluster_shared_bytes(kRows));
  // By the blocks of a cluster; the first use asks.
  static int at_a_time[kMostBlocks + 1] = {};
  int& most = at_a_time[blocks];
  if (most == 0) most = clusters_at_a_time(site_kernel<kFloat, kRows>, blocks, threads_of<kRows>(), bytes);
  if (most == 0) return cudaErrorInvalidConfiguration;
  const int64_t clusters = (site.rows + kRows - 1) / kRows;
  return launch_clusters(site_kernel<kFloat, kRows>, blocks,
                         static_cast<unsigned>(clusters < most ? clusters : most) * blocks, threads_of<kRows>(), bytes,
                         stream, site);
}

template <bool kFloat>
cudaError_t launch_rows(cudaStream_t stream, const Site& site) {
  if (site.rows <= 4) return launch_site<kFloat, 1>(stream, site);
  if (site.rows <= 8) return launch_site<kFloat, 2>(stream, site);
  if (site.rows <= 24) return launch_site<kFloat, 4>(stream, site);
  return launch_site<kFloat, 8>(stream, site);
}

}  // namespace

bool hyper_fits_cluster(const HyperShape& shape, const Weights& fn) {
  const int64_t blocks = shape.width / kColumns;
  if (!hyper_fits(shape, fn) || blocks > kMostBlocks || (blocks & (blocks - 1)) != 0) return false;
  // The largest of the launches fits, then all do.
  static int at_a_time[kMostBlocks + 1] = {};
  int& most = at_a_time[blocks];
  if (most == 0)
    most = 1 + clusters_at_a_time(site_kernel<true, 8>, static_cast<unsigned>(blocks), threads_of<8>(),
                                  static_cast<size_t>(hyper_cluster_shared_bytes(8)));
  return most > 1;
}

cudaError_t hyper_cluster_site(cudaStream_t stream, const HyperShape& shape, const Weights& fn, const float* base,
                               const float* scale, const float* norm, const float* leaving_maps, const float* leaving_y,
                               int64_t rows, float* streams, float* maps, float* h) {
  if (rows == 0) return cudaSuccess;
  const Site site{shape, fn, base, scale, norm, leaving_maps, leaving_y, rows, streams, maps, h};
  return fn.form == WeightForm::kF32 ? launch_rows<true>(stream, site) : launch_rows<false>(stream, site);
}

}  // namespace verbatim::ops::cuda
