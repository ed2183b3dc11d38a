// Products of packed weights with many rows (sm80_packed_tile.cuh). Tiles of the same outputs stand next to each other,
// so that they find their weights in the cache. Bytes: the weights once for up to 128 columns.
#include "ops/cuda/sm80_packed_tile.cuh"

namespace verbatim::ops::cuda {

namespace {

struct Group {
  Bf16Product products[kMostGroup];
  uint32_t first_tile[kMostGroup];
  int count;
};

template <int kN>
__global__ void __launch_bounds__(kWideThreads, 1) product_kernel(const __grid_constant__ Group group) {
  extern __shared__ __align__(16) std::byte shared[];
  int which = 0;
  while (which + 1 < group.count && blockIdx.x >= group.first_tile[which + 1]) ++which;
  const Bf16Product& p = group.products[which];
  uint32_t index = blockIdx.x - group.first_tile[which];
  const auto across = static_cast<uint32_t>((p.rows * p.terms + kN - 1) / kN);
  const int64_t column = int64_t{index % across} * kN;
  index /= across;
  const auto part = static_cast<int>(index % static_cast<uint32_t>(p.parts));
  const int64_t output = static_cast<int64_t>(index / static_cast<uint32_t>(p.parts)) * kWideOutputs;
  TileColumns c;
  c.x = p.x;
  c.x_stride = p.x_stride;
  c.x_term_rows = p.rows;
  c.count = p.rows;
  c.terms = p.terms;
  c.raw = p.raw;
  c.raw_term_rows = p.rows;
  c.raw_stride = p.raw_stride > 0 ? p.raw_stride : p.weights.rows;
  auto& there = *reinterpret_cast<WideShared<kN>*>(shared);
  if (p.weights.form == WeightForm::kBf16)
    packed_tile<WeightForm::kBf16, kN>(p.weights, c, output, column, p.parts, part, p.scale, there);
  else
    packed_tile<WeightForm::kNvfp4, kN>(p.weights, c, output, column, p.parts, part, p.scale, there);
}

template <int kN>
cudaError_t launch(cudaStream_t stream, const Bf16Product* products, int count) {
  Group group{};
  group.count = count;
  int64_t total = 0;
  for (int i = 0; i < count; ++i) {
    const Bf16Product& p = products[i];
    group.products[i] = p;
    group.first_tile[i] = static_cast<uint32_t>(total);
    total += (p.rows * p.terms + kN - 1) / kN * p.parts * ((p.weights.rows + kWideOutputs - 1) / kWideOutputs);
  }
  if (total == 0) return cudaSuccess;
  constexpr size_t kBytes = sizeof(WideShared<kN>);
  const cudaError_t error =
      cudaFuncSetAttribute(product_kernel<kN>, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kBytes));
  if (error != cudaSuccess) return error;
  product_kernel<kN><<<static_cast<unsigned>(total), kWideThreads, kBytes, stream>>>(group);
  return cudaGetLastError();
}

}  // namespace

cudaError_t packed_tile_products(cudaStream_t stream, const Bf16Product* products, int count) {
  return products[0].rows * products[0].terms <= 64 ? launch<64>(stream, products, count)
                                                    : launch<128>(stream, products, count);
}

}  // namespace verbatim::ops::cuda
