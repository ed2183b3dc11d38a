// Weights to and from the order of packed.cuh. A thread makes sixteen bytes; both ways move every bit.
#include "ops/cuda/packed.cuh"

namespace verbatim::ops::cuda {

namespace {

constexpr int kThreads = 256;

// Rows first_row .. of the packed matrix from `rows` plain ones.
__global__ void pack_bf16_kernel(Weights plain, int64_t tiles, uint4* to) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x, across = plain.columns / 16;
  if (i >= tiles * across * 32) return;
  const auto lane = static_cast<int>(i % 32);
  const int64_t column = i / 32 % across * 16 + lane % 4 * 2, row = i / 32 / across * kPackedRows + lane / 4;
  uint32_t a[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int64_t r = row + j % 2 * 8;
    a[j] = r < plain.rows
               ? *reinterpret_cast<const uint32_t*>(plain.data + r * plain.row_bytes + 2 * (column + j / 2 * 8))
               : 0;
  }
  to[i] = make_uint4(a[0], a[1], a[2], a[3]);
}

__global__ void unpack_bf16_kernel(const uint4* from, int64_t tiles, int64_t columns, int64_t rows, uint8_t* to,
                                   int64_t row_bytes) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x, across = columns / 16;
  if (i >= tiles * across * 32) return;
  const auto lane = static_cast<int>(i % 32);
  const int64_t column = i / 32 % across * 16 + lane % 4 * 2, row = i / 32 / across * kPackedRows + lane / 4;
  const uint4 four = from[i];
  const uint32_t a[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int64_t r = row + j % 2 * 8;
    if (r < rows) *reinterpret_cast<uint32_t*>(to + r * row_bytes + 2 * (column + j / 2 * 8)) = a[j];
  }
}

__global__ void pack_nvfp4_kernel(Weights plain, int64_t tiles, uint4* to, uint32_t* scales) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x, across = plain.columns / kPackedBlockColumns;
  if (i >= tiles * across * 32) return;
  const auto lane = static_cast<int>(i % 32);
  const int64_t block = i / 32 % across, tile = i / 32 / across, row = tile * kPackedRows + lane / 4;
  uint32_t words[4];
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    uint32_t pairs[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int64_t r = row + j % 2 * 8, column = block * kPackedBlockColumns + step * 16 + lane % 4 * 2 + j / 2 * 8;
      const bool weighs = r < plain.rows && plain.block_scale[r * plain.block_scale_stride + block * 4 + step] != 0;
      const uint32_t two = weighs ? plain.data[r * plain.row_bytes + column / 2] : 0u;
      pairs[j] = pair_of_codes(two & 15, two >> 4);
    }
    words[step] = pack_pairs(pairs);
  }
  to[i] = make_uint4(words[0], words[1], words[2], words[3]);
  if (lane % 4 != 0) return;
  for (int half = 0; half < 2; ++half) {
    const int64_t r = row + half * 8;
    uint8_t four[4];
    for (int step = 0; step < 4; ++step)
      four[step] = r < plain.rows ? pack_scale(plain.block_scale[r * plain.block_scale_stride + block * 4 + step]) : 0;
    scales[(tile * across + block) * 16 + lane / 4 * 2 + half] = pack_scales(four);
  }
}

__global__ void unpack_nvfp4_kernel(const uint4* from, const uint32_t* packed_scales, int64_t tiles, int64_t columns,
                                    int64_t rows, uint8_t* to, int64_t row_bytes, uint8_t* scales,
                                    int64_t scale_stride) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x, across = columns / kPackedBlockColumns;
  if (i >= tiles * across * 32) return;
  const auto lane = static_cast<int>(i % 32);
  const int64_t block = i / 32 % across, tile = i / 32 / across, row = tile * kPackedRows + lane / 4;
  const uint4 four = from[i];
  const uint32_t words[4] = {four.x, four.y, four.z, four.w};
  for (int step = 0; step < 4; ++step) {
    uint32_t pairs[4];
    unpack_pairs(words[step], pairs);
    for (int j = 0; j < 4; ++j) {
      const int64_t r = row + j % 2 * 8, column = block * kPackedBlockColumns + step * 16 + lane % 4 * 2 + j / 2 * 8;
      if (r >= rows) continue;
      to[r * row_bytes + column / 2] = static_cast<uint8_t>(code_of_pair(pairs[j], 0) | code_of_pair(pairs[j], 1) << 4);
    }
  }
  if (lane % 4 != 0) return;
  for (int half = 0; half < 2; ++half) {
    const int64_t r = row + half * 8;
    if (r >= rows) continue;
    const uint32_t four = packed_scales[(tile * across + block) * 16 + lane / 4 * 2 + half];
    for (int step = 0; step < 4; ++step)
      scales[r * scale_stride + block * 4 + step] = unpack_scale(packed_scale_of(four, step));
  }
}

unsigned blocks_for(int64_t count) { return static_cast<unsigned>((count + kThreads - 1) / kThreads); }

}  // namespace

bool can_pack(WeightForm form, int64_t columns, int parts) {
  if (parts < 1 || parts > 64 || (parts & (parts - 1)) != 0 || columns % parts != 0) return false;
  const int64_t length = columns / parts;
  if (form == WeightForm::kBf16) return length % 16 == 0;
  return form == WeightForm::kNvfp4 && length % kPackedBlockColumns == 0;
}

int64_t packed_bytes(WeightForm form, int64_t rows, int64_t columns) {
  return (rows + kPackedRows - 1) / kPackedRows * packed_tile_bytes(form, columns);
}

cudaError_t pack(cudaStream_t stream, const Weights& plain, void* to, void* scales) {
  const int64_t tiles = (plain.rows + kPackedRows - 1) / kPackedRows;
  if (plain.form == WeightForm::kBf16)
    pack_bf16_kernel<<<blocks_for(tiles * plain.columns * 2), kThreads, 0, stream>>>(plain, tiles,
                                                                                     static_cast<uint4*>(to));
  else
    pack_nvfp4_kernel<<<blocks_for(tiles * plain.columns / 2), kThreads, 0, stream>>>(
        plain, tiles, static_cast<uint4*>(to), static_cast<uint32_t*>(scales));
  return cudaGetLastError();
}

cudaError_t unpack(cudaStream_t stream, const Weights& packed, void* to, int64_t row_bytes, void* scales,
                   int64_t scale_stride) {
  const int64_t tiles = (packed.rows + kPackedRows - 1) / kPackedRows;
  const auto* from = reinterpret_cast<const uint4*>(packed.data);
  if (packed.form == WeightForm::kBf16)
    unpack_bf16_kernel<<<blocks_for(tiles * packed.columns * 2), kThreads, 0, stream>>>(
        from, tiles, packed.columns, packed.rows, static_cast<uint8_t*>(to), row_bytes);
  else
    unpack_nvfp4_kernel<<<blocks_for(tiles * packed.columns / 2), kThreads, 0, stream>>>(
        from, reinterpret_cast<const uint32_t*>(packed.block_scale), tiles, packed.columns, packed.rows,
        static_cast<uint8_t*>(to), row_bytes, static_cast<uint8_t*>(scales), scale_stride);
  return cudaGetLastError();
}

}  // namespace verbatim::ops::cuda
