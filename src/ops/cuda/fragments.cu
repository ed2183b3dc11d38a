// Rows as fragments: the second operands of the matrix units, for launches of sm90_stream_product.cu that take them so.
// Bytes: the rows once a term, and 16 for each input and column tile.
#include "ops/cuda/launch.h"
#include "ops/cuda/ptx/dependency.cuh"
#include "ops/cuda/rounding.cuh"

namespace verbatim::ops::cuda {

namespace {

// A thread makes four inputs of a column, a warp a tile of eight columns and sixteen inputs.
constexpr int kPrepareThreads = 256;
struct Sets {
  Fragments sets[kMostGroup];
  int64_t first[kMostGroup], all;  // in warps
  int count;
};
__global__ void prepare_kernel(const __grid_constant__ Sets group) {
  ptx::let_next_start();
  ptx::wait_for_previous();
  int64_t i = int64_t{blockIdx.x} * (kPrepareThreads / 32) + threadIdx.x / 32;
  if (i >= group.all) return;
  int which = 0;
  while (which + 1 < group.count && i >= group.first[which + 1]) ++which;
  const Fragments& p = group.sets[which];
  i -= group.first[which];
  const auto steps = static_cast<int>(p.columns / 16), rows = static_cast<int>(p.rows);
  const auto tile = static_cast<int>(i / steps), step = static_cast<int>(i % steps);
  const int lane = static_cast<int>(threadIdx.x % 32), q = lane % 4, column = tile * 8 + lane / 4;
  const int row = column % rows, term = column / rows;
  uint32_t bits[4] = {};
  if (term < p.terms) {
    float rest[4];
    read_inputs(p.x + row * p.x_stride + step * 16 + 2 * q, p.x_stride, rest);
    if (p.input_scale > 0.0f) {
      // Sixteen inputs, those of four lanes, have one scale (rounding.cuh).
      float most = 0.0f;
#pragma unroll
      for (int j = 0; j < 4; ++j) most = most < fabsf(rest[j]) ? fabsf(rest[j]) : most;
#pragma unroll
      for (int other_lane = 1; other_lane < 4; other_lane *= 2) {
        const float other = __shfl_xor_sync(0xfu << lane / 4 * 4, most, other_lane);
        most = most < other ? other : most;
      }
      const float scale = activation_block_scale(most, p.input_scale);
#pragma unroll
      for (int j = 0; j < 4; ++j) bits[j] = term == 0 ? bf16_bits(coded_activation(rest[j], scale, p.input_scale)) : 0;
    } else {
      for (int t = 0; t <= term; ++t) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          bits[j] = bf16_bits(rest[j]);
          const float taken = bf16_value(bits[j]);
          rest[j] = isfinite(taken) ? rest[j] - taken : 0.0f;
        }
      }
    }
  }
  reinterpret_cast<uint2*>(p.to)[(int64_t{tile} * steps + step) * 32 + lane] =
      make_uint2(bits[0] | bits[1] << 16, bits[2] | bits[3] << 16);
}

}  // namespace

cudaError_t prepare_fragments(cudaStream_t stream, const Fragments* fragments, int count) {
  Sets group{};
  group.count = count;
  for (int i = 0; i < count; ++i) {
    group.sets[i] = fragments[i];
    group.first[i] = group.all;
    group.all += fragments[i].columns / 16 * fragments[i].tiles;
  }
  return launch(prepare_kernel, static_cast<unsigned>((group.all * 32 + kPrepareThreads - 1) / kPrepareThreads),
                kPrepareThreads, 0, stream, group);
}

}  // namespace verbatim::ops::cuda
