// Products of packed weights with many rows on wgmma (sm90a_warpgroup_tile.cuh). Blocks that run at a time take tiles
// of a few outputs times a few columns, so that both are found in the cache. Operations: 2 x outputs x rows x inputs,
// rows rounded up to 32 and outputs to 128; bytes: the weights once for each 2,048 rows.
#include <atomic>

#include "ops/cuda/sm90a_warpgroup_tile.cuh"
#include "ops/cuda/warpgroup_products.h"

namespace verbatim::ops::cuda {

namespace {

// Columns of a tile that a band of tiles, taken together, is wide.
constexpr uint32_t kBandTiles = 16;

__device__ int32_t machine_code_has_wgmma = ptx::kHasWgmma ? 1 : 0;

struct Group {
  Bf16Product products[kMostGroup];
  uint32_t first_tile[kMostGroup];
  uint32_t tiles;
  int count, columns;  // columns of a tile
};

struct StoreSums {
  template <int kN>
  __device__ void operator()(GroupShared& shared, const TileOrder& order, const float (&totals)[kN / 2]) const {
    store_sums<kN>(shared, order, totals);
  }
};

template <bool kAddsTerms>
__global__ void __launch_bounds__(kGroupThreads, 1) product_kernel(const __grid_constant__ Group group) {
  extern __shared__ __align__(16) std::byte memory[];
  if constexpr (ptx::kHasWgmma) {
    const auto locate = [&](uint32_t index, FilledTile& t) {
      int which = 0;
      while (which + 1 < group.count && index >= group.first_tile[which + 1]) ++which;
      index -= group.first_tile[which];
      const Bf16Product& p = group.products[which];
      const Weights& w = p.weights;
      const auto rows = static_cast<uint32_t>(kAddsTerms ? p.rows : p.rows * p.terms),
                 columns = static_cast<uint32_t>(group.columns);
      const uint32_t across = (rows + columns - 1) / columns;
      const auto down = static_cast<uint32_t>((w.rows + kGroupOutputs - 1) / kGroupOutputs);
      const uint32_t part = index / (across * down);
      index %= across * down;
      const uint32_t band = index / (kBandTiles * down) * kBandTiles;
      const uint32_t wide = across - band < kBandTiles ? across - band : kBandTiles;
      index -= band * down;
      const uint32_t column = (band + index % wide) * columns;
      const int64_t output = int64_t{index / wide} * kGroupOutputs, length = w.columns / p.parts, from = part * length;
      const int64_t stride = p.raw_stride > 0 ? p.raw_stride : w.rows;
      t.order.form = w.form;
      t.order.steps = static_cast<int>(length / kGroupStep);
      t.order.count = static_cast<int>(rows - column < columns ? rows - column : columns);
      t.order.outputs = static_cast<int>(w.rows - output);
      t.order.terms = kAddsTerms ? p.terms : 1;
      t.order.scale[0] = t.order.scale[1] = p.scale;
      t.order.to = p.raw + (int64_t{part} * rows + column) * stride + output;
      t.order.stride = stride;
      t.columns = w.columns;
      fill_half(t, 0, w, output / kPackedRows, from);
      fill_half(t, 1, w, output / kPackedRows + 4, from);
      t.x = p.x + column * p.x_stride + from;
      t.x_stride = p.x_stride;
      t.x_term_stride = p.rows * p.x_stride;
      return true;
    };
    run_tiles<kAddsTerms>(memory, group.tiles, locate, StoreSums{});
  }
}

}  // namespace

bool has_warpgroup_products() {
  static std::atomic<int> known{-1};
  if (known < 0) {
    int device = 0, major = 0;
    int32_t built = 0;
    const bool found = cudaGetDevice(&device) == cudaSuccess &&
                       cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
                       cudaMemcpyFromSymbol(&built, machine_code_has_wgmma, sizeof(built)) == cudaSuccess;
    known = found && major == 9 && built == 1 ? 1 : 0;
  }
  return known == 1;
}

bool warpgroup_takes(const Weights& weights, int parts) {
  return weights.packed && weights.columns / parts % kGroupStep == 0;
}

cudaError_t warpgroup_products(cudaStream_t stream, const Bf16Product* products, int count) {
  int device = 0, multiprocessors = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess) return error;
  const bool adds_terms = products[0].adds_terms && products[0].terms > 1;
  Group group{};
  group.count = count;
  // Tiles of fewer columns where there would not be enough of them.
  for (group.columns = adds_terms ? 64 : kGroupColumns;; group.columns /= 2) {
    int64_t total = 0;
    for (int i = 0; i < count; ++i) {
      const Bf16Product& p = products[i];
      group.products[i] = p;
      group.first_tile[i] = static_cast<uint32_t>(total);
      total += ((adds_terms ? p.rows : p.rows * p.terms) + group.columns - 1) / group.columns * p.parts *
               ((p.weights.rows + kGroupOutputs - 1) / kGroupOutputs);
    }
    group.tiles = static_cast<uint32_t>(total);
    if (total >= multiprocessors || group.columns == 32) break;
  }
  if (group.tiles == 0) return cudaSuccess;
  constexpr auto kBytes = static_cast<int>(warpgroup_tile_shared_bytes());
  void (*kernel)(Group) = product_kernel<false>;
  if (adds_terms) kernel = product_kernel<true>;
  error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return error;
  const auto most = static_cast<uint32_t>(multiprocessors), blocks = group.tiles < most ? group.tiles : most;
  kernel<<<blocks, kGroupThreads, kBytes, stream>>>(group);
  return cudaGetLastError();
}

}  // namespace verbatim::ops::cuda
