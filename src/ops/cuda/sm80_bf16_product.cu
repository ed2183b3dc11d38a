// Products on the matrix units and what stands around them: activations made ready, raw sums of slices, terms and parts
// added. Bytes: the stored weights once for up to 64 columns (rows times terms), raw sums written and read once.
#include "ops/cuda/rounding.cuh"
#include "ops/cuda/sm80_bf16_slice.cuh"

namespace verbatim::ops::cuda {

namespace {

constexpr int kThreads = 256;
// Up to so many columns, slices are given to blocks of their own.
constexpr int64_t kSplitColumns = 32;

int64_t tiles(int64_t count, int64_t size) { return (count + size - 1) / size; }

__global__ void prepare_kernel(Preparation p) {
  const int64_t blocks = (p.first_column_in_block + p.columns + 15) / 16;
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= p.rows * blocks) return;
  const int64_t row = i / blocks, block = i % blocks;
  const int64_t first = block * 16 - p.first_column_in_block;
  const int64_t begin = first < 0 ? 0 : first, end = first + 16 < p.columns ? first + 16 : p.columns;
  const float* x = p.x + row * p.x_stride;
  uint16_t* to = p.to + row * p.stride;
  const int64_t term_stride = p.rows * p.stride;
  prepare_block([&](int64_t k) { return x[k]; }, begin, end, p.terms, p.input_scale, to, term_stride);
  if (block == blocks - 1)
    for (int t = 0; t < p.terms; ++t)
      for (int64_t k = p.columns; k < p.stride; ++k) to[t * term_stride + k] = 0;
}

// No rounding to NVFP4: eight inputs a thread. Bytes: four read and two a term written an element.
template <int kTerms>
__global__ void round_kernel(Preparation p) {
  const int64_t pieces = p.columns / 8, i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= p.rows * pieces) return;
  const int64_t row = i / pieces, k = i % pieces * 8;
  const auto* x = reinterpret_cast<const float4*>(p.x + row * p.x_stride + k);
  const float4 low = __ldcs(x), high = __ldcs(x + 1);
  float rest[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  for (int t = 0; t < kTerms; ++t) {
    uint32_t pairs[4];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const uint32_t bits = bf16_bits(rest[j]);
      pairs[j / 2] = j % 2 == 0 ? bits : pairs[j / 2] | bits << 16;
      const float taken = bf16_value(bits);
      rest[j] = isfinite(taken) ? rest[j] - taken : 0.0f;
    }
    *reinterpret_cast<uint4*>(p.to + (t * p.rows + row) * p.stride + k) =
        make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
  }
}

struct Group {
  Bf16Product products[kMostGroup];
  int64_t first_tile[kMostGroup + 1];
  int slices[kMostGroup];  // that stand in raw
  int run[kMostGroup];     // of them, that a block takes
  int count;
};

template <int kN, bool kSplit>
__global__ void __launch_bounds__(kTileThreads, kSplit ? (kN <= 16 ? 5 : 4) : 3)
    product_kernel(const __grid_constant__ Group group) {
  extern __shared__ __align__(16) std::byte shared[];
  int which = 0;
  while (which + 1 < group.count && blockIdx.x >= group.first_tile[which + 1]) ++which;
  const Bf16Product& p = group.products[which];
  uint32_t tile = blockIdx.x - static_cast<uint32_t>(group.first_tile[which]);
  // Row tiles next to each other, so that they find their weights in the cache.
  const int slices = group.slices[which], run = group.run[which];
  const auto row_tiles = static_cast<uint32_t>((p.rows * p.terms + kN - 1) / kN);
  const auto column = static_cast<int>(tile % row_tiles * kN);
  tile /= row_tiles;
  const auto runs = static_cast<uint32_t>((slices + run - 1) / run);
  const auto slice = static_cast<int>(tile % runs) * run;
  tile /= runs;
  const auto part = static_cast<int>(tile % static_cast<uint32_t>(p.parts));
  const int64_t output = static_cast<int64_t>(tile / static_cast<uint32_t>(p.parts)) * kTileOutputs;
  TileColumns c;
  c.x = p.x;
  c.x_stride = p.x_stride;
  c.x_term_rows = p.rows;
  c.count = p.rows;
  c.terms = p.terms;
  c.raw = p.raw;
  c.raw_term_rows = p.rows;
  c.raw_stride = p.weights.rows;
  if constexpr (kSplit) {
    bf16_any_slices<kN>(p.weights, c, output, column, p.parts, part, slices, slice,
                        slice + run < slices ? slice + run : slices, shared);
  } else {
    with_form(p.weights.form, [&]<WeightForm kForm>() {
      if constexpr (kForm != WeightForm::kF32)
        bf16_tile<kForm, kN>(p.weights, c, output, column, p.parts, part, slices, -1,
                             *reinterpret_cast<TileShared<kN>*>(shared));
    });
  }
}

struct FinishGroup {
  Finish finishes[kMostGroup];
  int count;
};

__global__ void finish_kernel(const __grid_constant__ FinishGroup group) {
  const Finish& f = group.finishes[blockIdx.y];
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= f.rows * f.outputs) return;
  const int64_t row = i / f.outputs, output = i % f.outputs;
  const int64_t term_stride = f.rows * f.outputs, slice_stride = f.terms * term_stride;
  float stack[16];
  int depth = 0;
  for (int part = 0; part < f.parts; ++part) {
    float sum = 0.0f;
    for (int t = 0; t < f.terms; ++t) {
      const float* raw = f.raw + part * f.slices * slice_stride + t * term_stride + i;
      float term = raw[0];
      for (int64_t s = 1; s < f.slices; ++s) term = term + raw[s * slice_stride];
      term = term * f.scale;
      sum = t == 0 ? term : sum + term;
    }
    stack[depth++] = sum;
    for (int done = part + 1; done % 2 == 0; done /= 2) {
      --depth;
      stack[depth - 1] = stack[depth - 1] + stack[depth];
    }
  }
  for (; depth > 1; --depth) stack[depth - 2] = stack[depth - 2] + stack[depth - 1];
  f.y[row * f.y_stride + output] = stack[0];
}

template <int kN, bool kSplit>
cudaError_t launch(cudaStream_t stream, const Bf16Product* products, int count) {
  Group group{};
  group.count = count;
  int64_t total = 0;
  for (int i = 0; i < count; ++i) {
    const Bf16Product& p = products[i];
    group.products[i] = p;
    const int64_t own = tiles(p.rows * p.terms, kN) * p.parts * tiles(p.weights.rows, kTileOutputs);
    group.slices[i] = kSplit ? static_cast<int>(slices_of(p.weights, p.parts)) : 1;
    group.run[i] = slices_of_a_block(p.weights.form, own, group.slices[i]);
    group.first_tile[i] = total;
    total += own * tiles(group.slices[i], group.run[i]);
  }
  if (total == 0) return cudaSuccess;
  constexpr size_t kBytes = kSplit ? sizeof(SliceShared<kN>) : sizeof(TileShared<kN>);
  const cudaError_t error = cudaFuncSetAttribute(product_kernel<kN, kSplit>,
                                                 cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kBytes));
  if (error != cudaSuccess) return error;
  product_kernel<kN, kSplit><<<static_cast<unsigned>(total), kTileThreads, kBytes, stream>>>(group);
  return cudaGetLastError();
}

}  // namespace

int64_t slices_of(const Weights& w, int parts) {
  const int64_t length = w.columns / parts;
  if (w.form != WeightForm::kFp8Block) return length == 0 ? 1 : tiles(length, kSliceColumns);
  int64_t most = 1;
  for (int part = 0; part < parts; ++part) {
    int64_t count = 0;
    while (slice_begin(w, part * length, count) < (part + 1) * length) ++count;
    most = count > most ? count : most;
  }
  return most;
}

bool splits_slices(int64_t rows, int terms) { return rows * terms <= kSplitColumns; }

cudaError_t prepare(cudaStream_t stream, const Preparation& p) {
  const int64_t blocks = (p.first_column_in_block + p.columns + 15) / 16;
  if (p.rows * blocks == 0) return cudaSuccess;
  if ((p.terms == 1 || p.terms == 3) && p.input_scale == 0.0f && p.first_column_in_block == 0 && p.columns % 8 == 0 &&
      p.stride == p.columns && p.x_stride % 4 == 0 && reinterpret_cast<uintptr_t>(p.x) % 16 == 0) {
    const auto blocks = static_cast<unsigned>(tiles(p.rows * p.columns / 8, kThreads));
    if (p.terms == 1)
      round_kernel<1><<<blocks, kThreads, 0, stream>>>(p);
    else
      round_kernel<3><<<blocks, kThreads, 0, stream>>>(p);
    return cudaGetLastError();
  }
  prepare_kernel<<<static_cast<unsigned>(tiles(p.rows * blocks, kThreads)), kThreads, 0, stream>>>(p);
  return cudaGetLastError();
}

cudaError_t bf16_products(cudaStream_t stream, const Bf16Product* products, int count) {
  const int64_t columns = products[0].rows * products[0].terms;
  if (!splits_slices(products[0].rows, products[0].terms)) return launch<64, false>(stream, products, count);
  if (columns <= 8) return launch<8, true>(stream, products, count);
  if (columns <= 16) return launch<16, true>(stream, products, count);
  return launch<32, true>(stream, products, count);
}

cudaError_t finish_products(cudaStream_t stream, const Finish* finishes, int count) {
  FinishGroup group{};
  group.count = count;
  int64_t most = 0;
  for (int i = 0; i < count; ++i) {
    group.finishes[i] = finishes[i];
    most = finishes[i].rows * finishes[i].outputs > most ? finishes[i].rows * finishes[i].outputs : most;
  }
  if (most == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(tiles(most, kThreads)), static_cast<unsigned>(count));
  finish_kernel<<<grid, kThreads, 0, stream>>>(group);
  return cudaGetLastError();
}

}  // namespace verbatim::ops::cuda
