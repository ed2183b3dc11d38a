// The kernels of the CUDA backend as host functions: each launches on a stream and returns what the launch said. Shapes
// and orders of sums are those of ops.h. Pointers are to device memory unless said otherwise.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/shapes.h"
#include "ops/cuda/stream_plan.h"
#include "ops/ops.h"

namespace verbatim::ops::cuda {

// What kernels read of a Matrix whose bytes are in device memory.
struct Weights {
  const uint8_t* data = nullptr;
  int64_t row_bytes = 0;
  const uint8_t* block_scale = nullptr;
  int64_t block_scale_stride = 0;
  const float* grid_scale = nullptr;
  int64_t grid_stride = 0, grid_row = 0, grid_column = 0;
  int64_t rows = 0, columns = 0;
  int32_t first_column_in_block = 0;
  WeightForm form = WeightForm::kBf16;
  float matrix_scale = 1.0f;
  float input_scale = 0.0f;
  bool packed = false;  // in the order of packed.cuh
};

// True if this program holds machine code for the device.
bool kernels_run_on(int device);

// ---- rows.cu: operators on rows of floats -----------------------------------------------------------------------
cudaError_t embed(cudaStream_t stream, const Weights& table, const int32_t* ids, int64_t rows, int64_t streams,
                  float* out);
// At most kMostNorms of them.
inline constexpr int64_t kMostNorms = 4;
cudaError_t norms(cudaStream_t stream, const Ops::Norm* norms, int64_t count, int64_t rows);
cudaError_t add(cudaStream_t stream, const float* x, int64_t count, float* y);
cudaError_t swiglu(cudaStream_t stream, const float* gate, const float* up, float limit, int64_t count, float* h);
// From the dots of fn in maps (not yet times r): maps and h of hyper_enter.
cudaError_t hyper_maps(cudaStream_t stream, const HyperShape& shape, const float* base, const float* scale,
                       const float* norm, const float* streams, int64_t rows, float* maps, float* h);
cudaError_t hyper_leave(cudaStream_t stream, const HyperShape& shape, const float* maps, const float* y, int64_t rows,
                        float* streams);
cudaError_t hyper_mean(cudaStream_t stream, const HyperShape& shape, const float* streams, int64_t rows, float* h);
cudaError_t route(cudaStream_t stream, const float* logits, const float* bias, int64_t rows, int64_t experts,
                  int64_t top, float scale, int32_t* chosen, float* weights);
int64_t argmax_working_bytes(int64_t rows);
cudaError_t argmax(cudaStream_t stream, const float* logits, int64_t rows, int64_t stride, int64_t limit, void* working,
                   int32_t* ids);

// ---- sm90_hyper.cu --------------------------------------------------------------------------------------------------
// A site in two launches where the shape fits: streams are left with leaving_maps and leaving_y first, unless null.
bool hyper_fits(const HyperShape& shape, const Weights& fn);
int64_t hyper_partial_floats(const HyperShape& shape, int64_t rows);
cudaError_t hyper_site(cudaStream_t stream, const HyperShape& shape, const Weights& fn, const float* base,
                       const float* scale, const float* norm, const float* leaving_maps, const float* leaving_y,
                       int64_t rows, float* streams, float* partials, float* maps, float* h);

cudaError_t gather(cudaStream_t stream, const float* from, const int32_t* rows, int64_t count, int64_t width,
                   float* to);

// ---- synthetic.cu ---------------------------------------------------------------------------------------------------
// Rows first .. first + rows - 1.
cudaError_t synthesise_bf16(cudaStream_t stream, const SyntheticMatrix& matrix, int64_t first, int64_t rows, void* to,
                            int64_t row_bytes);
// `largest` is 0 before, and after it the bits of the matrix's largest magnitude: its scale is that / 2688.
cudaError_t synthesise_nvfp4(cudaStream_t stream, const SyntheticMatrix& matrix, uint32_t* largest, void* codes,
                             int64_t row_bytes, void* scales, int64_t scale_stride);
// Reads `bytes` with `blocks` blocks: the ceiling that everything else is held to.
cudaError_t plain_read(cudaStream_t stream, const void* from, int64_t bytes, int blocks, uint32_t* to);

// ---- products -----------------------------------------------------------------------------------------------------
// One matrix times `rows` rows of float32 x by fused multiply-adds in the CPU backend's order, and its bits. Batched:
// batch b takes matrix rows b * batch_rows .. + outputs - 1 and x + b * batch_x, and writes y + b * batch_y.
struct FmaProduct {
  Weights weights;
  int64_t outputs = 0;
  const float* x = nullptr;
  int64_t x_stride = 0, rows = 0;
  int parts = 1;
  float* y = nullptr;
  int64_t y_stride = 0;
  int64_t batches = 1, batch_rows = 0, batch_x = 0, batch_y = 0;
  float scale = 1.0f;  // of each part's sum
};
cudaError_t fma_product(cudaStream_t stream, const FmaProduct& product);

// y[r, n, :] = scale * column product of q[r, n, :] with rows n * head_rows .. + key_width - 1 of kv_b.
cudaError_t column_product(cudaStream_t stream, const Weights& kv_b, int64_t heads, int64_t head_rows,
                           int64_t key_width, const float* q, int64_t rows, float scale, float* y);

// Prepared activations: bfloat16 [terms][rows][stride], stride a multiple of 8 and at least the columns; the rest 0.
// terms 1: rounded to nearest. terms 3: x = t0 + t1 + t2, each the nearest to what is left. With an input scale x is
// rounded to NVFP4 under it (code x block scale, exact in one term; the others are 0).
struct Preparation {
  const float* x = nullptr;
  int64_t x_stride = 0, rows = 0, columns = 0;
  int terms = 1;
  float input_scale = 0.0f;
  int32_t first_column_in_block = 0;
  uint16_t* to = nullptr;
  int64_t stride = 0;
};
cudaError_t prepare(cudaStream_t stream, const Preparation& preparation);

// Which slices (ops.h) of a part stand in one block of a product: all of them, or one each so that few rows still fill
// the device. Where slices stand alone, raw sums [parts][slices][terms * rows][outputs] are added afterwards.
inline constexpr int64_t kSliceColumns = 256;
inline constexpr int64_t kGridColumns = 128;  // an FP8 slice ends where a cell of the grid does

struct Bf16Product {
  Weights weights;
  const uint16_t* x = nullptr;  // prepared
  int64_t x_stride = 0, rows = 0;
  int terms = 1, parts = 1;
  float* raw = nullptr;  // [parts][slices][terms * rows][outputs]
  // packed_tile_products alone: from one row of raw to the next (0: outputs), and what multiplies each part's sum.
  int64_t raw_stride = 0;
  float scale = 1.0f;
  bool adds_terms = false;  // warpgroup_products alone: terms are added, raw is [parts][rows][outputs]
};
// Slices of a part; for FP8, where cells may begin inside a part, the most of any part.
int64_t slices_of(const Weights& weights, int parts);
bool splits_slices(int64_t rows, int terms);
// All of them read the same rows and terms.
cudaError_t bf16_products(cudaStream_t stream, const Bf16Product* products, int count);
// y[r, o] = tree over parts of the sum over terms of scale * (sum over slices). slices: 1, or slices_of if split.
struct Finish {
  const float* raw = nullptr;
  int64_t slices = 1, rows = 0, outputs = 0;
  int terms = 1, parts = 1;
  float scale = 1.0f;
  float* y = nullptr;
  int64_t y_stride = 0;
};
cudaError_t finish_products(cudaStream_t stream, const Finish* finishes, int count);

// ---- pack.cu --------------------------------------------------------------------------------------------------------
// Whether a matrix whose sums are cut in `parts` can stand in the order of packed.cuh (of NVFP4, if no scale is
// negative or NaN), the bytes it takes there (its scales: rows, a multiple of 16, times columns / 16), and the ways
// there and back. `plain` may be some rows of a matrix from a multiple of 16 on; `to` and `scales` are where those
// stand.
bool can_pack(WeightForm form, int64_t columns, int parts);
int64_t packed_bytes(WeightForm form, int64_t rows, int64_t columns);
cudaError_t pack(cudaStream_t stream, const Weights& plain, void* to, void* scales);
cudaError_t unpack(cudaStream_t stream, const Weights& packed, void* to, int64_t row_bytes, void* scales,
                   int64_t scale_stride);

// ---- products of packed weights -------------------------------------------------------------------------------------
// y[r, o] for rows times terms up to 64, in one launch (sm90_stream_product.cu). `scale` multiplies each part's sum.
struct RowsProduct {
  Weights weights;
  int parts = 1, terms = 1;
  int64_t rows = 0;
  float scale = 1.0f;
  const float* x = nullptr;
  int64_t x_stride = 0;
  int block_rows = 0;                  // of x: rows that a block takes at a time, or 0 for all
  bool ring_rows = false;              // x comes in the ring: at most kMostRingRows rows, addresses multiples of 16
  const uint16_t* prepared = nullptr;  // instead of x: fragments, of these rows and at least these terms
  float* y = nullptr;
  int64_t y_stride = 0;
};
inline constexpr int64_t kFewRows = 8;
// What a device gives a launch.
struct DeviceLimits {
  int multiprocessors = 1;
  int64_t shared_bytes = 0;  // the most of a block
};
// fragments.cu. Fragments [tiles][columns / 16][lane][8 bytes]: column term * rows + row of x as mma's second operand.
// Bytes: columns * tiles * 16. Several at once.
struct Fragments {
  const float* x = nullptr;
  int64_t x_stride = 0, rows = 0, columns = 0;
  int terms = 1, tiles = 1;
  float input_scale = 0.0f;
  uint16_t* to = nullptr;
};
cudaError_t prepare_fragments(cudaStream_t stream, const Fragments* fragments, int count);
// Launches that run beside each other: no one reads or writes what another writes. The first waits for what is in front
// and then lets the next start; each of those beside it ends after the one in front of it.
struct StreamTurn {
  bool beside = false;
  // That the launches in front take of a multiprocessor, to which a launch adds its own; 0: it need not fit beside
  // them.
  int64_t shared_bytes = 0;
};
// One launch of plan_stream(): all have one form, as many columns and parts, and fragment_tiles; all have x of the same
// rows (of input_scale 0, with rows times the most terms up to 8), all have ring_rows, or all have fragments.
cudaError_t stream_products(cudaStream_t stream, const DeviceLimits& limits, const RowsProduct* products, int count,
                            StreamTurn& turn);
// Any rows, from prepared rows to raw sums of one slice (finish_products).
cudaError_t packed_tile_products(cudaStream_t stream, const Bf16Product* products, int count);

// ---- experts.cu -----------------------------------------------------------------------------------------------------
// A block of rows through routed and shared experts. Places: the (row, slot) pairs sorted by expert, ascending inside
// one, then (if there is a shared expert) one a row.
struct ExpertTable {
  Weights gate, up, down;
};
struct ExpertsProblem {
  const ExpertTable* table = nullptr;  // [experts + has_shared] on the device, the shared one last
  int64_t experts = 0;
  bool has_shared = false, has_f32 = false, has_bf16 = false;    // any matrix of either kind of kernel
  bool gate_by_place = false, up_by_place = false;               // some input scale: rows are prepared for each place
  bool down_by_place = false;                                    // some input scale of down
  int64_t rows = 0, top = 0, columns = 0, inner = 0, width = 0;  // inner: the widest
  int terms = 1, parts = 1;
  float limit = 0.0f;
  const float* x = nullptr;
  const int32_t* chosen = nullptr;  // [rows, top]
  const float* weights = nullptr;   // [rows, top]
  float* y = nullptr;
  // Of the matrices that split slices: the most slices of a part of gate and up, and of down.
  int64_t inner_slices = 1, down_slices = 1;
  bool split = false;
  bool packed = false;  // all matrices are, gate and up of an expert in one form
  // All routed experts have one form and one inner width; theirs and the shared one's are multiples of 64, as columns.
  bool uniform = false;
  WeightForm routed_form = WeightForm::kNvfp4, shared_form = WeightForm::kBf16;
  int64_t routed_inner = 0, shared_inner = 0;
  bool warpgroups = false;  // warpgroup_experts takes it (warpgroup_products.h)
  // x was there before the launches of choices and places could start (stream_experts reads it without waiting).
  bool settled = false;
  constexpr int64_t places() const { return rows * top + (has_shared ? rows : 0); }
};
// Working memory, cut from one block.
struct ExpertsScratch {
  int32_t *count, *first, *place, *source, *owner, *tile_expert, *tile_begin, *tile_count;
  uint16_t *x_rows, *x_gate, *x_up, *hidden;
  float *gate, *up, *hidden_float, *down;
  static int64_t bytes(const ExpertsProblem& problem);
  ExpertsScratch(const ExpertsProblem& problem, void* base);
};
// Uniform ones with few rows on a device that has the shared memory take stream_experts (sm90_stream_experts.cu), with
// so many bytes of working memory; `counters` are two that are 0 between launches, theirs alone.
inline constexpr int64_t kStreamCounterBytes = 2 * sizeof(unsigned);
bool streams_experts(const DeviceLimits& limits, const ExpertsProblem& problem);
int64_t stream_experts_bytes(const ExpertsProblem& problem);
cudaError_t stream_experts(cudaStream_t stream, const DeviceLimits& limits, const ExpertsProblem& problem,
                           void* working, unsigned* counters);
// Packed experts with few rows take few_rows_experts (sm90_packed_experts.cu) instead of experts.
bool experts_have_few_rows(const ExpertsProblem& problem);
cudaError_t few_rows_experts(cudaStream_t stream, const ExpertsProblem& problem, const ExpertsScratch& scratch);
// Places and tiles of all but few rows.
cudaError_t place_experts(cudaStream_t stream, const ExpertsProblem& problem, const ExpertsScratch& scratch);
// Whether slices of experts' products stand in blocks of their own (ExpertsProblem::split).
bool splits_expert_slices(int64_t rows, int64_t top, int terms);
cudaError_t experts(cudaStream_t stream, const ExpertsProblem& problem, const ExpertsScratch& scratch);

// ---- spans on the device --------------------------------------------------------------------------------------------
struct DeviceSpan {
  int64_t first_row, rows, position, state_position, stored_until;  // stored_until: state_position_after
  int64_t side;                                                     // index into the side states, or -1
  int64_t pages;                                                    // where its page ids begin in SpanTable::pages
  int32_t sequence;
};
struct SpanTable {
  const DeviceSpan* spans = nullptr;
  const int32_t* span_of_row = nullptr;  // by row, counted from first_row 0
  const int32_t* pages = nullptr;
  int64_t count = 0, rows = 0;
};

// ---- kda.cu ---------------------------------------------------------------------------------------------------------
cudaError_t kda(cudaStream_t stream, const KdaShape& shape, const KdaWeights& weights, const KdaInputs& inputs,
                const KdaState& state, const SpanTable& spans, float* side, float* out);

// Spans of one row each (sm90_kda_row.cu), if the shape fits.
bool kda_takes_rows(const KdaShape& shape, const Span* spans, int64_t count);
cudaError_t kda_rows(cudaStream_t stream, const KdaShape& shape, const KdaWeights& weights, const KdaInputs& inputs,
                     const KdaState& state, const SpanTable& spans, float* out);

}  // namespace verbatim::ops::cuda
