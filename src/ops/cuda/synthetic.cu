// Synthetic weights (base/synthetic.h) made on the device: the bits of float_to_bf16 and of quantize/nvfp4.h. One
// thread makes sixteen elements of a row; NVFP4 takes two passes over the numbers, the first for the matrix's largest
// magnitude (as an integer, so that the order does not matter).
#include "base/synthetic.h"
#include "ops/cuda/kernels.h"
#include "ops/cuda/rounding.cuh"

namespace verbatim::ops::cuda {

namespace {

constexpr int kThreads = 256, kBlock = 16;

__device__ float element(const SyntheticMatrix& m, int64_t i) { return m.mean + m.spread * synthetic_number(m.key, i); }

__global__ void bf16_kernel(SyntheticMatrix m, int64_t first, int64_t rows, uint16_t* to, int64_t stride) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= rows * m.columns) return;
  to[i / m.columns * stride + i % m.columns] = static_cast<uint16_t>(bf16_bits(element(m, first * m.columns + i)));
}

__global__ void largest_kernel(SyntheticMatrix m, uint32_t* largest) {
  uint32_t own = 0;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < m.rows * m.columns;
       i += int64_t{gridDim.x} * kThreads) {
    const uint32_t magnitude = __float_as_uint(fabsf(element(m, i)));
    own = own > magnitude ? own : magnitude;
  }
  own = __reduce_max_sync(0xffffffffu, own);
  if (threadIdx.x % 32 == 0) atomicMax(largest, own);
}

__device__ uint32_t e2m1_bits(float value) {
  const float magnitude = fabsf(value);
  const uint32_t code = magnitude <= 0.25f   ? 0
                        : magnitude < 0.75f  ? 1
                        : magnitude <= 1.25f ? 2
                        : magnitude < 1.75f  ? 3
                        : magnitude <= 2.5f  ? 4
                        : magnitude < 3.5f   ? 5
                        : magnitude <= 5.0f  ? 6
                                             : 7;
  return code | (value < 0.0f ? 8u : 0u);
}

// The bits of an e4m3 that round_to_e4m3 gave.
__device__ uint32_t e4m3_bits(float value) {
  if (value < 0x1p-6f) return static_cast<uint32_t>(value * 0x1p9f);
  return (__float_as_uint(value) >> 20) - (120u << 3);
}

__global__ void nvfp4_kernel(SyntheticMatrix m, const uint32_t* largest, uint8_t* codes, int64_t row_bytes,
                             uint8_t* scales, int64_t scale_stride) {
  const int64_t block = int64_t{blockIdx.x} * kThreads + threadIdx.x, row_blocks = m.columns / kBlock;
  if (block >= m.rows * row_blocks) return;
  const float matrix_scale = __uint_as_float(*largest) / (6.0f * 448.0f);
  float values[kBlock], most = 0.0f;
  for (int i = 0; i < kBlock; ++i) {
    values[i] = element(m, block * kBlock + i);
    most = most < fabsf(values[i]) ? fabsf(values[i]) : most;
  }
  float wanted = most / (6.0f * matrix_scale);
  if (wanted == 0.0f || most == 0.0f) wanted = 1.0f;
  wanted = wanted < 0x1p-9f ? 0x1p-9f : 448.0f < wanted ? 448.0f : wanted;
  const float scale = round_to_e4m3(wanted), unit = scale * matrix_scale;
  const int64_t row = block / row_blocks, column = block % row_blocks;
  scales[row * scale_stride + column] = static_cast<uint8_t>(e4m3_bits(scale));
  uint8_t* to = codes + row * row_bytes + column * (kBlock / 2);
  for (int i = 0; i < kBlock / 2; ++i) {
    const uint32_t low = most == 0.0f ? 0u : e2m1_bits(values[2 * i] / unit);
    const uint32_t high = most == 0.0f ? 0u : e2m1_bits(values[2 * i + 1] / unit);
    to[i] = static_cast<uint8_t>(low | high << 4);
  }
}

unsigned blocks_for(int64_t count) { return static_cast<unsigned>((count + kThreads - 1) / kThreads); }

// Four loads of sixteen bytes a thread on their way at once.
__global__ void read_kernel(const uint4* from, int64_t count, uint32_t* to) {
  uint32_t sum = 0;
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i + 3 * stride < count; i += 4 * stride) {
    const uint4 a = __ldcs(from + i), b = __ldcs(from + i + stride), c = __ldcs(from + i + 2 * stride),
                d = __ldcs(from + i + 3 * stride);
    sum ^= a.x ^ a.y ^ a.z ^ a.w ^ b.x ^ b.y ^ b.z ^ b.w ^ c.x ^ c.y ^ c.z ^ c.w ^ d.x ^ d.y ^ d.z ^ d.w;
  }
  if (sum == 0x12345678u) *to = sum;
}

}  // namespace

cudaError_t synthesise_bf16(cudaStream_t stream, const SyntheticMatrix& m, int64_t first, int64_t rows, void* to,
                            int64_t row_bytes) {
  bf16_kernel<<<blocks_for(rows * m.columns), kThreads, 0, stream>>>(m, first, rows, static_cast<uint16_t*>(to),
                                                                     row_bytes / 2);
  return cudaGetLastError();
}

cudaError_t synthesise_nvfp4(cudaStream_t stream, const SyntheticMatrix& m, uint32_t* largest, void* codes,
                             int64_t row_bytes, void* scales, int64_t scale_stride) {
  largest_kernel<<<1056, kThreads, 0, stream>>>(m, largest);
  nvfp4_kernel<<<blocks_for(m.rows * m.columns / kBlock), kThreads, 0, stream>>>(
      m, largest, static_cast<uint8_t*>(codes), row_bytes, static_cast<uint8_t*>(scales), scale_stride);
  return cudaGetLastError();
}

cudaError_t plain_read(cudaStream_t stream, const void* from, int64_t bytes, int blocks, uint32_t* to) {
  read_kernel<<<static_cast<unsigned>(blocks), 512, 0, stream>>>(static_cast<const uint4*>(from), bytes / 16, to);
  return cudaGetLastError();
}

}  // namespace verbatim::ops::cuda
