// The operator contract: what every backend computes, in which shapes, and in which order every sum is taken.
// Backends (cpu/, cuda/) implement this class; model/ calls it and knows nothing else of them. Operators know no model.
//
// Shapes are row-major; `rows` is the number of token rows in the step; pointers are to backend memory (`allocate`),
// but spans with their pages, which stand in host memory, and StepIds, which say where theirs are. Weights are those
// that upload() gave. Sizes are checked by whoever binds weights (model/); operators take them as given. Operators
// throw Error(kCapacity) when memory runs out and nothing else. Norms, swiglu and add may write over their input;
// products may not.
//
// ORDER OF SUMS. It depends on shapes alone, so neither threads, chunks, batch nor instruction set change a bit.
//  dot     sum_k w[k] x[k]: k is cut in `parts` equal parts, a part in slices of 256 (the last shorter). In a slice,
//          lane l of 16 takes k = l, l+16, ... ascending (counted from the part's start) by fused multiply-add from 0;
//          then lanes l and l+8 are added, l and l+4, l and l+2, l and l+1. Slices of a part are added left to right,
//          parts as a balanced tree ((p0+p1)+(p2+p3))+... A quantised weight enters as a float32: NVFP4 as
//          code * block scale (exact), its matrix scale (times the activations' scale, if those are quantised)
//          multiplying each part's sum; FP8 as value * grid scale, rounded once; BF16 and F32 as they are.
//  dot16   a dot with one part over a vector shorter than or equal to a few slices: the same rule. Sums of squares and
//          means use it (sum x[k] * x[k]; sum x[k] * 1).
//  column  y[j] = sum_k x[k] w[k, j] (w walked by rows): slices of 256 k; in a slice one accumulator per j takes
//          k ascending by fused multiply-add from 0; slices are added left to right.
//  chain   a sum of few terms (heads, experts, streams, taps, pools, rows of a chunk): left to right in index order,
//          first term by a product, the others by fused multiply-add.
// On CUDA the dots of matmul, matmul_group and experts are taken by the matrix units instead, all else as above and
// with the CPU's bits: activations enter as bfloat16 (one term rounded to nearest, or three whose sum is the float32,
// whose three results are added left to right); a slice is one accumulation chain from 0, k ascending 16 at a time from
// the slice's start; FP8 slices end at multiples of 128 columns of the whole matrix, and the grid scale multiplies each
// slice's sum. Matrices of float32 are multiplied as on the CPU.
// Where caches are bfloat16 (as CUDA ships) the matrix units also take, k ascending 16 at a time:
//  select_pools      pool keys are rounded when stored; a dot is one chain from 0 over q's three terms, the smallest
//                    first; of the heads, lane l of 4 takes 2l, 2l+1, 8+2l, 8+2l+1, ... by fused multiply-add from 0,
//                    then (0+1)+(2+3).
//  sparse_attention  latents are rounded when stored, q when read; scores in slices of 256, one chain each; weights are
//                    rounded before their sum (dot16) is taken; a group's product with the latents is one chain from 0
//                    over its 64 tokens, of which absent ones weigh 0. Groups are merged in float32 as stated.
//  absorb            q and attended are rounded; slices of 256, one chain each, added left to right in both products.
// Latents wider than 512, index keys wider than 128, more than 32 index heads and a kv_b not stored in plain BF16 are
// computed as on the CPU, from the cached values.
// exp, sigmoid, log are the backend's own (error bounds in docs/numerics.md), the same for every instruction set.
// Ties of every selection go to the lower index.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "ops/sampling.h"

namespace verbatim {
class ThreadPool;
}

namespace verbatim::ops {

// Tokens a page holds, rows after which the state S of linear attention advances, and the most rows of a sequence
// that one step may take back (a verification window less its first row, rounded up).
inline constexpr int64_t kPageTokens = 64;
inline constexpr int64_t kChunkRows = 16;
inline constexpr int64_t kWindowRows = 8;
// Slots of the rings below, indexed by position modulo their size; truncating a sequence needs no write.
inline constexpr int64_t kKdaRing = kChunkRows + kWindowRows;
inline constexpr int64_t kConvTaps = 4;
inline constexpr int64_t kConvRing = kConvTaps - 1 + kWindowRows;

enum class WeightForm { kBf16, kF32, kNvfp4, kFp8Block };

// A weight matrix [rows, columns] (out, in) in its stored bytes, at any alignment. A view: it owns nothing.
struct Matrix {
  WeightForm form = WeightForm::kBf16;
  int64_t rows = 0, columns = 0;
  const std::byte* data = nullptr;       // BF16 2, F32 4, FP8 1 byte, NVFP4 half a byte an element (low nibble first)
  int64_t row_bytes = 0;                 // from one row to the next
  const uint8_t* block_scale = nullptr;  // NVFP4: e4m3 [rows, columns / 16]
  int64_t block_scale_stride = 0;
  const float* grid_scale = nullptr;  // FP8: [ceil(rows / 128), ceil(columns / 128)], of the whole matrix
  int64_t grid_stride = 0;
  int64_t grid_row = 0, grid_column = 0;  // where this view begins in the grid's matrix, in elements
  float matrix_scale = 1.0f;              // NVFP4: weight_scale_2
  float input_scale = 0.0f;               // > 0: activations are rounded to NVFP4 under it first (W4A4)
  bool float_input = false;               // activations enter as float32 even where a backend rounds them to bfloat16

  Matrix row_range(int64_t begin, int64_t count) const;
  // begin must be even for NVFP4; if it is no multiple of 16 the view shares the block scale it begins in.
  Matrix column_range(int64_t begin, int64_t count) const;
  int64_t first_column_in_block = 0;  // NVFP4: where the view begins inside its first block of 16
  bool is_packed = false;  // in the order of a backend's products (upload): views and rows of it mean nothing
};

// How a weight will be read: by products alone (matmul, matmul_group, experts), always in `parts` parts, or by rows.
struct WeightUse {
  bool only_products = false;
  int parts = 1;
  // A backend that copies may say, as often as it likes, that it has read the first `rows` rows of the stored matrix
  // and of its block scales for the last time.
  std::function<void(int64_t rows)> rows_taken = {};
};

// Synthetic weights: element i of the row-major matrix is mean + spread * synthetic_number(key, i) (base/synthetic.h)
// in float32, rounded to the form: BF16, or NVFP4 by quantize/nvfp4.h's rule.
struct SyntheticMatrix {
  WeightForm form = WeightForm::kBf16;
  int64_t rows = 0, columns = 0;
  uint64_t key = 0;
  float mean = 0.0f, spread = 1.0f;
};

// Rows of one sequence in a step: first_row .. first_row + rows - 1 stand at positions position, position + 1, ...
// The first `certain` of them are accepted whatever happens (all of a prompt, the first of a verification window).
struct Span {
  int64_t first_row = 0, rows = 0, position = 0, certain = 0;
  int64_t state_position = 0;      // where the stored S of linear attention stands, a multiple of kChunkRows
  int32_t sequence = 0;            // slot in the per-sequence arrays
  const int32_t* pages = nullptr;  // page ids of the sequence, for positions 0, kPageTokens, ...
};

// Where the stored S stands after a step of `span`: kda() advances it to the last chunk boundary that is at or before
// its last certain row, and no further.
inline int64_t state_position_after(const Span& span) {
  return (span.position + span.certain - 1) / kChunkRows * kChunkRows;
}

// Numbers of the rows of a step, one each: token ids, or the rows that gather() takes. They stand in host memory, or
// where an operator before (argmax, sample) left them in backend memory: then the host need not know them.
struct StepIds {
  StepIds(std::span<const int32_t> host) : data(host.data()), count(std::ssize(host)) {}
  StepIds(const std::vector<int32_t>& host) : StepIds(std::span(host)) {}
  static StepIds on_backend(const int32_t* data, int64_t count) {
    StepIds ids(std::span(data, static_cast<size_t>(count)));
    ids.is_on_backend = true;
    return ids;
  }

  const int32_t* data = nullptr;
  int64_t count = 0;
  bool is_on_backend = false;
};

struct HyperWeights {
  Matrix fn;                     // [(2 + S) * S, S * D]
  const float* base = nullptr;   // [(2 + S) * S]
  const float* scale = nullptr;  // [3]
};

struct HyperShape {
  int64_t streams = 4, width = 0;
  int sinkhorn_iterations = 20;
  float epsilon = 1e-6f, norm_epsilon = 1e-5f;
};

struct KdaShape {
  int64_t heads = 0, width = 0;  // width d of keys and values alike
  float lower_bound = -5.0f;     // of the log decay; 0: none, decay is -exp(A_log) softplus(f + dt_bias)
  float norm_epsilon = 1e-5f;
};

struct KdaWeights {
  const float* conv_q = nullptr;  // taps [heads * width, 4], tap 3 the newest
  const float* conv_k = nullptr;
  const float* conv_v = nullptr;
  const float* a_log = nullptr;    // [heads]
  const float* dt_bias = nullptr;  // [heads * width]
  const float* o_norm = nullptr;   // [width]
};

// What a step feeds to linear attention, all [rows, heads * width] but beta_logit [rows, heads], before convolution.
struct KdaInputs {
  const float* q = nullptr;
  const float* k = nullptr;
  const float* v = nullptr;
  const float* f = nullptr;           // f_b_proj(f_a_proj x)
  const float* gate = nullptr;        // g_b_proj(g_a_proj x)
  const float* beta_logit = nullptr;  // b_proj x
};

// State of one layer for all sequence slots. Rings are indexed by position modulo their size.
struct KdaState {
  float* state = nullptr;  // [slots, heads, width (key), width (value)]: S at Span::state_position
  float* conv = nullptr;   // [slots, kConvRing, 3, heads * width]: inputs of the convolutions (q, k, v)
  float* key = nullptr;    // [slots, kKdaRing, heads * width]: normalised keys of the rows since S
  float* value = nullptr;  // [slots, kKdaRing, heads * width]: v_new of the rows since S
  float* decay = nullptr;  // [slots, kKdaRing, heads * width]: G, the log decay summed from the chunk's start
};

struct IndexShape {
  int64_t heads = 0, width = 0;    // index heads and their width
  int64_t pool = 4, top = 2048;    // tokens a pool, tokens selected (top / pool pools)
  bool always_select_tail = true;  // the query sees the tokens that belong to no complete pool
  // 0, or 1 for a layer whose row at position p also depends on token p + 1 (the next-n layer): then token p is stored
  // where token p + 1 would be, and pool j where pool j + 1 would be, so that a page depends on its own tokens alone.
  int64_t storage_shift = 0;
  int64_t budget_pools() const { return top / pool; }
  int64_t tail_ring() const { return pool + kWindowRows; }
};

// Caches of one sparse-attention layer. Elements of `latents` and `pools` are float32, or bfloat16 where
// Ops::cache_element_bytes() is 2. A page p holds latents [kPageTokens, R] from element p * kPageTokens * R on, and
// pool keys [kPageTokens / pool, index width] from element p * (kPageTokens / pool) * width on.
struct LatentCache {
  void* latents = nullptr;
  void* pools = nullptr;
  float* tail_key = nullptr;   // [slots, tail_ring, index width]: ki of recent tokens
  float* tail_gate = nullptr;  // [slots, tail_ring, index width]: gi of recent tokens
};

// Pools chosen by each row, ascending: pools[row * budget + i], i < counts[row].
struct Selection {
  int32_t* pools = nullptr;   // [rows, budget_pools]
  int32_t* counts = nullptr;  // [rows]
};

struct ExpertWeights {
  Matrix gate, up, down;  // [I, D], [I, D], [D, I]
};

// Backend memory, freed with the backend that gave it still alive.
class Ops;
class Buffer {
 public:
  Buffer() = default;
  Buffer(Ops& ops, size_t bytes);
  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  size_t bytes() const { return bytes_; }
  float* floats() const { return static_cast<float*>(data_); }
  int32_t* ints() const { return static_cast<int32_t*>(data_); }

 private:
  Ops* ops_ = nullptr;
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

class Ops {
 public:
  virtual ~Ops() = default;
  virtual const char* name() const = 0;  // "cpu (avx512)"
  // Bytes of an element of latents and pool keys in its caches (LatentCache): 4, or 2 for bfloat16. Tails, convolution
  // inputs and states are float32 everywhere.
  virtual int64_t cache_element_bytes() const { return sizeof(float); }

  virtual void* allocate(size_t bytes) = 0;  // zeroed, 64-byte aligned
  virtual void release(void* data) = 0;
  virtual void copy_in(void* to, const void* from, size_t bytes) = 0;
  virtual void copy_out(void* to, const void* from, size_t bytes) = 0;

  // Weights as the operators below want them: a copy of the stored bits in backend memory, which lives as long as the
  // backend, or (on the CPU) the argument itself. Throws Error(kCapacity).
  virtual Matrix upload(const Matrix& stored, const WeightUse& /*use*/) { return stored; }
  Matrix upload(const Matrix& stored) { return upload(stored, WeightUse{}); }
  virtual const float* upload(const float* values, int64_t /*count*/) { return values; }
  // Makes such a matrix where the backend computes, as if uploaded; nothing if it must be made on the host.
  virtual std::optional<Matrix> synthesise(const SyntheticMatrix& /*matrix*/, const WeightUse& /*use*/) { return {}; }

  // Runs `body`, which calls operators with these spans and `ids` (the operators are given the arrays as they are
  // here). A backend may keep what the body launched under `tag` and the shapes, and launch that again next time
  // instead of calling it: so for equal tags and shapes the body must do the same, on the same memory (that of ids on
  // the backend too), and read nothing back.
  virtual void step(uint64_t /*tag*/, std::span<const Span> /*spans*/, const StepIds& /*ids*/,
                    const std::function<void()>& body) {
    body();
  }
  // Of the last step: kernels launched; 0 where that means nothing.
  virtual int64_t launches() const { return 0; }
  // Waits for all that was asked for.
  virtual void synchronise() {}

  // to[i, :] = from[rows[i], :], rows of `width` floats; both are backend memory and do not overlap. `rows` is host
  // memory.
  virtual void gather(const float* from, const int32_t* rows, int64_t count, int64_t width, float* to);

  // Copies between backend memory that does not overlap, in the order of the operators.
  virtual void copy(void* to, const void* from, size_t bytes);

  // streams[r, s, :] = table[ids[r], :] for every s. Ids must be below table.rows.
  virtual void embed(const Matrix& table, const StepIds& ids, int64_t streams, float* out) = 0;

  // y[r, :] = weight * (x[r, :] * (1 / sqrt(dot16(x, x) / width + epsilon))); strides in floats.
  virtual void rms_norm(const float* x, int64_t x_stride, const float* weight, float epsilon, int64_t rows,
                        int64_t width, float* y, int64_t y_stride) = 0;
  // Mean and variance by dot16 (variance of x - mean); y = (x - mean) * (1 / sqrt(variance + epsilon)) * weight + bias.
  virtual void layer_norm(const float* x, const float* weight, const float* bias, float epsilon, int64_t rows,
                          int64_t width, float* y) = 0;
  // Norms of as many rows each that need nothing of each other (one launch on backends that fuse): layer_norm where
  // there is a bias, whose strides are the width, else rms_norm.
  struct Norm {
    const float* x = nullptr;
    int64_t x_stride = 0;
    const float* weight = nullptr;
    const float* bias = nullptr;
    float epsilon = 0.0f;
    int64_t width = 0;
    float* y = nullptr;
    int64_t y_stride = 0;
  };
  virtual void norms(std::span<const Norm> norms, int64_t rows) {
    for (const Norm& n : norms) {
      if (n.bias != nullptr)
        layer_norm(n.x, n.weight, n.bias, n.epsilon, rows, n.width, n.y);
      else
        rms_norm(n.x, n.x_stride, n.weight, n.epsilon, rows, n.width, n.y, n.y_stride);
    }
  }
  virtual void add(const float* x, int64_t count, float* y) = 0;  // y += x
  virtual void clear(float* x, int64_t count) = 0;                // x = 0

  // y[r, o] = dot(w[o, :], x[r, :]) in `parts` parts; w.columns must be a multiple of parts. With w.input_scale > 0
  // x is first rounded to NVFP4 under it (MODEL.md section 9). y may not overlap x. Strides in floats.
  virtual void matmul(const Matrix& w, const float* x, int64_t x_stride, int64_t rows, int parts, float* y,
                      int64_t y_stride) = 0;
  // The same for several matrices that read the same x: y[i] = w[i] x (one pass on backends that fuse).
  struct Product {
    const Matrix* weight = nullptr;
    float* y = nullptr;
    int64_t y_stride = 0;
  };
  virtual void matmul_group(std::span<const Product> products, const float* x, int64_t x_stride, int64_t rows) = 0;
  // The same for matrices with an input each: y[i] = w[i] x[i].
  struct OwnProduct {
    const Matrix* weight = nullptr;
    const float* x = nullptr;
    int64_t x_stride = 0;
    float* y = nullptr;
    int64_t y_stride = 0;
  };
  virtual void matmul_each(std::span<const OwnProduct> products, int64_t rows) {
    for (const OwnProduct& each : products) matmul(*each.weight, each.x, each.x_stride, rows, 1, each.y, each.y_stride);
  }

  // h = silu(min(gate, limit)) * clamp(up, -limit, limit), all [rows, width]; silu(a) = a * sigmoid(a).
  virtual void swiglu(const float* gate, const float* up, float limit, int64_t count, float* h) = 0;

  // Hyper-connections, MODEL.md section 2, float32 throughout. `streams` is X [rows, S, D].
  // enter: maps[r] = (pre [S], post [S], comb [S, S]); h = rms_norm(sum_s pre[s] X[s], norm) [rows, D].
  //   r = 1 / sqrt(dot16(X, X) / (S D) + norm_epsilon) multiplies the dots of fn; sums over S are chains.
  virtual void hyper_enter(const HyperShape& shape, const HyperWeights& weights, const float* norm,
                           const float* streams, int64_t rows, float* maps, float* h) = 0;
  // leave: X[j] = post[j] * y + sum_i comb[i, j] * X[i]: the chain over i first, then fused with post[j] * y.
  virtual void hyper_leave(const HyperShape& shape, const float* maps, const float* y, int64_t rows,
                           float* streams) = 0;
  // h = (X[0] + X[1] + ...) / S, left to right.
  virtual void hyper_mean(const HyperShape& shape, const float* streams, int64_t rows, float* h) = 0;

  // Linear attention between its projections, MODEL.md section 3: convolution and SiLU, decay, beta, the row rule with
  // the carried state, output norm and gate. out [rows, heads * width]. One routine for prompt, decode and
  // verification. First S is advanced to the last chunk boundary at or before span.position, then row by row; S is
  // stored at boundaries up to state_position_after(span) and advanced on the side past it. Rows are written to the
  // rings, so that taking back rows is truncation. A span of no rows with
  // certain = 1 only advances S. A span at position 0 starts from S = 0, whatever the slot held.
  // Order: dots over the key width are dot16 with fma(k_t * exp(G_t - G_s), k_s); products with S walk the key channels
  // ascending (column, of k_t * exp(G_t)); v_new_t = beta * r, where r = v_t - product, then less dot * v_new_s (fused)
  // for s = 0, 1, ...; o_t = product, then plus dot * v_new_s (fused) up to s = t; S <- exp(G_C) S + sum_s
  // (k_s exp(G_C - G_s)) v_new_s, a chain from s = 0. q and k are multiplied by width^-0.5 (q) or 1 (k) times
  // 1 / sqrt(dot16(x, x) + 1e-6); out = (o_norm * (o * (1 / sqrt(dot16(o, o) / width + epsilon)))) * sigmoid(gate).
  // shape.width is a multiple of 16; a span has at most kWindowRows rows that are not certain.
  virtual void kda(const KdaShape& shape, const KdaWeights& weights, const KdaInputs& inputs, const KdaState& state,
                   std::span<const Span> spans, int64_t rows, float* out) = 0;

  // Sparse attention with a pooled indexer, MODEL.md section 4. Widths of latents and index keys are multiples of 16.
  // Stores latents [rows, R] and, per token, index key ki and gate gi [rows, width] (after LayerNorm; gate raw);
  // writes the pool key of every pool that a row completes: per channel softmax over the pool's tokens of
  // gi + ape[slot] (maximum, exps, sums left to right), then the chain of a * ki divided by the sum of exps.
  virtual void append_latents(const IndexShape& shape, int64_t latent_width, const float* latents, const float* keys,
                              const float* gates, const float* ape, std::span<const Span> spans,
                              const LatentCache& cache) = 0;
  // Row at position p has F = (p + 1) / pool complete pools. F <= budget: all of them. Else the budget best by
  // score(pool) = chain over heads of (head_weight * heads^-0.5) * relu(dot16(q_head, pool) * width^-0.5). The zeros of
  // both signs tie; NaN never wins.
  // q [rows, heads * width], head_weights [rows, heads].
  virtual void select_pools(const IndexShape& shape, const float* q, const float* head_weights,
                            std::span<const Span> spans, const LatentCache& cache, const Selection& selection) = 0;
  // Absorbed queries: out[r, n, :] = column product of q[r, n, :] with the key rows of kv_b, which holds per head
  // key_width rows of keys then value_width rows of values, R columns. out [rows, heads, R]. kv_b's input is the
  // latent, so its input_scale says nothing about q or attended: both absorb operators ignore it.
  virtual void absorb_queries(const Matrix& kv_b, int64_t heads, int64_t key_width, int64_t value_width, const float* q,
                              int64_t rows, float* out) = 0;
  // For each row and head over the visible tokens (tokens of the selected pools, then the tail, ascending), cut in
  // groups of 64 by rank: scores = dot16(q, latent) * scale; group maximum, weights exp(score - maximum), their sum
  // (dot16) and the column product of weights and latents; groups merged left to right: m = max, both sides scaled by
  // exp(own - m), fma(own, factor, before * factor); then divided by the sum. Without always_select_tail the tail is
  // not visible; a row that sees no token gives zeros. q, out [rows, heads, R].
  virtual void sparse_attention(const IndexShape& shape, int64_t heads, int64_t latent_width, float scale,
                                const float* q, std::span<const Span> spans, const LatentCache& cache,
                                const Selection& selection, float* out) = 0;
  // out[r, n, j] = dot(value row j of head n, attended[r, n, :]). out [rows, heads * value_width].
  virtual void absorb_values(const Matrix& kv_b, int64_t heads, int64_t key_width, int64_t value_width,
                             const float* attended, int64_t rows, float* out) = 0;

  // Router: s = sigmoid(logits); the `top` experts of highest s + bias (lower id on a tie), in that order; weights =
  // s / (s_0 + s_1 + ... + 1e-20) * scale. chosen, weights [rows, top].
  virtual void route(const float* logits, const float* bias, int64_t rows, int64_t experts, int64_t top, float scale,
                     int32_t* chosen, float* weights) = 0;
  // y[r, :] = sum over slots of weights[r, slot] * expert(x[r]) + shared(x[r]). In each of `parts` parts of the inner
  // width: chain over slots in order, then the shared expert's partial added; parts as a balanced tree. Each matrix
  // with input_scale > 0 rounds its own input. Gate and up have their own scales.
  virtual void experts(std::span<const ExpertWeights> experts, const ExpertWeights& shared, float limit, const float* x,
                       int64_t rows, int64_t top, const int32_t* chosen, const float* weights, int parts, float* y) = 0;

  // ids[r] = index of the largest of logits[r, 0 .. limit): lower index on a tie; NaN never wins.
  virtual void argmax(const float* logits, int64_t rows, int64_t stride, int64_t limit, int32_t* ids) = 0;
  // ids[r] = the token that how[r] chooses from logits[r, 0 .. limit) (sampling.h). `how` [rows] and `adjustments` (of
  // ids below the limit) are host memory; the logits are left in any state. Not inside step().
  virtual void sample(float* logits, int64_t rows, int64_t stride, int64_t limit, std::span<const SampleRow> how,
                      std::span<const LogitAdjustment> adjustments, int32_t* ids);
};

// Instruction sets of the CPU backend; all give the same bits.
enum class CpuIsa { kBest, kPlain, kAvx2, kAvx512 };

// True if this machine can run it (kBest and kPlain always).
bool cpu_isa_available(CpuIsa isa);

// The pool must outlive the result. Throws Error(kUnsupported) if the machine lacks the instruction set.
std::unique_ptr<Ops> make_cpu_ops(ThreadPool& pool, CpuIsa isa = CpuIsa::kBest);

}  // namespace verbatim::ops
