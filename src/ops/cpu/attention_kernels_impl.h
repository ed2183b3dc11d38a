// Bodies of attention_kernels.h over the lanes L.
#pragma once

#include "ops/cpu/attention_kernels.h"
#include "ops/cpu/lane_sums.h"
#include "ops/cpu/math.h"

namespace verbatim::ops::cpu {

template <class L>
void attention_pool_key(const float* const* keys, const float* const* gates, const float* ape, int64_t pool,
                        int64_t width, float* key) {
  for (int64_t c = 0; c < width; c += 16) {
    const auto logit = [&](int64_t i) { return L::load(gates[i] + c) + L::load(ape + i * width + c); };
    L maximum = logit(0);
    for (int64_t i = 1; i < pool; ++i) maximum = L::max(maximum, logit(i));
    L total = exp<L>(logit(0) - maximum);
    L sum = total * L::load(keys[0] + c);
    for (int64_t i = 1; i < pool; ++i) {
      const L weight = exp<L>(logit(i) - maximum);
      total = total + weight;
      sum = L::fma(weight, L::load(keys[i] + c), sum);
    }
    (sum / total).store(key + c);
  }
}

// Scores of kPools pools; a few heads at a time.
template <class L, int kPools>
inline void attention_score_pools(const float* q, const float* head_weights, int64_t heads, int64_t width,
                                  const float* pools, float* scores) {
  const float head_scale = 1.0f / __builtin_sqrtf(static_cast<float>(heads));
  const float width_scale = 1.0f / __builtin_sqrtf(static_cast<float>(width));
  const auto pool = [=](int j) { return pools + j * width; };
  constexpr int kHeads = kDotRows<L>;
  float dots[kHeads][kPools] = {};
  const auto add = [&](int64_t first, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      const float weight = head_weights[first + i] * head_scale;
      for (int j = 0; j < kPools; ++j) {
        const float scaled = dots[i][j] * width_scale;
        const float relu = scaled > 0.0f ? scaled : 0.0f;
        scores[j] = first + i == 0 ? weight * relu : __builtin_fmaf(weight, relu, scores[j]);
      }
    }
  };
  int64_t head = 0;
  for (; head + kHeads <= heads; head += kHeads) {
    dot_tile<L, kHeads, kPools>(q + head * width, width, pool, width, dots[0], kPools);
    add(head, kHeads);
  }
  for (; head < heads; ++head) {
    dot_tile<L, 1, kPools>(q + head * width, width, pool, width, dots[0], kPools);
    add(head, 1);
  }
}

template <class L>
void attention_score_pools(const float* q, const float* head_weights, int64_t heads, int64_t width, const float* pools,
                           int64_t count, float* scores) {
  constexpr int kPools = kDotRows<L>;
  int64_t j = 0;
  for (; j + kPools <= count; j += kPools)
    attention_score_pools<L, kPools>(q, head_weights, heads, width, pools + j * width, scores + j);
  for (; j < count; ++j) attention_score_pools<L, 1>(q, head_weights, heads, width, pools + j * width, scores + j);
}

template <class L, int kBytes>
void attention_columns(const ColumnProduct& product) {
  const auto* weights = static_cast<const char*>(product.weights);
  const L scale = L::set1(product.scale);
  column_product<L>(
      product.x, product.x_stride, product.rows, product.count, product.columns / 16,
      [&](int64_t k, int64_t v) {
        const char* p = weights + k * product.row_bytes + v * 16 * kBytes;
        if constexpr (kBytes == 2)
          return L::load_bf16(p);
        else
          return WeightLanes<L>::f32(reinterpret_cast<const uint8_t*>(p));  // at any alignment
      },
      [&](int64_t i, int64_t v, L sum) { (sum * scale).store(product.y + i * product.y_stride + v * 16); });
}

// scores[h, j] = dot16(q_h, latents[j]) * scale for j < count; the row is filled to a multiple of 16 with -infinity.
template <class L>
inline void attention_scores(const Attend& attend, const float* const* latents, int64_t count, float* scores) {
  constexpr int kHeads = kDotRows<L>, kTokens = kDotRows<L>;
  const int64_t width = attend.latent_width;
  // A few latents stay in the nearest cache while all heads pass over them.
  int64_t j = 0;
  for (; j + kTokens <= count; j += kTokens) {
    const auto latent = [=](int i) { return latents[j + i]; };
    int64_t head = 0;
    for (; head + kHeads <= attend.heads; head += kHeads)
      dot_tile<L, kHeads, kTokens>(attend.q + head * width, width, latent, width, scores + head * kAttentionGroup + j,
                                   kAttentionGroup);
    for (; head < attend.heads; ++head)
      dot_tile<L, 1, kTokens>(attend.q + head * width, width, latent, width, scores + head * kAttentionGroup + j,
                              kAttentionGroup);
  }
  for (; j < count; ++j)
    for (int64_t head = 0; head < attend.heads; ++head)
      scores[head * kAttentionGroup + j] = dot16<L>(attend.q + head * width, latents[j], width);
  for (int64_t head = 0; head < attend.heads; ++head) {
    float* row = scores + head * kAttentionGroup;
    for (int64_t i = 0; i < count; ++i) row[i] = row[i] * attend.scale;
    for (int64_t i = count; i < (count + 15) / 16 * 16; ++i) row[i] = -__builtin_inff();
  }
}

template <class L>
void attention_attend(const Attend& attend) {
  const int64_t heads = attend.heads, padded = (heads + 15) / 16 * 16, width = attend.latent_width;
  float* weights = attend.scratch;                      // [padded, group]
  float* maximum = weights + padded * kAttentionGroup;  // of all groups so far
  float* total = maximum + padded;
  float* group_maximum = total + padded;        // then the factor of this group
  float* group_total = group_maximum + padded;  // then the factor of what came before
  for (int64_t i = 0; i < 4 * padded; ++i) maximum[i] = 0.0f;
  for (int64_t begin = 0; begin < attend.tokens; begin += kAttentionGroup) {
    const int64_t left = attend.tokens - begin, count = left < kAttentionGroup ? left : kAttentionGroup;
    const float* const* latents = attend.latents + begin;
    attention_scores<L>(attend, latents, count, weights);
    for (int64_t head = 0; head < heads; ++head) {
      float* row = weights + head * kAttentionGroup;
      float most = row[0];
      for (int64_t i = 1; i < count; ++i) most = row[i] > most ? row[i] : most;
      L sum = L::zero();
      for (int64_t i = 0; i < count; i += 16) {
        const L weight = exp<L>(L::load(row + i) - L::set1(most));
        weight.store(row + i);
        sum = sum + weight;
      }
      group_maximum[head] = most;
      group_total[head] = L::sum(sum);
    }
    if (begin == 0) {
      for (int64_t head = 0; head < heads; ++head) {
        maximum[head] = group_maximum[head];
        total[head] = group_total[head];
      }
    } else {
      for (int64_t head = 0; head < heads; head += 16) {
        const L before = L::load(maximum + head), own = L::load(group_maximum + head), both = L::max(before, own);
        const L keep = exp<L>(before - both), factor = exp<L>(own - both);
        L::fma(L::load(group_total + head), factor, L::load(total + head) * keep).store(total + head);
        both.store(maximum + head);
        factor.store(group_maximum + head);
        keep.store(group_total + head);
      }
    }
    column_product<L>(
        weights, kAttentionGroup, heads, count, width / 16,
        [&](int64_t k, int64_t v) { return L::load(latents[k] + v * 16); },
        [&](int64_t head, int64_t v, L sum) {
          float* out = attend.out + head * width + v * 16;
          if (begin != 0) sum = L::fma(sum, L::set1(group_maximum[head]), L::load(out) * L::set1(group_total[head]));
          sum.store(out);
        });
  }
  for (int64_t head = 0; head < heads; ++head) {
    for (int64_t c = 0; c < width; c += 16) {
      float* out = attend.out + head * width + c;
      (attend.tokens > 0 ? L::load(out) / L::set1(total[head]) : L::zero()).store(out);
    }
  }
}

template <class L>
constexpr AttentionKernels make_attention_kernels() {
  return {attention_pool_key<L>, attention_score_pools<L>, attention_columns<L, 4>, attention_columns<L, 2>,
          attention_attend<L>};
}

}  // namespace verbatim::ops::cpu
