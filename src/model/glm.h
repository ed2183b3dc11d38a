// The whole model on one page: its weights, its state and its workspace, with a shape on every line.
// Letters as in MODEL.md: D hidden, S residual streams, N linear heads of width d, H attention heads, R latent width,
// E experts, I expert width, V vocabulary, T rows of a step.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "model/config.h"
#include "ops/ops.h"

namespace verbatim {
class ThreadPool;
}

namespace verbatim::model {

using ops::Matrix;

enum class Precision {
  kFull,        // W4A16: weights as stored, activations not quantised
  kCheckpoint,  // the checkpoint's own math: W4A4 for every matrix that stores input_scale
};

// ---- weights: views of the stored bytes; small vectors are widened to float32, which changes no value ---------------
struct LinearAttention {
  Matrix q, k, v;           // [N*d, D]
  Matrix f_a, g_a;          // [d, D]
  Matrix f_b, g_b;          // [N*d, d]
  Matrix b;                 // [N, D]
  Matrix o;                 // [D, N*d]
  ops::KdaWeights vectors;  // conv taps [N*d, 4] x 3, A_log [N], dt_bias [N*d], o_norm [d]
};

struct SparseAttention {
  Matrix q_a;                              // [Rq, D]
  const float* q_norm = nullptr;           // [Rq]
  Matrix q_b;                              // [H*key_width, Rq]
  Matrix kv_a;                             // [R, D]
  const float* kv_norm = nullptr;          // [R]
  Matrix kv_b;                             // [H*(key_width + value_width), R]
  Matrix o;                                // [D, H*value_width]
  Matrix index_q;                          // [index_heads*index_width, Rq]
  Matrix index_k;                          // [index_width, D]
  Matrix index_gate;                       // [index_width, D]
  Matrix index_weights;                    // [index_heads, D]
  const float* index_norm = nullptr;       // [index_width]
  const float* index_norm_bias = nullptr;  // [index_width]
  const float* pool_position = nullptr;    // [pool, index_width]
};

struct Mlp {
  Matrix gate, up;  // [dense, D]
  Matrix down;      // [D, dense]
};

struct Moe {
  Matrix router;                            // [E, D]
  const float* bias = nullptr;              // [E], for selection alone
  std::vector<ops::ExpertWeights> experts;  // E of gate, up [I, D], down [D, I]
  ops::ExpertWeights shared;                // the same with I * shared_experts
};

// A hyper-connection site and the norm of what it wraps.
struct Site {
  ops::HyperWeights hyper;      // fn [(2+S)*S, S*D], base [(2+S)*S], scale [3]
  const float* norm = nullptr;  // [D]
};

struct Layer {
  Site attention_site, ffn_site;
  MixerKind mixer = MixerKind::kLinear;
  FfnKind ffn = FfnKind::kDense;
  LinearAttention linear;  // if mixer is kLinear
  SparseAttention sparse;  // if mixer is kSparse
  Mlp mlp;                 // if ffn is kDense
  Moe moe;                 // if ffn is kSparse
};

struct NextN {
  const float* embedding_norm = nullptr;  // enorm [D]
  const float* hidden_norm = nullptr;     // hnorm [D]
  Matrix project;                         // eh_proj [D, 2*D]: embedding half first
  const float* attention_norm = nullptr;  // input_layernorm [D]
  SparseAttention sparse;
  const float* ffn_norm = nullptr;  // post_attention_layernorm [D]
  Moe moe;
  const float* head_norm = nullptr;  // shared_head.norm [D]
};

struct Weights {
  Matrix embedding;             // [V, D]
  std::vector<Layer> layers;    // L
  const float* norm = nullptr;  // [D]
  Matrix head;                  // [V, D]
  std::optional<NextN> next_n;

  std::deque<std::vector<float>> vectors;   // owns what the pointers above point to
  std::deque<std::vector<uint8_t>> packed;  // and the packed next-n experts
};

struct Model {
  Config config;
  Weights weights;
  Precision precision = Precision::kFull;
  int sum_parts = 1;  // parts of o_proj's and down_proj's sums (ops.h)
};

// Binds the stored tensors. `checkpoint` must outlive the model. Throws Error(kFormat) when tensors are missing or
// wrong or a scale is NaN, Error(kUnsupported) when `precision` asks for scales that are not stored, naming the matrix.
Model load_model(const checkpoint::Checkpoint& checkpoint, const Config& config, Precision precision, int sum_parts);

// Replaces every weight by what `ops` keeps of it (Ops::upload) and frees the host copies of vectors: on the CPU
// nothing changes; elsewhere the model then runs on `ops` alone and must not outlive it. Throws Error(kCapacity).
void upload_weights(ops::Ops& ops, Model& model);

// Replaces the next-n layer's routed experts by NVFP4 copies made one matrix at a time (MODEL.md section 9), to draft
// with fewer bytes; replies do not depend on it. Call before upload_weights. Throws Error(kFormat) for weights that are
// not finite.
void pack_next_n_experts(Model& model, const checkpoint::Checkpoint& checkpoint, ThreadPool& pool);

// Stored bytes of the matrices that one token reads: all of them but the embedding and the next-n layer, and of the
// routed experts as many as are chosen (their mean size).
int64_t weight_bytes_per_token(const Model& model);

// ---- state --------------------------------------------------------------------------------------------------------
// Bytes of what is kept, for one rank's share of the heads (rank_share below). `cache_element_bytes`, of latents and
// pool keys, is 4 on the CPU and 2 on CUDA; all else is float32 everywhere.
struct StateSizes {
  int64_t sequence_bytes = 0;  // recurrent state of one sequence, all layers, the next-n layer's tails included
  int64_t page_bytes = 0;      // kPageTokens tokens in all sparse layers, the next-n layer included
  int64_t snapshot_bytes = 0;  // S, three convolution inputs, the next-n layer's tail and one hidden vector
};
StateSizes state_sizes(const Config& config, int64_t cache_element_bytes);

// The sizes that one of `ranks` tensor-parallel ranks works on: heads and inner widths divided. Throws
// Error(kUnsupported), naming the size, where they do not divide.
Config rank_share(const Config& config, int ranks);

// Caches and recurrent state by layer, for as many sequence slots and pages as were allocated (state/storage.h).
struct State {
  std::vector<ops::KdaState> linear;     // one per linear layer, in layer order
  std::vector<ops::LatentCache> sparse;  // one per sparse layer, in layer order; the next-n layer's last
};

// ---- one step -----------------------------------------------------------------------------------------------------
ops::HyperShape hyper_shape(const Config& config);
ops::KdaShape kda_shape(const Config& config);
ops::IndexShape index_shape(const Config& config);

// Intermediate results of a step of up to `rows` rows, all float32 and laid out in one block. Mixers and feed-forwards
// do not run at the same time and share the same bytes.
class Workspace {
 public:
  Workspace(ops::Ops& ops, const Config& config, int64_t rows);
  static int64_t bytes(const Config& config, int64_t rows);
  int64_t rows() const { return rows_; }
  int64_t allocated_bytes() const { return static_cast<int64_t>(block_.bytes()); }

  float* streams;  // [T, S, D]
  float* maps;     // [T, (2+S)*S]
  float* input;    // [T, D]: collapsed and normed input of a sublayer
  float* output;   // [T, D]: of a sublayer
  float* hidden;   // [T, D]: final-normed, what the head reads
  float* joined;   // [T, 2*D]: input of the next-n projection

  struct {
    float *q, *k, *v, *f, *gate, *out;  // [T, N*d]
    float *f_low, *g_low;               // [T, d]
    float* beta;                        // [T, N]
  } linear;
  struct {
    float *query_latent, *latent;   // [T, Rq], [T, R]
    float* query;                   // [T, H*key_width]
    float *absorbed, *attended;     // [T, H, R]
    float* values;                  // [T, H*value_width]
    float* index_query;             // [T, index_heads*index_width]
    float *index_key, *index_gate;  // [T, index_width]
    float* index_weights;           // [T, index_heads]
    ops::Selection selection;       // [T, budget], [T]
  } sparse;
  struct {
    float *gate, *up;      // [T, dense]
    float* router_logits;  // [T, E]
    int32_t* chosen;       // [T, top]
    float* weights;        // [T, top]
  } ffn;

 private:
  // Lays everything out from `base`; returns the bytes used. With a null base it only counts.
  int64_t lay_out(const Config& config, int64_t rows, std::byte* base);
  Workspace() = default;
  ops::Buffer block_;
  int64_t rows_ = 0;
};

// Called after each layer with its index and the streams [T, S, D]; for tests.
using LayerHook = std::function<void(int64_t layer, const float* streams)>;

// Runs the rows of `spans` (ids[row] each) through all layers and leaves the final-normed hidden vectors in
// workspace.hidden. Rows of all kinds mix: prompt chunks, single tokens, verification windows. The spans cover rows
// 0 .. T-1; a sequence appears in one span at most. Throws Error(kUsage) for ids or rows out of range.
void forward(ops::Ops& ops, const Model& model, const State& state, std::span<const ops::Span> spans,
             std::span<const int32_t> ids, Workspace& workspace, const LayerHook& hook = {});

// The first part of forward() and one layer of it, for whoever runs the layers one at a time over many sequences
// (calibration): streams of the tokens, then streams to streams in workspace.streams. The caller checks ids and spans.
void embed_tokens(ops::Ops& ops, const Model& model, std::span<const int32_t> ids, Workspace& workspace);
void run_layer(ops::Ops& ops, const Model& model, const State& state, std::span<const ops::Span> spans, int64_t rows,
               int64_t layer, Workspace& workspace);

// logits [rows, V] of final-normed hidden vectors [rows, D].
void head(ops::Ops& ops, const Model& model, const float* hidden, int64_t rows, float* logits);

// The next-n layer (MODEL.md section 6) on rows at target positions spans[i].position: `next_ids` are the tokens that
// follow them, `hidden` [T, D] the final-normed vectors. Leaves its output [T, D] in workspace.output, which head()
// reads and the next draft step takes as `hidden`, which may be that memory. A new selection of pools is made unless
// `keep_selection`, which reuses the one in the workspace for rows in the same order (draft steps of
// index_share_for_mtp_iteration). What it caches for position p lies where token p + 1 does
// (IndexShape::storage_shift), so the pages must reach that far.
void next_n(ops::Ops& ops, const Model& model, const State& state, std::span<const ops::Span> spans,
            const ops::StepIds& next_ids, const float* hidden, Workspace& workspace, bool keep_selection = false);

}  // namespace verbatim::model
