// Routed and shared experts of a block of rows: places sorted by expert on the device, gate and up in one launch,
// SwiGLU and its rounding in one, down in one, the weighted sum in one. No host synchronisation. Bytes: the stored
// weights of the experts that are chosen, once for up to 64 columns (places times terms); raw sums written and read
// once.
#include "ops/cuda/math.cuh"
#include "ops/cuda/rounding.cuh"
#include "ops/cuda/sm80_bf16_slice.cuh"
#include "ops/cuda/sm80_packed_tile.cuh"
#include "ops/cuda/sums.cuh"

namespace verbatim::ops::cuda {

namespace {

constexpr int kThreads = 256;

int64_t tiles(int64_t count, int64_t size) { return (count + size - 1) / size; }

// Columns (places times terms of one expert) a tile takes: about what an expert is chosen for.
int tile_columns(const ExpertsProblem& p) {
  const int64_t columns = p.rows * p.top * p.terms;
  if (experts_have_few_rows(p)) return static_cast<int>(kFewRows);
  if (p.warpgroups) return 128;
  if (p.packed) return columns <= 96 * p.experts ? 64 : 128;
  if (p.split) return columns <= 8 * p.experts ? 8 : 32;
  return columns <= 32 * p.experts ? 32 : 64;
}

// The most tiles that any choice of experts gives.
int64_t most_tiles(const ExpertsProblem& p) {
  const int64_t used = p.experts + 1 < p.places() ? p.experts + 1 : p.places();
  return p.places() * p.terms / tile_columns(p) + used;
}

__device__ float part_scale(const ExpertsProblem& p, const Weights& w) {
  const float scale = w.form == WeightForm::kNvfp4 ? w.matrix_scale * (p.packed ? packed_lift(w.form) : 1.0f) : 1.0f;
  return w.input_scale > 0.0f ? w.input_scale * scale : scale;
}

// ---- places ---------------------------------------------------------------------------------------------------------
constexpr int kPlaceThreads = 1024, kPlacePairs = 8;  // of a thread at a time

// How many of pairs first .. first + kPlacePairs - 1 chose the expert: bit j for pair first + j.
__device__ uint32_t chosen_pairs(const ExpertsProblem& p, int64_t first, int32_t expert) {
  const int64_t pairs = p.rows * p.top;
  uint32_t mine = 0;
  if (first + kPlacePairs <= pairs && reinterpret_cast<uintptr_t>(p.chosen) % 16 == 0) {
    const auto* from = reinterpret_cast<const int4*>(p.chosen + first);
#pragma unroll
    for (int j = 0; j < kPlacePairs / 4; ++j) {
      const int4 four = from[j];
      mine |= ((four.x == expert) | (four.y == expert) << 1 | (four.z == expert) << 2 | (four.w == expert) << 3)
              << 4 * j;
    }
    return mine;
  }
  for (int j = 0; j < kPlacePairs && first + j < pairs; ++j) mine |= (p.chosen[first + j] == expert ? 1u : 0u) << j;
  return mine;
}

__global__ void __launch_bounds__(kPlaceThreads) count_kernel(ExpertsProblem p, ExpertsScratch s) {
  __shared__ int32_t warps[kPlaceThreads / 32];
  const auto thread = static_cast<int>(threadIdx.x);
  int32_t own = 0;
  for (int64_t i = int64_t{thread} * kPlacePairs; i < p.rows * p.top; i += kPlaceThreads * kPlacePairs)
    own += __popc(chosen_pairs(p, i, static_cast<int32_t>(blockIdx.x)));
  own = __reduce_add_sync(0xffffffffu, own);
  if (thread % 32 == 0) warps[thread / 32] = own;
  __syncthreads();
  if (thread < 32) {
    own = __reduce_add_sync(0xffffffffu, warps[thread]);
    if (thread == 0) s.count[blockIdx.x] = own;
  }
}

// First places, and the tiles of every expert that was chosen.
__global__ void first_kernel(ExpertsProblem p, ExpertsScratch s, int columns) {
  const int64_t all = p.experts + (p.has_shared ? 1 : 0);
  const auto count_of = [&](int64_t e) { return e < p.experts ? s.count[e] : static_cast<int32_t>(p.rows); };
  const auto tiles_of = [&](int32_t count) { return (count * p.terms + columns - 1) / columns; };
  for (int64_t e = threadIdx.x; e < all; e += kThreads) {
    int32_t first = 0, tile = 0;
    for (int64_t other = 0; other < e; ++other) {
      first += count_of(other);
      tile += tiles_of(count_of(other));
    }
    s.first[e] = first;
    const int32_t own = tiles_of(count_of(e));
    for (int32_t i = 0; i < own; ++i) {
      s.tile_expert[tile + i] = static_cast<int32_t>(e);
      s.tile_begin[tile + i] = i * columns;
    }
    if (e == all - 1) *s.tile_count = tile + own;
    if (e == p.experts) s.count[e] = static_cast<int32_t>(p.rows);
  }
}

// Ascending inside an expert: thread after thread takes pairs next to each other.
__global__ void __launch_bounds__(kPlaceThreads) place_kernel(ExpertsProblem p, ExpertsScratch s) {
  const auto expert = static_cast<int32_t>(blockIdx.x);
  const auto thread = static_cast<int>(threadIdx.x);
  if (expert == p.experts) {
    for (int64_t r = thread; r < p.rows; r += kPlaceThreads) {
      s.source[p.rows * p.top + r] = static_cast<int32_t>(r);
      s.owner[p.rows * p.top + r] = expert;
    }
    return;
  }
  __shared__ int32_t warps[kPlaceThreads / 32];
  const int warp = thread / 32, lane = thread % 32;
  int32_t next = s.first[expert];
  for (int64_t begin = 0; begin < p.rows * p.top; begin += kPlaceThreads * kPlacePairs) {
    const int64_t first = begin + int64_t{thread} * kPlacePairs;
    const uint32_t mine = chosen_pairs(p, first, expert);
    int32_t up_to = __popc(mine);
    for (int step = 1; step < 32; step *= 2) {
      const int32_t other = __shfl_up_sync(0xffffffffu, up_to, step);
      if (lane >= step) up_to += other;
    }
    if (lane == 31) warps[warp] = up_to;
    __syncthreads();
    const int32_t of_warp = warps[lane];
    const int32_t before = __reduce_add_sync(0xffffffffu, lane < warp ? of_warp : 0);
    const int32_t total = __reduce_add_sync(0xffffffffu, of_warp);
    int32_t at = next + before + up_to - __popc(mine);
    for (uint32_t left = mine; left != 0; left &= left - 1, ++at) {
      const int64_t pair = first + __ffs(static_cast<int>(left)) - 1;
      s.place[pair] = at;
      s.source[at] = static_cast<int32_t>(pair / p.top);
      s.owner[at] = expert;
    }
    next += total;
    __syncthreads();
  }
}

// ---- activations ----------------------------------------------------------------------------------------------------
// Rows of x for each place, rounded as its expert's gate (or up) wants.
__global__ void prepare_places_kernel(ExpertsProblem p, ExpertsScratch s, bool up, uint16_t* to, int64_t stride) {
  const int64_t blocks = (p.columns + 15) / 16 + 1;
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= p.places() * blocks) return;
  const int64_t place = i / blocks;
  const ExpertTable& expert = p.table[s.owner[place]];
  const Weights& w = up ? expert.up : expert.gate;
  const int64_t first = i % blocks * 16 - w.first_column_in_block;
  const int64_t begin = first < 0 ? 0 : first, end = first + 16 < p.columns ? first + 16 : p.columns;
  const float* x = p.x + s.source[place] * p.columns;
  prepare_block([&](int64_t k) { return x[k]; }, begin, end, p.terms, w.input_scale, to + place * stride,
                p.places() * stride);
}

// A place's sum of one output: slices left to right, scaled, terms added.
__device__ float raw_sum(const float* raw, int64_t slices, int64_t slice_stride, int terms, int64_t term_stride,
                         float scale) {
  float sum = 0.0f;
  for (int t = 0; t < terms; ++t) {
    const float* from = raw + t * term_stride;
    float term = from[0];
    for (int64_t i = 1; i < slices; ++i) term = term + from[i * slice_stride];
    term = term * scale;
    sum = t == 0 ? term : sum + term;
  }
  return sum;
}

// h of sixteen inner columns of a place, and as `down` wants it.
__global__ void hidden_kernel(ExpertsProblem p, ExpertsScratch s, int64_t stride) {
  const int64_t blocks = (p.inner + 15) / 16 + 1;
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= p.places() * blocks) return;
  const int64_t place = i / blocks;
  const ExpertTable& expert = p.table[s.owner[place]];
  const int64_t inner = expert.down.columns;
  const int64_t first = i % blocks * 16 - expert.down.first_column_in_block;
  const int64_t begin = first < 0 ? 0 : first, end = first + 16 < inner ? first + 16 : inner;
  const int64_t slices = p.split ? p.inner_slices : 1;
  const int64_t term_stride = p.places() * p.inner, slice_stride = p.terms * term_stride;
  const float gate_scale = part_scale(p, expert.gate), up_scale = part_scale(p, expert.up);
  float h[16];
#pragma unroll
  for (int j = 0; j < 16; ++j) {
    const int64_t k = first + j;
    if (k < begin || k >= end) continue;
    const int64_t at = place * p.inner + k;
    const float gate = raw_sum(s.gate + at, slices, slice_stride, p.terms, term_stride, gate_scale);
    const float up = raw_sum(s.up + at, slices, slice_stride, p.terms, term_stride, up_scale);
    h[j] = swiglu_of(gate, up, p.limit);
    if (p.has_f32) s.hidden_float[at] = h[j];
  }
  prepare_block([&](int64_t k) { return h[k - first]; }, begin, end, p.terms, expert.down.input_scale,
                s.hidden + place * stride, p.places() * stride);
}

// ---- products -------------------------------------------------------------------------------------------------------
// blockIdx.y: 0 gate, 1 up; or down alone.
template <int kN, bool kSplit, bool kWide>
__global__ void __launch_bounds__(kWide ? kWideThreads : kTileThreads, kWide    ? 1
                                                                       : kSplit ? (kN <= 16 ? 5 : 4)
                                                                                : 3)
    product_kernel(ExpertsProblem p, ExpertsScratch s, bool down, uint32_t slots, int slices, int run, int parts,
                   int64_t x_stride) {
  extern __shared__ __align__(16) std::byte shared[];
  uint32_t index = blockIdx.x;
  const uint32_t slot = index % slots;
  index /= slots;
  if (slot >= static_cast<uint32_t>(*s.tile_count)) return;
  const auto runs = static_cast<uint32_t>((slices + run - 1) / run);
  const auto slice = static_cast<int>(index % runs) * run;
  index /= runs;
  const auto part = static_cast<int>(index % static_cast<uint32_t>(parts));
  const int64_t output =
      static_cast<int64_t>(index / static_cast<uint32_t>(parts)) * (kWide ? kWideOutputs : kTileOutputs);
  const int32_t e = s.tile_expert[slot];
  const ExpertTable& expert = p.table[e];
  const bool up = blockIdx.y == 1;
  const Weights& w = down ? expert.down : up ? expert.up : expert.gate;
  if (output >= w.rows) return;
  TileColumns c;
  c.x_stride = x_stride;
  c.first = s.first[e];
  c.count = s.count[e];
  c.terms = p.terms;
  c.raw_term_rows = p.places();
  if (down) {
    c.x = s.hidden;
    c.x_term_rows = p.places();
    c.raw = s.down;
    c.raw_stride = p.width;
  } else {
    const bool by_place = up ? p.up_by_place : p.gate_by_place;
    c.x = !by_place ? s.x_rows : up ? s.x_up : s.x_gate;
    c.x_term_rows = by_place ? p.places() : p.rows;
    c.source = by_place ? nullptr : s.source;
    c.raw = up ? s.up : s.gate;
    c.raw_stride = p.inner;
  }
  if constexpr (kWide) {
    auto& there = *reinterpret_cast<WideShared<kN>*>(shared);
    if (w.form == WeightForm::kBf16)
      packed_tile<WeightForm::kBf16, kN>(w, c, output, s.tile_begin[slot], parts, part, 1.0f, there);
    else
      packed_tile<WeightForm::kNvfp4, kN>(w, c, output, s.tile_begin[slot], parts, part, 1.0f, there);
  } else if constexpr (kSplit) {
    bf16_any_slices<kN>(w, c, output, s.tile_begin[slot], parts, part, slices, slice,
                        slice + run < slices ? slice + run : slices, shared);
  } else {
    with_form(w.form, [&]<WeightForm kForm>() {
      if constexpr (kForm != WeightForm::kF32)
        bf16_tile<kForm, kN>(w, c, output, s.tile_begin[slot], parts, part, slices, -1,
                             *reinterpret_cast<TileShared<kN>*>(shared));
    });
  }
}

// Experts of float32 weights: sixteen outputs of a place a block, by fused multiply-adds; what is not theirs of the raw
// sums is -0, which adds nothing.
__global__ void fma_kernel(ExpertsProblem p, ExpertsScratch s, bool down, int64_t slices, int parts) {
  const int64_t place = blockIdx.x;
  const ExpertTable& expert = p.table[s.owner[place]];
  const bool up = blockIdx.z == 1;
  const Weights& w = down ? expert.down : up ? expert.up : expert.gate;
  if (w.form != WeightForm::kF32) return;
  const int64_t output = int64_t{blockIdx.y} * (kThreads / 16) + threadIdx.x / 16;
  const float* x = down ? s.hidden_float + place * p.inner : p.x + s.source[place] * p.columns;
  float* raw = down ? s.down : up ? s.up : s.gate;
  const int64_t stride = down ? p.width : p.inner, length = w.columns / parts;
  const int64_t row = output < w.rows ? output : w.rows - 1;
  for (int part = 0; part < parts; ++part) {
    const int64_t from = part * length;
    const float sum = group_dot16(
        length, [&](int64_t k) { return weight_value<WeightForm::kF32>(w, row, from + k); },
        [&](int64_t k) { return x[from + k]; });
    if (threadIdx.x % 16 != 0 || output >= w.rows) continue;
    for (int64_t i = 0; i < slices * p.terms; ++i)
      raw[((part * slices * p.terms + i) * p.places() + place) * stride + output] = i == 0 ? sum : -0.0f;
  }
}

// ---- the weighted sum
// -------------------------------------------------------------------------------------------------
__global__ void combine_kernel(ExpertsProblem p, ExpertsScratch s) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= p.rows * p.width) return;
  const int64_t row = i / p.width, output = i % p.width;
  const int64_t slices = p.split ? p.down_slices : 1;
  const int64_t term_stride = p.places() * p.width, slice_stride = p.terms * term_stride;
  const auto partial = [&](int part, int64_t place) {
    return raw_sum(s.down + part * slices * slice_stride + place * p.width + output, slices, slice_stride, p.terms,
                   term_stride, part_scale(p, p.table[s.owner[place]].down));
  };
  float stack[16];
  int depth = 0;
  for (int part = 0; part < p.parts; ++part) {
    float sum = 0.0f;
    for (int64_t slot = 0; slot < p.top; ++slot) {
      const float weight = p.weights[row * p.top + slot], term = partial(part, s.place[row * p.top + slot]);
      sum = slot == 0 ? weight * term : fmaf(weight, term, sum);
    }
    if (p.has_shared) {
      const float last = partial(part, p.rows * p.top + row);
      sum = p.top == 0 ? last : sum + last;
    }
    stack[depth++] = sum;
    for (int done = part + 1; done % 2 == 0; done /= 2) {
      --depth;
      stack[depth - 1] = stack[depth - 1] + stack[depth];
    }
  }
  for (; depth > 1; --depth) stack[depth - 2] = stack[depth - 2] + stack[depth - 1];
  p.y[i] = stack[0];
}

int64_t stride_of(int64_t columns) { return (columns + 7) / 8 * 8; }

// Cuts the scratch; with a null base it only counts.
int64_t lay_out(const ExpertsProblem& p, char* base, ExpertsScratch* s) {
  int64_t used = 0;
  const auto take = [&]<typename T>(T*& pointer, int64_t count) {
    pointer = reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(base) + static_cast<uintptr_t>(used));
    used += (count * static_cast<int64_t>(sizeof(T)) + 255) / 256 * 256;
  };
  const int64_t places = p.places(), slots = most_tiles(p);
  const int64_t inner_slices = p.split ? p.inner_slices : 1, down_slices = p.split ? p.down_slices : 1;
  take(s->count, p.experts + 1);
  take(s->first, p.experts + 1);
  take(s->place, p.rows * p.top);
  take(s->source, places);
  take(s->owner, places);
  take(s->tile_expert, slots);
  take(s->tile_begin, slots);
  take(s->tile_count, 1);
  if (experts_have_few_rows(p)) {
    const bool prepared = p.gate_by_place || p.up_by_place || p.down_by_place;
    take(s->x_gate, prepared ? places * p.columns : 0);
    take(s->x_up, prepared ? places * p.columns : 0);
    take(s->hidden, prepared ? places * p.inner : 0);
    take(s->hidden_float, places * p.inner);
    take(s->down, p.parts * places * p.width);
    return used;
  }
  if (p.warpgroups) {
    take(s->x_rows, p.rows * p.columns);
    take(s->hidden, places * p.inner);
    take(s->down, p.parts * places * p.width);
    return used;
  }
  take(s->x_rows, p.gate_by_place && p.up_by_place ? 0 : p.terms * p.rows * stride_of(p.columns));
  take(s->x_gate, p.gate_by_place ? p.terms * places * stride_of(p.columns) : 0);
  take(s->x_up, p.up_by_place ? p.terms * places * stride_of(p.columns) : 0);
  take(s->hidden, p.terms * places * stride_of(p.inner));
  take(s->gate, inner_slices * p.terms * places * p.inner);
  take(s->up, inner_slices * p.terms * places * p.inner);
  take(s->hidden_float, p.has_f32 ? places * p.inner : 0);
  take(s->down, p.parts * down_slices * p.terms * places * p.width);
  return used;
}

template <int kN, bool kSplit, bool kWide>
cudaError_t launch_product(cudaStream_t stream, const ExpertsProblem& p, const ExpertsScratch& s, bool down) {
  constexpr int kOutputs = kWide ? kWideOutputs : kTileOutputs;
  const int64_t slots = most_tiles(p);
  const int64_t slices = !kSplit ? 1 : down ? p.down_slices : p.inner_slices;
  const int parts = down ? p.parts : 1;
  const int64_t own = slots * parts * tiles(down ? p.width : p.inner, kOutputs);
  const int run = slices_of_a_block(WeightForm::kNvfp4, down ? own : 2 * own, slices);
  const int64_t blocks = own * tiles(slices, run);
  const dim3 grid(static_cast<unsigned>(blocks), down ? 1 : 2);
  constexpr size_t kBytes = kWide ? sizeof(WideShared<kN>) : kSplit ? sizeof(SliceShared<kN>) : sizeof(TileShared<kN>);
  const cudaError_t error = cudaFuncSetAttribute(product_kernel<kN, kSplit, kWide>,
                                                 cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kBytes));
  if (error != cudaSuccess) return error;
  product_kernel<kN, kSplit, kWide><<<grid, kWide ? kWideThreads : kTileThreads, kBytes, stream>>>(
      p, s, down, static_cast<uint32_t>(slots), static_cast<int>(slices), run, parts,
      stride_of(down ? p.inner : p.columns));
  return cudaGetLastError();
}

cudaError_t launch_products(cudaStream_t stream, const ExpertsProblem& p, const ExpertsScratch& s, bool down) {
  if (p.packed)
    return tile_columns(p) == 64 ? launch_product<64, false, true>(stream, p, s, down)
                                 : launch_product<128, false, true>(stream, p, s, down);
  if (p.has_bf16) {
    const int columns = tile_columns(p);
    const cudaError_t error = p.split         ? columns == 8 ? launch_product<8, true, false>(stream, p, s, down)
                                                             : launch_product<32, true, false>(stream, p, s, down)
                                      : columns == 32 ? launch_product<32, false, false>(stream, p, s, down)
                                              : launch_product<64, false, false>(stream, p, s, down);
    if (error != cudaSuccess) return error;
  }
  if (p.has_f32) {
    const int64_t slices = !p.split ? 1 : down ? p.down_slices : p.inner_slices;
    const dim3 grid(static_cast<unsigned>(p.places()),
                    static_cast<unsigned>(tiles(down ? p.width : p.inner, kThreads / 16)), down ? 1 : 2);
    fma_kernel<<<grid, kThreads, 0, stream>>>(p, s, down, slices, down ? p.parts : 1);
  }
  return cudaGetLastError();
}

}  // namespace

bool splits_expert_slices(int64_t rows, int64_t top, int terms) { return rows * (top + 1) * terms <= 1024; }

int64_t ExpertsScratch::bytes(const ExpertsProblem& problem) {
  ExpertsScratch counted(problem, nullptr);
  return lay_out(problem, nullptr, &counted);
}

ExpertsScratch::ExpertsScratch(const ExpertsProblem& problem, void* base) {
  lay_out(problem, static_cast<char*>(base), this);
}

cudaError_t place_experts(cudaStream_t stream, const ExpertsProblem& p, const ExpertsScratch& s) {
  if (p.experts > 0) count_kernel<<<static_cast<unsigned>(p.experts), kPlaceThreads, 0, stream>>>(p, s);
  first_kernel<<<1, kThreads, 0, stream>>>(p, s, tile_columns(p));
  place_kernel<<<static_cast<unsigned>(p.experts + (p.has_shared ? 1 : 0)), kPlaceThreads, 0, stream>>>(p, s);
  return cudaGetLastError();
}

cudaError_t experts(cudaStream_t stream, const ExpertsProblem& p, const ExpertsScratch& s) {
  if (p.rows == 0 || p.places() == 0) return cudaSuccess;
  const auto threads_for = [](int64_t count) { return static_cast<unsigned>(tiles(count, kThreads)); };
  const cudaError_t placed = place_experts(stream, p, s);
  if (placed != cudaSuccess) return placed;
  if (p.has_bf16) {
    const int64_t stride = stride_of(p.columns);
    if (!(p.gate_by_place && p.up_by_place)) {
      Preparation rows;
      rows.x = p.x;
      rows.x_stride = p.columns;
      rows.rows = p.rows;
      rows.columns = p.columns;
      rows.terms = p.terms;
      rows.to = s.x_rows;
      rows.stride = stride;
      const cudaError_t prepared = prepare(stream, rows);
      if (prepared != cudaSuccess) return prepared;
    }
    const unsigned blocks = threads_for(p.places() * ((p.columns + 15) / 16 + 1));
    if (p.gate_by_place) prepare_places_kernel<<<blocks, kThreads, 0, stream>>>(p, s, false, s.x_gate, stride);
    if (p.up_by_place) prepare_places_kernel<<<blocks, kThreads, 0, stream>>>(p, s, true, s.x_up, stride);
  }
  cudaError_t error = launch_products(stream, p, s, false);
  if (error != cudaSuccess) return error;
  hidden_kernel<<<threads_for(p.places() * ((p.inner + 15) / 16 + 1)), kThreads, 0, stream>>>(p, s, stride_of(p.inner));
  error = launch_products(stream, p, s, true);
  if (error != cudaSuccess) return error;
  combine_kernel<<<threads_for(p.rows * p.width), kThreads, 0, stream>>>(p, s);
  return cudaGetLastError();
}

}  // namespace verbatim::ops::cuda
