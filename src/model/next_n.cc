// The next-n layer: one block of sparse attention and experts on plain residuals, for drafting (MODEL.md section 6).
#include <algorithm>

#include "model/forward_parts.h"
#include "model/glm.h"

namespace verbatim::model {

void next_n(ops::Ops& ops, const Model& model, const State& state, std::span<const ops::Span> spans,
            const ops::StepIds& next_ids, const float* hidden, Workspace& space, bool keep_selection) {
  check_step(model, spans, next_ids, space);
  const Config& c = model.config;
  const NextN& w = *model.weights.next_n;
  const int64_t rows = next_ids.count;
  const int64_t D = c.hidden;
  const Pass pass{ops, model, spans, rows, space};

  // x = eh_proj [ rms_norm(e, enorm) ; rms_norm(h, hnorm) ], where e of the row at position 0 is zero.
  float* x = space.streams;
  ops.embed(model.weights.embedding, next_ids, 1, x);
  ops.rms_norm(x, D, w.embedding_norm, c.norm_epsilon, rows, D, space.joined, 2 * D);
  for (const ops::Span& span : spans)
    if (span.position == 0) ops.clear(space.joined + span.first_row * 2 * D, D);
  ops.rms_norm(hidden, D, w.hidden_norm, c.norm_epsilon, rows, D, space.joined + D, 2 * D);
  ops.matmul(w.project, space.joined, 2 * D, rows, 1, x, D);

  ops.rms_norm(x, D, w.attention_norm, c.norm_epsilon, rows, D, space.input, D);
  ops::IndexShape index = index_shape(c);
  index.storage_shift = 1;
  sparse_attention(pass, w.sparse, state.sparse.back(), index, keep_selection);
  ops.add(space.output, rows * D, x);

  ops.rms_norm(x, D, w.ffn_norm, c.norm_epsilon, rows, D, space.input, D);
  moe(pass, w.moe);
  ops.add(space.output, rows * D, x);

  ops.rms_norm(x, D, w.head_norm, c.norm_epsilon, rows, D, space.output, D);
}

}  // namespace verbatim::model
