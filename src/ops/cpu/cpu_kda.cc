// Linear attention on the CPU: one piece of work is one head of one span, rows in order, so that pieces share nothing.
#include <algorithm>
#include <cmath>
#include <utility>

#include "base/thread_pool.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/kda_kernels.h"
#include "ops/cpu/scratch.h"

namespace verbatim::ops::cpu {

namespace {

static_assert(kChunkRows == kKdaChunk && kConvTaps == 4);

struct KdaScratch;

// One head of one span.
class KdaHead {
 public:
  KdaHead(const KdaKernels& kernels, const KdaShape& shape, const KdaWeights& weights, const KdaInputs& inputs,
          const KdaState& state, const Span& span, int64_t head, float* out)
      : kernels_(kernels),
        shape_(shape),
        weights_(weights),
        inputs_(inputs),
        span_(span),
        head_(head),
        width_(shape.width),
        channels_(shape.heads * shape.width),
        offset_(head * shape.width),
        out_(out) {
    const int64_t slot = span.sequence;
    stored_ = state.state + (slot * shape.heads + head) * width_ * width_;
    conv_ = state.conv + slot * kConvRing * 3 * channels_ + offset_;
    key_ = state.key + slot * kKdaRing * channels_ + offset_;
    value_ = state.value + slot * kKdaRing * channels_ + offset_;
    decay_ = state.decay + slot * kKdaRing * channels_ + offset_;

    const int64_t row = width_, rows = kChunkRows * width_, taps = kConvTaps * width_;
    float* scratch =
        thread_scratch<KdaScratch>(row + 3 * taps + 2 * rows + kKdaBlockScratchRows * row + width_ * width_, "kda");
    const auto take = [&](int64_t count) { return std::exchange(scratch, scratch + count); };
    zeros_ = take(row);
    for (float*& each : taps_) each = take(taps);
    q_ = take(rows);
    v_ = take(rows);
    work_ = take(kKdaBlockScratchRows * row);
    side_ = take(width_ * width_);
    std::fill_n(zeros_, row, 0.0f);
    transpose_taps(weights.conv_q, taps_[0]);
    transpose_taps(weights.conv_k, taps_[1]);
    transpose_taps(weights.conv_v, taps_[2]);
  }

  void run() {
    if (span_.position == 0) std::fill_n(stored_, width_ * width_, 0.0f);
    const int64_t end = span_.position + span_.rows;
    current_ = stored_;
    for (int64_t chunk = span_.state_position; chunk + kChunkRows <= span_.position; chunk += kChunkRows)
      advance(chunk);
    for (int64_t begin = span_.position; begin < end;) {
      const int64_t chunk = begin / kChunkRows * kChunkRows;
      const int64_t stop = std::min(end, chunk + kChunkRows);
      rows(chunk, begin, stop);
      // A chunk that the span's last row completes waits for the next step: that row may yet be taken back.
      if (stop == chunk + kChunkRows && stop < end) advance(chunk);
      begin = stop;
    }
    keep_inputs(end);
  }

 private:
  // [width, 4] to [4, width]
  void transpose_taps(const float* from, float* to) const {
    from += offset_ * kConvTaps;
    for (int64_t c = 0; c < width_; ++c)
      for (int64_t tap = 0; tap < kConvTaps; ++tap) to[tap * width_ + c] = from[c * kConvTaps + tap];
  }

  float* ring_row(float* ring, int64_t position) const { return ring + position % kKdaRing * channels_; }
  int64_t row_of(int64_t position) const { return span_.first_row + position - span_.position; }

  // The input of convolution `which` at a position: this step's, an earlier step's, or zeros before the sequence.
  const float* conv_input(int which, const float* input, int64_t position) const {
    if (position < 0) return zeros_;
    if (position < span_.position) return conv_ + (position % kConvRing * 3 + which) * channels_;
    return input + row_of(position) * channels_ + offset_;
  }

  void convolve(int which, const float* input, int64_t begin, int64_t end, float* const* out) const {
    const float* inputs[kChunkRows + kConvTaps - 1];
    for (int64_t position = begin - kConvTaps + 1; position < end; ++position)
      inputs[position - begin + kConvTaps - 1] = conv_input(which, input, position);
    kernels_.convolve(taps_[which], inputs, end - begin, width_, out);
  }

  // S at the chunk's end from S at its start and the rings.
  void advance(int64_t chunk) {
    const float *keys[kChunkRows], *values[kChunkRows], *decays[kChunkRows];
    for (int64_t i = 0; i < kChunkRows; ++i) {
      keys[i] = ring_row(key_, chunk + i);
      values[i] = ring_row(value_, chunk + i);
      decays[i] = ring_row(decay_, chunk + i);
    }
    float* next = chunk + kChunkRows <= state_position_after(span_) ? stored_ : side_;
    kernels_.advance(current_, keys, values, decays, width_, work_, next);
    current_ = next;
  }

  // Positions begin .. end - 1 of the chunk that starts at `chunk`. Keys, values and decays are made in the rings.
  void rows(int64_t chunk, int64_t begin, int64_t end) const {
    KdaBlock block;
    block.width = width_;
    block.begin = begin - chunk;
    block.end = end - chunk;
    block.state = current_;
    float *keys[kChunkRows], *q_rows[kChunkRows], *v_rows[kChunkRows];
    for (int64_t i = 0; i < block.end; ++i) {
      block.keys[i] = ring_row(key_, chunk + i);
      block.decays[i] = ring_row(decay_, chunk + i);
      block.values[i] = ring_row(value_, chunk + i);
    }
    const int64_t count = end - begin;
    for (int64_t i = 0; i < count; ++i) {
      keys[i] = ring_row(key_, begin + i);
      q_rows[i] = q_ + i * width_;
      v_rows[i] = v_ + i * width_;
    }
    convolve(0, inputs_.q, begin, end, q_rows);
    convolve(1, inputs_.k, begin, end, keys);
    convolve(2, inputs_.v, begin, end, v_rows);
    const float q_factor = 1.0f / std::sqrt(static_cast<float>(width_));
    for (int64_t i = 0; i < count; ++i) {
      const int64_t position = begin + i;
      kernels_.normalise(q_rows[i], width_, q_factor);
      kernels_.normalise(keys[i], width_, 1.0f);
      kernels_.decay(inputs_.f + row_of(position) * channels_ + offset_, weights_.dt_bias + offset_,
                     weights_.a_log[head_], shape_.lower_bound,
                     position == chunk ? nullptr : ring_row(decay_, position - 1), width_, ring_row(decay_, position));
    }
    const int64_t row = row_of(begin);
    block.q = q_;
    block.v = v_;
    block.beta_logit = inputs_.beta_logit + row * shape_.heads + head_;
    block.beta_stride = shape_.heads;
    block.gate = inputs_.gate + row * channels_ + offset_;
    block.o_norm = weights_.o_norm;
    block.norm_epsilon = shape_.norm_epsilon;
    block.out = out_ + row * channels_ + offset_;
    block.stride = channels_;
    block.scratch = work_;
    kernels_.rows(block);
  }

  // The convolutions' inputs of the span's last rows, for later steps.
  void keep_inputs(int64_t end) const {
    const float* inputs[3] = {inputs_.q, inputs_.k, inputs_.v};
    for (int64_t position = std::max(span_.position, end - kConvRing); position < end; ++position)
      for (int which = 0; which < 3; ++which)
        std::copy_n(inputs[which] + row_of(position) * channels_ + offset_, width_,
                    conv_ + (position % kConvRing * 3 + which) * channels_);
  }

  const KdaKernels& kernels_;
  const KdaShape& shape_;
  const KdaWeights& weights_;
  const KdaInputs& inputs_;
  const Span& span_;
  const int64_t head_, width_, channels_, offset_;
  float* out_;
  float *stored_, *conv_, *key_, *value_, *decay_;  // of this slot and head
  const float* current_ = nullptr;                  // S at the start of the chunk in work
  float *zeros_, *q_, *v_, *work_, *side_;
  float* taps_[3];
};

}  // namespace

void CpuOps::kda(const KdaShape& shape, const KdaWeights& weights, const KdaInputs& inputs, const KdaState& state,
                 std::span<const Span> spans, int64_t /*rows*/, float* out) {
  pool_.for_each(static_cast<int64_t>(spans.size()) * shape.heads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Span& span = spans[static_cast<size_t>(i / shape.heads)];
      KdaHead(*kernels_.kda, shape, weights, inputs, state, span, i % shape.heads, out).run();
    }
  });
}

}  // namespace verbatim::ops::cpu
